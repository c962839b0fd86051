//! Arbitrary bytes as the start of a safetensors file.

#![no_main]

use libfuzzer_sys::fuzz_target;
use nestling_import::safetensors::{SafetensorsHeader, header_length};

fuzz_target!(|data: &[u8]| {
    let Some((prefix, rest)) = data.split_first_chunk::<8>() else { return };
    let file_bytes = data.len() as u64;
    if let Ok(length) = header_length("fuzz", *prefix, file_bytes) {
        // An accepted length fits into the file.
        let json = &rest[..length as usize];
        let _ = SafetensorsHeader::parse("fuzz", json, file_bytes);
    }
    // The JSON alone, in a file whose size depends on the first byte, to reach the checks of the tensors.
    let least = 8 + rest.len() as u64;
    let file_bytes = [u64::MAX, least, least + 64][usize::from(prefix[0] % 3)];
    let _ = SafetensorsHeader::parse("fuzz", rest, file_bytes);
});
