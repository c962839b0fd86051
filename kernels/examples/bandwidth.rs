//! How much of the memory's bandwidth products with few rows reach on the CUDA device that is there:
//! `cargo run --release -p nestling-cuda --example bandwidth`.
#![expect(clippy::print_stdout, reason = "a program")]

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nestling_cuda::{CudaBackend, CudaDeviceChoice, CudaOptions, device};
use nestling_engine::backend::{Backend, Encoder, Linear};
use nestling_engine::driver::block_on;
use nestling_engine::weights::{
    ActivationMode, ByteRegion, MatrixWeights, NestedMatrix, PlaneRegions,
};
use nestling_formats::nested::{
    InputTransform, Layout, NestedCodec, NestedTables, ScaleSteps, base_parts, plane_bytes,
};
use nestling_formats::{Level, Plane};

/// Matrices of one product: together well beyond what a device's cache holds.
const COUNT: usize = 16;
const ROWS: usize = 14_336;
const COLS: usize = 4096;

/// How long each row of the table is measured.
const SECONDS: Duration = Duration::from_secs(3);

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

/// Random codes whose scales are 1.
fn matrix(seed: u32) -> Result<MatrixWeights, Box<dyn Error>> {
    let layout = Layout::Tile16;
    let bytes = |plane| plane_bytes(layout, ROWS, COLS, plane).ok_or("too large");
    let parts = base_parts(layout, ROWS, COLS).ok_or("too large")?;
    let mut p2 = region(bytes(Plane::P2)?, seed).bytes().to_vec();
    for scale in p2[parts.row_scales].chunks_exact_mut(2) {
        scale.copy_from_slice(&[0, 0x3c]);
    }
    p2[parts.tile_tables].fill(0);
    let [p3, p4] = [bytes(Plane::P3)?, bytes(Plane::P4)?];
    let regions = PlaneRegions {
        p2: ByteRegion::from_vec(p2),
        p3: Some(region(p3, seed + 1)),
        p4: Some(region(p4, seed + 2)),
        p34: None,
        p6: None,
        p8: None,
    };
    let tables = NestedTables { t2: [-96, -32, 32, 96], t3: [1; 8], t4: [1; 16] };
    let codec = NestedCodec {
        alpha_a: 16384,
        alpha_b: 0,
        beta_q: 16,
        tables: vec![tables],
        inputs: InputTransform::None,
        steps: ScaleSteps::Eighths,
    };
    let nested = NestedMatrix::new((ROWS, COLS), layout, Arc::new(codec), regions, Level::ALL)?;
    Ok(MatrixWeights::Nested(nested.at_most_held()))
}

fn main() -> Result<(), Box<dyn Error>> {
    let found = device(&CudaDeviceChoice::Auto)?;
    let mut backend = CudaBackend::open(&CudaOptions::default())?;
    let bandwidth = found.memory_bandwidth as f64;
    println!("{}: {:.0} GB/s by clock and width of its memory", found.name, bandwidth / 1e9);
    println!("{COUNT} matrices [{ROWS}, {COLS}] in one launch; as graphs from the third on");
    let mut weights: Vec<Linear<CudaBackend>> = Vec::new();
    for seed in 0..COUNT as u32 {
        let matrix = backend.upload_matrix(&matrix(3 * seed)?, ActivationMode::Int8)?;
        weights.push(Linear { matrix, bias: None });
    }
    for level in [Level::L2, Level::L3, Level::L4] {
        for rows in [1usize, 4, 8, 64] {
            let bytes: u64 =
                weights.iter().map(|one| CudaBackend::matrix_bytes(&one.matrix, level)).sum();
            let mut x = backend.buffer(rows, COLS)?;
            let mut out = backend.buffer(rows, COUNT * ROWS)?;
            let mut last = backend.buffer(1, 1)?;
            let mut step = || -> Result<(), Box<dyn Error>> {
                let mut encoder = backend.encoder();
                encoder.write(&vec![0.5; rows * COLS], &mut x)?;
                encoder.matmul(&weights, &vec![level; rows], &x, &mut out)?;
                encoder.clear(1, &mut last)?;
                block_on(encoder.read(&last))?;
                Ok(())
            };
            for _ in 0..3 {
                step()?;
            }
            let (mut steps, start) = (0u32, Instant::now());
            while start.elapsed() < SECONDS {
                step()?;
                steps += 1;
            }
            let seconds = start.elapsed().as_secs_f64() / f64::from(steps);
            let rate = bytes as f64 / seconds;
            println!(
                "level {}, {rows:>2} rows: {:>7.0} us, {:>6.0} GB/s, {:>3.0} %",
                level.bits(),
                seconds * 1e6,
                rate / 1e9,
                100.0 * rate / bandwidth.max(1.0),
            );
        }
    }
    Ok(())
}
