//! Layout of a matrix in a slab: header, codec and planes, as read by `wgsl/include/matrix.wgsl`.
//!
//! A matrix that exceeds the maximum binding is split by rows. A part is self-contained: shaders find all its
//! data from its offset, so a dispatch only needs a table of offsets.

use nestling_core::EngineError;
use nestling_core::weights::{FloatMatrix, MatrixWeights, NestedMatrix};
use nestling_formats::nested::{GROUP, Layout, NestedPlanes, PlaneForm, TILE_ROWS};
use nestling_formats::{DType, Invariant, Plane};
use nestling_gpu::base_ranges;

const HEADER_WORDS: usize = 16;

/// Size of the header in bytes.
pub(crate) const HEADER_BYTES: usize = 4 * HEADER_WORDS;

/// Alignment of a matrix's parts in bytes.
pub(crate) const ALIGN: usize = 64;

/// Granularity of a part's rows, so that every plane of a part starts at a whole word.
const PART_ROWS: usize = 4 * TILE_ROWS;

/// Byte offset of each plane from the header, or 0 if the plane has no space.
pub(crate) type PlaneOffsets = [usize; Plane::ALL.len()];

/// Rows of a matrix in the layout of a slab.
#[derive(Debug)]
pub(crate) struct MatrixImage<'a> {
    /// First row, a multiple of 16.
    pub first_row: usize,
    /// Number of rows.
    pub rows: usize,
    /// Total size in bytes, a multiple of 4.
    pub bytes: usize,
    /// Header and codec, at the start.
    pub head: Vec<u32>,
    /// Data after the head, with ascending byte offsets that are multiples of 4.
    pub pieces: Vec<(usize, &'a [u8])>,
}

/// Words of the header, in order. With scaled integers, `Tables` are the scales of minima, `Steps` the
/// sub-scales and `StepHigh` the sub-minima.
#[derive(Clone, Copy)]
enum Field {
    Form,
    Merged,
    Rows,
    Cols,
    Groups,
    FirstRow,
    Codec,
    Scales,
    Tables,
    Steps,
    StepHigh,
    P2,
    P3,
    P4,
    P6,
    P8,
}

impl<'a> MatrixImage<'a> {
    /// Splits a matrix into images of at most `bytes_max` bytes, in ascending row order.
    ///
    /// # Errors
    /// Fails with [`EngineError::Limit`] if the minimum number of rows does not fit. Fails with
    /// [`EngineError::Mismatch`] if no kernel supports the floats' element type.
    pub fn of(weights: &'a MatrixWeights, bytes_max: u64) -> Result<Vec<Self>, EngineError> {
        let rows = weights.rows();
        let mut part_rows = rows.next_multiple_of(PART_ROWS);
        loop {
            let starts = (0..rows).step_by(part_rows);
            let images =
                starts.map(|first| Self::part(weights, first, part_rows.min(rows - first)));
            let images = images.collect::<Result<Vec<_>, _>>()?;
            // Default: a matrix without rows has no image.
            let largest = images.iter().map(|image| image.bytes as u64).max().unwrap_or(0);
            if largest <= bytes_max {
                return Ok(images);
            }
            if part_rows == PART_ROWS {
                let what = "bytes of the fewest rows of a matrix";
                return Err(EngineError::Limit { what, limit: bytes_max, found: largest });
            }
            part_rows = (part_rows / 2).next_multiple_of(PART_ROWS);
        }
    }

    /// Returns the image of a whole matrix without planes above the base plane. The header refers to these
    /// planes at the byte offsets `planes`.
    ///
    /// # Errors
    /// Fails like [`MatrixImage::of`].
    pub fn base(weights: &'a MatrixWeights, planes: &PlaneOffsets) -> Result<Self, EngineError> {
        let MatrixWeights::Nested(matrix) = weights else {
            return Self::part(weights, 0, weights.rows());
        };
        let mut image = Self::head(weights, 0, weights.rows());
        image.fill_base(matrix)?;
        let fields = [Field::P3, Field::P4, Field::P6, Field::P8];
        for (field, offset) in fields.into_iter().zip(&planes[1..]) {
            image.set(field, offset / 4);
        }
        Ok(image)
    }

