//! Matrices of random scaled integers in the formats of files.

use nestling_core::EngineError;
use nestling_core::weights::MatrixWeights;
use nestling_formats::nested::{
    Layout, LinearValues, Minima, NestedError, NestedPlanes, NestedTables, NestedView, PlaneForm,
    ScaleType, ScaledCodec, ScaledForm, SubScale, merge_p3_p4, merged_bytes,
};
use nestling_formats::{Invariant, Level, Plane};

/// A file type: its name and form. All scales are binary16.
#[derive(Clone, Copy, Debug)]
pub struct FileType {
    /// Name used by GGUF.
    pub name: &'static str,
    form: ScaledForm,
}

impl FileType {
    /// File types whose products differ most.
    pub const ALL: [Self; 6] = [
        Self::new("Q2_K", 2, 16, SubScale::Nibbles, Minima::SubBlocks),
        Self::new("Q4_0", 4, 32, SubScale::None, Minima::None),
        Self::new("Q4_K", 4, 32, SubScale::U8, Minima::SubBlocks),
        Self::new("Q5_K", 5, 32, SubScale::U8, Minima::SubBlocks),
        Self::new("Q6_K", 6, 16, SubScale::I8, Minima::None),
        Self::new("Q8_0", 8, 32, SubScale::None, Minima::None),
    ];

    const fn new(
        name: &'static str,
        bits: u8,
        sub_block: u8,
        sub_scale: SubScale,
        minima: Minima,
    ) -> Self {
        let span = if matches!(sub_scale, SubScale::None) { 1 } else { 8 };
        let scale = ScaleType::F16;
        Self { name, form: ScaledForm { bits, sub_block, span, scale, sub_scale, minima } }
    }

    /// Returns the codec. Complete codes are integers, centered at 0 if there are no minima.
    fn codec(&self) -> ScaledCodec {
        let ScaledForm { bits, minima, .. } = self.form;
        let zero = if minima == Minima::None { 1i16 << (bits - 1) } else { 0 };
        let value = |index: usize| (index as i16 - zero.min(8)) as i8;
        let mut linear = [LinearValues::default(); 2];
        match self.form.top() {
            Level::L6 => linear[0] = LinearValues { stride: 1, zero },
            Level::L8 => {
                linear = [LinearValues { stride: 4, zero: 126 }, LinearValues { stride: 1, zero }];
            }
            _ => {}
        }
        let tables = NestedTables {
            t2: std::array::from_fn(value),
            t3: std::array::from_fn(value),
            t4: std::array::from_fn(value),
        };
        ScaledCodec { form: self.form, units: [0; 5], tables, linear }
    }
}

/// A matrix of random codes and sub-scales, with P3 and P4 merged.
#[derive(Debug)]
pub struct RandomScaled {
    rows: usize,
    cols: usize,
    /// Codec of the matrix.
    pub codec: ScaledCodec,
    planes: [Vec<u8>; 5],
    merged: Vec<u8>,
}

impl RandomScaled {
    /// Creates a matrix of a file type.
    ///
    /// # Errors
    /// Returns an error if the shape cannot be quantized.
    pub fn new(rows: usize, cols: usize, file_type: FileType) -> Result<Self, NestedError> {
        let shape = NestedError::Shape { rows, cols };
        let codec = file_type.codec();
        let form = PlaneForm::Scaled(codec.form);
        let mut random = super::Random::default();
        let mut planes: [Vec<u8>; 5] = Default::default();
        for (plane, out) in Plane::ALL.into_iter().zip(&mut planes) {
            let bytes = form.plane_bytes(Layout::Tile16, rows, cols, plane);
            *out = random.bytes(bytes.ok_or_else(|| shape.clone())?);
        }
        let mut merged = Vec::new();
        if codec.form.bits >= 4 {
            let bytes = merged_bytes(Layout::Tile16, rows, cols).ok_or(shape)?;
            merged = vec![0; bytes];
            merge_p3_p4(Layout::Tile16, &planes[1], &planes[2], &mut merged)?;
        }
        let mut matrix = Self { rows, cols, codec, planes, merged };
        let parts =
            matrix.view()?.scaled_parts().invariant("the codec is scaled integers")?.clone();
        // Random bytes may be non-finite scales.
        for part in [parts.scales, parts.minima] {
            for scale in matrix.planes[0][part].chunks_exact_mut(2) {
                scale.copy_from_slice(&[0, 0x2c]);
            }
        }
        Ok(matrix)
    }

    /// Returns the level of complete codes.
    pub fn level(&self) -> Level {
        self.codec.form.top()
    }

    /// Returns the matrix as engine weights.
    ///
    /// # Errors
    /// Never fails for a matrix created by [`RandomScaled::new`].
    pub fn weights(&self) -> Result<MatrixWeights, EngineError> {
        super::weights(&self.view()?, self.codec)
    }

    /// Returns a view of the matrix.
    ///
    /// # Errors
    /// Never fails for a matrix created by [`RandomScaled::new`].
    pub fn view(&self) -> Result<NestedView<'_>, NestedError> {
        fn held(plane: &[u8]) -> Option<&[u8]> {
            (!plane.is_empty()).then_some(plane)
        }
        let [p2, p3, _, p6, p8] = &self.planes;
        let planes = NestedPlanes {
            p2,
            p3: held(p3).filter(|_| self.merged.is_empty()),
            p4: None,
            p34: held(&self.merged),
            p6: held(p6),
            p8: held(p8),
        };
        NestedView::new(self.rows, self.cols, Layout::Tile16, &self.codec, planes)
    }
}
