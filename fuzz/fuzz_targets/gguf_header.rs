//! Arbitrary bytes as a GGUF file: the header, and the configuration and tokenizer generated from it.

#![no_main]

use libfuzzer_sys::fuzz_target;
use nestling_import::ModelConfig;
use nestling_import::gguf::{GgufHeader, assets, config_json, tokenizer_json};

fuzz_target!(|data: &[u8]| {
    let length = data.len() as u64;
    // The input's length selects the file size: equal to the input, slightly larger, or maximal.
    let file_bytes = [u64::MAX, length, length + 4096][data.len() % 3];
    let Ok(header) = GgufHeader::parse("fuzz", data, file_bytes) else { return };
    // Accepted headers must be consistent.
    for (first, second) in header.tensors.iter().zip(header.tensors.iter().skip(1)) {
        assert!(first.offset + first.length <= second.offset);
    }
    for (key, _) in header.metadata.iter() {
        let _ = header.metadata.texts(key);
        let _ = header.metadata.numbers(key);
    }
    if let Ok(json) = config_json(&header) {
        let _ = ModelConfig::from_json("config.json", &json);
    }
    let _ = tokenizer_json(&header.metadata);
    let _ = assets(&header);
});
