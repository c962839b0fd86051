//! All kernels of all instruction sets against the portable one, on odd sizes, bit by bit. Products of codes
//! are tested against their definition in `cpu/nested/tests.rs` and `cpu/scaled/tests.rs`.

use half::bf16;
use nestling_import::{ExpertGroups, GroupScore, RouterScore};

use super::*;
use crate::attention::SharedRows;
use crate::columns::Cut;
use crate::delta_net::{FactorInputs, StateRule};
use crate::rows::QuantizedRows;
use crate::threads::ThreadPool;
use nestling_core::kv_cache::KvDtype;

/// Sizes around the 16 lanes and around groups of 32.
const SIZES: [usize; 9] = [1, 3, 15, 16, 17, 31, 33, 72, 131];

fn noise(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761) | 1;
    let next = move || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        (state as f32 / u32::MAX as f32 - 0.5) * 8.0
    };
    std::iter::repeat_with(next).take(count).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Runs `operation` on all sets and sizes. `operation` returns everything that it wrote.
fn compare(name: &str, operation: impl Fn(&Kernels, usize) -> Vec<f32>) {
    for size in SIZES {
        let wanted = bits(&operation(Kernels::portable(), size));
        for kernels in Kernels::available() {
            let found = bits(&operation(kernels, size));
            assert_eq!(found, wanted, "{name}, {}, size {size}", kernels.name());
        }
    }
}

#[test]
fn operations_on_rows_agree() {
    compare("rms_norm", |kernels, size| {
        let mut out = vec![0.0; size];
        kernels.rms_norm(&noise(size, 1), &noise(size, 2), 1e-6, &mut out);
        out
    });
    compare("rms_norm_in_place", |kernels, size| {
        let mut out = noise(size, 3);
        kernels.rms_norm_in_place(&mut out, &noise(size, 4), 1e-6);
        out
    });
    compare("rms_norm_add", |kernels, size| {
        let mut out = noise(size, 26);
        kernels.rms_norm_add(&noise(size, 1), &noise(size, 2), 1e-6, &mut out);
        out
    });
    let clamped = Activation::ClampedSwiglu { alpha: 1.702, limit: 0.7 };
    for activation in [Activation::Silu, Activation::GeluTanh, clamped] {
        compare("gated", |kernels, size| {
            let mut out = noise(size, 5);
            kernels.gated(activation, &mut out, &noise(size, 6));
            out
        });
    }
    compare("scale", |kernels, size| {
        let mut out = noise(size, 5);
        kernels.scale(&mut out, 0.22);
        out
    });
    compare("softcap", |kernels, size| {
        let mut out = noise(size, 25);
        kernels.softcap(&mut out, 3.0);
        out
    });
    compare("hadamard", |kernels, size| {
        let mut out = noise(size, 11);
        kernels.hadamard(&mut out);
        out
    });
    compare("add_scaled", |kernels, size| {
        let mut out = noise(size, 7);
        kernels.add_scaled(&mut out, 0.37, &noise(size, 8));
        out
    });
    compare("add", |kernels, size| {
        let mut out = noise(size, 9);
        kernels.add(&mut out, &noise(size, 10));
        out
    });
}

#[test]
fn delta_nets_agree() {
    compare("conv_silu", |kernels, size| {
        let x = noise(4 * size, 31);
        let taps: Vec<&[f32]> = x.chunks(size).collect();
        let mut out = noise(size, 35);
        kernels.convolve(&taps, &noise(4 * size, 32), None, &mut out);
        out
    });
    compare("conv_gate", |kernels, size| {
        let x = noise(3 * size, 36);
        let taps: Vec<&[f32]> = x.chunks(size).collect();
        let mut out = noise(size, 37);
        kernels.convolve(&taps, &noise(3 * size, 38), Some(&noise(size, 39)), &mut out);
        out
    });
    compare("gate", |kernels, size| {
        let mut out = noise(size, 33);
        kernels.gate(GateFunction::Sigmoid, &mut out, &noise(size, 34));
        out
    });
    compare("state_factors", |kernels, size| {
        let inputs = [40, 41, 42, 43].map(|seed| noise(size, seed));
        let [rate, time_bias, times, betas] = inputs.each_ref().map(|values| &values[..]);
        let mut out = [vec![[0.0; 2]; size], vec![[0.0; 2]; size]];
        for (betas, out) in [None, Some(betas)].into_iter().zip(&mut out) {
            kernels.state_factors(FactorInputs { rate, time_bias, times, betas }, out);
        }
        out.concat().concat()
    });
    compare("pass_rows", |kernels, size| {
        let (keys, rows) = (1 + size % 7, noise(3 * 200, 35));
        let rule = if size % 2 == 0 { StateRule::Delta } else { StateRule::Scaled };
        let head = StateHead {
            rule,
            rows: &rows,
            stride: 200,
            columns: [0, 20, 40],
            key_head_dim: keys,
            value_head_dim: size,
            factors: &[[0.9, 0.5], [0.1, 0.2], [0.99, 0.999]],
            heads: (1, 0),
        };
        let before = noise(keys * size, 36);
        let (mut state, mut out) = (before.clone(), vec![0.0; 3 * size]);
        kernels.pass_rows(head, None, &mut state, &mut out);
        let (mut other, mut again) = (noise(keys * size, 37), vec![0.0; 3 * size]);
        kernels.pass_rows(head, Some(&before), &mut other, &mut again);
        assert_eq!((bits(&state), bits(&out)), (bits(&other), bits(&again)));
        [state, out].concat()
    });
}

