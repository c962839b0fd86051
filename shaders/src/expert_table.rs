//! Expert tables of a layer, as shaders read them.

use std::sync::Arc;

use nestling_core::EngineError;
use nestling_core::backend::{FeedForward, HeldExpert};
use nestling_formats::Level;
use nestling_gpu::{
    Allocation, ExpertForm, SlotSlabs, Storage, TableEntries, TableExperts, linears, word,
};

use crate::backend::WgpuBackend;
use crate::device::{Memory, size_of};
use crate::matrix_layout::FIRST_SLAB;
use crate::recorder::Binding;

/// Words of an expert's entry. For each matrix: its slab, its offset, and its prefix at each level.
const ENTRY_WORDS: usize = 3 * (2 + Level::ALL.len());

/// Entry of one expert.
type Entry = [u32; ENTRY_WORDS];

/// Words of an expert after all entries: the minimum weights of levels, as float bits.
const LEAST_WORDS: usize = 4;

/// Returns the size of a table in bytes, without biases.
pub(crate) fn table_bytes(experts: usize) -> u64 {
    size_of(4 * (experts * (ENTRY_WORDS + LEAST_WORDS)) as u64)
}

/// Prefix of a level whose planes are missing.
const MISSING: u32 = u32::MAX;

/// Maximum number of slabs of a table. Each slab requires another dispatch.
const SLABS_MAX: usize = 8;

enum Slabs {
    /// Slabs of resident experts, which stay loaded.
    Resident(Vec<wgpu::Buffer>),
    /// Slabs of slots, for streamed experts.
    Streamed(SlotSlabs<Memory>),
}

/// Expert entries of a layer, and the slabs that they refer to.
pub struct WgpuEntries {
    /// `[experts]` entries, followed by the minimum weights of levels.
    memory: Memory,
    slabs: Slabs,
}

impl WgpuEntries {
    /// Returns the slabs of the experts.
    pub(crate) fn slabs(&self) -> Vec<wgpu::Buffer> {
        match &self.slabs {
            Slabs::Resident(slabs) => slabs.clone(),
            Slabs::Streamed(slabs) => slabs.map(|memory| memory.raw.clone()),
        }
    }
}

impl TableEntries<WgpuBackend> for WgpuEntries {
    type Entry = Entry;

    fn takes(_form: &ExpertForm) -> bool {
        true
    }

    /// Returns `None` if an expert is split into parts or there are too many slabs.
    fn new(
        backend: &mut WgpuBackend,
        experts: TableExperts<'_, WgpuBackend>,
    ) -> Result<Option<Self>, EngineError> {
        let (words, slabs) = match experts {
            TableExperts::Streamed { count, slabs } => {
                let words = vec![MISSING; count * (ENTRY_WORDS + LEAST_WORDS)];
                (words, Slabs::Streamed(slabs.clone()))
            }
            TableExperts::Resident(experts) => match resident(experts)? {
                Some(ResidentEntries { words, slabs }) => (words, Slabs::Resident(slabs)),
                None => return Ok(None),
            },
        };
        let memory = backend.upload("places of experts", bytemuck::cast_slice(&words))?;
        Ok(Some(Self { memory, slabs }))
    }

    fn entry(held: Option<HeldExpert<'_, WgpuBackend>>) -> Result<Entry, EngineError> {
        let mut entry = [MISSING; ENTRY_WORDS];
        // Default: a missing expert has no matrices.
        let Some(HeldExpert { weights, level: highest }) = held else { return Ok(entry) };
        let words = entry.chunks_exact_mut(2 + Level::ALL.len());
        for (words, linear) in words.zip(linears(weights)) {
            let [part] = linear.matrix.weights.parts.as_slice() else { continue };
            words[0] = word("slabs", part.slab.saturating_sub(FIRST_SLAB))?;
            words[1] = part.word();
            for level in Level::ALL.into_iter().filter(|level| *level <= highest) {
                words[2 + level.index()] = linear.matrix.prefix(level)?;
            }
        }
        Ok(entry)
    }

    fn binding(&self) -> Binding {
        self.memory.binding()
    }
}

/// Entries of resident experts in words, and the slabs that they refer to.
struct ResidentEntries {
    words: Vec<u32>,
    slabs: Vec<wgpu::Buffer>,
}

/// Returns `None` if an expert is split into parts or there are too many slabs.
fn resident(
    experts: &[Arc<FeedForward<WgpuBackend>>],
) -> Result<Option<ResidentEntries>, EngineError> {
    let mut slabs: Vec<(usize, wgpu::Buffer)> = Vec::new();
    let mut words = Vec::with_capacity(experts.len() * (ENTRY_WORDS + LEAST_WORDS));
    for linear in experts.iter().flat_map(|expert| linears(expert)) {
        let matrix = &linear.matrix;
        let [part] = matrix.weights.parts.as_slice() else { return Ok(None) };
        let known = slabs.iter().position(|(slab, _)| *slab == part.slab);
        let slab = known.unwrap_or(slabs.len());
        if slab == slabs.len() {
            slabs.push((part.slab, part.buffer.clone()));
        }
        words.extend([word("slabs", slab)?, part.word()]);
        // Default: a level that is not resident is refused before this table is read.
        words.extend(Level::ALL.map(|level| matrix.prefix(level).unwrap_or(0)));
    }
    words.resize(words.len() + LEAST_WORDS * experts.len(), MISSING);
    let slabs: Vec<_> = slabs.into_iter().map(|(_, buffer)| buffer).collect();
    Ok((slabs.len() <= SLABS_MAX).then_some(ResidentEntries { words, slabs }))
}
