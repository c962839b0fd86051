//! What shaders read of the experts of one layer.

use std::sync::Arc;

use nestling_core::EngineError;
use nestling_core::backend::{FeedForward, HeldExpert, LevelWeights};
use nestling_formats::Level;
use nestling_gpu::{ExpertForm, SlotSlabs, Storage, TableEntries, linears, word};

use crate::backend::WgpuBackend;
use crate::device::{Memory, size_of};
use crate::slots::FIRST_SLAB;

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

/// Where a table's experts lie.
enum Slabs {
    /// All are there, in these, and stay.
    Resident(Vec<wgpu::Buffer>),
    /// Some are, in slots.
    Streamed(SlotSlabs<Memory>),
}

/// Entries of the experts of a layer, and the slabs that they name.
pub struct WgpuEntries {
    /// `[experts]` entries, then their least weights of levels.
    pub(crate) memory: Memory,
    experts: usize,
    slabs: Slabs,
}

impl WgpuEntries {
    /// The slabs that experts lie in.
    pub(crate) fn slabs(&self) -> Vec<wgpu::Buffer> {
        match &self.slabs {
            Slabs::Resident(slabs) => slabs.clone(),
            Slabs::Streamed(slabs) => slabs.map(|memory| memory.raw.clone()),
        }
    }
}

impl TableEntries<WgpuBackend> for WgpuEntries {
    fn takes(_form: &ExpertForm) -> bool {
        true
    }

    fn streamed(
        backend: &mut WgpuBackend,
        experts: usize,
        slabs: &SlotSlabs<Memory>,
    ) -> Result<Self, EngineError> {
        let words = vec![MISSING; experts * (ENTRY_WORDS + LEAST_WORDS)];
        let memory = backend.upload("places of experts", bytemuck::cast_slice(&words))?;
        Ok(Self { memory, experts, slabs: Slabs::Streamed(slabs.clone()) })
    }

    /// None where experts are cut into parts or lie in too many slabs.
    fn resident(
        backend: &mut WgpuBackend,
        experts: &[Arc<FeedForward<WgpuBackend>>],
    ) -> Result<Option<Self>, EngineError> {
        let mut slabs: Vec<(usize, wgpu::Buffer)> = Vec::new();
        let mut words = Vec::with_capacity(experts.len() * (ENTRY_WORDS + LEAST_WORDS));
        for linear in experts.iter().flat_map(|expert| linears(expert)) {
            let matrix = &linear.matrix;
            let [part] = matrix.parts.as_slice() else { return Ok(None) };
            let known = slabs.iter().position(|(slab, _)| *slab == part.place.slab);
            let slab = known.unwrap_or(slabs.len());
            if slab == slabs.len() {
                slabs.push((part.place.slab, part.place.buffer.clone()));
            }
            words.extend([word("slabs", slab)?, part.place.word()]);
            // Default: a level that is not held is refused before anything looks here.
            words.extend(Level::ALL.map(|level| matrix.prefix(level).unwrap_or(0)));
        }
        if slabs.len() > SLABS_MAX {
            return Ok(None);
        }
        words.resize(words.len() + LEAST_WORDS * experts.len(), MISSING);
        let memory = backend.upload("places of experts", bytemuck::cast_slice(&words))?;
        let slabs = Slabs::Resident(slabs.into_iter().map(|(_, buffer)| buffer).collect());
        Ok(Some(Self { memory, experts: experts.len(), slabs }))
    }

    fn set(
        &mut self,
        backend: &mut WgpuBackend,
        expert: usize,
        held: Option<HeldExpert<'_, WgpuBackend>>,
    ) -> Result<(), EngineError> {
        let mut entry = [MISSING; ENTRY_WORDS];
        if let Some(HeldExpert { weights, level: highest }) = held {
            let words = entry.chunks_exact_mut(2 + Level::ALL.len());
            for (words, linear) in words.zip(linears(weights)) {
                let [part] = linear.matrix.parts.as_slice() else { continue };
                words[0] = word("slabs", part.place.slab.saturating_sub(FIRST_SLAB))?;
                words[1] = part.place.word();
                for level in Level::ALL.into_iter().filter(|level| *level <= highest) {
                    words[2 + level.index()] = linear.matrix.prefix(level)?;
                }
            }
        }
        let (recorder, offset) = (&mut backend.recorder, (4 * ENTRY_WORDS * expert) as u64);
        Ok(recorder.write_behind(&self.memory, offset, bytemuck::cast_slice(&entry))?)
    }

    fn set_level_weights(
        &mut self,
        backend: &mut WgpuBackend,
        least: &[LevelWeights],
    ) -> Result<(), EngineError> {
        let (recorder, offset) = (&mut backend.recorder, (4 * ENTRY_WORDS * self.experts) as u64);
        Ok(recorder.write_behind(&self.memory, offset, bytemuck::cast_slice(least))?)
    }
}
