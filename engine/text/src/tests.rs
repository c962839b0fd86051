//! Tests against Python's libraries and against hostile input.

mod call_pieces;
mod channels;
mod dialects;
mod generic;
mod hostile;
mod hostile_tokenizers;
mod output;
mod templates;
mod tokens;
mod wire;

use std::path::PathBuf;
use std::sync::LazyLock;

use serde_json::Value;

use super::*;

fn data(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn json(name: &str) -> Value {
    serde_json::from_slice(&data(name)).unwrap()
}

fn demo_tokenizer() -> Tokenizer {
    static DEMO: LazyLock<Tokenizer> = LazyLock::new(|| {
        Tokenizer::from_bytes("demo_tokenizer.json", &data("demo_tokenizer.json")).unwrap()
    });
    DEMO.clone()
}

fn qwen3_template() -> ChatTemplate {
    ChatTemplate::new(std::str::from_utf8(&data("qwen3_chat_template.jinja")).unwrap()).unwrap()
}
