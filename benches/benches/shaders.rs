//! Benchmarks of the portable GPU backend's shaders on the first adapter, through the engine's operations.
//! Throughput is in bytes read of weights, or of activations, pages and states if there are no weights.
//!
//! Without an adapter, a note is printed and nothing is measured. On software adapters, the benchmarks only
//! measure the shaders' work on the CPU.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main};
use nestling_benches::{FileType, RandomMatrix, RandomScaled};
use nestling_core::backend::{
    AttentionHeads, Backend, DeltaNet, DeviceRouting, Encoder, EncoderExt, ExpertUse, FeedForward,
    HeadMatrices, HeadNorm, Linear, Mamba2, PinnedExpert, Router, ShortConv, Write,
};
use nestling_core::batch::StepRows;
use nestling_core::driver::block_on;
use nestling_core::kv_cache::{KvDtype, KvShape, KvValues, PAGE_POSITIONS, PageId};
use nestling_core::recurrent::{StateId, StateShape, StateTrack};
use nestling_core::weights::{ActivationMode, FloatMatrix, MatrixWeights};
use nestling_core::{EngineError, weights::ByteRegion};
use nestling_formats::{DType, Level};
use nestling_import::{
    Activation, DeltaNetConfig, GateFunction, Mamba2Config, RopePairs, RouterConfig,
    ShortConvConfig,
};
use nestling_wgpu::{
    AdapterChoice, AdapterKind, Instructions, WgpuBackend, WgpuEncoder, WgpuOptions, devices,
};

/// Columns of a product: the hidden size of a medium-sized model.
const COLS: usize = 2048;

/// Outputs of a product: the gates of three experts.
const ROWS: usize = 2304;

const VOCABULARY: usize = 151_936;

/// Neurons of an expert.
const INNER: usize = 768;

/// Outputs and columns of a product, and neurons of an expert, on a software adapter. It takes up to a
/// quarter of a microsecond for each weight.
const SOFTWARE_SHAPE: (usize, usize) = (256, 512);
const SOFTWARE_INNER: usize = 64;

/// Number of operations recorded before the host waits, so that waiting is negligible. On a software adapter,
/// one suffices.
const OPERATIONS: usize = 8;

/// Returns whether the first adapter is a software renderer. Benchmarks are then smaller and shorter, and are
/// named accordingly.
fn is_software() -> bool {
    static IS_SOFTWARE: OnceLock<bool> = OnceLock::new();
    *IS_SOFTWARE.get_or_init(|| {
        devices().first().is_some_and(|adapter| adapter.kind == AdapterKind::Software)
    })
}

fn operations() -> usize {
    if is_software() { 1 } else { OPERATIONS }
}

/// Returns the outputs and columns of a product.
fn shape() -> (usize, usize) {
    if is_software() { SOFTWARE_SHAPE } else { (ROWS, COLS) }
}

fn inner() -> usize {
    if is_software() { SOFTWARE_INNER } else { INNER }
}

fn new_group<'a>(criterion: &'a mut Criterion, name: &str) -> BenchmarkGroup<'a, WallTime> {
    if !is_software() {
        let mut group = criterion.benchmark_group(name);
        group.sample_size(10);
        return group;
    }
    let mut group = criterion.benchmark_group(format!("{name} (software)"));
    group.sample_size(10);
    group.warm_up_time(Duration::from_millis(200));
    group.measurement_time(Duration::from_millis(500));
    group
}

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

/// Returns a buffer with arbitrary values.
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