    fn head(weights: &MatrixWeights, first: usize, rows: usize) -> Self {
        let head = vec![0; HEADER_WORDS];
        let mut image = Self { first_row: first, rows, bytes: 0, head, pieces: Vec::new() };
        image.set(Field::Rows, rows);
        image.set(Field::Cols, weights.cols());
        image.set(Field::FirstRow, first);
        image
    }

    fn part(weights: &'a MatrixWeights, first: usize, rows: usize) -> Result<Self, EngineError> {
        let mut image = Self::head(weights, first, rows);
        match weights {
            MatrixWeights::Float(matrix) => image.fill_float(matrix)?,
            MatrixWeights::Nested(matrix) => image.fill_nested(matrix)?,
        }
        Ok(image)
    }

    fn set(&mut self, field: Field, value: usize) {
        self.head[field as usize] = value as u32;
    }

    /// Appends data and stores its offset in words in the header.
    fn put(&mut self, field: Field, bytes: &'a [u8]) {
        let at = self.bytes.next_multiple_of(ALIGN);
        self.set(field, at / 4);
        self.pieces.push((at, bytes));
        self.bytes = at + bytes.len().next_multiple_of(4);
    }

    fn fill_float(&mut self, matrix: &'a FloatMatrix) -> Result<(), EngineError> {
        let form = match matrix.dtype() {
            DType::F32 => 0,
            DType::F16 => 1,
            DType::Bf16 => 2,
            DType::U8 => return Err(EngineError::mismatch("float matrix", "floats", "bytes")),
        };
        self.set(Field::Form, form);
        self.bytes = 4 * self.head.len();
        let row_bytes = matrix.cols() * matrix.dtype().bytes();
        let range = self.first_row * row_bytes..(self.first_row + self.rows) * row_bytes;
        let bytes = matrix.bytes().get(range);
        self.put(Field::Scales, bytes.invariant("a matrix has the bytes of its rows")?);
        Ok(())
    }

    fn fill_nested(&mut self, matrix: &'a NestedMatrix) -> Result<(), EngineError> {
        self.fill_base(matrix)?;
        let planes = matrix.regions().planes();
        self.set(Field::Merged, usize::from(planes.p34.is_some()));
        self.put_codes(matrix, &planes);
        Ok(())
    }

    /// Appends the codec and the base plane.
    fn fill_base(&mut self, matrix: &'a NestedMatrix) -> Result<(), EngineError> {
        let layout = matrix.layout();
        let groups = matrix.cols().div_ceil(GROUP);
        let form = match (matrix.codec().form(), layout) {
            (PlaneForm::Nested, Layout::Tile16) => 3,
            (PlaneForm::Nested, Layout::RowMajor) => 4,
            (PlaneForm::Scaled(_), Layout::Tile16) => 5,
            (PlaneForm::Scaled(_), Layout::RowMajor) => 6,
        };
        self.set(Field::Form, form);
        self.set(Field::Groups, groups);
        self.set(Field::Codec, HEADER_WORDS);
        let codec = matrix.codec().to_bytes();
        let words = codec.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word));
        self.head.extend(words);
        self.bytes = 4 * self.head.len();
        self.put_base(matrix, matrix.regions().planes().p2)
    }

    /// Appends the parts of the base plane. The bytes of each part are proportional to rows in multiples of
    /// 64.
    fn put_base(&mut self, matrix: &'a NestedMatrix, p2: &'a [u8]) -> Result<(), EngineError> {
        let (layout, groups) = (matrix.layout(), matrix.cols().div_ceil(GROUP));
        let form = matrix.codec().form();
        let parts = base_ranges(&form, layout, matrix.rows(), matrix.cols());
        let parts = parts.ok_or_else(|| EngineError::mismatch("matrix", "a shape", "none"))?;
        let (first, rows) = (self.first_row, self.padded_rows(layout));
        let steps = if layout == Layout::Tile16 { (groups * 8, 16) } else { (groups, 1) };
        let sizes = match form {
            PlaneForm::Nested => {
                [(2, 1), (1, TILE_ROWS), steps, (groups * 2, TILE_ROWS), (groups * 8, 1)]
            }
            // Every part has the same number of bytes for each row, including padding.
            PlaneForm::Scaled(_) => {
                let padded = padded_rows(layout, matrix.rows()).max(1);
                parts.each_ref().map(|part| (part.len() / padded, 1))
            }
        };
        let fields = [Field::Scales, Field::Tables, Field::Steps, Field::StepHigh, Field::P2];
        let fields = fields.into_iter().zip(parts).zip(sizes);
        for ((field, range), (bytes, per_rows)) in fields {
            let all = p2.get(range).invariant("the first plane has all its parts")?;
            let start = (first / per_rows * bytes).min(all.len());
            let end = ((first + rows).div_ceil(per_rows) * bytes).min(all.len());
            self.put(field, &all[start..end]);
        }
        Ok(())
    }

    fn put_codes(&mut self, matrix: &NestedMatrix, planes: &NestedPlanes<'a>) {
        let (layout, groups) = (matrix.layout(), matrix.cols().div_ceil(GROUP));
        let (first, rows) = (self.first_row, self.padded_rows(layout));
        let (merged, form) = (planes.p34, matrix.codec().form());
        let group_bytes = |plane| GROUP / 8 * usize::from(form.plane_bits(plane));
        let fields = [
            (Field::P3, merged.or(planes.p3), if merged.is_some() { 8 } else { 4 }),
            (Field::P4, if merged.is_some() { None } else { planes.p4 }, 4),
            (Field::P6, planes.p6, group_bytes(Plane::P6)),
            (Field::P8, planes.p8, group_bytes(Plane::P8)),
        ];
        for (field, plane, group_bytes) in fields {
            let Some(plane) = plane else { continue };
            let row_bytes = groups * group_bytes;
            let end = ((first + rows) * row_bytes).min(plane.len());
            self.put(field, &plane[(first * row_bytes).min(end)..end]);
        }
    }

    fn padded_rows(&self, layout: Layout) -> usize {
        padded_rows(layout, self.rows)
    }

    /// Replaces the contents of `out` with the image.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.clear();
        out.extend(self.head.iter().flat_map(|word| word.to_le_bytes()));
        for (at, bytes) in &self.pieces {
            out.resize(*at, 0);
            out.extend_from_slice(bytes);
        }
        out.resize(self.bytes, 0);
    }
}

