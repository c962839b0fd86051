//! Malicious files: each is rejected with a specific error, quickly and with little memory.

use std::time::Instant;

use nestling_import::gguf::{GgufHeader, assets, config_json};
use nestling_import::{ImportError, ModelConfig};

use super::builder::{Builder, text};

/// Type number of Q8_0.
const Q8_0: u32 = 8;
const F32: u32 = 0;

fn parse(bytes: &[u8]) -> Result<GgufHeader, ImportError> {
    GgufHeader::parse("x.gguf", bytes, bytes.len() as u64)
}

fn refused(builder: &Builder) -> String {
    let begun = Instant::now();
    let error = parse(&builder.bytes()).unwrap_err().to_string();
    assert!(begun.elapsed().as_millis() < 1000, "{error}");
    assert!(error.len() < 600, "{error}");
    assert!(error.starts_with("x.gguf: "), "{error}");
    error
}

fn small() -> Builder {
    Builder::new().text("general.architecture", "qwen3moe").tensor("a", &[32, 2], Q8_0, 0).data(68)
}

#[track_caller]
fn says(builder: &Builder, part: &str) {
    let error = refused(builder);
    assert!(error.contains(part), "{error}");
}

#[test]
fn a_sound_file_is_read() {
    for version in [2, 3] {
        let header = parse(&Builder { version, ..small() }.bytes()).unwrap();
        assert_eq!(header.tensors[0].shape, [2, 32]);
    }
    let aligned = Builder { alignment: 4096, ..small().number("general.alignment", 4096) };
    assert_eq!(parse(&aligned.bytes()).unwrap().data_offset, 4096);
}

#[test]
fn magic_and_version() {
    assert!(parse(b"").is_err());
    assert!(parse(b"GGUF").is_err());
    let mut other = small().bytes();
    other[0] = b'g';
    assert!(parse(&other).unwrap_err().to_string().contains("magic number"));
    for version in [0, 1, 4, u32::MAX] {
        says(&Builder { version, ..small() }, "supported: 2 and 3");
    }
    says(&Builder { version: 3 << 24, ..small() }, "big-endian");
}

#[test]
fn counts_beyond_the_file() {
    for count in [1 << 20, 1 << 40, u64::MAX] {
        says(&Builder { tensor_count: Some(count), ..small() }, "the number of tensors");
        says(&Builder { key_count: Some(count), ..small() }, "the number of metadata keys");
    }
    says(&Builder { tensor_count: Some(1000), ..small() }, "the number of tensors");
    refused(&Builder { key_count: Some(2), ..small() });
    for (kind, count) in [(0, u64::MAX), (8, 1 << 61), (6, 1 << 30), (9, 1 << 20)] {
        says(&small().array("list", kind, count, &[0; 64]), "the number of values of `list`");
    }
    // A text longer than the file.
    says(&small().key("long", 8, &u64::MAX.to_le_bytes()), "long");
    says(&small().array("long", 8, 1, &(1u64 << 50).to_le_bytes()), "long");
}

#[test]
fn keys_that_make_no_sense() {
    says(&small().number("a", 1).number("a", 1), "key `a`");
    says(&small().key("kind", 13, &[0; 8]), "a value type from 0 to 12");
    says(&small().key("truth", 7, &[2]), "0 or 1");
    let mut bad = small();
    bad.keys.push([&1u64.to_le_bytes()[..], &[0xff], &4u32.to_le_bytes(), &[0; 4]].concat());
    says(&bad, "UTF-8");
    for alignment in [0, 3, 1 << 30] {
        says(&small().number("general.alignment", alignment), "general.alignment");
    }
    says(&small().text("general.alignment", "32"), "general.alignment");
}

#[test]
fn arrays_within_arrays() {
    let nested = |depth: usize| {
        let front = [&9u32.to_le_bytes()[..], &1u64.to_le_bytes()].concat();
        let mut value = front.repeat(depth);
        value.extend(4u32.to_le_bytes());
        value.extend(0u64.to_le_bytes());
        small().key("deep", 9, &value)
    };
    assert!(parse(&nested(3).bytes()).is_ok());
    for depth in [4, 100, 100_000] {
        says(&nested(depth), "deep");
    }
}

#[test]
fn tensors_that_make_no_sense() {
    let base = || Builder::new().data(4096);
    let wrong = |tensor: Builder, part: &str| says(&tensor, part);
    wrong(base().tensor("a", &[32], F32, 0).tensor("a", &[32], F32, 128), "a new name");
    wrong(base().tensor("a", &[64], F32, 0).tensor("b", &[32], F32, 128), "behind a");
    wrong(base().tensor("a", &[64], F32, 0).tensor("b", &[64], F32, 0), "behind a");
    wrong(base().tensor("a", &[32], F32, 1), "in steps of 32");
    wrong(base().tensor("a", &[], F32, 0), "1 to 4 dimensions");
    wrong(base().tensor("a", &[1; 5], F32, 0), "1 to 4 dimensions");
    wrong(base().tensor("a", &[0, 4], F32, 0), "rows of whole blocks");
    wrong(base().tensor("a", &[4, 0], F32, 0), "at least one");
    wrong(base().tensor("a", &[33], Q8_0, 0), "blocks of 32");
    wrong(base().tensor("a", &[u64::MAX, 2], F32, 0), "at most 2^64");
    wrong(base().tensor("a", &[1 << 63, 1 << 63, 4], F32, 0), "at most 2^64");
    wrong(base().tensor("a", &[2048], F32, 0), "to the file's end");
    wrong(base().tensor("a", &[32], F32, u64::MAX - 31), "to the file's end");
    wrong(base().tensor("a", &[32], 99, 0), "a known element type");
    wrong(base().tensor("a", &[256], 15, 0), "Q8_K");
    wrong(base().tensor(&"n".repeat(300), &[32], F32, 0), "a tensor's name");
}

