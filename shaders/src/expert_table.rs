//! The experts of one layer, where shaders find them.

use std::sync::Arc;

use nestling_core::EngineError;
use nestling_core::backend::{DeviceRouting, ExpertShape, FeedForward, HeldExpert, LevelWeights};
use nestling_formats::Level;
use nestling_gpu::{
    DeviceExpertTable, DeviceMatrix, ExpertForm, GpuBuffer, GpuEncoder, GpuRouting, expect, word,
};

use crate::backend::WgpuBackend;
use crate::device::{Gpu, Memory, size_of};
use crate::matrix::WgpuMatrix;
use crate::recorder::Recorder;
use crate::slots::{FIRST_SLAB, SlotSlabs};

/// Words of an expert: of each matrix its slab, its place there, its prefix for every level.
const ENTRY_WORDS: usize = 3 * (2 + Level::ALL.len());

/// Words of an expert behind all entries: the least weights of levels, as bits.
const LEAST_WORDS: usize = 4;

/// Bytes of a table of so many experts, without biases.
pub(crate) fn table_bytes(experts: usize) -> u64 {
    size_of(4 * (experts * (ENTRY_WORDS + LEAST_WORDS)) as u64)
}

/// A level's prefix where planes are missing.
const MISSING: u32 = u32::MAX;

/// Most slabs of a table: each is a dispatch more.
const SLABS_MAX: usize = 8;

/// None where gate and up differ.
fn form_of(expert: &FeedForward<WgpuBackend>) -> Option<ExpertForm> {
    ExpertForm::of(expert.activation, matrices(expert).map(|matrix| matrix.form))
}

/// Where a table's experts lie.
enum Slabs {
    /// All are there, in these, and stay.
    Resident(Vec<wgpu::Buffer>, Vec<Arc<FeedForward<WgpuBackend>>>),
    /// Some are, in slots.
    Streamed(SlotSlabs),
}

/// The experts of one layer, all alike in shape and form.
pub struct WgpuExpertTable {
    pub(crate) form: ExpertForm,
    pub(crate) experts: usize,
    /// `[experts]` entries.
    pub(crate) entries: Memory,
    /// Biases of all gates, then of all ups, then of all downs.
    pub(crate) biases: Option<Memory>,
    /// Whether the levels of uses go by their weights.
    pub(crate) by_weight: bool,
    slabs: Slabs,
}

fn matrices(expert: &FeedForward<WgpuBackend>) -> [&WgpuMatrix; 3] {
    [&expert.gate.matrix, &expert.up.matrix, &expert.down.matrix]
}

fn has_bias(FeedForward { gate, up, down, .. }: &FeedForward<WgpuBackend>) -> bool {
    [gate, up, down].iter().any(|linear| linear.bias.is_some())
}

/// The biases of all gates, then of all ups, then of all downs.
fn join_biases(
    recorder: &mut Recorder,
    form: &ExpertForm,
    experts: &[Arc<FeedForward<WgpuBackend>>],
) -> Result<Memory, EngineError> {
    let bytes = 4 * form.bias_floats(experts.len()) as u64;
    let joined = recorder.gpu.buffer("biases of experts", bytes)?;
    for (index, expert) in experts.iter().enumerate() {
        let FeedForward { gate, up, down, .. } = &**expert;
        let places = form.biases(experts.len(), index);
        for (linear, (rows, at)) in [gate, up, down].into_iter().zip(places) {
            let bias = linear.bias.as_ref();
            let bias = bias.ok_or_else(|| EngineError::mismatch("an expert", "a bias", "none"))?;
            expect("bias", rows, bias.count)?;
            let from = (&bias.place.buffer, bias.place.offset);
            recorder.copy(from, (&joined.raw, 4 * at as u64), 4 * rows as u64);
        }
    }
    recorder.submit()?;
    Ok(joined)
}

impl WgpuExpertTable {
    /// A table of these experts; none where they differ in form, are cut into parts or lie in too many
    /// slabs.
    ///
    /// # Errors
    /// A device whose memory is full.
    pub(crate) fn new(
        recorder: &mut Recorder,
        experts: &[Arc<FeedForward<WgpuBackend>>],
    ) -> Result<Option<Self>, EngineError> {
        let Some(form) = experts.first().and_then(|first| form_of(first)) else {
            return Ok(None);
        };
        let mut slabs: Vec<(usize, wgpu::Buffer)> = Vec::new();
        let mut entries = Vec::with_capacity(experts.len() * ENTRY_WORDS);
        for expert in experts {
            if form_of(expert) != Some(form) {
                return Ok(None);
            }
            for matrix in matrices(expert) {
                let [part] = matrix.parts.as_slice() else { return Ok(None) };
                let known = slabs.iter().position(|(slab, _)| *slab == part.place.slab);
                let slab = known.unwrap_or(slabs.len());
                if slab == slabs.len() {
                    slabs.push((part.place.slab, part.place.buffer.clone()));
                }
                entries.extend([word("slabs", slab)?, part.place.word()]);
                // A level that is not held is refused before anything looks here.
                entries.extend(Level::ALL.map(|level| matrix.prefix(level).unwrap_or(0)));
            }
        }
        if slabs.len() > SLABS_MAX {
            return Ok(None);
        }
        let biases = match experts.iter().filter(|expert| has_bias(expert)).count() {
            0 => None,
            count if count == experts.len() => Some(join_biases(recorder, &form, experts)?),
            _ => return Ok(None),
        };
        entries.resize(entries.len() + LEAST_WORDS * experts.len(), MISSING);
        let entries = bytemuck::cast_slice(&entries);
        let entries = recorder.gpu.upload("places of experts", entries)?;
        let slabs = slabs.into_iter().map(|(_, buffer)| buffer).collect();
        let slabs = Slabs::Resident(slabs, experts.to_vec());
        let experts = experts.len();
        Ok(Some(Self { form, experts, entries, biases, by_weight: false, slabs }))
    }

