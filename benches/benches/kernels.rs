//! Benchmarks of every CPU kernel on every instruction set of this machine. Throughput is in bytes read.

use std::hint::black_box;

use criterion::measurement::WallTime;
use criterion::{
    BenchmarkGroup, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main,
};
use half::{bf16, f16};
use nestling_benches::{FileType, RandomMatrix, RandomScaled};
use nestling_cpu::attention::{AttentionRows, KvBlock, SharedRows};
use nestling_cpu::delta_net::{FactorInputs, StateHead, StateRule};
use nestling_cpu::kernels::{FloatInputs, FloatWeights, Kernels};
use nestling_cpu::math::{OUTER_TILE, RouterScores};
use nestling_cpu::nested::{CodecTables, NestedWeights};
use nestling_cpu::rows::{PackedRows, QuantizedRows, RowList};
use nestling_cpu::scaled::{ScaledTables, ScaledWeights};
use nestling_cpu::threads::ThreadPool;
use nestling_formats::Level;
use nestling_import::{Activation, GateFunction, RouterConfig};

/// Columns of a product: the hidden size of a medium-sized model.
const COLS: usize = 2048;

fn numbers(count: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 7919) % 1009) as f32 / 500.0 - 1.0).collect()
}

fn quantized(rows: usize, cols: usize) -> QuantizedRows {
    let mut out = QuantizedRows::default();
    out.resize(rows, cols);
    let x = numbers(rows * cols);
    for (row, x) in x.chunks(cols).enumerate() {
        Kernels::detect().quantize(x, out.row_mut(row));
    }
    out
}

fn packed(x: &QuantizedRows, rows: &[u32]) -> PackedRows {
    let mut packed = PackedRows::default();
    packed.clear(x.groups());
    packed.push(rows);
    let (cells, blocks) = packed.cells_mut();
    for (block, cells) in cells.chunks_mut(x.groups()).enumerate() {
        blocks.fill(block, x, cells);
    }
    packed
}

/// Computes all tiles of a matrix for some rows of activations.
fn product(kernels: &Kernels, weights: &NestedWeights, rows: RowList) {
    let mut out = vec![[0.0; 16]; rows.rows().len()];
    for tile in 0..weights.tiles() {
        kernels.nested_tile(weights, tile, rows, &mut out);
    }
    black_box(&mut out);
}

fn sets() -> Vec<&'static Kernels> {
    Kernels::available()
}

/// Levels with P3 and P4 merged, and the two levels that differ if they are separate.
const LEVELS: [(Level, bool); 7] = [
    (Level::L2, true),
    (Level::L3, false),
    (Level::L3, true),
    (Level::L4, false),
    (Level::L4, true),
    (Level::L6, true),
    (Level::L8, true),
];

fn name(level: Level, merged: bool) -> String {
    format!("level {level}{}", if merged { "" } else { ", P3 and P4 apart" })
}

/// Benchmarks one expert's matrix, in the L2 cache.
fn nested_in_cache(criterion: &mut Criterion) {
    let Ok(matrix) = RandomMatrix::new(768, COLS, Level::L8) else { return };
    let tables = CodecTables::new(&matrix.codec);
    for tokens in [1, 2, 3, 4, 8, 64] {
        let mut group = criterion.benchmark_group(format!("nested, {tokens} rows, cache"));
        let x = quantized(tokens, COLS);
        let rows: Vec<u32> = (0..tokens as u32).collect();
        let packed = packed(&x, &rows);
        for (level, merged) in LEVELS {
            let Ok(view) = matrix.view(merged) else { return };
            let Ok(weights) = NestedWeights::new(&view, level, &tables) else { return };
            group.throughput(Throughput::Bytes(weights.bytes() as u64));
            for kernels in sets() {
                let id = BenchmarkId::new(kernels.name(), name(level, merged));
                let mut rows = RowList::new(&x, &rows);
                if tokens >= kernels.packs_from() {
                    rows = rows.with_packed(&packed, 0);
                }
                group.bench_function(id, |b| b.iter(|| product(kernels, &weights, rows)));
            }
        }
    }
}

