//! Locates the weights of a model in tensors. A weight may be a whole tensor, a part of one, a transposed
//! one, or a concatenation of several.

use super::{Checkpoint, TensorInfo};
use crate::gguf::{BlockType, decode_nvfp4};
use crate::names::{FloatChange, FloatSource, Order, Runs, TensorSlice};
use crate::{ElementType, ImportError};
use nestling_formats::Invariant;
use nestling_formats::memory::{try_reserve, try_zeroed};
use nestling_formats::nested::{GROUP, decode_mxfp4};
use nestling_formats::{DType, FloatId, MatrixId};

/// Number of weights in an MXFP4 block.
const MXFP4_BLOCK: u64 = GROUP as u64;

const MXFP4: ElementType = ElementType::Block(BlockType::Mxfp4);

/// Maximum number of elements per read from a tensor of which only some elements are used.
const SPAN_ELEMENTS: usize = 4 << 20;

/// Location of a matrix.
#[derive(Clone, Debug)]
pub struct MatrixPlace<'a> {
    pub(super) parts: Vec<RowSlice<'a>>,
}

#[derive(Clone, Debug)]
pub(super) struct RowSlice<'a> {
    pub tensor: &'a TensorInfo,
    pub slice: TensorSlice,
    /// Rows and columns of the two-dimensional tensor.
    pub source: [usize; 2],
    /// Rows and columns of the part taken from the tensor.
    pub taken: [usize; 2],
    /// Scale tensor with its name, if the tensor is MXFP4.
    pub scales: Option<(String, &'a TensorInfo)>,
    /// Scale tensor beside an NVFP4 tensor, and its factor for all weights of the part.
    pub companion: Option<(&'a str, f32)>,
}

impl MatrixPlace<'_> {
    /// Returns the float type of the decoded elements. For several tensors, the type of the first.
    pub fn dtype(&self) -> DType {
        self.element().float()
    }

    /// Returns the element type in the file. For several tensors, the type of the first.
    pub fn element(&self) -> ElementType {
        self.parts.first().map_or(ElementType::Float(DType::F32), |part| part.element())
    }

    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        self.parts.iter().map(|part| part.taken[0]).sum()
    }

    /// Returns the number of columns.
    pub fn cols(&self) -> usize {
        self.parts.first().map_or(0, |part| part.taken[1])
    }

    /// Returns the size in bytes of the elements in the checkpoint.
    pub fn length(&self) -> u64 {
        let of_part = |part: &RowSlice| {
            let [rows, cols] = part.taken.map(|n| n as u64);
            let element = part.element();
            let bytes = rows.saturating_mul(cols).saturating_mul(element.block_bytes() as u64);
            bytes / element.block_elements() as u64
        };
        self.parts.iter().map(of_part).sum()
    }

    /// Returns the names of the source tensors, each with the byte offset of the matrix part in its file.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, u64)> {
        self.parts.iter().map(|part| {
            let element = part.element();
            let blocks = part.first_element(0) / element.block_elements() as u64;
            let before = blocks.saturating_mul(element.block_bytes() as u64);
            (part.slice.name.as_str(), part.tensor.offset.saturating_add(before))
        })
    }

    /// Returns the names of the scale tensors of GGUF files that multiply the matrix.
    pub fn scale_tensors(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter_map(|part| part.companion).map(|(name, _)| name)
    }

    /// Returns the contiguous run that holds the matrix unchanged, if there is one: tensor, first element and
    /// number of elements.
    fn contiguous(&self) -> Option<(&TensorInfo, u64, u64)> {
        let [part] = self.parts.as_slice() else { return None };
        let TensorSlice { rows, ref columns, transposed, .. } = part.slice;
        let is_float = matches!(part.element(), ElementType::Float(_));
        if !is_float || transposed || !columns.is_all() || part.taken[0] > rows.length {
            return None;
        }
        let first = part.first_element(rows.place(0));
        Some((part.tensor, first, (part.taken[0] * part.taken[1]) as u64))
    }
}

impl RowSlice<'_> {
    fn element(&self) -> ElementType {
        if self.scales.is_some() { MXFP4 } else { self.tensor.element }
    }

    /// Returns the index in the tensor of the first element of a row.
    pub fn first_element(&self, row: usize) -> u64 {
        // Default: a tensor that is not stacked has one matrix.
        let row = self.slice.index.unwrap_or(0) * self.source[0] + row;
        row as u64 * self.source[1] as u64
    }
}