#[test]
fn quantization_agrees() {
    compare("quantize", |kernels, size| {
        let mut rows = QuantizedRows::default();
        rows.resize(1, size);
        kernels.quantize(&noise(size, 11), rows.row_mut(0));
        let cell = |group: &QuantizedGroup| {
            let values = group.values.into_iter().map(f32::from);
            values.chain([group.scale, group.correction as f32]).collect::<Vec<_>>()
        };
        rows.row(0).iter().flat_map(cell).collect()
    });
}

/// Router rules of model families, each with its bias.
fn rules(size: usize) -> Vec<(RouterConfig, Vec<f32>)> {
    let softmax = RouterConfig::softmax(size.is_multiple_of(2));
    let score = RouterScore::Sigmoid;
    let biased = RouterConfig { score, scale: 1.8, ..RouterConfig::softmax(true) };
    let groups = [GroupScore::Best, GroupScore::TwoBest].map(|score| RouterConfig {
        groups: Some(ExpertGroups { n_group: 3, topk_group: 2, score }),
        ..biased
    });
    let [best, two_best] = groups;
    let all = [softmax, biased, best, two_best];
    all.into_iter().map(|rule| (rule, noise(if rule == softmax { 0 } else { size }, 14))).collect()
}

#[test]
fn routing_agrees() {
    compare("route", |kernels, size| {
        let chosen = size.min(5);
        let mut found = Vec::new();
        for (rule, bias) in rules(size) {
            let (mut ids, mut weights) = (vec![0; chosen], vec![0.0; chosen]);
            let (logits, choice) = (&mut noise(size, 12), &mut vec![0.0; size]);
            let expert_scale = if bias.is_empty() { noise(size, 27) } else { Vec::new() };
            let (selection_bias, expert_scale) = (&bias[..], &expert_scale[..]);
            let scores = RouterScores { logits, choice, selection_bias, expert_scale };
            kernels.route(&rule, scores, &mut ids, &mut weights);
            found.extend(weights.into_iter().chain(ids.into_iter().map(|id| id as f32)));
        }
        found
    });
}

#[test]
fn float_products_agree() {
    for tokens in [1, 2, 5, 6, 15] {
        for outputs in [1, 3, 6, 13, 16] {
            for size in SIZES {
                float_products(tokens, outputs, size);
            }
        }
    }
}

/// Compares tiles of all element types with [`math::dot`] of each row.
fn float_products(tokens: usize, outputs: usize, size: usize) {
    let stride = size + 3;
    let weights = noise((outputs - 1) * stride + size, 13);
    let halves: Vec<f16> = weights.iter().map(|x| f16::from_f32(*x)).collect();
    let upper: Vec<bf16> = weights.iter().map(|x| bf16::from_f32(*x)).collect();
    let values = noise(7 * size, 14);
    let rows: Vec<u32> = (0..tokens as u32).map(|token| (5 * token + 6) % 7).collect();
    let x = FloatInputs { values: &values, cols: size, rows: &rows };
    let dot = |weights: FloatWeights, output: usize, row: u32| {
        let (at, x) = (output * stride, &values[row as usize * size..][..size]);
        match weights {
            FloatWeights::F32(weights) => math::dot(&weights[at..][..size], x),
            FloatWeights::F16(weights) => math::dot(&weights[at..][..size], x),
            FloatWeights::Bf16(weights) => math::dot(&weights[at..][..size], x),
        }
    };
    let types =
        [FloatWeights::F32(&weights), FloatWeights::F16(&halves), FloatWeights::Bf16(&upper)];
    for (weights, kernels) in types
        .into_iter()
        .flat_map(|weights| Kernels::available().into_iter().map(move |set| (weights, set)))
    {
        let mut out = vec![[f32::NAN; 16]; tokens];
        kernels.float_tile(weights, stride, x, &mut out);
        for (token, (out, row)) in out.iter().zip(&rows).enumerate() {
            for (output, found) in out[..outputs].iter().enumerate() {
                let expected = dot(weights, output, *row);
                let place = format!("{}, {size}: token {token}, row {output}", kernels.name());
                assert_eq!(found.to_bits(), expected.to_bits(), "{place}");
            }
        }
    }
}

