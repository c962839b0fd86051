//! Products with matrices in all storage forms, at all levels.

use nestling_core::backend::{Backend, Encoder, Linear, Write};
use nestling_core::weights::{ActivationMode, MatrixWeights};
use nestling_cpu::Cpu;
use nestling_formats::{DType, Level};
use nestling_import::gguf::BlockType;

use super::matrices::{Magnitudes, MatrixForm, linear, weights};
use super::scaled_matrix::ScaledPlanes;
use crate::values::{buffer, expect_rows_close, noise, read};
use crate::{OperationsDevice, Test, tests};

/// A product with two matrices side by side, and the same added to existing values.
struct Case {
    matrices: [MatrixWeights; 2],
    mode: ActivationMode,
    levels: Vec<Level>,
}

impl Case {
    fn new(forms: [MatrixForm; 2], (rows, cols): (usize, usize), levels: Vec<Level>) -> Self {
        let matrices = [weights(forms[0], rows, cols, 3), weights(forms[1], rows + 5, cols, 5)];
        Self { matrices, mode: ActivationMode::Int8, levels }
    }

    fn x(&self) -> Vec<f32> {
        noise(self.levels.len() * self.matrices[0].cols(), 9)
    }

    fn run<B: Backend>(&self, backend: &mut B) -> [Vec<f32>; 2] {
        let [first, second] = &self.matrices;
        let count = self.levels.len();
        let x = buffer(backend, first.cols(), &self.x());
        let all: [Linear<B>; 2] =
            [linear(backend, first, self.mode, Some(4)), linear(backend, second, self.mode, None)];
        let width = first.rows() + second.rows();
        let mut out = backend.buffer(count, width).unwrap();
        let mut sum = buffer(backend, width, &noise(count * width, 6));
        let mut encoder = backend.encoder();
        encoder.matmul(&all, &self.levels, &x, Write::Set, &mut out).unwrap();
        encoder.matmul(&all, &self.levels, &x, Write::Add, &mut sum).unwrap();
        encoder.flush().unwrap();
        drop(encoder);
        [read(backend, &out), read(backend, &sum)]
    }

    fn check(&self, device: &mut impl Backend) {
        let [out, sum] = self.run(device);
        let [expected, expected_sum] = self.run(&mut Cpu::new(1));
        let [first, second] = &self.matrices;
        let what = format!("{:?} [{}, {}]", self.levels, first.rows(), first.cols());
        let magnitudes = [first, second]
            .map(|matrix| Magnitudes::new(matrix, self.mode, &self.levels, &self.x()));
        let width = first.rows() + second.rows();
        // The first matrix has a bias; sums start with values below 1.
        let tolerance = |added: f32| {
            let magnitudes = &magnitudes;
            move |row: usize, col: usize| match col.checked_sub(first.rows()) {
                None => magnitudes[0].tolerance(row, col, 1.0 + added),
                Some(col) => magnitudes[1].tolerance(row, col, added),
            }
        };
        expect_rows_close(&what, width, [&out, &expected], tolerance(0.0));
        expect_rows_close(&what, width, [&sum, &expected_sum], tolerance(1.0));
    }
}

/// Returns levels for `count` rows, cycling through all levels.
fn mixed(count: usize) -> Vec<Level> {
    Level::ALL.into_iter().cycle().take(count).collect()
}

const Q4_K: MatrixForm = MatrixForm::Scaled(BlockType::Q4K, ScaledPlanes::Merged);
const Q6_K_ROW_MAJOR: MatrixForm = MatrixForm::Scaled(BlockType::Q6K, ScaledPlanes::RowMajor);

const SHAPES: [(usize, usize); 4] = [(16, 32), (17, 40), (3, 200), (60, 600)];

fn nested_products_are_those_of_the_cpu<D: OperationsDevice>() {
    let mut device = D::device();
    let q8_0 = MatrixForm::Scaled(BlockType::Q8_0, ScaledPlanes::Tiled);
    for forms in [
        [MatrixForm::Tiled, MatrixForm::Merged],
        [MatrixForm::RowMajor, MatrixForm::Tiled],
        [Q6_K_ROW_MAJOR, q8_0],
    ] {
        for shape in SHAPES {
            let mut case = Case::new(forms, shape, Vec::new());
            let single = Level::ALL.map(|level| vec![level]);
            for levels in single.into_iter().chain([3, 7, 70].map(mixed)) {
                case.levels = levels;
                case.check(&mut device);
            }
        }
    }
}