#[test]
fn families_and_options_that_are_not_known() {
    let error = |builder: Builder| assets(&parse(&builder.bytes()).unwrap()).unwrap_err();
    let file = || {
        Builder::new()
            .text("tokenizer.ggml.model", "gpt2")
            .text("tokenizer.ggml.pre", "qwen2")
            .texts("tokenizer.ggml.tokens", &["a", "b"])
            .texts("tokenizer.ggml.merges", &[])
    };
    // A name may have only a family of dense models, or only one with experts.
    for name in ["rwkv6", "qwen3moe"] {
        let none = file().text("general.architecture", name);
        let zero = none.clone().number(&format!("{name}.expert_count"), 0);
        for file in [none, zero] {
            let dense = error(file).to_string();
            assert!(
                dense.contains(&format!(
                    "{name} is not a supported family of dense models; supported: llama"
                )),
                "{dense}"
            );
        }
    }
    let experts = file().text("general.architecture", "rwkv6").number("rwkv6.expert_count", 4);
    let said = error(experts).to_string();
    assert!(said.contains("rwkv6") && said.contains("qwen3moe"), "{said}");
    assert!(error(file()).to_string().contains("general.architecture"));
    let qwen = file().text("general.architecture", "qwen3moe").number("qwen3moe.expert_count", 4);
    let option = qwen.clone().number("qwen3moe.new_trick", 1);
    assert!(error(option).to_string().contains("qwen3moe.new_trick"));
    assert!(error(qwen).to_string().contains("qwen3moe.context_length"));
}

#[test]
fn tokenizers_and_templates_that_make_no_sense() {
    let model = Builder::qwen3_moe;
    let file = |pre: &str, tokens: &[&str], merges: &[&str]| {
        Builder::new()
            .text("tokenizer.ggml.model", "gpt2")
            .text("tokenizer.ggml.pre", pre)
            .texts("tokenizer.ggml.tokens", tokens)
            .texts("tokenizer.ggml.merges", merges)
    };
    let run = |builder: Builder| {
        let begun = Instant::now();
        let result = assets(&parse(&model(builder).bytes()).unwrap());
        assert!(begun.elapsed().as_millis() < 1000);
        result.map_err(|error| error.to_string())
    };
    let says = |builder: Builder, part: &str| {
        let error = run(builder).unwrap_err();
        assert!(error.contains(part), "{error}");
    };
    assert!(run(file("qwen2", &["a", "b", "ab"], &["a b"])).is_ok());
    says(file("secret", &["a"], &[]), "secret");
    says(file("qwen2", &["a", "a"], &[]), "every token once");
    says(file("qwen2", &["a", "b"], &["ab"]), "pairs of tokens");
    says(Builder::new().text("tokenizer.ggml.model", "wordpiece"), "wordpiece");
    says(Builder::new(), "tokenizer.ggml.model");
    says(file("qwen2", &["a"], &[]).number("tokenizer.ggml.eos_token_id", 7), "eos_token_id");
    says(file("qwen2", &["a"], &[]).array("tokenizer.ggml.token_type", 5, 0, &[]), "token_type");
    let template = "{{ x }}".repeat(1 << 18);
    says(file("qwen2", &["a"], &[]).text("tokenizer.chat_template", &template), "chat_template");
    // A header that exceeds the limit.
    let bytes = model(file("qwen2", &["a"], &[]).text("k", &"k".repeat(50 << 20))).bytes();
    assert!(parse(&bytes).unwrap_err().to_string().contains("exceeds the limit"));
    assert_eq!(text("a"), b"\x01\0\0\0\0\0\0\0a");
}

/// A number of layers must not be trusted before it is bounded, in no family.
#[test]
fn a_file_with_billions_of_layers_is_refused_at_once() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../engine/runtime/tests/data/gguf");
    let mut tried = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let mut bytes = std::fs::read(entry.unwrap().path()).unwrap();
        let name = b".block_count";
        let Some(at) = bytes.windows(name.len()).position(|part| part == name) else { continue };
        // The type of the value lies between.
        bytes[at + name.len() + 4..][..4].fill(0xff);
        let begun = Instant::now();
        let config = parse(&bytes).and_then(|header| config_json(&header));
        let read = config.and_then(|config| ModelConfig::from_json("x.gguf", &config));
        assert!(read.is_err(), "{:?}", read.map(|config| config.architecture));
        assert!(begun.elapsed().as_millis() < 1000, "{:?}", read.err());
        tried += 1;
    }
    assert!(tried > 20, "{tried} files");
}
