//! Measures the cost of a calibrated conversion.
//!
//! `convert_cost FOLDER [TOKENS] [THREADS]` converts a checkpoint with the program's text `calibration.txt`.
//! It prints wall-clock and CPU time of each phase, and the peak memory.
//!
//! `convert_cost synthetic [TOKENS] [THREADS] [EXPERTS]` first generates one layer of random weights with
//! Qwen3-30B-A3B's shape (hidden 2048, experts of 768, 32 and 4 heads of 128) in a temporary directory. With
//! fewer than its 128 experts, tokens choose proportionally fewer of them, so that each expert sees as many
//! tokens as in the whole layer. The experts' share of the cost then scales with their number.
#![expect(clippy::print_stdout, reason = "the result is printed")]

use std::collections::BTreeMap;
use std::error::Error;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use nestling_convert::calibrate::CalibrationTokens;
use nestling_convert::convert::{
    Calibration, ConvertOptions, ConvertPhase, ConvertProgress, convert,
};
use nestling_core::CancelToken;
use nestling_import::Checkpoint;
use nestling_text::{EncodeOptions, SpecialText, Tokenizer};

const VOCAB_SIZE: u64 = 4096;
const HIDDEN: u64 = 2048;
const INTERMEDIATE: u64 = 768;
const HEADS: (u64, u64, u64) = (32, 4, 128);

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default: usize| {
        arguments.get(at).map_or(Ok(default), |text| text.parse::<usize>())
    };
    let source = arguments.first().ok_or("give a checkpoint's folder, or `synthetic`")?;
    let (count, threads, experts) = (number(1, 16_384)?, number(2, 0)?, number(3, 16)?);
    let scratch = std::env::temp_dir().join(format!("nestling-cost-{}", std::process::id()));
    fs::create_dir_all(&scratch)?;
    let folder = match source.as_str() {
        "synthetic" => synthetic(&scratch, experts as u64)?,
        folder => PathBuf::from(folder),
    };
    let checkpoint = Checkpoint::open(&folder)?;
    let tokens = match source.as_str() {
        "synthetic" => noise().map(|value| (value % VOCAB_SIZE) as u32).take(count).collect(),
        _ => text_tokens(&checkpoint, count)?,
    };
    let mut options = ConvertOptions::default();
    options.threads = threads;
    options.calibration = Calibration::Tokens(CalibrationTokens::new(tokens)?);
    let mut costs = Costs::new();
    let mut progress = |at: ConvertProgress| costs.enter(&at);
    let report = convert(
        &checkpoint,
        &scratch.join("cost.nest"),
        &options,
        &CancelToken::new(),
        &mut progress,
    )?;
    costs.print();
    println!("{} bytes, {} tokens at most", report.store_bytes, count);
    fs::remove_dir_all(&scratch)?;
    Ok(())
}

/// Wall-clock and CPU seconds of each phase.
struct Costs {
    phase: Option<ConvertPhase>,
    since: (Instant, f64),
    spent: BTreeMap<String, (f64, f64)>,
}

impl Costs {
    fn new() -> Self {
        Self { phase: None, since: (Instant::now(), processor_seconds()), spent: BTreeMap::new() }
    }

    fn enter(&mut self, at: &ConvertProgress) {
        if self.phase == Some(at.phase) {
            return;
        }
        let now = (Instant::now(), processor_seconds());
        if let Some(phase) = self.phase.replace(at.phase) {
            let spent = self.spent.entry(format!("{phase:?}")).or_default();
            spent.0 += now.0.duration_since(self.since.0).as_secs_f64();
            spent.1 += now.1 - self.since.1;
        }
        self.since = now;
    }

    fn print(&self) {
        for (phase, (time, processor)) in &self.spent {
            println!("{phase:12} {time:8.1} s, {processor:8.1} s of processors");
        }
        // Default: without this file, the peak is unknown.
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let peak = status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or("peak unknown");
        println!("{peak}");
    }
}

/// Returns the user CPU time of all threads in seconds, if the system reports it.
fn processor_seconds() -> f64 {
    // Default: without this file, the time is unknown.
    let text = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = text.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
    fields.clone().nth(11).and_then(|ticks| ticks.parse::<f64>().ok()).unwrap_or(0.0) / 100.0
}