/// Benchmarks the same matrix in the formats of files.
fn scaled_in_cache(criterion: &mut Criterion) {
    for tokens in [1, 4, 8, 64] {
        let mut group = criterion.benchmark_group(format!("scaled, {tokens} rows, cache"));
        let x = quantized(tokens, COLS);
        let rows: Vec<u32> = (0..tokens as u32).collect();
        let packed = packed(&x, &rows);
        for file_type in FileType::ALL {
            let Ok(matrix) = RandomScaled::new(768, COLS, file_type) else { return };
            let (Ok(view), Ok(tables)) = (matrix.view(), ScaledTables::new(&matrix.codec)) else {
                return;
            };
            let Ok(weights) = ScaledWeights::new(&view, matrix.level(), &tables) else { return };
            group.throughput(Throughput::Bytes(weights.bytes() as u64));
            for kernels in sets() {
                let id = BenchmarkId::new(kernels.name(), file_type.name);
                let mut rows = RowList::new(&x, &rows);
                if tokens >= kernels.packs_from() {
                    rows = rows.with_packed(&packed, 0);
                }
                let mut out = vec![[0.0; 16]; tokens];
                group.bench_function(id, |b| {
                    b.iter(|| {
                        for tile in 0..weights.tiles() {
                            kernels.scaled_tile(&weights, tile, rows, &mut out);
                        }
                        black_box(&mut out);
                    });
                });
            }
        }
    }
}

/// Benchmarks a vocabulary head, far larger than the caches, against memory bandwidth.
fn nested_in_memory(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("nested, 1 row, memory");
    group.sample_size(10);
    let Ok(matrix) = RandomMatrix::new(512 * 256, COLS, Level::L8) else { return };
    let tables = CodecTables::new(&matrix.codec);
    let x = quantized(1, COLS);
    for (level, merged) in LEVELS {
        let Ok(view) = matrix.view(merged) else { return };
        let Ok(weights) = NestedWeights::new(&view, level, &tables) else { return };
        group.throughput(Throughput::Bytes(weights.bytes() as u64));
        for threads in [1, 2] {
            let pool = ThreadPool::new(threads);
            let id = BenchmarkId::new(format!("{threads} threads"), name(level, merged));
            group.bench_function(id, |b| {
                b.iter(|| {
                    pool.run(256, &|part| {
                        let mut out = [[0.0; 16]; 1];
                        let tiles = weights.tiles() / 256;
                        for tile in part * tiles..(part + 1) * tiles {
                            let rows = RowList::new(&x, &[0]);
                            Kernels::detect().nested_tile(&weights, tile, rows, &mut out);
                        }
                        black_box(&mut out);
                    });
                });
            });
        }
    }
}

/// Measures memory bandwidth: sums 64-bit words, in blocks assigned to threads in turn.
fn memory(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("memory, read");
    group.sample_size(10);
    let words = vec![1u64; 64 << 20];
    group.throughput(Throughput::Bytes(8 * words.len() as u64));
    for threads in [1, 2] {
        let pool = ThreadPool::new(threads);
        group.bench_function(BenchmarkId::from_parameter(format!("{threads} threads")), |b| {
            b.iter(|| {
                pool.run(256, &|part| {
                    let block = &words[part * (words.len() / 256)..][..words.len() / 256];
                    let mut sums = [0u64; 32];
                    for chunk in block.as_chunks::<32>().0 {
                        sums.iter_mut().zip(chunk).for_each(|(s, w)| *s = s.wrapping_add(*w));
                    }
                    black_box(sums);
                });
            });
        });
    }
}

fn each(group: &mut BenchmarkGroup<'_, WallTime>, bytes: usize, mut run: impl FnMut(&Kernels)) {
    group.throughput(Throughput::Bytes(bytes as u64));
    for kernels in sets() {
        group.bench_function(kernels.name(), |b| b.iter(|| run(kernels)));
    }
}

