//! Matrix products. With int8 activations, they are bit-identical to the CPU's.

use nestling_core::backend::{Backend, Encoder, EncoderExt, Linear, Write};
use nestling_core::driver::block_on;
use nestling_core::weights::{ActivationMode, MatrixWeights};
use nestling_cpu::math;
use nestling_cpu::reference::Reference;
use nestling_cuda::kernel::Kernel;
use nestling_cuda::params::{
    Block, GATED_TILES, GatedProductParams, MATMUL_PAIRS_MAX, MATVEC_PAIRS_MAX, Pair, ProductParams,
};
use nestling_formats::Level;
use nestling_import::gguf::BlockType;
use nestling_testkit::operations::matrices::{MatrixForm, weights};
use nestling_testkit::operations::scaled_matrix::ScaledPlanes;

use crate::harness::{address, expect_equal, noise, outcome, outcomes};
use crate::nested::HeldMatrix;
use crate::quantize::quantized;

/// Returns `W x` for each row of `x`, as computed by the CPU reference.
fn expected(weights: &MatrixWeights, level: Level, x: &[f32]) -> Vec<f32> {
    let mut backend = Reference;
    let rows = x.len() / weights.cols();
    let matrix = backend.upload_matrix(weights, ActivationMode::Int8).unwrap();
    let mut input = backend.buffer(rows, weights.cols()).unwrap();
    let mut out = backend.buffer(rows, weights.rows()).unwrap();
    let mut encoder = backend.encoder();
    encoder.write(x, &mut input).unwrap();
    let linear = [Linear::new(matrix, None)];
    encoder.matmul(&linear, &vec![level; rows], &input, Write::Set, &mut out).unwrap();
    block_on(encoder.read(&out)).unwrap()
}

/// Blocks of two matrices at all levels, for some activation rows each. Outputs are side by side; the first
/// matrix has a bias.
struct Case {
    matrices: [HeldMatrix; 2],
    levels: Vec<Level>,
    pairs: usize,
    tiles_per_block: u32,
    adds: bool,
}

impl Case {
    fn new(forms: [MatrixForm; 2], (rows, cols): (usize, usize), levels: &[Level]) -> Self {
        let matrices = [weights(forms[0], rows, cols, 3), weights(forms[1], rows + 5, cols, 5)];
        let levels = levels.to_vec();
        let matrices = matrices.map(HeldMatrix::new);
        Self { matrices, levels, pairs: 1, tiles_per_block: 1, adds: false }
    }

    fn width(&self) -> usize {
        self.matrices[0].weights.rows() + self.matrices[1].weights.rows()
    }

    /// Returns the activation row and the output row of a block's pair. Output rows are consecutive.
    fn pair(&self, block: usize, pair: usize) -> (usize, usize) {
        let row = block * self.pairs + pair;
        ((row * 7 + 3) % self.x_rows(), row)
    }

    fn x_rows(&self) -> usize {
        self.levels.len() * self.pairs + 2
    }

    fn check(&self, kernel: Kernel) {
        let cols = self.matrices[0].weights.cols();
        let (width, blocks) = (self.width(), self.levels.len());
        let x = noise(self.x_rows() * cols, 9);
        let (values, scales) = quantized(&x, cols, false);
        let bias = noise(self.matrices[0].weights.rows(), 4);
        let held = [0, 1].map(|index| self.matrices[index].params());
        let mut table = Vec::new();
        let mut pairs = Vec::new();
        for (index, level) in self.levels.iter().enumerate() {
            for (which, matrix) in held.iter().enumerate() {
                table.push(Block {
                    matrix: address(std::slice::from_ref(matrix)),
                    bias: if which == 0 { address(&bias) } else { 0 },
                    level: level.index() as u32,
                    first_pair: pairs.len() as u32,
                    pairs: self.pairs as u32,
                    first_row: 0,
                    end_row: matrix.rows,
                    out_col: if which == 0 { 0 } else { held[0].rows },
                });
            }
            pairs.extend((0..self.pairs).map(|pair| {
                let (x_row, out_row) = self.pair(index, pair);
                Pair { x_row: x_row as u32, out_row: out_row as u32 }
            }));
        }
        let before = noise(blocks * self.pairs * width, 6);
        let found = outcome(&before, |out| {
            let params = ProductParams {
                blocks: address(&table),
                pairs: address(&pairs),
                x_values: address(&values),
                x_scales: address(&scales),
                out,
                x_groups: cols.div_ceil(32) as u32,
                out_cols: width as u32,
                adds: self.adds.into(),
                tiles_per_block: self.tiles_per_block,
                ..ProductParams::default()
            };
            let tiles = (held[1].rows).div_ceil(16);
            (params.launch(kernel, table.len() as u32, tiles), params)
        });
        let mut sum = before;
        for (index, level) in self.levels.iter().enumerate() {
            for pair in 0..self.pairs {
                let (x_row, out_row) = self.pair(index, pair);
                let x = &x[x_row * cols..][..cols];
                let mut products = expected(&self.matrices[0].weights, *level, x);
                products.iter_mut().zip(&bias).for_each(|(out, bias)| *out += bias);
                products.extend(expected(&self.matrices[1].weights, *level, x));
                for (sum, product) in sum[out_row * width..][..width].iter_mut().zip(products) {
                    *sum = if self.adds { *sum + product } else { product };
                }
            }
        }
        expect_equal(&format!("{kernel:?} of {} columns, {:?}", cols, self.levels), &found, &sum);
    }
}

