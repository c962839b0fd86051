//! Blocks of every element type, against what the `gguf` package reads in them.

use std::fs;

use nestling_import::gguf::BlockType;
use serde_json::Value;

fn unhex(text: &str) -> Vec<u8> {
    let pairs = text.as_bytes().chunks_exact(2);
    pairs.map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

#[test]
fn every_type_is_read_bit_for_bit() {
    let goldens: Value =
        serde_json::from_slice(&fs::read(super::data("blocks.json")).unwrap()).unwrap();
    for kind in BlockType::ALL {
        let cases = goldens[kind.name()].as_array().unwrap();
        assert_eq!(cases.len(), 2, "{}", kind.name());
        let hex = |case: &Value, key: &str| unhex(case[key].as_str().unwrap());
        let bytes: Vec<u8> = cases.iter().flat_map(|case| hex(case, "block")).collect();
        assert_eq!(bytes.len(), 2 * kind.bytes(), "{}", kind.name());
        let mut values = vec![f32::NAN; 2 * kind.elements()];
        kind.decode(&bytes, &mut values);
        let found: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let expected: Vec<u8> = cases.iter().flat_map(|case| hex(case, "values")).collect();
        assert_eq!(found, expected, "{}", kind.name());
    }
}
