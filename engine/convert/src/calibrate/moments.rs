//! Sums of outer products, `Σ x xᵀ`: the input statistics that the quantizer needs.
//!
//! Only tiles on and below the diagonal are stored. Each element is one chain of fused multiply-adds over the
//! rows in order. Its bits therefore do not depend on the threads, the instruction set or the division of
//! rows into blocks.

use nestling_formats::memory::try_zeroed;
use nestling_formats::nested::{NestedError, SecondMoments};

use nestling_cpu::kernels::Kernels;
use nestling_cpu::math::OUTER_TILE;
use nestling_cpu::threads::ThreadPool;

type Tile = [[f32; OUTER_TILE]; OUTER_TILE];

/// Rows of activations, split into consecutive panels of 32 columns.
#[derive(Debug, Default)]
pub(super) struct Panels {
    rows: usize,
    weight: f64,
    values: Vec<[f32; OUTER_TILE]>, // [panels, rows]
}

impl Panels {
    /// Packs rows of `dim` columns, each multiplied by its factor. Columns beyond `dim` are zero.
    pub fn pack<'a>(
        &mut self,
        dim: usize,
        rows: impl ExactSizeIterator<Item = (&'a [f32], f32)>,
    ) -> &Self {
        (self.rows, self.weight) = (rows.len(), 0.0);
        self.values.clear();
        self.values.resize(dim.div_ceil(OUTER_TILE) * self.rows, [0.0; OUTER_TILE]);
        for (index, (row, factor)) in rows.enumerate() {
            self.weight += f64::from(factor) * f64::from(factor);
            for (panel, values) in row.chunks(OUTER_TILE).enumerate() {
                let out = &mut self.values[panel * self.rows + index];
                for (out, value) in out.iter_mut().zip(values) {
                    *out = factor * value;
                }
            }
        }
        self
    }

    fn panel(&self, index: usize) -> &[[f32; OUTER_TILE]] {
        &self.values[index * self.rows..(index + 1) * self.rows]
    }
}

/// Weighted sum `Σ w² x xᵀ` over rows `x` with factors `w`, `[dim, dim]`, symmetric.
#[derive(Clone, Debug)]
pub struct MomentSum {
    dim: usize,
    rows: u64,
    /// Sum of weights, `Σ w²`.
    weight: f64,
    /// Tiles in the order (0, 0), (1, 0), (1, 1), (2, 0), …
    tiles: Vec<Tile>,
}

impl MomentSum {
    /// Creates an empty sum.
    pub fn new(dim: usize) -> Self {
        let panels = dim.div_ceil(OUTER_TILE);
        let tiles = vec![[[0.0; OUTER_TILE]; OUTER_TILE]; panels * (panels + 1) / 2];
        Self { dim, rows: 0, weight: 0.0, tiles }
    }

    pub(super) fn add(&mut self, pool: &ThreadPool, kernels: &Kernels, panels: &Panels) {
        self.rows += panels.rows as u64;
        self.weight += panels.weight;
        pool.for_each_mut(&mut self.tiles, &|index, tile| {
            let (row, col) = place(index);
            kernels.outer_products(panels.panel(row), panels.panel(col), tile);
        });
    }

    /// Returns the diagonal of the mean, `[dim]`.
    pub fn diagonal(&self) -> Vec<f32> {
        let factor = inverse(self.weight) as f32;
        let value = |i: usize| {
            let panel = i / OUTER_TILE;
            factor * self.tiles[panel * (panel + 1) / 2 + panel][i % OUTER_TILE][i % OUTER_TILE]
        };
        (0..self.dim).map(value).collect()
    }

    /// Blends `share` of the moments of routed rows with the rest from all rows, both scaled to the mean of
    /// the routed ones. If one of the two is zero, the other is used alone.
    pub(super) fn blend(routed: Self, uniform: &Self, share: f32) -> Self {
        let factors = Blend::new(&routed.diagonal(), &uniform.diagonal(), share);
        let own = f64::from(factors.routed) * inverse(routed.weight);
        let others = f64::from(factors.uniform) * inverse(uniform.weight);
        let (own, others) = (own as f32, others as f32);
        let mut sum = routed;
        for (tile, other) in sum.tiles.iter_mut().zip(&uniform.tiles) {
            for (value, other) in tile.as_flattened_mut().iter_mut().zip(other.as_flattened()) {
                *value = own * *value + others * other;
            }
        }
        sum.rows += uniform.rows;
        sum.weight = 1.0;
        sum
    }

    /// Returns the mean of `x xᵀ` in the quantizer's form.
    ///
    /// # Errors
    /// Fails with [`NestedError::Moment`] if activations overflowed.
    pub fn mean(&self) -> Result<SecondMoments, NestedError> {
        let factor = inverse(self.weight) as f32;
        let mut values = try_zeroed("second moments of activations", self.dim * self.dim)?;
        for (index, tile) in self.tiles.iter().enumerate() {
            let (row, col) = place(index);
            for (i, tile) in (row * OUTER_TILE..self.dim).zip(tile) {
                for (j, value) in (col * OUTER_TILE..self.dim).zip(tile) {
                    values[j.min(i) * self.dim + j.max(i)] = factor * value;
                }
            }
        }
        SecondMoments::from_upper(self.dim, values, self.rows)
    }
}

/// Factors of the means of routed rows and of all rows in a blend.
pub(super) struct Blend {
    pub routed: f32,
    pub uniform: f32,
}

impl Blend {
    /// Computes the factors from the diagonals of both means.
    pub fn new(routed: &[f32], uniform: &[f32], share: f32) -> Self {
        let trace = |diagonal: &[f32]| diagonal.iter().copied().map(f64::from).sum::<f64>();
        match (trace(routed), trace(uniform)) {
            (routed, _) if routed <= 0.0 => Self { routed: 0.0, uniform: 1.0 },
            (_, uniform) if uniform <= 0.0 => Self { routed: 1.0, uniform: 0.0 },
            (routed, uniform) => {
                let scale = (f64::from(1.0 - share) * routed / uniform) as f32;
                Self { routed: share, uniform: scale }
            }
        }
    }
}

fn inverse(weight: f64) -> f64 {
    if weight > 0.0 { 1.0 / weight } else { 0.0 }
}

fn place(index: usize) -> (usize, usize) {
    // The root is rounded down, so that the row is exact or one too low.
    let mut row = (8 * index + 1).isqrt().saturating_sub(1) / 2;
    while (row + 1) * (row + 2) / 2 <= index {
        row += 1;
    }
    (row, index - row * (row + 1) / 2)
}