/// Location of a float tensor.
#[derive(Clone, Debug)]
pub struct FloatPlace<'a> {
    /// The source tensor.
    pub tensor: &'a TensorInfo,
    pub(super) source: FloatSource,
}

impl FloatPlace<'_> {
    /// Returns the name of the tensor.
    pub fn name(&self) -> &str {
        &self.source.name
    }

    /// Returns a type that holds all values: the checkpoint's type, or F32 for transformed values.
    pub fn dtype(&self) -> DType {
        match self.source.change {
            FloatChange::Kept => self.tensor.element.float(),
            FloatChange::PlusOne | FloatChange::NegativeExp => DType::F32,
        }
    }
}

impl Checkpoint {
    /// Returns the location of a matrix. A tied head has no location; request the embedding instead.
    ///
    /// # Errors
    /// [`ImportError::MissingTensor`] for an id that the model does not have, or [`ImportError::Tensor`] for
    /// a tensor without the required part.
    pub fn matrix(&self, id: MatrixId) -> Result<MatrixPlace<'_>, ImportError> {
        let slices = self.slices(id);
        if slices.is_empty() {
            return Err(self.missing(format!("{id:?}")));
        }
        let parts = slices.into_iter().map(|slice| self.part(slice));
        Ok(MatrixPlace { parts: parts.collect::<Result<_, _>>()? })
    }

    /// Returns the slices of a matrix, using the alternative layout of the family if the file has that one.
    fn slices(&self, id: MatrixId) -> Vec<TensorSlice> {
        let slices = (self.naming.matrix)(&self.config, id);
        let is_there = |slice: &TensorSlice| self.tensor(&slice.name).is_some();
        let Some(alternative) = self.naming.alternative.filter(|_| !slices.iter().all(is_there))
        else {
            return slices;
        };
        let others = alternative(&self.config, id);
        if !others.is_empty() && others.iter().all(is_there) { others } else { slices }
    }

    /// Returns the location of a float tensor.
    ///
    /// # Errors
    /// [`ImportError::MissingTensor`] for an id that the model does not have.
    pub fn float(&self, id: FloatId) -> Result<FloatPlace<'_>, ImportError> {
        let source = (self.naming.float)(&self.config, id);
        let source = source.ok_or_else(|| self.missing(format!("{id:?}")))?;
        let tensor = self.named(&source.name)?;
        self.refuse_bytes(&source.name, tensor)?;
        Ok(FloatPlace { tensor, source })
    }

    fn named(&self, name: &str) -> Result<&TensorInfo, ImportError> {
        self.tensor(name).ok_or_else(|| self.missing(name.into()))
    }

    fn missing(&self, tensor: String) -> ImportError {
        ImportError::MissingTensor { file: self.directory.display().to_string(), tensor }
    }

    /// Rejects a tensor of plain bytes, which is not a weight.
    fn refuse_bytes(&self, name: &str, tensor: &TensorInfo) -> Result<(), ImportError> {
        if tensor.element != ElementType::Float(DType::U8) {
            return Ok(());
        }
        Err(ImportError::Unsupported {
            file: self.file_name(tensor.file),
            key: name.into(),
            found: "of type U8".into(),
            supported: "supported: F32, F16, BF16, and U8 of MXFP4".into(),
        })
    }

    /// Returns a transposed part of `[E, cols, rows]` that is stored as MXFP4: `_blocks` `[E, rows, cols /
    /// 32, 16]` and `_scales` `[E, rows, cols / 32]`.
    fn mxfp4_part(&self, slice: TensorSlice) -> Result<RowSlice<'_>, ImportError> {
        let (blocks_name, scales_name) =
            (format!("{}_blocks", slice.name), format!("{}_scales", slice.name));
        let tensor = self.named(&blocks_name)?;
        let scales = self.named(&scales_name)?;
        let name = blocks_name.as_str();
        let u8 = ElementType::Float(DType::U8);
        let bytes = [tensor, scales].iter().all(|tensor| tensor.element == u8);
        let (Some(index), [experts, rows, groups, 16], true, Some(columns)) =
            (slice.index, tensor.shape.as_slice(), bytes, slice.columns.single())
        else {
            let expected = "U8 of shape [experts, rows, blocks, 16]".into();
            return Err(self.wrong_shape(name, tensor, expected));
        };
        if scales.shape != [*experts, *rows, *groups] {
            let expected = format!("shape [{experts}, {rows}, {groups}]");
            return Err(self.wrong_shape(&scales_name, scales, expected));
        }
        let size = |n: u64| usize::try_from(n).ok();
        let source =
            size(*rows).zip(size(*groups).and_then(|n| n.checked_mul(MXFP4_BLOCK as usize)));
        let slice = TensorSlice {
            name: blocks_name.clone(),
            index: Some(index),
            rows: columns,
            columns: slice.rows.into(),
            transposed: !slice.transposed,
        };
        let found = source.filter(|_| size(*experts).is_some_and(|count| index < count));
        let found =
            found.and_then(|(rows, cols)| Some(((rows, cols), slice_shape(&slice, rows, cols)?)));
        let Some(((rows, cols), taken)) = found else {
            let expected = format!("more than {index} experts, of which parts can be taken");
            return Err(self.wrong_shape(name, tensor, expected));
        };
        Ok(RowSlice {
            tensor,
            slice,
            source: [rows, cols],
            taken,
            scales: Some((scales_name, scales)),
            companion: None,
        })
    }

    fn part(&self, slice: TensorSlice) -> Result<RowSlice<'_>, ImportError> {
        if self.tensor(&slice.name).is_none()
            && self.tensor(&format!("{}_blocks", slice.name)).is_some()
        {
            return self.mxfp4_part(slice);
        }
        let tensor = self.named(&slice.name)?;
        self.refuse_bytes(&slice.name, tensor)?;
        let size = |at: usize| tensor.shape.get(at).and_then(|&n| usize::try_from(n).ok());
        let source = match (slice.index, tensor.shape.len()) {
            (None, 2) => size(0).zip(size(1)),
            (Some(index), 3) if size(0).is_some_and(|count| index < count) => size(1).zip(size(2)),
            _ => None,
        };
        let taken = source.and_then(|(rows, cols)| slice_shape(&slice, rows, cols));
        let (Some((rows, cols)), Some(taken)) = (source, taken) else {
            let expected = match slice.index {
                None => "two dimensions, of which parts of equal size can be taken".into(),
                Some(index) => format!("three dimensions, the first above {index}"),
            };
            return Err(self.wrong_shape(&slice.name, tensor, expected));
        };
        let companion = self.companion(&slice);
        Ok(RowSlice { tensor, slice, source: [rows, cols], taken, scales: None, companion })
    }

    /// Reads a matrix as f32, `[rows, cols]`.
    ///
    /// # Errors
    /// The errors of [`Self::matrix`] and [`Self::read_f32`].
    pub fn read_matrix(&self, id: MatrixId) -> Result<Vec<f32>, ImportError> {
        let place = self.matrix(id)?;
        let size = place.rows().saturating_mul(place.cols()) as u64;
        let mut out = try_zeroed("a matrix", self.buffer_length(size)?)?;
        self.read_rows(&place, 0, &mut out)?;
        Ok(out)
    }

    /// Fills `out` with rows of a matrix, starting at `first`.
    ///
    /// # Errors
    /// The errors of [`Self::matrix`] and [`Self::read_f32`], and [`ImportError::Limit`] if the matrix ends
    /// before `out` is full.
    pub fn read_rows(
        &self,
        place: &MatrixPlace<'_>,
        first: usize,
        out: &mut [f32],
    ) -> Result<(), ImportError> {
        let cols = place.cols().max(1);
        let end = first.saturating_add(out.len().div_ceil(cols));
        if end > place.rows() {
            return Err(ImportError::Limit {
                file: self.directory.display().to_string(),
                what: "the end of a read of rows".into(),
                found: end as u64,
                limit: place.rows() as u64,
            });
        }
        let (mut start, mut rest) = (0, out);
        for part in &place.parts {
            let stop = start + part.taken[0];
            let (from, to) = (first.clamp(start, stop), end.clamp(start, stop));
            let (now, later) = rest.split_at_mut(((to - from) * cols).min(rest.len()));
            if !now.is_empty() {
                self.read_part(part, from - start, now)?;
            }
            (start, rest) = (stop, later);
        }
        Ok(())
    }

    fn read_part(&self, part: &RowSlice, first: usize, out: &mut [f32]) -> Result<(), ImportError> {
        let TensorSlice { rows, columns, transposed, .. } = &part.slice;
        let cols = part.taken[1].max(1);
        if *transposed {
            let mut turned = try_zeroed("a matrix", part.taken[0] * part.taken[1])?;
            self.gather(part, rows, columns, 0, &mut turned)?;
            // `turned` has the shape [cols, all rows of the part].
            for (row, out) in out.chunks_mut(cols).enumerate() {
                for (col, out) in out.iter_mut().enumerate() {
                    *out = turned[col * part.taken[0] + first + row];
                }
            }
            return Ok(());
        }
        self.gather(part, rows, columns, first, out)
    }

    /// Reads elements of whole rows of a part's tensor.
    fn read_elements(
        &self,
        part: &RowSlice,
        first: u64,
        out: &mut [f32],
    ) -> Result<(), ImportError> {
        if let Some((_, factor)) = part.companion {
            let decode = |bytes: &[u8], out: &mut [f32]| decode_nvfp4(bytes, factor, out);
            return self.read_decoded(part.tensor, first, out, &decode);
        }
        let Some((_, scales)) = &part.scales else {
            return self.read_f32_from(part.tensor, first, out);
        };
        let blocks = out.len() / GROUP;
        let mut codes = try_zeroed("codes of a matrix", blocks * GROUP / 2)?;
        let mut powers = try_zeroed("scales of a matrix", blocks)?;
        self.read_into(part.tensor, first / 2, &mut codes)?;
        self.read_into(scales, first / MXFP4_BLOCK, &mut powers)?;
        let read = codes.as_chunks().0.iter().zip(&powers);
        for (index, (out, (codes, power))) in
            out.as_chunks_mut::<GROUP>().0.iter_mut().zip(read).enumerate()
        {
            decode_mxfp4(codes, *power, out);
            if let Some(at) = out.iter().position(|value| !value.is_finite()) {
                return Err(ImportError::NotFinite {
                    file: self.file_name(part.tensor.file),
                    tensor: part.slice.name.clone(),
                    index: first + (index * GROUP + at) as u64,
                    found: out[at],
                });
            }
        }
        Ok(())
    }

    /// Reads the selected columns of the selected rows, starting at the selected row `first`.
    fn gather(
        &self,
        part: &RowSlice,
        rows: &Runs,
        columns: &Order,
        first: usize,
        out: &mut [f32],
    ) -> Result<(), ImportError> {
        let source_cols = part.source[1].max(1);
        let places = if columns.is_all() { None } else { columns.places(source_cols) };
        let cols = places.as_ref().map_or(source_cols, Vec::len).max(1);
        let gaps_are_short = rows.stride / 4 <= rows.length;
        let mut row = first;
        let mut span = Vec::new();
        let mut rest = out;
        while !rest.is_empty() {
            // A read covers as many rows as possible, across gaps that are not much longer than the runs.
            let start = rows.place(row);
            let wanted = rest.len().div_ceil(cols);
            let room = (SPAN_ELEMENTS / source_cols).max(1);
            let left =
                if gaps_are_short { usize::MAX } else { rows.length - row % rows.length.max(1) };
            let near = |count: &usize| {
                *count <= left && rows.place(row + count - 1).saturating_sub(start) < room
            };
            let count = (1..=wanted).take_while(near).last().unwrap_or(1);
            let (now, later) = rest.split_at_mut((count * cols).min(rest.len()));
            let height = rows.place(row + count - 1) - start + 1;
            if places.is_none() && height == count {
                self.read_elements(part, part.first_element(start), now)?;
            } else {
                let more = (height * source_cols).saturating_sub(span.len());
                try_reserve(&mut span, "rows of a matrix", more)?;
                span.resize(height * source_cols, 0.0);
                self.read_elements(part, part.first_element(start), &mut span)?;
                for (index, out) in now.chunks_mut(cols).enumerate() {
                    let at = (rows.place(row + index) - start) * source_cols;
                    let source = &span[at..at + source_cols];
                    match &places {
                        None => out.copy_from_slice(source),
                        Some(places) => {
                            out.iter_mut().zip(places).for_each(|(out, &at)| *out = source[at]);
                        }
                    }
                }
            }
            (row, rest) = (row + count, later);
        }
        Ok(())
    }

    /// Reads a matrix as little-endian bytes of [`MatrixPlace::dtype`]. Non-finite elements are allowed.
    ///
    /// # Errors
    /// The errors of [`Self::read_matrix`].
    pub fn read_matrix_bytes(&self, id: MatrixId) -> Result<Vec<u8>, ImportError> {
        let place = self.matrix(id)?;
        if let Some((tensor, first, count)) = place.contiguous() {
            let width = tensor.element.block_bytes() as u64;
            let length = self.buffer_length(count.saturating_mul(width))?;
            let mut bytes = try_zeroed("a matrix", length)?;
            self.read_into(tensor, first * width, &mut bytes)?;
            return Ok(bytes);
        }
        let values = self.read_matrix(id)?;
        let mut bytes = Vec::new();
        try_reserve(&mut bytes, "a matrix", values.len().saturating_mul(place.dtype().bytes()))?;
        place.dtype().encode(&values, &mut bytes);
        Ok(bytes)
    }

    /// Reads a float tensor as f32.
    ///
    /// # Errors
    /// The errors of [`Self::float`] and [`Self::read_f32`].
    pub fn read_float(&self, id: FloatId) -> Result<Vec<f32>, ImportError> {
        let FloatPlace { tensor, source } = self.float(id)?;
        let mut values = self.read_f32(tensor)?;
        if !source.rows.is_all() {
            let rows = outermost(tensor);
            let width = values.len() / rows.max(1);
            let places = source.rows.places(rows);
            let places = places.invariant("the rows of a float tensor were checked")?;
            values =
                places.iter().flat_map(|&at| &values[at * width..][..width]).copied().collect();
        }
        let cols = innermost(tensor);
        if source.columns != Runs::ALL {
            let count = source.columns.count(cols);
            let count = count.invariant("the columns of a float tensor were checked")?;
            let rows = values.chunks_exact(cols.max(1));
            let taken = |row: &[f32]| -> Vec<f32> {
                (0..count).map(|col| row[source.columns.place(col)]).collect()
            };
            values = rows.flat_map(taken).collect();
        }
        match source.change {
            FloatChange::Kept => {}
            FloatChange::PlusOne => values.iter_mut().for_each(|value| *value += 1.0),
            FloatChange::NegativeExp => {
                values.iter_mut().for_each(|value| *value = -libm::exp(f64::from(*value)) as f32);
            }
        }
        Ok(values)
    }

    /// Reads a float tensor as little-endian bytes of [`FloatPlace::dtype`].
    ///
    /// # Errors
    /// The errors of [`Self::read_float`].
    pub fn read_float_bytes(&self, id: FloatId) -> Result<Vec<u8>, ImportError> {
        let mut bytes = Vec::new();
        self.float(id)?.dtype().encode(&self.read_float(id)?, &mut bytes);
        Ok(bytes)
    }

    pub(super) fn wrong_shape(
        &self,
        name: &str,
        tensor: &TensorInfo,
        expected: String,
    ) -> ImportError {
        ImportError::Tensor {
            file: self.file_name(tensor.file),
            tensor: name.into(),
            offset: tensor.offset,
            expected,
            found: format!("{:?}", tensor.shape),
        }
    }
}

/// Returns the rows and columns that a slice takes from a tensor of `rows` by `cols`.
fn slice_shape(slice: &TensorSlice, rows: usize, cols: usize) -> Option<[usize; 2]> {
    let taken = [slice.rows.count(rows)?, slice.columns.count(cols)?];
    Some(if slice.transposed { [taken[1], taken[0]] } else { taken })
}

pub(super) fn outermost(tensor: &TensorInfo) -> usize {
    tensor.shape.first().map_or(1, |&size| usize::try_from(size).unwrap_or(usize::MAX))
}

pub(super) fn innermost(tensor: &TensorInfo) -> usize {
    tensor.shape.last().map_or(1, |&size| usize::try_from(size).unwrap_or(usize::MAX))
}