const SHAPES: [(usize, usize); 5] = [(16, 32), (17, 40), (3, 200), (60, 600), (21, 4200)];

#[test]
pub fn one_row_at_all_levels_in_one_launch() {
    for forms in [[MatrixForm::Tiled, MatrixForm::Merged], [MatrixForm::Merged, MatrixForm::Tiled]]
    {
        for shape in SHAPES {
            let mut case = Case::new(forms, shape, &Level::ALL);
            case.check(Kernel::MatvecNested);
            (case.tiles_per_block, case.adds) = (3, true);
            case.check(Kernel::MatvecNested);
        }
    }
    let octaves = [Level::L2, Level::L3, Level::L4];
    Case::new([MatrixForm::Octaves; 2], (35, 96), &octaves).check(Kernel::MatvecNested);
}

#[test]
pub fn some_rows_at_all_levels_in_one_launch() {
    for pairs in [2, 3, MATVEC_PAIRS_MAX as usize] {
        for shape in SHAPES {
            let mut case = Case::new([MatrixForm::Tiled, MatrixForm::Merged], shape, &Level::ALL);
            (case.pairs, case.adds) = (pairs, pairs == 3);
            case.check(Kernel::MatvecNestedRows);
        }
    }
}

#[test]
pub fn many_rows_at_all_levels_in_one_launch() {
    for pairs in [1, 9, MATMUL_PAIRS_MAX as usize] {
        for shape in [(16, 32), (17, 40), (75, 200), (21, 1060)] {
            let mut case = Case::new([MatrixForm::Merged, MatrixForm::Tiled], shape, &Level::ALL);
            (case.pairs, case.adds) = (pairs, pairs == 9);
            case.check(Kernel::MatmulNested);
        }
    }
    let octaves = [Level::L2, Level::L3, Level::L4];
    let mut case = Case::new([MatrixForm::Octaves; 2], (35, 96), &octaves);
    case.pairs = 12;
    case.check(Kernel::MatmulNested);
}

#[test]
pub fn rows_that_lie_one_after_another_at_all_levels() {
    for (pairs, shape) in [(1, (17, 40)), (3, (5, 1100))] {
        let mut case = Case::new([MatrixForm::RowMajor; 2], shape, &Level::ALL);
        case.pairs = pairs;
        case.check(Kernel::MatvecRowMajor);
    }
}

#[test]
pub fn scaled_integers_of_every_form_at_all_levels_in_one_launch() {
    use BlockType as T;
    use ScaledPlanes::{Merged, RowMajor, Tiled};
    let kinds = [
        (T::Q4_0, Tiled),
        (T::Q4_1, Merged),
        (T::Q5_0, Merged),
        (T::Q5_1, RowMajor),
        (T::Q8_0, Tiled),
        (T::Q2K, Tiled),
        (T::Q3K, Tiled),
        (T::Q4K, Merged),
        (T::Q5K, Tiled),
        (T::Q6K, Merged),
        (T::Iq4Nl, RowMajor),
        (T::Iq4Xs, Tiled),
        (T::Mxfp4, Merged),
        (T::Nvfp4, Tiled),
    ];
    let pairs = [1, 3, 8, 19];
    for (index, (kind, lie)) in kinds.into_iter().enumerate() {
        let (other, next) = kinds[(index + 5) % kinds.len()];
        let forms = [MatrixForm::Scaled(kind, lie), MatrixForm::Scaled(other, next)];
        for shift in 0..2 {
            let shape = [(16, 32), (17, 40), (3, 200), (7, 1060)][(index + shift) % 4];
            let mut case = Case::new(forms, shape, &Level::ALL);
            (case.pairs, case.adds) = (pairs[(index + 3 * shift) % 4], shift == 1);
            case.check(Kernel::MatvecScaled);
        }
    }
}

