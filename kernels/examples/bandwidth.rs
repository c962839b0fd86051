//! Measures the memory bandwidth of products with few rows on the CUDA device. It uses the device's clock
//! over many launches. Planes P3 and P4 are merged, as in resident experts, or separate, as in streamed ones:
//! `cargo run --release -p nestling-cuda --example bandwidth`.
#![expect(clippy::print_stdout, reason = "a program")]

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use nestling_core::backend::{Backend, Encoder, Linear, Write};
use nestling_core::weights::{
    ActivationMode, ByteRegion, MatrixWeights, NestedMatrix, PlaneRegions,
};
use nestling_cuda::{CudaBackend, CudaDeviceChoice, CudaOptions, TimedAs, device};
use nestling_formats::nested::{
    InputTransform, Layout, NestedCodec, NestedTables, ScaleSteps, base_parts, plane_bytes,
};
use nestling_formats::{Level, Plane};

/// Number of matrices of one product. Together they exceed a device's cache by far.
const COUNT: usize = 16;
const ROWS: usize = 14_336;
const COLS: usize = 4096;

/// Minimum measuring time of each table row.
const LEAST: Duration = Duration::from_millis(500);

/// Storage of planes P3 and P4.
#[derive(Clone, Copy)]
enum MiddlePlanes {
    Merged,
    Apart,
}

fn region(bytes: usize, seed: u32) -> ByteRegion {
    let mut state = seed.wrapping_mul(2_654_435_761) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        (state >> 16) as u8
    };
    ByteRegion::from_vec(std::iter::repeat_with(next).take(bytes).collect())
}

/// Returns a matrix with random codes and scales of 1.
fn matrix(seed: u32, middle: MiddlePlanes) -> Result<MatrixWeights, Box<dyn Error>> {
    let layout = Layout::Tile16;
    let bytes = |plane| plane_bytes(layout, ROWS, COLS, plane).ok_or("too large");
    let parts = base_parts(layout, ROWS, COLS).ok_or("too large")?;
    let mut p2 = region(bytes(Plane::P2)?, seed).bytes().to_vec();
    for scale in p2[parts.row_scales].chunks_exact_mut(2) {
        scale.copy_from_slice(&[0, 0x3c]);
    }
    p2[parts.tile_tables].fill(0);
    let [p3, p4] = [bytes(Plane::P3)?, bytes(Plane::P4)?];
    let (p3, p4, p34) = match middle {
        MiddlePlanes::Merged => (None, None, Some(region(p3 + p4, seed + 1))),
        MiddlePlanes::Apart => (Some(region(p3, seed + 1)), Some(region(p4, seed + 2)), None),
    };
    let p6 = Some(region(bytes(Plane::P6)?, seed + 3));
    let p8 = Some(region(bytes(Plane::P8)?, seed + 4));
    let regions = PlaneRegions { p2: ByteRegion::from_vec(p2), p3, p4, p34, p6, p8 };
    let tables = NestedTables { t2: [-96, -32, 32, 96], t3: [1; 8], t4: [1; 16] };
    let codec = NestedCodec {
        alpha_a: 16384,
        alpha_b: 0,
        beta_q: 16,
        tables: vec![tables],
        inputs: InputTransform::None,
        steps: ScaleSteps::Eighths,
    };
    let nested = NestedMatrix::new(ROWS, COLS, layout, Arc::new(codec), regions, Level::ALL)?;
    Ok(MatrixWeights::Nested(nested.at_most_held()))
}

/// Returns the seconds of one run, averaged over runs that take at least [`LEAST`] together. Warm-up runs
/// come first.
fn time(
    backend: &mut CudaBackend,
    weights: &[Linear<CudaBackend>],
    level: Level,
    rows: usize,
) -> Result<f64, Box<dyn Error>> {
    let mut x = backend.buffer(rows, COLS)?;
    let mut out = backend.buffer(rows, COUNT * ROWS)?;
    let mut encoder = backend.encoder();
    encoder.write(&vec![0.5; rows * COLS], &mut x)?;
    encoder.flush()?;
    drop(encoder);
    let mut timer = backend.timer(TimedAs::Graph, |encoder| {
        encoder.matmul(weights, &vec![level; rows], &x, Write::Set, &mut out)
    })?;
    let mut runs = 4;
    timer.time(runs)?;
    loop {
        let all = timer.time(runs)?;
        if all >= LEAST || runs >= 1 << 20 {
            return Ok(all.as_secs_f64() / f64::from(runs));
        }
        runs *= 2;
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let found = device(&CudaDeviceChoice::Auto)?;
    let mut backend = CudaBackend::open(&CudaOptions::default())?;
    let bandwidth = found.memory_bandwidth as f64;
    println!("{}: {:.0} GB/s by clock and width of its memory", found.name, bandwidth / 1e9);
    println!("{COUNT} matrices [{ROWS}, {COLS}] in one launch, by events around many graphs of it");
    for (middle, name) in [(MiddlePlanes::Merged, "merged"), (MiddlePlanes::Apart, "apart")] {
        let mut weights: Vec<Linear<CudaBackend>> = Vec::new();
        for seed in 0..COUNT as u32 {
            let matrix = matrix(5 * seed, middle)?;
            let matrix = backend.upload_matrix(&matrix, ActivationMode::Int8)?;
            weights.push(Linear::new(matrix, None));
        }
        for level in Level::ALL {
            let each = weights.iter().map(|one| CudaBackend::matrix_bytes(&one.matrix, level));
            let bytes: u64 = each.sum();
            for rows in [1usize, 4, 8, 64] {
                let seconds = time(&mut backend, &weights, level, rows)?;
                let rate = bytes as f64 / seconds;
                println!(
                    "{name:>6}, level {}, {rows:>2} rows: {:>7.1} us, {:>6.0} GB/s, {:>3.0} %",
                    level.bits(),
                    seconds * 1e6,
                    rate / 1e9,
                    100.0 * rate / bandwidth.max(1.0),
                );
            }
        }
    }
    Ok(())
}
