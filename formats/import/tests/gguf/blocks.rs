//! Blocks of each type, compared with the `gguf` package.

use std::fs;

use nestling_import::gguf::BlockType;
use serde_json::Value;

fn unhex(text: &str) -> Vec<u8> {
    let pairs = text.as_bytes().chunks_exact(2);
    pairs.map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

fn goldens() -> Value {
    serde_json::from_slice(&fs::read(super::data("blocks.json")).unwrap()).unwrap()
}

fn decoded(kind: BlockType, blocks: &[u8]) -> Vec<u8> {
    let mut values = vec![f32::NAN; blocks.len() / kind.bytes() * kind.elements()];
    kind.decode(blocks, &mut values);
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    })
}

#[test]
fn every_type_is_read_bit_for_bit() {
    let goldens = goldens();
    for kind in BlockType::ALL {
        let cases = goldens[kind.name()].as_array().unwrap();
        assert_eq!(cases.len(), 2, "{}", kind.name());
        let hex = |case: &Value, key: &str| unhex(case[key].as_str().unwrap());
        let bytes: Vec<u8> = cases.iter().flat_map(|case| hex(case, "block")).collect();
        assert_eq!(bytes.len(), 2 * kind.bytes(), "{}", kind.name());
        let expected: Vec<u8> = cases.iter().flat_map(|case| hex(case, "values")).collect();
        assert_eq!(decoded(kind, &bytes), expected, "{}", kind.name());
    }
}

#[test]
fn zero_negative_denormal_and_largest_scales_are_read_bit_for_bit() {
    let goldens = goldens();
    for kind in BlockType::ALL {
        let case = &goldens["scales"][kind.name()];
        let bytes = unhex(case["blocks"].as_str().unwrap());
        assert_eq!(bytes.len(), 7 * kind.bytes(), "{}", kind.name());
        let found = format!("{:016x}", hash(&decoded(kind, &bytes)));
        assert_eq!(found, case["hash"].as_str().unwrap(), "{}", kind.name());
    }
}
