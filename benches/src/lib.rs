//! Helpers of the benchmarks: matrices of random codes.

mod recurrent;
mod scaled;

use std::sync::Arc;

use nestling_core::EngineError;
use nestling_core::weights::{ByteRegion, MatrixWeights, NestedMatrix, PlaneRegions};
use nestling_formats::nested::{
    Codec, InputTransform, Layout, NestedCodec, NestedError, NestedPlanes, NestedTables,
    NestedView, ScaleSteps, merge_p3_p4, merged_bytes, plane_bytes,
};
use nestling_formats::{Invariant, Level, Plane};

pub use recurrent::{RecurrentLayer, RecurrentModel};
pub use scaled::{FileType, RandomScaled};

/// Deterministic random bytes.
struct Random(u64);

impl Default for Random {
    fn default() -> Self {
        Self(0x9e37_79b9_7f4a_7c15)
    }
}

impl Random {
    fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut next = || {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0.to_le_bytes()
        };
        (0..count.div_ceil(8)).flat_map(|_| next()).take(count).collect()
    }
}

/// A matrix of random codes. Scales and steps are random too, but small.
#[derive(Debug)]
pub struct RandomMatrix {
    rows: usize,
    cols: usize,
    /// Codec of the matrix.
    pub codec: NestedCodec,
    planes: [Vec<u8>; 5],
    merged: Vec<u8>,
}

impl RandomMatrix {
    /// Creates a matrix with the planes of `level` and all lower levels.
    ///
    /// # Errors
    /// Returns an error if the shape cannot be quantized.
    pub fn new(rows: usize, cols: usize, level: Level) -> Result<Self, NestedError> {
        let shape = NestedError::Shape { rows, cols };
        let mut random = Random::default();
        let mut planes: [Vec<u8>; 5] = Default::default();
        for (plane, out) in Plane::ALL.into_iter().zip(&mut planes) {
            if plane.level() <= level {
                let bytes = plane_bytes(Layout::Tile16, rows, cols, plane);
                *out = random.bytes(bytes.ok_or_else(|| shape.clone())?);
            }
        }
        let mut merged = Vec::new();
        if level >= Level::L4 {
            let bytes = merged_bytes(Layout::Tile16, rows, cols).ok_or(shape)?;
            merged = vec![0; bytes];
            merge_p3_p4(Layout::Tile16, &planes[1], &planes[2], &mut merged)?;
        }
        let tables = NestedTables {
            t2: [-90, -26, 26, 90],
            t3: [-110, -70, -38, -14, 14, 38, 70, 110],
            t4: [-126, -106, -86, -70, -54, -38, -22, -6, 6, 22, 38, 54, 70, 86, 106, 126],
        };
        let codec = NestedCodec {
            alpha_a: 8192,
            alpha_b: 16384,
            beta_q: 16,
            tables: vec![tables],
            inputs: InputTransform::None,
            steps: ScaleSteps::Eighths,
        };
        let mut matrix = Self { rows, cols, codec, planes, merged };
        // Random bytes may be non-finite scales or invalid table indices.
        let view = matrix.view(true)?;
        let parts = view.base_parts().invariant("the codec is the nested code")?.clone();
        for scale in matrix.planes[0][parts.row_scales].chunks_exact_mut(2) {
            scale.copy_from_slice(&[0, 0x2c]);
        }
        matrix.planes[0][parts.tile_tables].fill(0);
        Ok(matrix)
    }

    /// Returns a view of the matrix with P3 and P4 merged or separate.
    ///
    /// # Errors
    /// Never fails for a matrix created by [`RandomMatrix::new`].
    pub fn view(&self, merged: bool) -> Result<NestedView<'_>, NestedError> {
        fn held(plane: &[u8]) -> Option<&[u8]> {
            (!plane.is_empty()).then_some(plane)
        }
        let [p2, p3, p4, p6, p8] = &self.planes;
        let merged = merged && !self.merged.is_empty();
        let planes = NestedPlanes {
            p2,
            p3: held(p3).filter(|_| !merged),
            p4: held(p4).filter(|_| !merged),
            p34: held(&self.merged).filter(|_| merged),
            p6: held(p6),
            p8: held(p8),
        };
        NestedView::new(self.rows, self.cols, Layout::Tile16, &self.codec, planes)
    }

    /// Returns the matrix as engine weights, with P3 and P4 merged or separate.
    ///
    /// # Errors
    /// Never fails for a matrix created by [`RandomMatrix::new`].
    pub fn weights(&self, merged: bool) -> Result<MatrixWeights, EngineError> {
        weights(&self.view(merged)?, Arc::new(self.codec.clone()))
    }
}

/// Converts a view to engine weights.
fn weights(view: &NestedView, codec: impl Into<Codec>) -> Result<MatrixWeights, EngineError> {
    let planes = view.planes();
    let region = |plane: Option<&[u8]>| plane.map(|bytes| ByteRegion::from_vec(bytes.to_vec()));
    let regions = PlaneRegions {
        p2: ByteRegion::from_vec(planes.p2.to_vec()),
        p3: region(planes.p3),
        p4: region(planes.p4),
        p34: region(planes.p34),
        p6: region(planes.p6),
        p8: region(planes.p8),
    };
    let (rows, cols, layout) = (view.rows(), view.cols(), view.layout());
    let matrix = NestedMatrix::new(rows, cols, layout, codec, regions, Level::ALL)?;
    Ok(MatrixWeights::Nested(matrix))
}