#[test]
fn float_products_keep_special_numbers() {
    // The lanes start with infinities, subnormal numbers and zeros of both signs. The second row of weights
    // gives products that underflow to -0.
    let special = [f32::INFINITY, 1e-40, -0.0, 0.0, f32::MIN_POSITIVE, -1e-39, 1e38, -1e-30];
    let weights: Vec<f32> = [[1.0; 40], [-1e-30; 40]].concat();
    let values: Vec<f32> =
        (0..6 * 40).map(|at| if at < 40 { special[at % 8] } else { 1e-30 * at as f32 }).collect();
    let x = FloatInputs { values: &values, cols: 40, rows: &[0, 1, 2, 3, 4, 5] };
    for kernels in Kernels::available() {
        let mut out = [[f32::NAN; 16]; 6];
        kernels.float_tile(FloatWeights::F32(&weights), 40, x, &mut out);
        for (x, out) in values.chunks(40).zip(out) {
            let expected = [0, 1].map(|row| math::dot(&weights[row * 40..][..40], x));
            assert_eq!(bits(&out[..2]), bits(&expected), "{}", kernels.name());
        }
    }
}

#[test]
fn halves_agree() {
    compare("narrow", |kernels, size| {
        let mut x = noise(size, 18);
        // Includes subnormal numbers, ties and overflows.
        x.iter_mut().step_by(3).for_each(|x| *x *= 1e-6);
        x.iter_mut().step_by(5).for_each(|x| *x *= 1e5);
        let mut halves = vec![f16::ZERO; size];
        kernels.narrow(&x, &mut halves);
        let expected: Vec<f16> = x.iter().map(|x| f16::from_f32(*x)).collect();
        assert_eq!(halves, expected);
        halves.iter().map(|half| half.to_f32()).collect()
    });
}

#[test]
fn attention_agrees() {
    for dtype in [KvDtype::F32, KvDtype::F16, KvDtype::Int8] {
        compare("attend_page", |kernels, head| {
            let halves = |seed| -> Vec<f16> {
                noise(64 * head, seed).into_iter().map(f16::from_f32).collect()
            };
            let integers = |seed| -> Vec<i8> {
                noise(64 * head, seed).into_iter().map(|x| (x * 30.0) as i8).collect()
            };
            let floats = [noise(64 * head, 16), noise(64 * head, 17)];
            let halves = [halves(16), halves(17)];
            let (integers, scales) = ([integers(16), integers(17)], noise(128, 19));
            let kv = match dtype {
                KvDtype::F32 => KvBlock::F32 { keys: &floats[0], values: &floats[1] },
                KvDtype::F16 => KvBlock::F16 { keys: &halves[0], values: &halves[1] },
                KvDtype::Int8 => KvBlock::Int8 {
                    keys: &integers[0],
                    values: &integers[1],
                    key_scales: &scales[..64],
                    value_scales: &scales[64..],
                },
            };
            let shared_scales = scales.as_chunks().0;
            let shared = match dtype {
                KvDtype::F32 => SharedRows::F32(&floats[0]),
                KvDtype::F16 => SharedRows::F16(&halves[0]),
                KvDtype::Int8 => SharedRows::Int8 { rows: &integers[0], scales: shared_scales },
            };
            let beside = attended(kernels, (kv, head), head);
            beside
                .into_iter()
                .chain(attended(kernels, (KvBlock::Shared(shared), head), head.div_ceil(2)))
                .collect()
        });
    }
}

fn attended(kernels: &Kernels, (kv, head): (KvBlock, usize), value_dim: usize) -> Vec<f32> {
    let queries = 1 + head % 11;
    let mut rows = AttentionRows::default();
    rows.clear(head, value_dim);
    // Queries range from ones that see nothing of the second page to ones that see all of it. With a window,
    // some see nothing of the first page.
    for (index, query) in noise(queries * head, 15).chunks(head).enumerate() {
        let end = 60 + 70 * index / queries;
        let start = if head % 2 == 0 { 0 } else { end.saturating_sub(50) };
        rows.push(query, start..end);
    }
    rows.start();
    for first in [0, 64] {
        kernels.attend_page(kv, None, first, 0.02, &mut rows);
    }
    let states: Vec<f32> = rows.states().iter().flat_map(|s| [s.max, s.sum]).collect();
    rows.finish(&[0.5, -1.0, 3.0]).iter().copied().chain(states).collect()
}

