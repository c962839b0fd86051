//! Every kernel of every instruction set against the portable one, on odd sizes, to the bit.
//! Nested products have their own cases, against the definition, in `cpu/nested/tests.rs`.

use super::*;

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

/// Runs `operation` on every set and size; `operation` gives everything that it wrote.
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
    compare("swiglu", |kernels, size| {
        let mut out = noise(size, 5);
        kernels.swiglu(&mut out, &noise(size, 6));
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

#[test]
fn routing_agrees() {
    compare("route", |kernels, size| {
        let chosen = size.min(5);
        let (mut ids, mut weights) = (vec![0; chosen], vec![0.0; chosen]);
        kernels.route(&mut noise(size, 12), size % 2 == 0, &mut ids, &mut weights);
        weights.extend(ids.into_iter().map(|id| id as f32));
        weights
    });
}

#[test]
fn float_products_agree() {
    compare("float_rows", |kernels, size| {
        let weights = noise(FLOAT_ROWS * (size + 3), 13);
        let x = noise(5 * size, 14);
        let x: Vec<&[f32]> = x.chunks(size).collect();
        let mut out = vec![[0.0; FLOAT_ROWS]; x.len()];
        kernels.float_rows((&weights, size + 3), &x, &mut out);
        out.into_flattened()
    });
}

#[test]
fn attention_agrees() {
    for half_precision in [false, true] {
        compare("attend_block", |kernels, size| {
            let (positions, head) = (1 + size % 64, size);
            let (query, keys) = (noise(head, 15), noise(positions * head, 16));
            let values = noise(positions * head, 17);
            let halves = [&keys, &values]
                .map(|v| v.iter().map(|x| half::f16::from_f32(*x)).collect::<Vec<_>>());
            let kv = if half_precision {
                KvBlock::F16(&halves[0], &halves[1])
            } else {
                KvBlock::F32(&keys, &values)
            };
            let (mut scores, mut block) = (vec![0.0; positions], vec![0.0; head]);
            let mut gathered = vec![0.0; head];
            let mut out = (AttentionState::EMPTY, &mut gathered[..]);
            for _ in 0..2 {
                kernels.attend_block(&query, kv, 0.2, (&mut scores, &mut block), &mut out);
            }
            let state = [out.0.max, out.0.sum];
            gathered.into_iter().chain(state).collect()
        });
    }
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
