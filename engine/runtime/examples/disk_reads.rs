//! Measures the speed of reading planes from disk.
//!
//! `disk_reads STORE [SECONDS]` reads random places of a store, bypassing the page cache if the file system
//! allows it, with the sizes and depths of docs/perf/024's "Disk reads".
#![expect(clippy::print_stdout, reason = "the result is printed")]

use std::error::Error;
use std::sync::Arc;

use nestling_experts::reads::{MeasureOptions, ReadMethod, choose, measure};
use nestling_formats::store::Store;

const SIZES: [u64; 5] = [256 << 10, 590_000, 1 << 20, 1_270_000, 2_500_000];
const DEPTHS: [usize; 6] = [1, 2, 4, 8, 16, 32];

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let store = Arc::new(Store::open(arguments.first().ok_or("give a store")?)?);
    let seconds = arguments.get(1).map_or(Ok(1.0), |text| text.parse())?;
    let mut options = MeasureOptions {
        kept_bytes: 64 << 20,
        block_bytes: SIZES.to_vec(),
        depths: DEPTHS.to_vec(),
        methods: Vec::new(),
        direct: true,
        seconds,
    };
    let mut all = Vec::new();
    for method in [ReadMethod::IoUring, ReadMethod::Threads] {
        options.methods = vec![method];
        let measured = measure(&store, &options)?;
        let Some(first) = measured.first() else {
            println!("{method}: refused by this system");
            continue;
        };
        println!("{method}, {}", if first.direct { "direct" } else { "through the page cache" });
        println!("| bytes | {} |", DEPTHS.map(|depth| format!("depth {depth}")).join(" | "));
        for size in SIZES {
            let row = measured.iter().filter(|one| one.block_bytes == size);
            let row = row.map(|one| format!("{:.2}", one.bytes_per_second / 1e9));
            println!("| {size} | {} |", row.collect::<Vec<_>>().join(" | "));
        }
        all.extend(measured);
    }
    if let Some(choice) = choose(&all) {
        println!("chosen: {}, {} at a time", choice.method, choice.depth);
    }
    Ok(())
}