/// Fused gate and up products with the activation and quantization equal separate ones bit for bit.
#[test]
pub fn gates_and_ups_are_joined_as_on_the_cpu() {
    let levels = [Level::L2, Level::L3, Level::L4, Level::L6, Level::L8];
    for (width, cols, is_rotated) in
        [(16, 32, false), (40, 200, false), (96, 600, true), (33, 4200, false)]
    {
        let held = [MatrixForm::Tiled, MatrixForm::Merged]
            .map(|form| HeldMatrix::new(weights(form, width, cols, 7)));
        let described = [0, 1].map(|index| held[index].params());
        let (x, bias) = (noise(2 * cols, 9), noise(width, 4));
        let (values, scales) = quantized(&x, cols, false);
        let (mut blocks, mut pairs) = (Vec::new(), Vec::new());
        for (index, level) in (0u32..).zip(levels) {
            for (which, matrix) in described.iter().enumerate() {
                blocks.push(Block {
                    matrix: address(std::slice::from_ref(matrix)),
                    bias: if which == 0 { address(&bias) } else { 0 },
                    level: level.index() as u32,
                    first_pair: index,
                    pairs: 1,
                    first_row: 0,
                    end_row: width as u32,
                    out_col: 0,
                });
            }
            pairs.push(Pair { x_row: index % 2, out_row: 4 - index });
        }
        let groups = width.div_ceil(32);
        let count = levels.len() * groups;
        let found = outcomes((&vec![0i8; 32 * count], &vec![0f32; count]), |to, to_scales| {
            let products = ProductParams {
                blocks: address(&blocks),
                pairs: address(&pairs),
                x_values: address(&values),
                x_scales: address(&scales),
                x_groups: cols.div_ceil(32) as u32,
                tiles_per_block: GATED_TILES,
                ..ProductParams::default()
            };
            let params = GatedProductParams {
                products,
                values: to,
                scales: to_scales,
                is_rotated: is_rotated.into(),
                ..GatedProductParams::default()
            };
            (params.launch(levels.len() as u32, width.div_ceil(16) as u32), params)
        });
        let mut joined = vec![0f32; levels.len() * width];
        for (index, level) in levels.into_iter().enumerate() {
            let x = &x[index % 2 * cols..][..cols];
            let gate = expected(&held[0].weights, level, x);
            let up = expected(&held[1].weights, level, x);
            let out = &mut joined[(4 - index) * width..][..width];
            for (at, out) in out.iter_mut().enumerate() {
                *out = math::silu(gate[at] + bias[at]) * up[at];
            }
        }
        assert_eq!(found, quantized(&joined, width, is_rotated), "{width}, {cols}");
    }
}

/// A gate whose up has no level computes nothing, and its threads do not wait for the up's threads.
#[test]
pub fn a_gate_without_its_up_computes_nothing() {
    let held = HeldMatrix::new(weights(MatrixForm::Tiled, 32, 32, 7));
    let matrix = held.params();
    let (values, scales) = quantized(&noise(32, 9), 32, false);
    let block = |level| Block {
        matrix: address(std::slice::from_ref(&matrix)),
        level,
        pairs: 1,
        end_row: 32,
        ..Block::default()
    };
    let (blocks, pairs) = ([block(Level::L4.index() as u32), block(15)], [Pair::default()]);
    let before = (vec![5i8; 32], vec![2f32]);
    let found = outcomes((&before.0, &before.1), |to, to_scales| {
        let products = ProductParams {
            blocks: address(&blocks),
            pairs: address(&pairs),
            x_values: address(&values),
            x_scales: address(&scales),
            x_groups: 1,
            tiles_per_block: GATED_TILES,
            ..ProductParams::default()
        };
        let (values, scales) = (to, to_scales);
        let params = GatedProductParams { products, values, scales, ..Default::default() };
        (params.launch(1, 2), params)
    });
    assert_eq!(found, before);
}