    /// A table of so many experts in slots, none of which is there yet; none where gates and ups
    /// differ in form.
    ///
    /// # Errors
    /// A device whose memory is full.
    pub(crate) fn streamed(
        gpu: &Gpu,
        (shape, slabs): (&ExpertShape, &SlotSlabs),
        (experts, biases): (usize, Option<&[f32]>),
    ) -> Result<Option<Self>, EngineError> {
        let Some(form) = ExpertForm::of_shape(shape) else { return Ok(None) };
        let biases =
            biases.map(|values| gpu.upload("biases of experts", bytemuck::cast_slice(values)));
        let biases = biases.transpose()?;
        let entries = vec![MISSING; experts * (ENTRY_WORDS + LEAST_WORDS)];
        let entries = gpu.upload("places of experts", bytemuck::cast_slice(&entries))?;
        let slabs = Slabs::Streamed(slabs.clone());
        Ok(Some(Self { form, experts, entries, biases, by_weight: false, slabs }))
    }

    /// Has the levels of uses go by their weights from now on, or by their rows again.
    ///
    /// # Errors
    /// Weights of other experts than those of the table; a device that is lost.
    pub(crate) fn set_level_weights(
        &mut self,
        recorder: &mut Recorder,
        least: Option<&[LevelWeights]>,
    ) -> Result<(), EngineError> {
        self.by_weight = least.is_some();
        let Some(least) = least else { return Ok(()) };
        expect("weights of levels", self.experts, least.len())?;
        let offset = (4 * ENTRY_WORDS * self.experts) as u64;
        Ok(recorder.write_behind(&self.entries, offset, bytemuck::cast_slice(least))?)
    }

    /// Writes what there is of an expert in a slot, behind all that was recorded.
    ///
    /// # Errors
    /// An expert that the table does not have, or of another form; a device that is lost.
    pub(crate) fn set(
        &mut self,
        recorder: &mut Recorder,
        expert: u32,
        held: Option<HeldExpert<'_, WgpuBackend>>,
    ) -> Result<(), EngineError> {
        if expert as usize >= self.experts {
            let expected = format!("an expert below {}", self.experts);
            return Err(EngineError::mismatch("table of experts", expected, expert));
        }
        let mut entry = [MISSING; ENTRY_WORDS];
        if let Some(HeldExpert { weights, level: highest }) = held {
            if has_bias(weights) != self.biases.is_some() || form_of(weights) != Some(self.form) {
                return Err(EngineError::mismatch(
                    "expert of a table",
                    "one like the others",
                    "another",
                ));
            }
            let words = entry.chunks_exact_mut(2 + Level::ALL.len());
            for (words, matrix) in words.zip(matrices(weights)) {
                let [part] = matrix.parts.as_slice() else { continue };
                words[0] = word("slabs", part.place.slab.saturating_sub(FIRST_SLAB))?;
                words[1] = part.place.word();
                for level in Level::ALL.into_iter().filter(|level| *level <= highest) {
                    words[2 + level.index()] = matrix.prefix(level)?;
                }
            }
        }
        let offset = (4 * ENTRY_WORDS * expert as usize) as u64;
        Ok(recorder.write_behind(&self.entries, offset, bytemuck::cast_slice(&entry))?)
    }

    /// The slabs that experts lie in.
    pub(crate) fn slabs(&self) -> Vec<wgpu::Buffer> {
        match &self.slabs {
            Slabs::Resident(slabs, _) => slabs.clone(),
            Slabs::Streamed(slabs) => slabs.buffers(),
        }
    }

    /// Whether an expert may be missing.
    pub(crate) fn may_miss(&self) -> bool {
        matches!(self.slabs, Slabs::Streamed(_))
    }
}

impl DeviceExpertTable for WgpuExpertTable {
    fn form(&self) -> &ExpertForm {
        &self.form
    }

    fn check(&self, level: Level) -> Result<(), EngineError> {
        let Slabs::Resident(_, experts) = &self.slabs else { return Ok(()) };
        experts.iter().flat_map(|expert| matrices(expert)).try_for_each(|one| one.check(level))
    }
}

impl DeviceRouting<WgpuBackend> for WgpuExpertTable {
    fn set_expert(
        &mut self,
        encoder: &mut GpuEncoder<'_, WgpuBackend>,
        expert: u32,
        held: Option<HeldExpert<'_, WgpuBackend>>,
    ) -> Result<(), EngineError> {
        self.set(&mut encoder.device.recorder, expert, held)
    }

    fn set_level_weights(
        &mut self,
        encoder: &mut GpuEncoder<'_, WgpuBackend>,
        least: Option<&[LevelWeights]>,
    ) -> Result<(), EngineError> {
        self.set_level_weights(&mut encoder.device.recorder, least)
    }

    fn routed_experts(
        &self,
        encoder: &mut GpuEncoder<'_, WgpuBackend>,
        levels: &[Level],
        routing: &GpuRouting<WgpuBackend>,
        x: &GpuBuffer<WgpuBackend>,
        out: &mut GpuBuffer<WgpuBackend>,
    ) -> Result<(), EngineError> {
        encoder.routed_experts(self, levels, routing, x, out)
    }

    fn take_readback(
        encoder: &mut GpuEncoder<'_, WgpuBackend>,
        uses: &mut Vec<u32>,
    ) -> Option<usize> {
        encoder.take_readback(uses)
    }
}
