//! Hub responses that can be parsed without a connection: arbitrary listings, weight indexes and redirects.
//! Unsafe names and addresses must be rejected.

#![no_main]

use libfuzzer_sys::fuzz_target;
use nestling_hub::fuzzing::{follow, read_index, read_listing};

fuzz_target!(|data: &[u8]| {
    let Some((kind, rest)) = data.split_first() else { return };
    match kind % 4 {
        0 | 1 => read_listing(rest),
        2 => read_index(rest),
        _ => {
            let Ok(text) = std::str::from_utf8(rest) else { return };
            let (from, location) =
                text.split_once('\n').unwrap_or(("https://hub.example/a/b", text));
            follow(from, location);
        }
    }
});
