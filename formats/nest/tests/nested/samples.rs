//! Seeded random weights, and the error of the nested code on a matrix.

use nestling_formats::Level;
use nestling_formats::nested::{
    CodecFitter, Layout, NestedCodec, NestedError, NestedPlanes, NestedView, QuantizeOptions,
    QuantizedMatrix, pack_plane, plane_bytes, quantize_matrix,
};

/// A distribution of random weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distribution {
    Gaussian,
    Laplace,
    StudentT5,
}

impl Distribution {
    pub const ALL: [Self; 3] = [Self::Gaussian, Self::Laplace, Self::StudentT5];

    pub fn name(self) -> &'static str {
        match self {
            Self::Gaussian => "Gaussian",
            Self::Laplace => "Laplace",
            Self::StudentT5 => "Student-t5",
        }
    }

    /// Returns the first `count` weights for a seed.
    pub fn sample(self, seed: u64, count: usize) -> Vec<f32> {
        let mut random = SplitMix(seed);
        (0..count)
            .map(|_| match self {
                Self::Gaussian => random.normal() as f32,
                Self::Laplace => {
                    let sign = if random.next() >> 63 == 0 { 1.0 } else { -1.0 };
                    (-sign * random.uniform().ln()) as f32
                }
                Self::StudentT5 => {
                    let squares: f64 = (0..5).map(|_| random.normal().powi(2)).sum();
                    (random.normal() / (squares / 5.0).sqrt()) as f32
                }
            })
            .collect()
    }
}

/// The SplitMix64 generator.
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a uniform number in (0, 1].
    fn uniform(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    fn normal(&mut self) -> f64 {
        let radius = (-2.0 * self.uniform().ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }
}

/// Squared error, squared weights and bytes of matrices at each level.
#[derive(Clone, Copy, Debug, Default)]
pub struct NestedResult {
    pub errors: [f64; 5],
    pub energy: f64,
    pub weights: usize,
    pub bytes: [usize; 5],
}

impl NestedResult {
    pub fn decibels(&self, level: Level) -> f64 {
        10.0 * (self.errors[level.index()] / self.energy).log10()
    }

    pub fn bits_per_weight(&self, level: Level) -> f64 {
        self.bytes[level.index()] as f64 * 8.0 / self.weights as f64
    }

    /// Returns the gap to 6.02 dB per bit, counting all bytes.
    pub fn gap(&self, level: Level) -> f64 {
        self.decibels(level) + 6.02 * self.bits_per_weight(level)
    }

    pub fn add(&mut self, other: &Self) {
        for index in 0..5 {
            self.errors[index] += other.errors[index];
            self.bytes[index] += other.bytes[index];
        }
        self.energy += other.energy;
        self.weights += other.weights;
    }
}

/// Fits the codec of some matrices `[rows, cols]`.
pub fn fit(matrices: &[(&[f32], usize, usize)]) -> Result<NestedCodec, NestedError> {
    let mut fitter = CodecFitter::new(&QuantizeOptions::default());
    for (weights, rows, cols) in matrices {
        fitter.add(weights, *rows, *cols, None)?;
    }
    fitter.finish()
}

pub fn quantize(
    weights: &[f32],
    rows: usize,
    cols: usize,
    codec: &NestedCodec,
) -> Result<QuantizedMatrix, NestedError> {
    quantize_matrix(weights, rows, cols, codec, None, &QuantizeOptions::default())
}

/// Packs a coded matrix and decodes each level from its own planes. The codec's bytes are not counted.
pub fn measure(
    weights: &[f32],
    matrix: &QuantizedMatrix,
    codec: &NestedCodec,
) -> Result<NestedResult, NestedError> {
    let (rows, cols) = (matrix.rows, matrix.cols);
    let mut planes = Vec::new();
    let mut result = NestedResult { weights: weights.len(), ..Default::default() };
    result.energy = weights.iter().map(|weight| f64::from(*weight).powi(2)).sum();
    for level in Level::ALL {
        let shape = NestedError::Shape { rows, cols };
        let bytes = plane_bytes(Layout::Tile16, rows, cols, level.plane()).ok_or(shape)?;
        let mut plane = vec![0; bytes];
        pack_plane(matrix, Layout::Tile16, level.plane(), &mut plane)?;
        planes.push(plane);
        let present = |index: usize| planes.get(index).map(Vec::as_slice);
        let view = NestedView::new(
            rows,
            cols,
            Layout::Tile16,
            codec,
            NestedPlanes {
                p2: &planes[0],
                p3: present(1),
                p4: present(2),
                p34: None,
                p6: present(3),
                p8: present(4),
            },
        )?;
        result.bytes[level.index()] = planes.iter().map(Vec::len).sum();
        let mut decoded = vec![0.0; cols];
        for (row, weights) in weights.chunks_exact(cols).enumerate() {
            view.dequantize_row(level, row, &mut decoded)?;
            let errors = weights.iter().zip(&decoded);
            result.errors[level.index()] +=
                errors.map(|(w, d)| (f64::from(*w) - f64::from(*d)).powi(2)).sum::<f64>();
        }
    }
    Ok(result)
}
