//! Builder of GGUF files, valid or malformed.

/// A GGUF file under construction.
#[derive(Clone)]
pub struct Builder {
    pub version: u32,
    pub keys: Vec<Vec<u8>>,
    pub tensors: Vec<Vec<u8>>,
    pub data: Vec<u8>,
    pub alignment: usize,
    /// Count written instead of the true number of tensors.
    pub tensor_count: Option<u64>,
    pub key_count: Option<u64>,
}

pub fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

impl Builder {
    pub fn new() -> Self {
        Self {
            version: 3,
            keys: Vec::new(),
            tensors: Vec::new(),
            data: Vec::new(),
            alignment: 32,
            tensor_count: None,
            key_count: None,
        }
    }

    /// Adds a key with a type number and the bytes of its value.
    pub fn key(mut self, name: &str, kind: u32, value: &[u8]) -> Self {
        self.keys.push([&text(name)[..], &kind.to_le_bytes(), value].concat());
        self
    }

    pub fn number(self, name: &str, value: u32) -> Self {
        self.key(name, 4, &value.to_le_bytes())
    }

    pub fn float(self, name: &str, value: f32) -> Self {
        self.key(name, 6, &value.to_le_bytes())
    }

    pub fn text(self, name: &str, value: &str) -> Self {
        self.key(name, 8, &text(value))
    }

    pub fn texts(self, name: &str, values: &[&str]) -> Self {
        let bytes: Vec<u8> = values.iter().flat_map(|value| text(value)).collect();
        self.array(name, 8, values.len() as u64, &bytes)
    }

    pub fn array(self, name: &str, kind: u32, count: u64, values: &[u8]) -> Self {
        let value = [&kind.to_le_bytes()[..], &count.to_le_bytes(), values].concat();
        self.key(name, 9, &value)
    }

    /// Adds the keys and the embedding of a minimal Qwen3-MoE, without a tokenizer.
    pub fn qwen3_moe(self) -> Self {
        self.qwen3_moe_of(1, 2).tensor("token_embd.weight", &[32, 2], 0, 0).data(256)
    }

    /// Adds the keys of a Qwen3-MoE with the given numbers of layers and experts.
    pub fn qwen3_moe_of(self, layers: u32, experts: u32) -> Self {
        let sizes = [
            ("context_length", 64),
            ("embedding_length", 32),
            ("attention.head_count", 2),
            ("attention.head_count_kv", 2),
            ("feed_forward_length", 32),
            ("expert_count", experts),
            ("expert_used_count", 1),
            ("expert_feed_forward_length", 32),
            ("block_count", layers),
        ];
        let add = |all: Self, (key, value)| all.number(&format!("qwen3moe.{key}"), value);
        sizes
            .into_iter()
            .fold(self, add)
            .text("general.architecture", "qwen3moe")
            .float("qwen3moe.attention.layer_norm_rms_epsilon", 1e-6)
    }

    /// Adds a tensor. Dimensions are in the order of the file.
    pub fn tensor(mut self, name: &str, sizes: &[u64], kind: u32, offset: u64) -> Self {
        let mut entry = text(name);
        entry.extend((sizes.len() as u32).to_le_bytes());
        entry.extend(sizes.iter().flat_map(|size| size.to_le_bytes()));
        entry.extend(kind.to_le_bytes());
        entry.extend(offset.to_le_bytes());
        self.tensors.push(entry);
        self
    }

    pub fn data(mut self, bytes: usize) -> Self {
        self.data = vec![0; bytes];
        self
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(self.tensor_count.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        out.extend(self.key_count.unwrap_or(self.keys.len() as u64).to_le_bytes());
        out.extend(self.keys.concat());
        out.extend(self.tensors.concat());
        out.resize(out.len().next_multiple_of(self.alignment), 0);
        out.extend(&self.data);
        out
    }
}
