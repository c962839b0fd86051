//! CPU kernels with arbitrary planes, scales and activations. All instruction sets must be bit-exact with the
//! portable one, which must be bit-exact with the definition for validated planes.

#![no_main]

use half::{bf16, f16};
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use nestling_cpu::kernels::{FloatInputs, FloatWeights, Kernels};
use nestling_cpu::nested::{CodecTables, NestedWeights, TileValues};
use nestling_cpu::rows::{PackedRows, QuantizedRows, RowList};
use nestling_formats::nested::{
    GROUP, InputTransform, Layout, NestedCodec, NestedPlanes, NestedTables, NestedView, ScaleSteps,
    TILE_ROWS, merge_p3_p4, merged_bytes, plane_bytes,
};
use nestling_formats::{Level, Plane};

#[derive(Arbitrary, Debug)]
struct Input {
    rows: u8,
    cols: u8,
    tokens: u8,
    tables: Vec<[i8; 28]>,
    alpha: u16,
    beta: u8,
    eighths: bool,
    merged: bool,
    /// Number of planes above P2, and the level of the product.
    planes: u8,
    level: u8,
    plane_bytes: Vec<u8>,
    activations: Vec<u32>,
}

/// Returns `length` bytes that repeat the seed with variations.
fn filled(seed: &[u8], length: usize, salt: usize) -> Vec<u8> {
    if seed.is_empty() {
        return vec![salt as u8; length];
    }
    let byte = |at: usize| seed[(at + salt * 13) % seed.len()] ^ (at / seed.len()) as u8;
    (0..length).map(byte).collect()
}

/// Returns the bits of numbers, with all NaNs unified.
fn bits<'a>(values: impl IntoIterator<Item = &'a f32>) -> Vec<u32> {
    let bits = |value: &f32| if value.is_nan() { f32::NAN.to_bits() } else { value.to_bits() };
    values.into_iter().map(bits).collect()
}

fn codec(input: &Input) -> NestedCodec {
    let tables = input.tables.iter().take(16).map(|values| {
        let value = |at: usize| values[at].max(-127);
        NestedTables {
            t2: std::array::from_fn(value),
            t3: std::array::from_fn(|at| value(4 + at)),
            t4: std::array::from_fn(|at| value(12 + at)),
        }
    });
    let mut tables: Vec<_> = tables.collect();
    if tables.is_empty() {
        tables.push(NestedTables { t2: [-127, -1, 1, 127], t3: [0; 8], t4: [127; 16] });
    }
    let alpha_a = 1 + input.alpha % 16384;
    NestedCodec {
        alpha_a,
        alpha_b: (32768 - 2 * u32::from(alpha_a)) as u16,
        beta_q: 16 + input.beta % 17,
        tables,
        inputs: InputTransform::default(),
        steps: if input.eighths { ScaleSteps::Eighths } else { ScaleSteps::Octaves },
    }
}

fn definition(view: &NestedView, level: Level, x: &QuantizedRows) -> Vec<f32> {
    let mut out = vec![0.0; x.rows() * view.rows()];
    let mut values = [0; TILE_ROWS * GROUP];
    for tile in 0..view.rows().div_ceil(TILE_ROWS) {
        // The groups of a row are processed in order, as in the definition. Each group is decoded once for
        // all rows.
        for group in 0..view.cols().div_ceil(GROUP) {
            view.decode_group_values(level, tile, group, &mut values).unwrap();
            let scales = view.group_scales(level, tile, group).scales[0];
            for row in tile * TILE_ROWS..view.rows().min((tile + 1) * TILE_ROWS) {
                let weights = &values[row % TILE_ROWS * GROUP..][..GROUP];
                for t in 0..x.rows() {
                    let x = &x.row(t)[group];
                    let products = weights.iter().zip(&x.values);
                    let dot: i32 = products.map(|(w, x)| i32::from(*w) * i32::from(*x)).sum();
                    let sum = &mut out[t * view.rows() + row];
                    *sum = (dot as f32).mul_add(x.scale * scales[row % TILE_ROWS], *sum);
                }
            }
        }
    }
    out
}

/// Multiplies all tiles with one instruction set. The result is `[rows of the list, rows of the matrix]`.
fn product(kernels: &Kernels, weights: &NestedWeights, list: RowList) -> Vec<f32> {
    let rows = weights.rows();
    let mut all = vec![0.0; list.rows().len() * rows];
    let mut out = vec![[f32::NAN; TILE_ROWS]; list.rows().len()];
    for tile in 0..weights.tiles() {
        kernels.nested_tile(weights, tile, list, &mut out);
        let live = TILE_ROWS.min(rows - tile * TILE_ROWS);
        for (out, all) in out.iter().zip(all.chunks_mut(rows)) {
            all[tile * TILE_ROWS..][..live].copy_from_slice(&out[..live]);
        }
    }
    all
}

fn packed(x: &QuantizedRows, order: &[u32]) -> PackedRows {
    let mut packed = PackedRows::default();
    packed.clear(x.groups());
    packed.push(order);
    let (cells, blocks) = packed.cells_mut();
    for (block, cells) in cells.chunks_mut(x.groups()).enumerate() {
        blocks.fill(block, x, cells);
    }
    packed
}