#[test]
fn tiles_are_written_where_they_belong() {
    // Rows of 40 and of 48 floats: not aligned to cache lines, and aligned.
    for (cols, kernels) in Kernels::available().into_iter().flat_map(|set| [(40, set), (48, set)]) {
        let mut out = vec![-1.0; 5 * cols];
        let tiles: [TileValues; 3] = std::array::from_fn(|row| [row as f32; 16]);
        let pool = ThreadPool::new(1);
        columns::for_each_block(
            &pool,
            false,
            &mut out,
            cols,
            Cut::Every(5),
            Cut::Within(8, cols, cols),
            &|_, block| {
                kernels.write_tile(block, 8, &[4, 0, 3], &tiles);
                columns::fence();
            },
        );
        for (index, found) in out.iter().enumerate() {
            let tile = [1.0, -1.0, -1.0, 2.0, 0.0][index / cols];
            let wanted = if (16..32).contains(&(index % cols)) { tile } else { -1.0 };
            assert_eq!(*found, wanted, "{}, {cols} columns, {index}", kernels.name());
        }
    }
}

#[test]
#[should_panic(expected = "row 2 of 2")]
fn a_tile_beyond_the_block_is_refused() {
    let pool = ThreadPool::new(1);
    columns::for_each_block(
        &pool,
        false,
        &mut [0.0; 32],
        16,
        Cut::Every(2),
        Cut::Every(16),
        &|_, block| {
            Kernels::detect().write_tile(block, 0, &[1, 2], &[[1.0; 16]; 2]);
        },
    );
}

#[test]
fn outer_products_agree() {
    for rows in [0, 1, 5, 33] {
        let (a, b) = (noise(rows * OUTER_TILE, 21), noise(rows * OUTER_TILE, 22));
        let run = |kernels: &Kernels| {
            let mut sums = [[0.5; OUTER_TILE]; OUTER_TILE];
            let (a, b) = (a.as_chunks().0, b.as_chunks().0);
            kernels.outer_products(a, b, &mut sums);
            bits(sums.as_flattened())
        };
        let wanted = run(Kernels::portable());
        for kernels in Kernels::available() {
            assert_eq!(run(kernels), wanted, "{}, {rows} rows", kernels.name());
        }
    }
}

/// Compares rows of a head in one call with one call for each row. Few rows, and keys longer than a tile has rows,
/// pass in place; other rows pass in tiles and, for the columns that remain, in place.
#[test]
fn rows_together_have_the_bits_of_rows_one_by_one() {
    const STRIDE: usize = 600;
    const ROWS: usize = 9;
    let values = noise(ROWS * STRIDE, 40);
    let factors: Vec<[f32; 2]> = (0..ROWS).map(|row| [0.99 - 0.05 * row as f32, 0.02]).collect();
    for (keys, cols) in [(3, 131), (256, 64), (257, 33), (16, 31), (5, 16), (7, 112)] {
        let before = noise(keys * cols, 41);
        for (rule, rows) in [StateRule::Delta, StateRule::Scaled]
            .into_iter()
            .flat_map(|rule| (1..=ROWS).map(move |rows| (rule, rows)))
        {
            let head = StateHead {
                rule,
                rows: &values,
                stride: STRIDE,
                columns: [0, 200, 460],
                key_head_dim: keys,
                value_head_dim: cols,
                factors: &factors,
                heads: (1, 0),
            };
            let (mut wanted, mut states) = (Vec::new(), before.clone());
            for row in 0..rows {
                let (rows, factors) = (&values[row * STRIDE..], &factors[row..]);
                let mut out = vec![0.0; cols];
                let head = StateHead { rows, factors, ..head };
                Kernels::portable().pass_rows(head, None, &mut states, &mut out);
                wanted.extend(out);
            }
            for kernels in Kernels::available() {
                let name = format!("{}, {rule:?}, {keys} keys, {cols} columns", kernels.name());
                let (mut state, mut out) = (before.clone(), vec![0.0; rows * cols]);
                kernels.pass_rows(head, None, &mut state, &mut out);
                assert_eq!((bits(&out), bits(&state)), (bits(&wanted), bits(&states)), "{name}");
                let (mut state, mut out) = (noise(keys * cols, 42), vec![0.0; rows * cols]);
                kernels.pass_rows(head, Some(&before), &mut state, &mut out);
                assert_eq!((bits(&out), bits(&state)), (bits(&wanted), bits(&states)), "{name}");
            }
        }
    }
}
