//! Fitting of codecs, coding of matrices in blocks of rows, and writing of their groups.

use std::collections::BTreeMap;
use std::sync::Mutex;

use nestling_core::sync::whole;

use nestling_formats::memory::{OutOfMemory, try_reserve, try_zeroed};
use nestling_formats::nested::{
    GROUP, InputCalibration, InputTransform, NestedCodec, PlaneForm, QuantizedMatrix, ScaleSteps,
    ScaledRows, quantize_calibrated, quantize_matrix, quantize_mxfp4, reorder_columns,
};
use nestling_formats::store::{Encoding, Group, GroupId, MatrixData, pack_extent};
use nestling_formats::{FloatId, MatrixId, MatrixKind, Plane};

use super::block::{Block, blocks, matrix_id};
use super::fitter::Fitter;
use super::inputs::Inputs;
use super::progress::Meter;
use super::source_error::{MatrixSums, encode};
use super::{Conversion, ConvertError, work};
use crate::calibrate::Calibrator;

/// Name of the weights in out-of-memory errors.
const WEIGHTS: &str = "a matrix that is coded";

/// Maximum memory in bytes for the second moments of experts that are coded in parallel.
const MOMENT_BYTES: usize = 2 << 30;

/// Number of square matrices, with the number of inputs as their dimension, that an expert needs: sums,
/// moments and factors.
const MOMENT_COPIES: usize = 6;

/// A coded matrix, ready for an extent.
pub(super) enum Coded {
    Nested(QuantizedMatrix),
    Scaled(ScaledRows),
    Floats(Vec<u8>),
}