/// Measures an operation that reads `bytes` bytes.
fn measure(
    group: &mut BenchmarkGroup<'_, WallTime>,
    (device, name, bytes): (&mut WgpuBackend, &str, u64),
    mut record: impl FnMut(&mut WgpuEncoder<'_>) -> Result<(), EngineError>,
) -> Result<(), EngineError> {
    let mark = buffer(device, (1, 1))?;
    let mut outcome = Ok(());
    group.throughput(Throughput::Bytes(bytes * operations() as u64));
    group.bench_function(name, |b| {
        b.iter(|| {
            let mut encoder = device.encoder();
            for _ in 0..operations() {
                let recorded = record(&mut encoder);
                outcome = std::mem::replace(&mut outcome, Ok(())).and(recorded);
            }
            // Returns when all operations are complete.
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

/// Benchmarks `matmul_nested`, `matmul_nested_rows` and `quantize`.
fn nested(criterion: &mut Criterion, instructions: Instructions) -> Result<(), EngineError> {
    let Some(mut device) = open(instructions) else { return Ok(()) };
    let (outputs, cols) = shape();
    let matrix = RandomMatrix::new(outputs, cols, Level::L8)?;
    for count in [1, 4, 64] {
        let kernel = if count < 9 { "matmul_nested" } else { "matmul_nested_rows" };
        let name = format!("{kernel}, {instructions:?}, {count} rows");
        let mut group = new_group(criterion, &name);
        let x = buffer(&mut device, (count, cols))?;
        let mut out = device.buffer(count, outputs)?;
        for merged in [true, false] {
            let weights = matrix.weights(merged)?;
            let matrix = device.upload_matrix(&weights, INT8)?;
            let linear = [Linear::new(matrix, None)];
            for level in Level::ALL {
                let bytes = WgpuBackend::matrix_bytes(&linear[0].matrix, level);
                let name =
                    format!("level {level}{}", if merged { "" } else { ", P3 and P4 apart" });
                if merged || matches!(level, Level::L3 | Level::L4) {
                    measure(&mut group, (&mut device, &name, bytes), |encoder| {
                        encoder.matmul(&linear, &vec![level; count], &x, Write::Set, &mut out)
                    })?;
                }
            }
        }
    }
    Ok(())
}

/// Benchmarks `matmul_scaled`.
fn scaled(criterion: &mut Criterion) -> Result<(), EngineError> {
    let Some(mut device) = open(Instructions::Detected) else { return Ok(()) };
    let (outputs, cols) = shape();
    for count in [1, 4, 64] {
        let mut group = new_group(criterion, &format!("matmul_scaled, {count} rows"));
        let x = buffer(&mut device, (count, cols))?;
        let mut out = device.buffer(count, outputs)?;
        for file_type in FileType::ALL {
            let matrix = RandomScaled::new(outputs, cols, file_type)?;
            let (level, weights) = (matrix.level(), matrix.weights()?);
            let linear = [Linear::new(device.upload_matrix(&weights, INT8)?, None)];
            let bytes = WgpuBackend::matrix_bytes(&linear[0].matrix, level);
            measure(&mut group, (&mut device, file_type.name, bytes), |encoder| {
                encoder.matmul(&linear, &vec![level; count], &x, Write::Set, &mut out)
            })?;
        }
    }
    Ok(())
}

/// Benchmarks `matmul_float`, `embed` and `heads_rest`.
fn floats(criterion: &mut Criterion) -> Result<(), EngineError> {
    let Some(mut device) = open(Instructions::Detected) else { return Ok(()) };
    let mut group = new_group(criterion, "matmul_float, bf16");
    let (outputs, cols) = shape();
    let matrix = device.upload_matrix(&float(outputs, cols)?, INT8)?;
    let bytes = WgpuBackend::matrix_bytes(&matrix, Level::L8);
    let linear = [Linear::new(matrix, None)];
    for count in [1, 64] {
        let x = buffer(&mut device, (count, cols))?;
        let mut out = device.buffer(count, outputs)?;
        measure(&mut group, (&mut device, &format!("{count} rows"), bytes), |encoder| {
            encoder.matmul(&linear, &vec![Level::L8; count], &x, Write::Set, &mut out)
        })?;
    }
    group.finish();
    let mut group = new_group(criterion, "embed, heads_rest");
    let tokens: Vec<u32> = (0..256).map(|row| row * 9 % ROWS as u32).collect();
    let dense_levels = vec![Level::L6; 256];
    let rows = StepRows { tokens, dense_levels, ..StepRows::default() };
    let table = RandomMatrix::new(ROWS, COLS, Level::L8)?.weights(false)?;
    let table = device.upload_matrix(&table, INT8)?;
    let mut out = device.buffer(256, COLS)?;
    let bytes = WgpuBackend::matrix_bytes(&table, Level::L6) * 256 / ROWS as u64;
    let table = Linear::new(table, None);
    let (what, embed) = (&mut device, "embed, 256 rows at level 6");
    measure(&mut group, (what, embed, bytes), |encoder| encoder.embed(&table, &rows, &mut out))?;
    // Heads of latent attention: 16 with 128 inputs, followed by 64 elements.
    let matrix =
        device.upload_matrix(&RandomMatrix::new(16 * 512, 128, Level::L8)?.weights(true)?, INT8)?;
    let bytes = WgpuBackend::matrix_bytes(&matrix, Level::L6);
    let heads = HeadMatrices { matrix, heads: 16 };
    let x = buffer(&mut device, (8, 16 * 192))?;
    let mut out = device.buffer(8, 16 * 576)?;
    let what = (&mut device, "matmul_heads and heads_rest, 8 rows", bytes);
    measure(&mut group, what, |encoder| encoder.matmul_heads(&heads, &[Level::L6; 8], &x, &mut out))
}

/// Experts of a token.
const PER_TOKEN: usize = 8;

/// Returns a router that selects eight of `experts` experts.
fn router(device: &mut WgpuBackend, experts: usize) -> Result<Router<WgpuBackend>, EngineError> {
    Ok(Router {
        weights: device.upload_matrix(&float(experts, COLS)?, ActivationMode::Float)?,
        num_experts_per_tok: PER_TOKEN,
        rule: RouterConfig::softmax(true),
        logit_bias: None,
        selection_bias: None,
        expert_scale: None,
    })
}

/// Constructor of a matrix with given rows and columns.
type Make<'a> = &'a dyn Fn(usize, usize) -> Result<MatrixWeights, EngineError>;

fn expert(
    device: &mut WgpuBackend,
    inner: usize,
    make: Make<'_>,
) -> Result<FeedForward<WgpuBackend>, EngineError> {
    let mut upload = |rows, cols| -> Result<Linear<WgpuBackend>, EngineError> {
        let matrix = device.upload_matrix(&make(rows, cols)?, INT8)?;
        Ok(Linear::new(matrix, None))
    };
    let (gate, up) = (upload(inner, COLS)?, upload(inner, COLS)?);
    let down = upload(COLS, inner)?;
    Ok(FeedForward { activation: Activation::Silu, gate: Some(gate), up, down })
}

/// Benchmarks eight experts of a token at mixed levels: `gated_quantize`, and `gated` for float weights.
fn experts(criterion: &mut Criterion) -> Result<(), EngineError> {
    let Some(mut device) = open(Instructions::Detected) else { return Ok(()) };
    let mut group = new_group(criterion, "experts, 1 row");
    let router = router(&mut device, PER_TOKEN)?;
    let x = buffer(&mut device, (1, COLS))?;
    let mut routing = device.routing(1, PER_TOKEN)?;
    let mut out = device.buffer(PER_TOKEN, COLS)?;
    let mut encoder = device.encoder();
    encoder.route(&router, &x, &mut routing)?;
    encoder.flush()?;
    drop(encoder);
    let nested = |rows, cols| RandomMatrix::new(rows, cols, Level::L8)?.weights(true);
    let kinds: [(&str, Make); 2] =
        [("gated_quantize, mixed levels", &nested), ("gated, bf16", &float)];
    for (name, make) in kinds {
        let mut all = Vec::new();
        for _ in 0..PER_TOKEN {
            all.push(Arc::new(expert(&mut device, inner(), make)?));
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

/// Benchmarks `rms_norm`, `scale`, `clear`, `softcap`, `gate`, `add_gated`, `gather_rows` and `argmax`.
fn elements(criterion: &mut Criterion) -> Result<(), EngineError> {
    const COUNT: usize = 64;
    let Some(mut device) = open(Instructions::Detected) else { return Ok(()) };
    let mut group = new_group(criterion, "64 rows of 2048");
    let bytes = 4 * (COUNT * COLS) as u64;
    let x = buffer(&mut device, (COUNT, COLS))?;
    let gates = buffer(&mut device, (COUNT, 1))?;
    let mut out = buffer(&mut device, (COUNT, COLS))?;
    let weight = device.upload_floats(&numbers(COLS))?;
    let indices: Vec<u32> = (0..COUNT as u32).rev().collect();
    measure(&mut group, (&mut device, "rms_norm", bytes), |encoder| {
        encoder.rms_norm(&x, &weight, 1e-6, Write::Set, &mut out)
    })?;
    measure(&mut group, (&mut device, "rms_norm_add", 2 * bytes), |encoder| {
        encoder.rms_norm(&x, &weight, 1e-6, Write::Add, &mut out)
    })?;
    measure(&mut group, (&mut device, "scale", bytes), |encoder| encoder.scale(1.0, &mut out))?;
    measure(&mut group, (&mut device, "clear", bytes), |encoder| encoder.clear(COUNT, &mut out))?;
    measure(&mut group, (&mut device, "softcap", bytes), |encoder| {
        encoder.softcap(30.0, &mut out)
    })?;
    measure(&mut group, (&mut device, "gate", 2 * bytes), |encoder| {
        encoder.gate(GateFunction::Sigmoid, &x, &mut out)
    })?;
    measure(&mut group, (&mut device, "add_gated", 2 * bytes), |encoder| {
        encoder.add_gated(&gates, &x, &mut out)
    })?;
    measure(&mut group, (&mut device, "gather_rows", bytes), |encoder| {
        encoder.gather_rows(&x, &indices, &mut out)
    })?;
    // Each call waits for its result.
    let mut columns = Vec::new();
    measure(&mut group, (&mut device, "argmax", bytes), |encoder| {
        block_on(encoder.argmax_into(&x, COLS, &mut columns))
    })?;
    // The logits of one token, as in a step.
    let logits = buffer(&mut device, (1, VOCABULARY))?;
    let bytes = 4 * VOCABULARY as u64;
    measure(&mut group, (&mut device, "argmax, a row of logits", bytes), |encoder| {
        block_on(encoder.argmax_into(&logits, VOCABULARY, &mut columns))
    })
}

/// Returns the last `count` rows of one sequence up to position `end`.
fn rows_until(end: usize, count: usize) -> StepRows {
    let pages = (0..end.div_ceil(PAGE_POSITIONS) as u32).map(PageId).collect();
    StepRows {
        positions: (end - count..end).map(|position| position as u32).collect(),
        tokens: vec![0; count],
        sequences: vec![0; count],
        dense_levels: vec![Level::L8; count],
        pages: vec![pages],
        states: vec![StateTrack::in_place(StateId(0), end - count, end)],
        ..StepRows::default()
    }
}

/// Benchmarks `rope`, `norm_part` and `kv_store`, and `attend` over a thousand positions.
fn attention(criterion: &mut Criterion) -> Result<(), EngineError> {
    const HEADS: (usize, usize, usize) = (16, 4, 128);
    const POSITIONS: usize = 1024;
    let (h, g, d) = HEADS;
    let Some(mut device) = open(Instructions::Detected) else { return Ok(()) };
    let norm = |device: &mut WgpuBackend, length| device.upload_floats(&vec![1.0; length]);
    let heads = AttentionHeads {
        num_attention_heads: h,
        num_key_value_heads: g,
        head_dim: d,
        scale: 0.1,
        rope_first: 0,
        rope_pairs: RopePairs::Halves,
        eps: 1e-6,
        query_norm: HeadNorm::PerHead(norm(&mut device, d)?),
        key_norm: HeadNorm::FullWidth(norm(&mut device, g * d)?),
        value_norm: None,
        sliding_window: None,
        sinks: None,
    };
    let cols = (h + 2 * g) * d;
    for dtype in [KvDtype::F16, KvDtype::Int8] {
        let mut group = new_group(criterion, &format!("attention, {dtype:?}"));
        let values = KvValues::Beside;
        let pages = POSITIONS / PAGE_POSITIONS;
        let shape = KvShape { num_key_value_heads: g, head_dim: d, values, dtype, pages };
        let mut pool = device.kv_pool(&shape)?;
        for count in [POSITIONS, 1] {
            let rows = rows_until(POSITIONS, count);
            let mut qkv = buffer(&mut device, (count, cols))?;
            let rope = buffer(&mut device, (count, d))?;
            let mut out = device.buffer(count, h * d)?;
            let name = format!("rope, norm_part, kv_store, {count} rows");
            let bytes = 4 * (count * cols) as u64;
            measure(&mut group, (&mut device, &name, bytes), |encoder| {
                encoder.rope(&heads, &rows, &rope, &mut qkv, Some(&mut pool))
            })?;
            if count == 1 {
                let bytes = (pages * shape.page_bytes()) as u64;
                measure(&mut group, (&mut device, "attend, 1 row", bytes), |encoder| {
                    encoder.attend(&heads, &rows, &qkv, &pool, &mut out)
                })?;
            }
        }
    }
    Ok(())
}

/// Benchmarks `delta_mix`, `delta_rule` and `delta_gate` in the shape of Qwen3-Next.
fn delta_net(criterion: &mut Criterion) -> Result<(), EngineError> {
    let Some(mut device) = open(Instructions::Detected) else { return Ok(()) };
    let mut group = new_group(criterion, "delta_mix, delta_rule, delta_gate");
    let shape = DeltaNetConfig {
        num_key_heads: 16,
        num_value_heads: 32,
        key_head_dim: 128,
        value_head_dim: 128,
        conv_kernel_dim: 4,
    };
    let states = StateShape { floats: shape.state_floats(), states: 1 };
    let mut pool = device.state_pool(&states)?;
    let mut floats = |count| device.upload_floats(&numbers(count));
    let net = DeltaNet {
        shape,
        conv: floats(shape.conv_kernel_dim * shape.channels())?,
        query_norm: floats(shape.key_head_dim)?,
        key_norm: floats(shape.key_head_dim)?,
        unit_eps: 1e-6,
        rate: floats(shape.num_value_heads)?,
        time_bias: floats(shape.num_value_heads)?,
        norm: floats(shape.value_head_dim)?,
        eps: 1e-6,
    };
    for (end, count) in [(64, 64), (65, 1)] {
        let rows = rows_until(end, count);
        let x = buffer(&mut device, (count, shape.inputs()))?;
        let mut out = device.buffer(count, shape.value_dim())?;
        let (name, bytes) = (format!("{count} rows"), states.state_bytes() as u64);
        measure(&mut group, (&mut device, &name, bytes), |encoder| {
            encoder.delta_net(&net, &rows, &x, &mut pool, &mut out)
        })?;
    }
    Ok(())
}

/// Benchmarks `short_conv` in the shape of LFM2-8B-A1B.
fn short_conv(criterion: &mut Criterion) -> Result<(), EngineError> {
    let Some(mut device) = open(Instructions::Detected) else { return Ok(()) };
    let mut group = new_group(criterion, "short_conv");
    let shape = ShortConvConfig { channels: 2048, taps: 3, bias: false };
    let states = StateShape { floats: shape.state_floats(), states: 1 };
    let mut pool = device.state_pool(&states)?;
    let taps = device.upload_floats(&numbers(shape.taps * shape.channels))?;
    let conv = ShortConv { shape, taps, bias: None };
    for (end, count) in [(64, 64), (65, 1)] {
        let rows = rows_until(end, count);
        let x = buffer(&mut device, (count, shape.inputs()))?;
        let mut out = device.buffer(count, shape.channels)?;
        let (name, bytes) = (format!("{count} rows"), 16 * (count * shape.channels) as u64);
        measure(&mut group, (&mut device, &name, bytes), |encoder| {
            encoder.short_conv(&conv, &rows, &x, &mut pool, &mut out)
        })?;
    }
    Ok(())
}

/// Benchmarks `mamba2_conv`, `mamba2_scan` and `mamba2_norm` in the shape of Granite 4 H-Tiny.
fn mamba2(criterion: &mut Criterion) -> Result<(), EngineError> {
    let Some(mut device) = open(Instructions::Detected) else { return Ok(()) };
    let mut group = new_group(criterion, "mamba2_conv, mamba2_scan, mamba2_norm");
    let shape = Mamba2Config {
        num_heads: 48,
        head_dim: 64,
        n_groups: 1,
        state_size: 128,
        conv_kernel: 4,
        conv_bias: true,
        proj_bias: false,
        norm_eps: 1e-5,
    };
    let states = StateShape { floats: shape.state_floats(), states: 1 };
    let mut pool = device.state_pool(&states)?;
    let mut floats = |count| device.upload_floats(&numbers(count));
    let mamba2 = Mamba2 {
        shape,
        conv: floats(shape.conv_kernel * shape.channels())?,
        bias: Some(floats(shape.channels())?),
        rate: floats(shape.num_heads)?,
        time_bias: floats(shape.num_heads)?,
        skip: floats(shape.num_heads)?,
        norm: floats(shape.inner())?,
    };
    for (end, count) in [(64, 64), (65, 1)] {
        let rows = rows_until(end, count);
        let x = buffer(&mut device, (count, shape.inputs()))?;
        let mut out = device.buffer(count, shape.inner())?;
        let (name, bytes) = (format!("{count} rows"), states.state_bytes() as u64);
        measure(&mut group, (&mut device, &name, bytes), |encoder| {
            encoder.mamba2(&mamba2, &rows, &x, &mut pool, &mut out)
        })?;
    }
    Ok(())
}

/// Benchmarks `route`, `expert_blocks` and `experts_sum`: one token with experts looked up on the device.
fn routed(criterion: &mut Criterion) -> Result<(), EngineError> {
    const EXPERTS: usize = 8;
    let Some(mut device) = open(Instructions::Detected) else { return Ok(()) };
    let mut group = new_group(criterion, "route");
    let router = router(&mut device, 128)?;
    let x = buffer(&mut device, (1, COLS))?;
    let mut routing = device.routing(1, PER_TOKEN)?;
    let bytes = WgpuBackend::matrix_bytes(&router.weights, Level::L8);
    measure(&mut group, (&mut device, "route, 8 of 128 experts", bytes), |encoder| {
        encoder.route(&router, &x, &mut routing)
    })?;
    group.finish();
    let mut group = new_group(criterion, "experts that the device finds, 1 row");
    let nested = |rows, cols| RandomMatrix::new(rows, cols, Level::L4)?.weights(true);
    let experts = (0..EXPERTS).map(|_| expert(&mut device, inner(), &nested).map(Arc::new));
    let experts = experts.collect::<Result<Vec<_>, _>>()?;
    let table = device.expert_table(&experts)?;
    let bytes = experts.iter().map(|one| one.read_bytes(Level::L4)).sum();
    let mut out = device.buffer(PER_TOKEN, COLS)?;
    let mut sum = buffer(&mut device, (1, COLS))?;
    let all = self::router(&mut device, EXPERTS)?;
    let mut encoder = device.encoder();
    encoder.route(&all, &x, &mut routing)?;
    encoder.flush()?;
    drop(encoder);
    if let Some(table) = table {
        let name = "expert_blocks and products, level 4";
        measure(&mut group, (&mut device, name, bytes), |encoder| {
            table.routed_experts(encoder, &[Level::L4], &routing, &x, &mut out)
        })?;
    }
    let bytes = 4 * (PER_TOKEN * COLS) as u64;
    measure(&mut group, (&mut device, "experts_sum", bytes), |encoder| {
        encoder.experts_sum(&routing, &mut out, &mut sum)
    })?;
    let bytes = experts[0].read_bytes(Level::L4);
    let mut out = device.buffer(1, COLS)?;
    measure(&mut group, (&mut device, "ffn, level 4", bytes), |encoder| {
        encoder.ffn(&experts[0], &[Level::L4], &x, Write::Set, &mut out)
    })
}

fn shaders(criterion: &mut Criterion) {
    let all = nested(criterion, Instructions::Detected)
        .and_then(|()| nested(criterion, Instructions::Plain))
        .and_then(|()| scaled(criterion))
        .and_then(|()| floats(criterion))
        .and_then(|()| experts(criterion))
        .and_then(|()| elements(criterion))
        .and_then(|()| attention(criterion))
        .and_then(|()| delta_net(criterion))
        .and_then(|()| short_conv(criterion))
        .and_then(|()| mamba2(criterion))
        .and_then(|()| routed(criterion));
    assert!(all.is_ok(), "{all:?}");
}

criterion_group!(benches, shaders);
criterion_main!(benches);