fn rows(criterion: &mut Criterion) {
    let (x, weight) = (numbers(COLS), numbers(COLS));
    let mut out = vec![0.0; COLS];
    each(&mut criterion.benchmark_group("rms_norm"), 4 * COLS, |kernels| {
        kernels.rms_norm(black_box(&x), &weight, 1e-6, &mut out);
    });
    each(&mut criterion.benchmark_group("rms_norm_in_place"), 4 * COLS, |kernels| {
        kernels.rms_norm_in_place(black_box(&mut out), &weight, 1e-6);
    });
    each(&mut criterion.benchmark_group("rms_norm_add"), 8 * COLS, |kernels| {
        kernels.rms_norm_add(black_box(&x), &weight, 1e-6, &mut out);
    });
    let mut quantized = QuantizedRows::default();
    quantized.resize(1, COLS);
    each(&mut criterion.benchmark_group("quantize"), 4 * COLS, |kernels| {
        kernels.quantize(black_box(&x), quantized.row_mut(0));
    });
    each(&mut criterion.benchmark_group("gated"), 8 * COLS, |kernels| {
        out.copy_from_slice(&x);
        kernels.gated(Activation::Silu, black_box(&mut out), &weight);
    });
    let clamped = Activation::ClampedSwiglu { alpha: 1.702, limit: 7.0 };
    each(&mut criterion.benchmark_group("gated_clamped"), 8 * COLS, |kernels| {
        out.copy_from_slice(&x);
        kernels.gated(clamped, black_box(&mut out), &weight);
    });
    each(&mut criterion.benchmark_group("scale"), 4 * COLS, |kernels| {
        kernels.scale(black_box(&mut out), 0.999);
    });
    each(&mut criterion.benchmark_group("softcap"), 4 * COLS, |kernels| {
        kernels.softcap(black_box(&mut out), 30.0);
    });
    each(&mut criterion.benchmark_group("gate"), 8 * COLS, |kernels| {
        kernels.gate(GateFunction::Sigmoid, black_box(&mut out), &weight);
    });
    each(&mut criterion.benchmark_group("add_scaled"), 8 * COLS, |kernels| {
        kernels.add_scaled(black_box(&mut out), 0.5, &x);
    });
    each(&mut criterion.benchmark_group("add"), 8 * COLS, |kernels| {
        out.copy_from_slice(&x);
        kernels.add(black_box(&mut out), &weight);
    });
    let (mut ids, mut weights, mut logits) = ([0; 8], [0.0; 8], numbers(128));
    each(&mut criterion.benchmark_group("route, 8 of 128"), 4 * 128, |kernels| {
        let logits = black_box(&mut logits);
        let scores =
            RouterScores { logits, choice: &mut [], selection_bias: &[], expert_scale: &[] };
        kernels.route(&RouterConfig::softmax(true), scores, &mut ids, &mut weights);
    });
}

/// Benchmarks the work of a gated DeltaNet layer of Qwen3-Next for one row and for a prompt: convolution and
/// one head.
fn delta_net(criterion: &mut Criterion) {
    const HEAD: usize = 128;
    const CHANNELS: usize = 8192;
    const ROWS: usize = 64;
    let rows = numbers(ROWS * CHANNELS);
    let taps: Vec<&[f32]> = rows.chunks(CHANNELS).take(4).collect();
    let mut out = vec![0.0; CHANNELS];
    each(&mut criterion.benchmark_group("conv_silu"), 2 * 16 * CHANNELS, |kernels| {
        out.fill(0.0);
        kernels.convolve(black_box(&taps), &rows[..4 * CHANNELS], None, &mut out);
    });
    each(&mut criterion.benchmark_group("conv_gate"), 2 * 16 * CHANNELS, |kernels| {
        let (weights, gate) = (&rows[..3 * CHANNELS], &rows[..CHANNELS]);
        out.fill(0.0);
        kernels.convolve(black_box(&taps[..3]), weights, Some(gate), &mut out);
    });
    let mut factors = [[0.0; 2]; ROWS];
    each(&mut criterion.benchmark_group("state factors"), 16 * ROWS, |kernels| {
        let [rate, time_bias, times, betas] = [0, 1, 2, 3].map(|at| &rows[at * ROWS..][..ROWS]);
        let inputs = FactorInputs { rate, time_bias, times, betas: Some(betas) };
        kernels.state_factors(black_box(inputs), &mut factors);
    });
    let head = StateHead {
        rule: StateRule::Delta,
        rows: &rows,
        stride: CHANNELS,
        columns: [0, HEAD, 2 * HEAD],
        key_head_dim: HEAD,
        value_head_dim: HEAD,
        factors: &[[0.9, 0.5]; ROWS],
        heads: (1, 0),
    };
    let mut state = vec![0.0; HEAD * HEAD];
    for count in [1, ROWS] {
        let name = format!("delta rule, {count} rows");
        let mut out = vec![0.0; count * HEAD];
        each(&mut criterion.benchmark_group(name), 4 * count * HEAD * HEAD, |kernels| {
            kernels.pass_rows(black_box(head), None, &mut state, &mut out);
        });
    }
}