impl Conversion<'_> {
    /// Returns the size in bytes of a group's matrices in the checkpoint.
    pub(super) fn group_bytes(&self, id: &GroupId) -> u64 {
        let group = self.writer.index().group(id);
        let matrices = group.map_or(&[][..], |group| &group.matrices);
        let infos = matrices.iter().map(|matrix| self.checkpoint.matrix(matrix_id(id, matrix)));
        infos.flatten().map(|place| place.length()).sum()
    }

    /// Returns the selected groups that are not written yet.
    fn missing(&self, wanted: impl Fn(&GroupId) -> bool) -> Vec<&Group> {
        let groups = self.writer.index().groups().iter();
        groups
            .filter(|group| wanted(&group.id) && !self.writer.is_group_written(&group.id))
            .collect()
    }

    /// Codes and writes the embedding or the head.
    pub(super) fn group(
        &self,
        id: &GroupId,
        calibrator: Option<&Calibrator<'_>>,
        meter: &mut Meter<'_>,
    ) -> Result<(), ConvertError> {
        let missing = self.missing(|group| group == id);
        self.fit_codecs(&missing, calibrator)?;
        for group in missing {
            self.write(group, &self.code(group, calibrator, self.threads())?)?;
            meter.advance(self.group_bytes(id), None);
        }
        Ok(())
    }

    /// Copies float tensors unchanged from the checkpoint.
    pub(super) fn floats(&self, layer: Option<u32>) -> Result<(), ConvertError> {
        for group in self.missing(|id| *id == GroupId::Floats { layer }) {
            let mut tensors = Vec::new();
            for tensor in &group.tensors {
                let id = FloatId { kind: tensor.kind, layer };
                tensors.push(Coded::Floats(self.checkpoint.read_float_bytes(id)?));
            }
            self.write(group, &tensors)?;
        }
        Ok(())
    }

    /// Codes all matrices of a layer: dense ones in parallel blocks, experts in parallel.
    pub(super) fn layer(
        &self,
        layer: u32,
        calibrator: Option<&Calibrator<'_>>,
        meter: &mut Meter<'_>,
    ) -> Result<(), ConvertError> {
        let missing = self.missing(|id| !is_floats(id) && id.layer() == Some(layer));
        self.fit_codecs(&missing, calibrator)?;
        let count = |bytes, meter: &mut Meter<'_>| match calibrator {
            Some(_) => meter.advance_half(bytes, Some(layer)),
            None => meter.advance(bytes, Some(layer)),
        };
        let (experts, dense): (Vec<_>, Vec<_>) =
            missing.into_iter().partition(|group| group.id.expert().is_some());
        for group in dense {
            let coded = self.code(group, calibrator, self.threads())?;
            calibrator.map_or(Ok(()), |calibrator| self.measure(group, &coded, calibrator))?;
            self.write(group, &coded)?;
            count(self.group_bytes(&group.id), meter);
        }
        let together = self.experts_together(&experts, calibrator);
        let threads = (self.threads() / together).max(1);
        let convert = |index: usize| {
            let group: &Group = experts[index];
            let coded = self.code(group, calibrator, threads)?;
            // Measured before the write, so that each written group has its measurements.
            calibrator.map_or(Ok(()), |calibrator| self.measure(group, &coded, calibrator))?;
            self.write(group, &coded)
        };
        work::for_each(together, experts.len(), &convert, &mut |index, ()| {
            count(self.group_bytes(&experts[index].id), meter);
            Ok(())
        })
    }

    /// Returns the number of experts to code in parallel: the number of threads, limited by the memory for
    /// the moments of their inputs.
    fn experts_together(&self, experts: &[&Group], calibrator: Option<&Calibrator<'_>>) -> usize {
        let matrices = experts.iter().flat_map(|group| &group.matrices);
        let inputs = matrices.fold(0, |most, matrix| most.max(matrix.cols));
        let bytes = MOMENT_COPIES * size_of::<f32>() * inputs * inputs;
        let room = calibrator.map_or(usize::MAX, |_| MOMENT_BYTES / bytes.max(1));
        self.threads().min(room).max(1)
    }

    /// Fits the missing codecs of these groups, each on all matrices that share it.
    fn fit_codecs(
        &self,
        groups: &[&Group],
        calibrator: Option<&Calibrator<'_>>,
    ) -> Result<(), ConvertError> {
        let mut codecs: BTreeMap<u32, Vec<Block>> = BTreeMap::new();
        let missing = |number| self.writer.codec(number).is_none();
        for number in groups.iter().flat_map(|group| codec_numbers(group)) {
            if missing(number) {
                codecs.insert(number, Vec::new());
            }
        }
        // After an interruption, groups that are already written may share such a codec too.
        for group in self.writer.index().groups() {
            for matrix in &group.matrices {
                let Encoding::Nested { codec, .. } = matrix.encoding else { continue };
                if let Some(list) = codecs.get_mut(&codec) {
                    list.extend(blocks(matrix_id(&group.id, matrix), matrix));
                }
            }
        }
        let jobs: Vec<(u32, Block)> = codecs
            .iter()
            .flat_map(|(number, blocks)| blocks.iter().map(|block| (*number, *block)))
            .collect();
        let tables = |number: u32| {
            let slots = self.writer.index().codecs();
            usize::try_from(number)
                .ok()
                .and_then(|number| slots.get(number))
                .map_or(1, |slot| slot.tables())
        };
        let sample = |index: usize| {
            let (number, block) = &jobs[index];
            self.sample(block, tables(*number), calibrator)
        };
        let sampled = work::map(self.threads(), jobs.len(), &sample)?;
        let mut fitters: BTreeMap<u32, (MatrixId, usize, Fitter)> = BTreeMap::new();
        for ((number, block), samples) in jobs.into_iter().zip(sampled) {
            match fitters.get_mut(&number) {
                Some((.., fitter)) => fitter.absorb(samples),
                None => drop(fitters.insert(number, (block.id, block.cols, samples))),
            }
        }
        // Each fitter is taken by the thread that finishes it.
        let fitters: Vec<_> = fitters.into_iter().map(|fitter| Mutex::new(Some(fitter))).collect();
        let fit = |index: usize| {
            self.check_cancelled()?;
            let taken = whole(fitters[index].lock()).take();
            // Default: another thread took the fitter.
            let Some((number, (matrix, cols, fitter))) = taken else { return Ok(()) };
            let fitted = fitter.finish();
            let mut codec = fitted.map_err(|source| ConvertError::Quantize { matrix, source })?;
            codec.inputs = self.transform(matrix, cols);
            let blocks = codecs.get(&number).map_or(&[][..], Vec::as_slice);
            if codec.steps == ScaleSteps::Eighths {
                self.refit(&mut codec, blocks, calibrator)?;
            }
            Ok(self.writer.set_codec(number, &codec)?)
        };
        work::map(self.threads(), fitters.len(), &fit).map(drop)
    }

    fn sample(
        &self,
        block: &Block,
        tables: usize,
        calibrator: Option<&Calibrator<'_>>,
    ) -> Result<Fitter, ConvertError> {
        let weights = self.read(block)?;
        let importance = self.importance(calibrator, block)?;
        let mut options = self.quantize_of(block.id);
        options.tables = tables;
        let mut fitter = Fitter::new(self.is_mxfp4(block.id), &options);
        fitter
            .add(&weights, block.rows(), block.cols, importance.as_deref())
            .map_err(|source| ConvertError::Quantize { matrix: block.id, source })?;
        Ok(fitter)
    }

    /// Reads one block as f32, `[to - from, cols]`, with neurons in the order of its expert.
    pub(super) fn read(&self, block: &Block) -> Result<Vec<f32>, ConvertError> {
        self.check_cancelled()?;
        let place = self.checkpoint.matrix(block.id)?;
        let mut weights = try_zeroed(WEIGHTS, (block.to - block.from) * block.cols)?;
        let order = self.orders.of(block.id)?;
        if let Some(order) = order.as_deref()
            && block.id.kind != MatrixKind::Down
        {
            let rows = order[block.from..block.to].iter();
            for (row, weights) in rows.zip(weights.chunks_exact_mut(block.cols)) {
                self.checkpoint.read_rows(&place, *row as usize, weights)?;
            }
            return Ok(weights);
        }
        self.checkpoint.read_rows(&place, block.from, &mut weights)?;
        let error = |source| ConvertError::Quantize { matrix: block.id, source };
        if let Some(order) = order {
            weights = reorder_columns(&weights, block.cols, &order).map_err(error)?;
        }
        self.transform(block.id, block.cols)
            .transform_weights(&mut weights, block.cols)
            .map_err(error)?;
        Ok(weights)
    }

    /// Returns the input transform of a matrix with `cols` inputs.
    pub(super) fn transform(&self, id: MatrixId, cols: usize) -> InputTransform {
        match id.kind {
            MatrixKind::Down if cols.is_multiple_of(GROUP) && !self.is_mxfp4(id) => {
                self.options.rotation
            }
            _ => InputTransform::None,
        }
    }

    /// Returns whether a matrix of the checkpoint is MXFP4 and stays so.
    pub(super) fn is_mxfp4(&self, id: MatrixId) -> bool {
        self.checkpoint.matrix(id).is_ok_and(|place| self.options.keeps(place.element()))
    }

    /// Codes all matrices of a group on `threads` threads.
    fn code(
        &self,
        group: &Group,
        calibrator: Option<&Calibrator<'_>>,
        threads: usize,
    ) -> Result<Vec<Coded>, ConvertError> {
        let mut inputs = Inputs::new(self, calibrator);
        let mut coded = Vec::with_capacity(group.matrices.len());
        let mut errors: Vec<Option<MatrixSums>> = vec![None; group.matrices.len()];
        for (matrix, errors) in group.matrices.iter().zip(&mut errors) {
            let id = matrix_id(&group.id, matrix);
            let codec = match matrix.encoding {
                Encoding::Nested { codec, form: PlaneForm::Nested, .. } => codec,
                Encoding::Nested { .. } => {
                    let rows = self.scaled_rows(id, matrix, threads)?;
                    coded.push(Coded::Scaled(rows));
                    continue;
                }
                Encoding::Float(_) => {
                    // Read as numbers first to check that they are finite.
                    self.checkpoint.read_matrix(id)?;
                    coded.push(Coded::Floats(self.checkpoint.read_matrix_bytes(id)?));
                    continue;
                }
            };
            let Some(codec) = self.writer.codec(codec) else {
                return Err(ConvertError::Refused {
                    what: format!("{id:?}"),
                    reason: "its codec was not fitted".into(),
                });
            };
            let calibrated = match codec.steps {
                ScaleSteps::Eighths => inputs.of(id, matrix.cols)?,
                ScaleSteps::Octaves => None,
            };
            let blocks: Vec<Block> = blocks(id, matrix).collect();
            let parts = work::map(threads, blocks.len(), &|index| {
                self.quantize(&blocks[index], &codec, calibrated.as_ref())
            })?;
            for sums in parts.iter().filter_map(|(_, sums)| sums.as_ref()) {
                errors.get_or_insert_default().add(sums);
            }
            coded.push(Coded::Nested(join(parts.into_iter().map(|(part, _)| part))?));
        }
        // Stored before the group is written, so that each written group has its errors.
        self.writer.set_note(&group.id, &encode(&errors))?;
        Ok(coded)
    }

    /// Codes a block and measures its error. The error is `None` for exact codes.
    fn quantize(
        &self,
        block: &Block,
        codec: &NestedCodec,
        calibrated: Option<&InputCalibration<'_>>,
    ) -> Result<(QuantizedMatrix, Option<MatrixSums>), ConvertError> {
        let weights = self.read(block)?;
        let (rows, cols, options) =
            (block.to - block.from, block.cols, &self.quantize_of(block.id));
        if codec.steps == ScaleSteps::Octaves {
            let coded = quantize_mxfp4(&weights, rows, cols, codec, options);
            let coded = coded.map(|coded| (coded, None));
            return coded.map_err(|source| ConvertError::Quantize { matrix: block.id, source });
        }
        let coded = match calibrated {
            Some(inputs) => quantize_calibrated(&weights, rows, cols, codec, inputs, options),
            None => quantize_matrix(&weights, rows, cols, codec, None, options),
        };
        let error = |source| ConvertError::Quantize { matrix: block.id, source };
        let coded = coded.map_err(error)?;
        let moments = calibrated.map(|calibrated| calibrated.moments);
        let errors = MatrixSums::of(&weights, &coded, codec, moments).map_err(error)?;
        Ok((coded, Some(errors)))
    }

    fn write(&self, group: &Group, coded: &[Coded]) -> Result<(), ConvertError> {
        let data: Vec<MatrixData<'_>> = coded
            .iter()
            .map(|coded| match coded {
                Coded::Nested(matrix) => MatrixData::Nested(matrix),
                Coded::Scaled(rows) => MatrixData::Scaled(rows),
                Coded::Floats(bytes) => MatrixData::Floats(bytes),
            })
            .collect();
        let mut bytes = Vec::new();
        for plane in Plane::ALL {
            if group.extents[plane.index()].is_some() {
                pack_extent(group, plane, &data, &mut bytes)?;
                self.writer.write_extent(&group.id, plane, &bytes)?;
            }
        }
        Ok(())
    }
}