fn float_products_are_those_of_the_cpu<D: OperationsDevice>() {
    let mut device = D::device();
    let float = MatrixForm::Float;
    let forms = [[float(DType::F32), float(DType::F16)], [float(DType::Bf16), MatrixForm::Merged]];
    for forms in forms {
        for (shape, count) in [((16, 32), 1), ((17, 41), 6), ((1, 7), 2), ((40, 515), 40)] {
            Case::new(forms, shape, mixed(count)).check(&mut device);
        }
    }
}

fn weights_alone_are_judged_by_float_activations<D: OperationsDevice>() {
    let mut device = D::device();
    for forms in [
        [MatrixForm::Tiled, MatrixForm::RowMajor],
        [MatrixForm::Merged, MatrixForm::Tiled],
        [Q4_K, Q6_K_ROW_MAJOR],
    ] {
        let mut case = Case::new(forms, (33, 72), mixed(6));
        case.mode = ActivationMode::Float;
        case.check(&mut device);
    }
}

fn products_with_steps_of_octaves_are_those_of_the_cpu<D: OperationsDevice>() {
    let mut device = D::device();
    let mut case = Case::new([MatrixForm::Octaves; 2], (35, 96), Vec::new());
    for count in [1, 60] {
        case.levels = mixed(count);
        case.check(&mut device);
    }
}

/// Activations that a device may flush to zero give almost nothing, whatever their integers are.
fn subnormal_activations_give_no_more_than_they_are<D: OperationsDevice>() {
    let mut device = D::device();
    let matrix = weights(MatrixForm::Tiled, 40, 200, 3);
    let smallest = f32::MIN_POSITIVE;
    // Groups of only subnormal numbers and zeros.
    let x: Vec<f32> =
        noise(3 * 200, 9).iter().map(|x| (x * 4.0).trunc() * smallest / 16.0).collect();
    let input = buffer(&mut device, 200, &x);
    let linear = linear(&mut device, &matrix, ActivationMode::Int8, None);
    let mut out = device.buffer(3, 40).unwrap();
    let mut encoder = device.encoder();
    encoder.matmul(&[linear], &[Level::L8; 3], &input, Write::Set, &mut out).unwrap();
    encoder.flush().unwrap();
    drop(encoder);
    // 200 weights of a few units, with values below the smallest normal number.
    let most = 200.0 * 16.0 * smallest;
    for value in read(&mut device, &out) {
        assert!(value.abs() <= most, "{value:e}");
    }
}

/// Multiplies a matrix with some of the rows of `x`, `[100, cols]`, at one level.
pub fn some_rows(
    backend: &mut impl Backend,
    matrix: &MatrixWeights,
    level: Level,
    rows: std::ops::Range<usize>,
) -> Vec<f32> {
    let cols = matrix.cols();
    let x = noise(100 * cols, 9);
    let input = buffer(backend, cols, &x[rows.start * cols..rows.end * cols]);
    let linear = linear(backend, matrix, ActivationMode::Int8, None);
    let mut out = backend.buffer(rows.len(), matrix.rows()).unwrap();
    let mut encoder = backend.encoder();
    encoder.matmul(&[linear], &vec![level; rows.len()], &input, Write::Set, &mut out).unwrap();
    encoder.flush().unwrap();
    drop(encoder);
    read(backend, &out)
}

/// Kernels for few and many rows, with and without int8 instructions, and with any plane layout use the same
/// tree of additions.
fn bits_depend_on_neither_rows_nor_instructions_nor_planes<D: OperationsDevice>() {
    let (mut device, mut plain) = (D::device(), D::plain_device());
    let [tiled, merged, float, scaled] =
        [MatrixForm::Tiled, MatrixForm::Merged, MatrixForm::Float(DType::F16), Q4_K]
            .map(|form| weights(form, 40, 200, 3));
    for matrix in [&tiled, &float, &scaled] {
        for level in Level::ALL {
            let all = some_rows(&mut device, matrix, level, 0..100);
            assert_eq!(all, some_rows(&mut plain, matrix, level, 0..100), "{level}, plain");
            for rows in [0..1, 1..5, 64..65, 91..100] {
                let expected = &all[rows.start * 40..rows.end * 40];
                for device in [&mut device, &mut plain] {
                    let found = some_rows(device, matrix, level, rows.clone());
                    assert_eq!(found, expected, "{level}, rows {rows:?}");
                }
            }
        }
    }
    for (level, rows) in Level::ALL.into_iter().flat_map(|level| [(level, 0..3), (level, 0..30)]) {
        let found = some_rows(&mut device, &merged, level, rows.clone());
        assert_eq!(found, some_rows(&mut device, &tiled, level, rows), "{level}, merged");
    }
}