/// Returns activations with arbitrary bits, after checking that all instruction sets quantize them equally.
fn quantized(input: &Input, rows: usize, cols: usize) -> (Vec<f32>, QuantizedRows) {
    let value = |at: usize| match input.activations.as_slice() {
        [] => at as f32 - 7.5,
        some => f32::from_bits(some[at % some.len()].wrapping_add((at / some.len()) as u32)),
    };
    let floats: Vec<f32> = (0..rows * cols).map(value).collect();
    let mut x = QuantizedRows::default();
    x.resize(rows, cols);
    for (row, floats) in floats.chunks(cols).enumerate() {
        Kernels::portable().quantize(floats, x.row_mut(row));
        for kernels in Kernels::available() {
            let mut found = QuantizedRows::default();
            found.resize(1, cols);
            kernels.quantize(floats, found.row_mut(0));
            for (found, wanted) in found.row(0).iter().zip(x.row(row)) {
                let scales = [bits([&found.scale]), bits([&wanted.scale])];
                assert_eq!(scales[0], scales[1], "{} {floats:?}", kernels.name());
                let values = [found.values, wanted.values];
                assert_eq!(values[0], values[1], "{} {floats:?}", kernels.name());
                assert_eq!(found.correction, wanted.correction, "{}", kernels.name());
            }
        }
    }
    (floats, x)
}

fn nested(input: &Input, rows: usize, cols: usize, x: &QuantizedRows) {
    let codec = codec(input);
    codec.check().unwrap();
    let plane = |plane: Plane| {
        let length = plane_bytes(Layout::Tile16, rows, cols, plane).unwrap();
        filled(&input.plane_bytes, length, plane.index())
    };
    let planes = Plane::ALL.map(plane);
    let mut merged = vec![0; merged_bytes(Layout::Tile16, rows, cols).unwrap()];
    merge_p3_p4(Layout::Tile16, &planes[1], &planes[2], &mut merged).unwrap();
    let [p2, p3, p4, p6, p8] = &planes;
    let present = |number: u8, plane| (input.planes & 7 >= number).then_some(plane);
    let some = NestedPlanes {
        p2,
        p3: present(1, &**p3).filter(|_| !input.merged),
        p4: present(2, &**p4).filter(|_| !input.merged),
        p34: present(1, &*merged).filter(|_| input.merged),
        p6: present(3, p6),
        p8: present(4, p8),
    };
    let view = NestedView::new(rows, cols, Layout::Tile16, &codec, some).unwrap();
    let tables = CodecTables::new(&codec);
    let tokens = x.rows() as u32;
    let order: Vec<u32> = (0..tokens).rev().chain([0]).collect();
    let packed = packed(x, &order);
    let level = Level::ALL[usize::from(input.level) % Level::ALL.len()];
    let Ok(weights) = NestedWeights::new(&view, level, &tables) else {
        assert!(level > view.level());
        return;
    };
    let list = RowList::new(x, &order);
    let wanted = product(Kernels::portable(), &weights, list);
    if view.check().is_ok() {
        let defined = definition(&view, level, x);
        let defined = order.iter().flat_map(|t| &defined[*t as usize * rows..][..rows]);
        assert_eq!(bits(&wanted), bits(defined), "level {level}");
    }
    for kernels in Kernels::available() {
        for list in [list, list.with_packed(&packed, 0)] {
            let found = product(kernels, &weights, list);
            assert_eq!(bits(&found), bits(&wanted), "{} level {level}", kernels.name());
        }
    }
}

fn floats(input: &Input, rows: usize, cols: usize, x: &[f32], tokens: usize) {
    let bytes = filled(&input.plane_bytes, rows * cols * 4, 5);
    let wide: Vec<f32> =
        bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    let half: Vec<f16> =
        bytes.as_chunks::<2>().0.iter().map(|bytes| f16::from_le_bytes(*bytes)).collect();
    let brain: Vec<bf16> =
        bytes.as_chunks::<2>().0.iter().map(|bytes| bf16::from_le_bytes(*bytes)).collect();
    let order: Vec<u32> = (0..tokens as u32).rev().collect();
    let x = FloatInputs { values: x, cols, rows: &order };
    for weights in [
        FloatWeights::F32(&wide[..rows * cols]),
        FloatWeights::F16(&half[..rows * cols]),
        FloatWeights::Bf16(&brain[..rows * cols]),
    ] {
        let sums = |kernels: &Kernels| {
            let mut out = vec![TileValues::default(); order.len()];
            kernels.float_tile(weights, cols, x, &mut out);
            bits(out.iter().flat_map(|values| &values[..rows]))
        };
        let wanted = sums(Kernels::portable());
        for kernels in Kernels::available() {
            assert_eq!(sums(kernels), wanted, "{}", kernels.name());
        }
    }
    for kernels in Kernels::available() {
        let mut found = [vec![f16::ZERO; wide.len()], vec![f16::ZERO; wide.len()]];
        kernels.narrow(&wide, &mut found[0]);
        Kernels::portable().narrow(&wide, &mut found[1]);
        let [found, wanted] = found.map(|all| {
            let bits = |x: f16| if x.is_nan() { f16::NAN.to_bits() } else { x.to_bits() };
            all.into_iter().map(bits).collect::<Vec<_>>()
        });
        assert_eq!(found, wanted, "{}", kernels.name());
    }
}

fuzz_target!(|input: Input| {
    // The sizes reach into the third tile, the third group and the second block of tokens.
    let rows = 1 + usize::from(input.rows) % 34;
    let cols = 1 + usize::from(input.cols) % 68;
    let tokens = 1 + usize::from(input.tokens) % 10;
    let (values, x) = quantized(&input, tokens, cols);
    nested(&input, rows, cols, &x);
    floats(&input, rows.min(TILE_ROWS), cols, &values, tokens);
});