fn floats(criterion: &mut Criterion) {
    const TILE: usize = 16 * COLS;
    let weights = numbers(64 * COLS);
    let upper: Vec<bf16> = weights.iter().map(|x| bf16::from_f32(*x)).collect();
    for tokens in [1, 8, 128] {
        let x = numbers(tokens * COLS);
        let rows: Vec<u32> = (0..tokens as u32).collect();
        let x = FloatInputs { values: &x, cols: COLS, rows: &rows };
        let mut out = vec![[0.0; 16]; tokens];
        let mut group = criterion.benchmark_group(format!("float weights, {tokens} rows"));
        each(&mut group, 4 * weights.len(), |kernels| {
            for weights in weights.chunks(TILE) {
                kernels.float_tile(FloatWeights::F32(weights), COLS, black_box(x), &mut out);
            }
        });
        drop(group);
        let mut group = criterion.benchmark_group(format!("bf16 weights, {tokens} rows"));
        each(&mut group, 2 * upper.len(), |kernels| {
            for weights in upper.chunks(TILE) {
                kernels.float_tile(FloatWeights::Bf16(weights), COLS, black_box(x), &mut out);
            }
        });
    }
}

/// Benchmarks one page of attention, for the heads of one token and for a block of a prompt. Also benchmarks
/// narrowing to f16.
fn attention(criterion: &mut Criterion) {
    const HEAD: usize = 128;
    let page = numbers(64 * HEAD);
    let mut half = vec![f16::ZERO; page.len()];
    each(&mut criterion.benchmark_group("narrow"), 4 * page.len(), |kernels| {
        kernels.narrow(black_box(&page), &mut half);
    });
    let integers: Vec<i8> = page.iter().map(|x| (x * 127.0) as i8).collect();
    let scales = [0.01; 64];
    let (keys, key_scales) = (&integers, &scales);
    let kinds = [
        ("f32", KvBlock::F32 { keys: &page, values: &page }, 4),
        ("f16", KvBlock::F16 { keys: &half, values: &half }, 2),
        ("int8", KvBlock::Int8 { keys, values: keys, key_scales, value_scales: key_scales }, 1),
    ];
    for queries in [1, 8, 64] {
        let mut rows = AttentionRows::default();
        rows.clear(HEAD, HEAD);
        numbers(queries * HEAD).chunks(HEAD).for_each(|query| rows.push(query, 0..64));
        rows.start();
        for (kind, kv, bytes) in kinds {
            let name = format!("attention, {queries} queries, a page of {kind}");
            each(&mut criterion.benchmark_group(name), 2 * 64 * HEAD * bytes, |kernels| {
                kernels.attend_page(black_box(kv), None, 0, 0.1, &mut rows);
            });
        }
    }
}

/// Benchmarks one page of latent attention with the sixteen heads of DeepSeek-V2-Lite, for one token and for
/// four.
fn latent_attention(criterion: &mut Criterion) {
    const LATENT: usize = 512;
    const WIDTH: usize = LATENT + 64;
    let page = numbers(64 * WIDTH);
    let half: Vec<f16> = page.iter().map(|x| f16::from_f32(*x)).collect();
    let integers: Vec<i8> = page.iter().map(|x| (x * 127.0) as i8).collect();
    let kinds = [
        ("f32", SharedRows::F32(&page), 4),
        ("f16", SharedRows::F16(&half), 2),
        ("int8", SharedRows::Int8 { rows: &integers, scales: &[[0.01; 2]; 64] }, 1),
    ];
    for queries in [16, 64] {
        let mut rows = AttentionRows::default();
        rows.clear(WIDTH, LATENT);
        numbers(queries * WIDTH).chunks(WIDTH).for_each(|query| rows.push(query, 0..64));
        rows.start();
        for (kind, latents, bytes) in kinds {
            let name = format!("latent attention, {queries} queries, a page of {kind}");
            each(&mut criterion.benchmark_group(name), 64 * WIDTH * bytes, |kernels| {
                let kv = black_box(KvBlock::Shared(latents));
                kernels.attend_page(kv, None, 0, 0.1, &mut rows);
            });
        }
    }
}

/// Benchmarks additional operations of calibration and of codecs with rotated inputs.
fn transforms(criterion: &mut Criterion) {
    let mut rotated = numbers(COLS);
    each(&mut criterion.benchmark_group("hadamard"), 4 * COLS, |kernels| {
        kernels.hadamard(black_box(&mut rotated));
    });
    let inputs = numbers(2 * 64 * OUTER_TILE);
    let (a, b) = inputs.as_chunks::<OUTER_TILE>().0.split_at(64);
    let mut sums = [[0.0; OUTER_TILE]; OUTER_TILE];
    each(&mut criterion.benchmark_group("outer products, 64 rows"), 4 * inputs.len(), |kernels| {
        kernels.outer_products(black_box(a), b, &mut sums);
    });
}

criterion_group!(
    benches,
    memory,
    nested_in_memory,
    nested_in_cache,
    scaled_in_cache,
    rows,
    floats,
    delta_net,
    attention,
    latent_attention,
    transforms
);
criterion_main!(benches);
