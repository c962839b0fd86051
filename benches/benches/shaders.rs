//! Shaders of the portable GPU backend on the first adapter, through the engine's operations;
//! throughput is in bytes read of the weights.
//!
//! Without an adapter nothing is measured, and it says so. Software adapters measure the shaders'
//! work on the CPU, nothing else.

use std::sync::Arc;

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main};
use nestling_benches::RandomMatrix;
use nestling_engine::backend::{
    Backend, Encoder, ExpertUse, FeedForward, HeadMatrices, Linear, PinnedExpert, Router,
};
use nestling_engine::batch::StepRows;
use nestling_engine::driver::block_on;
use nestling_engine::weights::{ActivationMode, FloatMatrix, MatrixWeights};
use nestling_engine::{EngineError, weights::ByteRegion};
use nestling_formats::{Activation, DType, Level, RouterConfig};
use nestling_wgpu::{AdapterChoice, Instructions, WgpuBackend, WgpuEncoder, WgpuOptions};

/// Columns of a product: the hidden size of a middle-sized model.
const COLS: usize = 2048;

/// Outputs of a product: three experts' gates.
const ROWS: usize = 2304;

/// Operations that are recorded before the host waits, so that waiting hardly counts.
const OPERATIONS: usize = 8;

const INT8: ActivationMode = ActivationMode::Int8;

fn open(instructions: Instructions) -> Option<WgpuBackend> {
    let adapter = AdapterChoice::Index(0);
    let options = WgpuOptions { adapter, instructions, ..WgpuOptions::default() };
    match WgpuBackend::open(&options) {
        Ok(device) => Some(device),
        Err(error) => {
            #[expect(clippy::print_stderr, reason = "what is skipped should be seen")]
            {
                eprintln!("SKIPPED, nothing was measured: {error}");
            }
            None
        }
    }
}

fn numbers(count: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 7919) % 1009) as f32 / 500.0 - 1.0).collect()
}

/// A buffer with some values.
fn buffer(
    device: &mut WgpuBackend,
    (rows, cols): (usize, usize),
) -> Result<<WgpuBackend as Backend>::Buffer, EngineError> {
    let mut buffer = device.buffer(rows, cols)?;
    let mut encoder = device.encoder();
    encoder.write(&numbers(rows * cols), &mut buffer)?;
    encoder.flush()?;
    drop(encoder);
    Ok(buffer)
}