fn is_floats(id: &GroupId) -> bool {
    matches!(id, GroupId::Floats { .. })
}

/// Returns the codecs of a group that must be fitted. Codecs of scaled integers are known in advance.
fn codec_numbers(group: &Group) -> impl Iterator<Item = u32> {
    group.matrices.iter().filter_map(|matrix| match matrix.encoding {
        Encoding::Nested { codec, form: PlaneForm::Nested, .. } => Some(codec),
        Encoding::Nested { .. } | Encoding::Float(_) => None,
    })
}

/// Joins blocks to one matrix. All but the last have whole tiles.
fn join(mut parts: impl Iterator<Item = QuantizedMatrix>) -> Result<QuantizedMatrix, OutOfMemory> {
    let mut whole = parts.next().unwrap_or_else(|| QuantizedMatrix {
        rows: 0,
        cols: 0,
        codes: Vec::new(),
        row_scales: Vec::new(),
        steps: Vec::new(),
        tile_tables: Vec::new(),
    });
    for part in parts {
        whole.rows += part.rows;
        append(&mut whole.codes, part.codes)?;
        append(&mut whole.row_scales, part.row_scales)?;
        append(&mut whole.steps, part.steps)?;
        append(&mut whole.tile_tables, part.tile_tables)?;
    }
    Ok(whole)
}

fn append<T>(items: &mut Vec<T>, more: Vec<T>) -> Result<(), OutOfMemory> {
    try_reserve(items, WEIGHTS, more.len())?;
    items.extend(more);
    Ok(())
}