fn text_tokens(checkpoint: &Checkpoint, count: usize) -> Result<Vec<u32>, Box<dyn Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = fs::read_to_string(root.join("apps/cli/data/calibration.txt"))?;
    let file = "tokenizer.json";
    let bytes = checkpoint.asset(file)?.ok_or("the checkpoint has no tokenizer")?;
    let options = EncodeOptions { add_special_tokens: false, special_text: SpecialText::Parse };
    let mut tokens = Tokenizer::from_bytes(file, &bytes)?.encode(&text, options)?;
    tokens.truncate(count);
    Ok(tokens)
}

/// Returns a deterministic sequence of pseudo-random numbers.
fn noise() -> impl Iterator<Item = u64> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    std::iter::repeat_with(move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state >> 16
    })
}

fn synthetic(folder: &Path, experts: u64) -> Result<PathBuf, Box<dyn Error>> {
    let per_token = (experts / 16).max(1);
    let (heads, kv_heads, head_dim) = HEADS;
    let config = serde_json::json!({
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe",
        "vocab_size": VOCAB_SIZE, "hidden_size": HIDDEN, "intermediate_size": INTERMEDIATE,
        "moe_intermediate_size": INTERMEDIATE, "num_hidden_layers": 1,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim,
        "num_experts": experts, "num_experts_per_tok": per_token, "norm_topk_prob": true,
        "decoder_sparse_step": 1, "mlp_only_layers": [], "attention_bias": false,
        "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 1e6,
        "max_position_embeddings": 4096, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
    });
    let folder = folder.join("checkpoint");
    fs::create_dir_all(&folder)?;
    fs::write(folder.join("config.json"), config.to_string())?;
    // Unused, since the tokens are given as numbers.
    fs::write(folder.join("tokenizer.json"), "{}")?;
    let layer = |name: &str| format!("model.layers.0.{name}.weight");
    let mut tensors = vec![
        ("model.embed_tokens.weight".to_owned(), vec![VOCAB_SIZE, HIDDEN]),
        ("model.norm.weight".to_owned(), vec![HIDDEN]),
        (layer("input_layernorm"), vec![HIDDEN]),
        (layer("post_attention_layernorm"), vec![HIDDEN]),
        (layer("self_attn.q_norm"), vec![head_dim]),
        (layer("self_attn.k_norm"), vec![head_dim]),
        (layer("self_attn.q_proj"), vec![heads * head_dim, HIDDEN]),
        (layer("self_attn.k_proj"), vec![kv_heads * head_dim, HIDDEN]),
        (layer("self_attn.v_proj"), vec![kv_heads * head_dim, HIDDEN]),
        (layer("self_attn.o_proj"), vec![HIDDEN, heads * head_dim]),
        (layer("mlp.gate"), vec![experts, HIDDEN]),
    ];
    for expert in 0..experts {
        let name = |kind: &str| layer(&format!("mlp.experts.{expert}.{kind}_proj"));
        tensors.push((name("gate"), vec![INTERMEDIATE, HIDDEN]));
        tensors.push((name("up"), vec![INTERMEDIATE, HIDDEN]));
        tensors.push((name("down"), vec![HIDDEN, INTERMEDIATE]));
    }
    write_tensors(&folder.join("model.safetensors"), &tensors)?;
    Ok(folder)
}

/// Writes tensors in bfloat16: norms of ones, and approximately normal matrices.
fn write_tensors(path: &Path, tensors: &[(String, Vec<u64>)]) -> Result<(), Box<dyn Error>> {
    let mut header = serde_json::Map::new();
    let mut at = 0;
    for (name, shape) in tensors {
        let end = at + 2 * shape.iter().product::<u64>();
        let entry = serde_json::json!({"dtype": "BF16", "shape": shape, "data_offsets": [at, end]});
        header.insert(name.clone(), entry);
        at = end;
    }
    let header = serde_json::Value::Object(header).to_string();
    let mut file = BufWriter::new(File::create(path)?);
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(header.as_bytes())?;
    let mut numbers = noise();
    for (_, shape) in tensors {
        let scale = 2.0 / (shape.last().copied().unwrap_or(1) as f32).sqrt();
        for _ in 0..shape.iter().product::<u64>() {
            let value = match shape.len() {
                1 => 1.0,
                _ => {
                    // The sum of four bytes is approximately normal.
                    let bytes = numbers.next().ok_or("the noise has no end")?.to_le_bytes();
                    let sum: f32 = bytes[..4].iter().map(|byte| f32::from(*byte) - 127.5).sum();
                    scale * sum / 148.0
                }
            };
            file.write_all(&((value.to_bits() >> 16) as u16).to_le_bytes())?;
        }
    }
    Ok(file.flush()?)
}