fn slow_devices_multiply_less_at_once_and_compute_the_same_bits<D: OperationsDevice>() {
    let mut device = D::device();
    let mut slow = [1, 1 << 21].map(|rate| D::with_work_rate(&device, rate));
    for forms in [
        [MatrixForm::Tiled, MatrixForm::Merged],
        [MatrixForm::RowMajor, MatrixForm::Rotated],
        [MatrixForm::Float(DType::F32), MatrixForm::Octaves],
        [Q4_K, Q6_K_ROW_MAJOR],
    ] {
        for levels in [1, 7, 70].map(mixed) {
            let levels = if forms[1] == MatrixForm::Octaves {
                vec![Level::L4; levels.len()]
            } else {
                levels
            };
            let case = Case::new(forms, (300, 64), levels);
            let expected = case.run(&mut device);
            for slow in &mut slow {
                assert!(case.run(slow) == expected, "{forms:?}, {} rows", case.levels.len());
            }
        }
    }
    let matrix = weights(MatrixForm::Tiled, 300, 64, 3);
    let at = |rate| {
        let mut device = D::with_work_rate(&device, rate);
        some_rows(&mut device, &matrix, Level::L4, 0..70);
        device.take_counters().dispatches
    };
    // 70 rows count as 128: two blocks of 64. A quarter of a second is enough for all of that, for 128 matrix
    // rows of one block, or for nothing.
    let rates = [4 * 300 * 64 * 128, 4 * 128 * 64 * 64, 1];
    assert_eq!(rates.map(at), D::PRODUCT_LAUNCHES);
}

fn rates_are_measured<D: OperationsDevice>() {
    let device = D::device();
    // The rates depend on the device; this only checks that they can be measured.
    D::measure_work_rates(&device);
}

/// Groups so small that their scale is subnormal, or their factor overflows. They add less than 127 times the
/// smallest normal number per weight, which a device may flush to zero.
fn groups_of_the_least_numbers_stay_as_small<D: OperationsDevice>() {
    let mut device = D::device();
    let matrix = weights(MatrixForm::Tiled, 40, 64, 3);
    for amax in [1e-45, 1e-40, 1e-38, 3e-37, 1e-36] {
        let x: Vec<f32> = noise(5 * 64, 9).iter().map(|x| (3.0 * x).trunc() * amax / 2.0).collect();
        let found = small_rows(&mut device, &matrix, &x);
        let expected = small_rows(&mut Cpu::new(1), &matrix, &x);
        // Weights of noise are below 1.
        let most = 64.0 * 127.0 * f32::MIN_POSITIVE;
        for (found, expected) in found.iter().zip(&expected) {
            let is_same = found.to_bits() == expected.to_bits();
            let is_small = (found - expected).abs() <= most;
            assert!(if D::KEEPS_NO_SUBNORMAL { is_small } else { is_same }, "{found}, {expected}");
        }
    }
}

/// Multiplies a matrix with these rows.
fn small_rows(backend: &mut impl Backend, matrix: &MatrixWeights, x: &[f32]) -> Vec<f32> {
    let count = x.len() / matrix.cols();
    let input = buffer(backend, matrix.cols(), x);
    let linear = linear(backend, matrix, ActivationMode::Int8, None);
    let mut out = backend.buffer(count, matrix.rows()).unwrap();
    let mut encoder = backend.encoder();
    encoder.matmul(&[linear], &vec![Level::L8; count], &input, Write::Set, &mut out).unwrap();
    encoder.flush().unwrap();
    drop(encoder);
    read(backend, &out)
}

pub fn suite<D: OperationsDevice>() -> Vec<Test> {
    tests![
        nested_products_are_those_of_the_cpu::<D>,
        float_products_are_those_of_the_cpu::<D>,
        weights_alone_are_judged_by_float_activations::<D>,
        products_with_steps_of_octaves_are_those_of_the_cpu::<D>,
        subnormal_activations_give_no_more_than_they_are::<D>,
        bits_depend_on_neither_rows_nor_instructions_nor_planes::<D>,
        slow_devices_multiply_less_at_once_and_compute_the_same_bits::<D>,
        rates_are_measured::<D>,
        groups_of_the_least_numbers_stay_as_small::<D>,
    ]
}