/// Measures an operation that reads so many bytes.
fn measure(
    group: &mut BenchmarkGroup<'_, WallTime>,
    (device, name, bytes): (&mut WgpuBackend, &str, u64),
    mut record: impl FnMut(&mut WgpuEncoder<'_>) -> Result<(), EngineError>,
) -> Result<(), EngineError> {
    let mark = buffer(device, (1, 1))?;
    let mut outcome = Ok(());
    group.throughput(Throughput::Bytes(bytes * OPERATIONS as u64));
    group.bench_function(name, |b| {
        b.iter(|| {
            let mut encoder = device.encoder();
            for _ in 0..OPERATIONS {
                let recorded = record(&mut encoder);
                outcome = std::mem::replace(&mut outcome, Ok(())).and(recorded);
            }
            // Comes back when all is done.
            let read = block_on(encoder.read(&mark)).map(drop);
            outcome = std::mem::replace(&mut outcome, Ok(())).and(read);
        });
    });
    outcome
}

fn float(rows: usize, cols: usize) -> Result<MatrixWeights, EngineError> {
    let halves =
        numbers(rows * cols).into_iter().flat_map(|x| half::bf16::from_f32(x).to_le_bytes());
    let region = ByteRegion::from_vec(halves.collect());
    Ok(MatrixWeights::Float(FloatMatrix::new(rows, cols, DType::Bf16, region)?))
}

/// `matmul_nested`, `matmul_nested_rows`, `quantize`.
fn nested(criterion: &mut Criterion, instructions: Instructions) -> Result<(), EngineError> {
    let Some(mut device) = open(instructions) else { return Ok(()) };
    let matrix = RandomMatrix::new(ROWS, COLS, Level::L8)?;
    for count in [1, 4, 64] {
        let kernel = if count < 9 { "matmul_nested" } else { "matmul_nested_rows" };
        let name = format!("{kernel}, {instructions:?}, {count} rows");
        let mut group = criterion.benchmark_group(name);
        group.sample_size(10);
        let x = buffer(&mut device, (count, COLS))?;
        let mut out = device.buffer(count, ROWS)?;
        for merged in [true, false] {
            let weights = matrix.weights(merged)?;
            let matrix = device.upload_matrix(&weights, INT8)?;
            let linear = [Linear { matrix, bias: None }];
            for level in Level::ALL {
                let bytes = WgpuBackend::matrix_bytes(&linear[0].matrix, level);
                let name =
                    format!("level {level}{}", if merged { "" } else { ", P3 and P4 apart" });
                if merged || matches!(level, Level::L3 | Level::L4) {
                    measure(&mut group, (&mut device, &name, bytes), |encoder| {
                        encoder.matmul(&linear, &vec![level; count], &x, &mut out)
                    })?;
                }
            }
        }
    }
    Ok(())
}

/// `matmul_float`, `embed`, `heads_rest`.
fn floats(criterion: &mut Criterion) -> Result<(), EngineError> {
    let Some(mut device) = open(Instructions::Detected) else { return Ok(()) };
    let mut group = criterion.benchmark_group("matmul_float, bf16");
    group.sample_size(10);
    let matrix = device.upload_matrix(&float(ROWS, COLS)?, INT8)?;
    let bytes = WgpuBackend::matrix_bytes(&matrix, Level::L8);
    let linear = [Linear { matrix, bias: None }];
    for count in [1, 64] {
        let x = buffer(&mut device, (count, COLS))?;
        let mut out = device.buffer(count, ROWS)?;
        measure(&mut group, (&mut device, &format!("{count} rows"), bytes), |encoder| {
            encoder.matmul(&linear, &vec![Level::L8; count], &x, &mut out)
        })?;
    }
    group.finish();
    let mut group = criterion.benchmark_group("embed, heads_rest");
    group.sample_size(10);
    let tokens: Vec<u32> = (0..256).map(|row| row * 9 % ROWS as u32).collect();
    let dense_levels = vec![Level::L6; 256];
    let rows = StepRows { tokens, dense_levels, ..StepRows::default() };
    let table = RandomMatrix::new(ROWS, COLS, Level::L8)?.weights(false)?;
    let table = device.upload_matrix(&table, INT8)?;
    let mut out = device.buffer(256, COLS)?;
    let bytes = WgpuBackend::matrix_bytes(&table, Level::L6) * 256 / ROWS as u64;
    let (what, embed) = (&mut device, "embed, 256 rows at level 6");
    measure(&mut group, (what, embed, bytes), |encoder| encoder.embed(&table, &rows, &mut out))?;
    // Heads of latent attention: 16 of 128 inputs, 64 elements that follow.
    let matrix =
        device.upload_matrix(&RandomMatrix::new(16 * 512, 128, Level::L8)?.weights(true)?, INT8)?;
    let bytes = WgpuBackend::matrix_bytes(&matrix, Level::L6);
    let heads = HeadMatrices { matrix, heads: 16 };
    let x = buffer(&mut device, (8, 16 * 192))?;
    let mut out = device.buffer(8, 16 * 576)?;
    let what = (&mut device, "matmul_heads and heads_rest, 8 rows", bytes);
    measure(&mut group, what, |encoder| encoder.matmul_heads(&heads, &[Level::L6; 8], &x, &mut out))
}

/// Eight experts of a token at mixed levels: `gated_quantize`, and `gated` where they are floats.
fn experts(criterion: &mut Criterion) -> Result<(), EngineError> {
    const INNER: usize = 768;
    const PER_TOKEN: usize = 8;
    let Some(mut device) = open(Instructions::Detected) else { return Ok(()) };
    let mut group = criterion.benchmark_group("experts, 1 row");
    group.sample_size(10);
    let router = Router {
        weights: device.upload_matrix(&float(PER_TOKEN, COLS)?, ActivationMode::Float)?,
        num_experts_per_tok: PER_TOKEN,
        rule: RouterConfig::softmax(true),
        logit_bias: None,
        selection_bias: None,
        expert_scale: None,
    };
    let x = buffer(&mut device, (1, COLS))?;
    let mut routing = device.routing(1, PER_TOKEN)?;
    let mut out = device.buffer(PER_TOKEN, COLS)?;
    let mut encoder = device.encoder();
    encoder.route(&router, &x, &mut routing)?;
    encoder.flush()?;
    drop(encoder);
    let nested = |rows, cols| RandomMatrix::new(rows, cols, Level::L8)?.weights(true);
    type Make<'a> = &'a dyn Fn(usize, usize) -> Result<MatrixWeights, EngineError>;
    let kinds: [(&str, Make); 2] =
        [("gated_quantize, mixed levels", &nested), ("gated, bf16", &float)];
    for (name, make) in kinds {
        let mut all = Vec::new();
        for _ in 0..PER_TOKEN {
            let mut upload = |rows, cols| -> Result<Linear<WgpuBackend>, EngineError> {
                let matrix = device.upload_matrix(&make(rows, cols)?, INT8)?;
                Ok(Linear { matrix, bias: None })
            };
            let (gate, up) = (upload(INNER, COLS)?, upload(INNER, COLS)?);
            let down = upload(COLS, INNER)?;
            all.push(Arc::new(FeedForward { activation: Activation::Silu, gate, up, down }));
        }
        let level = |index: usize| Level::ALL[index % 5];
        let uses: Vec<[ExpertUse; 1]> = (0..PER_TOKEN)
            .map(|rank| [ExpertUse { row: 0, rank: rank as u32, level: level(rank) }])
            .collect();
        let bytes = all.iter().enumerate().map(|(index, one)| one.read_bytes(level(index))).sum();
        let pinned: Vec<_> = (0u32..)
            .zip(all.iter().zip(&uses))
            .map(|(expert, (one, uses))| PinnedExpert { expert, weights: Arc::clone(one), uses })
            .collect();
        measure(&mut group, (&mut device, name, bytes), |encoder| {
            encoder.experts(&pinned, &routing, &x, &mut out)
        })?;
    }
    Ok(())
}

fn shaders(criterion: &mut Criterion) {
    let all = nested(criterion, Instructions::Detected)
        .and_then(|()| nested(criterion, Instructions::Plain))
        .and_then(|()| floats(criterion))
        .and_then(|()| experts(criterion));
    assert!(all.is_ok(), "{all:?}");
}

criterion_group!(benches, shaders);
criterion_main!(benches);
