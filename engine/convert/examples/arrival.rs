#![expect(clippy::print_stdout, reason = "a program that says what it measured")]
//! Speed at which one thread builds experts from a GGUF file: read and cut into planes, compared with
//! computing a checksum.
//!
//! ```text
//! cargo run --release -p nestling-convert --example arrival -- model.gguf [passes]
//! ```
//!
//! Bytes are counted in the file. The first pass reads from the disk or the page cache; later passes read
//! from the cache.

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use nestling_convert::in_place::open_in_place;
use nestling_formats::Plane;
use nestling_formats::store::Digits;
use nestling_import::Checkpoint;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let file = arguments.next().ok_or("which file?")?;
    let passes = arguments.next().map_or(Ok(3), |passes| passes.parse())?;
    let store = open_in_place(Arc::new(Checkpoint::open(&file)?), Digits::Merged)?;
    let mut out = Vec::new();
    for pass in 0..passes {
        let (mut bytes, started) = (0, Instant::now());
        let mut fastest = 0f64;
        for group in store.groups().iter().filter(|group| group.id.expert().is_some()) {
            let extent = store.extent(group, Plane::P2).ok_or("an expert without planes")?;
            out.resize(usize::try_from(extent.length)?, 0);
            let began = Instant::now();
            store.read_extent(extent, &mut out)?;
            fastest = fastest.max(extent.length as f64 / began.elapsed().as_secs_f64());
            bytes += extent.length;
        }
        let mean = bytes as f64 / started.elapsed().as_secs_f64();
        println!(
            "pass {pass}: {:.2} GB/s, the fastest expert {:.2} GB/s",
            mean / 1e9,
            fastest / 1e9
        );
    }
    Ok(())
}