/// Returns the number of rows that planes store, including padding.
fn padded_rows(layout: Layout, rows: usize) -> usize {
    match layout {
        Layout::Tile16 => rows.next_multiple_of(TILE_ROWS),
        Layout::RowMajor => rows,
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;
    use std::sync::Arc;

    use nestling_core::weights::{
        ByteRegion, FloatMatrix, MatrixWeights, NestedMatrix, PlaneRegions,
    };
    use nestling_formats::nested::{
        CodecFitter, Layout, LinearValues, Minima, NestedCodec, NestedTables, PlaneForm,
        QuantizeOptions, ScaleType, ScaledCodec, ScaledForm, ScaledRows, SubScale, pack_plane,
        pack_scaled_plane, plane_bytes, quantize_matrix,
    };
    use nestling_formats::{Level, Plane};

    use super::{Field, MatrixImage};

    const COLS: usize = 40;

    fn codec(values: &[f32]) -> Arc<NestedCodec> {
        let mut fitter = CodecFitter::new(&QuantizeOptions::default());
        fitter.add(values, values.len() / COLS, COLS, None).unwrap();
        Arc::new(fitter.finish().unwrap())
    }

    fn nested(values: &[f32], codec: &Arc<NestedCodec>, layout: Layout) -> MatrixWeights {
        let rows = values.len() / COLS;
        let options = QuantizeOptions::default();
        let matrix = quantize_matrix(values, rows, COLS, codec, None, &options).unwrap();
        let region = |plane| {
            let mut bytes = vec![0; plane_bytes(layout, rows, COLS, plane).unwrap()];
            pack_plane(&matrix, layout, plane, &mut bytes).unwrap();
            ByteRegion::from_vec(bytes)
        };
        let regions = PlaneRegions {
            p2: region(Plane::P2),
            p3: Some(region(Plane::P3)),
            p4: Some(region(Plane::P4)),
            p34: None,
            p6: Some(region(Plane::P6)),
            p8: Some(region(Plane::P8)),
        };
        let codec = Arc::clone(codec);
        let matrix = NestedMatrix::new(rows, COLS, layout, codec, regions, Level::ALL);
        MatrixWeights::Nested(matrix.unwrap())
    }

    /// Rows of a matrix of five-bit scaled integers with all kinds of scales. Each row has distinct contents.
    fn scaled(rows: Range<usize>, layout: Layout) -> MatrixWeights {
        let form = ScaledForm {
            bits: 5,
            sub_block: 16,
            span: 1,
            scale: ScaleType::F16,
            sub_scale: SubScale::U8,
            minima: Minima::SubBlocks,
        };
        let (groups, count) = (COLS.div_ceil(32), rows.len());
        let bytes = |of_row: usize, factor: usize| {
            let numbers = rows.start * of_row..rows.end * of_row;
            numbers.map(move |number| (number * factor % 251) as u8)
        };
        let halves = |factor| bytes(groups, factor).flat_map(|low| [low, 0x2c]).collect();
        let matrix = ScaledRows {
            rows: count,
            cols: COLS,
            codes: bytes(COLS, 7919).map(|byte| byte & 0xf8).collect(),
            scales: halves(13),
            minima: halves(31),
            sub_scales: bytes(2 * groups, 53).collect(),
            sub_minima: bytes(2 * groups, 97).collect(),
        };
        let region = |plane| {
            let length = PlaneForm::Scaled(form).plane_bytes(layout, count, COLS, plane);
            let mut bytes = vec![0; length.unwrap()];
            pack_scaled_plane(&matrix, &form, layout, plane, &mut bytes).unwrap();
            ByteRegion::from_vec(bytes)
        };
        let regions = PlaneRegions {
            p2: region(Plane::P2),
            p3: Some(region(Plane::P3)),
            p4: Some(region(Plane::P4)),
            p34: None,
            p6: Some(region(Plane::P6)),
            p8: None,
        };
        let linear = [LinearValues { stride: 1, zero: 16 }, LinearValues::default()];
        let tables = NestedTables { t2: [0; 4], t3: [0; 8], t4: [0; 16] };
        let codec = ScaledCodec { form, units: [0; 5], tables, linear };
        let matrix = NestedMatrix::new(count, COLS, layout, codec, regions, Level::ALL);
        MatrixWeights::Nested(matrix.unwrap())
    }

    /// Returns the bytes of an image with its first row set to zero.
    fn bytes(mut image: MatrixImage) -> Vec<u8> {
        image.set(Field::FirstRow, 0);
        let mut bytes = Vec::new();
        image.write(&mut bytes);
        bytes
    }

    /// The parts of a large matrix equal the images of their rows.
    #[test]
    fn parts_are_the_images_of_their_rows() {
        let values: Vec<f32> =
            (0..150 * COLS).map(|i| ((i * 7919) % 1009) as f32 / 500.0).collect();
        let codec = codec(&values);
        for layout in [Layout::Tile16, Layout::RowMajor] {
            let all = nested(&values, &codec, layout);
            let whole = MatrixImage::of(&all, u64::MAX).unwrap();
            assert_eq!(whole.len(), 1);
            let parts = MatrixImage::of(&all, whole[0].bytes as u64 * 2 / 3).unwrap();
            let rows: Vec<_> = parts.iter().map(|part| (part.first_row, part.rows)).collect();
            assert_eq!(rows, [(0, 64), (64, 64), (128, 22)]);
            for part in parts {
                let end = (part.first_row + part.rows) * COLS;
                let own = nested(&values[part.first_row * COLS..end], &codec, layout);
                let alone = MatrixImage::of(&own, u64::MAX).unwrap().remove(0);
                assert_eq!(bytes(part), bytes(alone), "{layout:?}");
            }
        }
        for layout in [Layout::Tile16, Layout::RowMajor] {
            let all = scaled(0..150, layout);
            let whole = MatrixImage::of(&all, u64::MAX).unwrap().remove(0);
            let parts = MatrixImage::of(&all, whole.bytes as u64 * 2 / 3).unwrap();
            assert_eq!(parts.len(), 3);
            for part in parts {
                let own = scaled(part.first_row..part.first_row + part.rows, layout);
                let alone = MatrixImage::of(&own, u64::MAX).unwrap().remove(0);
                assert_eq!(bytes(part), bytes(alone), "{layout:?}");
            }
        }
        let float = MatrixWeights::Float(FloatMatrix::from_f32(150, COLS, &values).unwrap());
        let parts = MatrixImage::of(&float, 16 << 10).unwrap();
        assert_eq!(parts.iter().map(|part| part.rows).collect::<Vec<_>>(), [64, 64, 22]);
        assert!(MatrixImage::of(&float, 1 << 10).is_err());
    }
}
