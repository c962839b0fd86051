//! Arbitrary bytes as `config.json` and as `generation_config.json`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use nestling_import::{GenerationDefaults, ModelConfig, ModelShape};

fuzz_target!(|data: &[u8]| {
    if let Ok(config) = ModelConfig::from_json("fuzz", data) {
        let shape = ModelShape::new(&config);
        let _ = shape.weights();
    }
    let _ = GenerationDefaults::from_json("fuzz", data);
});
