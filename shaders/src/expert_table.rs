//! The experts of one layer, where shaders find them.

use std::sync::Arc;

use nestling_engine::EngineError;
use nestling_engine::backend::FeedForward;
use nestling_formats::Level;

use crate::backend::WgpuBackend;
use crate::device::Gpu;
use crate::matrix::WgpuMatrix;
use crate::memory::word;

/// Words of an expert: of each matrix its slab, its place there, its prefix for every level.
const ENTRY_WORDS: usize = 3 * (2 + Level::ALL.len());

/// Most slabs of a table: each is a dispatch more.
const SLABS_MAX: usize = 8;

/// The experts of one layer, all alike in shape and form.
pub struct WgpuExpertTable {
    pub(crate) experts: Vec<Arc<FeedForward<WgpuBackend>>>,
    /// `[experts]` entries.
    pub(crate) entries: wgpu::Buffer,
    /// The slabs that their matrices lie in.
    pub(crate) slabs: Vec<wgpu::Buffer>,
}

fn matrices(expert: &FeedForward<WgpuBackend>) -> [&WgpuMatrix; 3] {
    [&expert.gate.matrix, &expert.up.matrix, &expert.down.matrix]
}

/// What experts of a table must have in common.
fn is_alike(one: &FeedForward<WgpuBackend>, other: &FeedForward<WgpuBackend>) -> bool {
    let same = |(a, b): (&WgpuMatrix, &WgpuMatrix)| {
        (a.rows, a.cols, a.kind, a.rotated) == (b.rows, b.cols, b.kind, b.rotated)
    };
    one.activation == other.activation && matrices(one).into_iter().zip(matrices(other)).all(same)
}

impl WgpuExpertTable {
    /// A table of these experts; none where they differ in form, have biases, are cut into parts or
    /// lie in too many slabs.
    ///
    /// # Errors
    /// A device whose memory is full.
    pub(crate) fn new(
        gpu: &Gpu,
        experts: &[Arc<FeedForward<WgpuBackend>>],
    ) -> Result<Option<Self>, EngineError> {
        let Some(first) = experts.first() else { return Ok(None) };
        let mut slabs: Vec<(usize, wgpu::Buffer)> = Vec::new();
        let mut entries = Vec::with_capacity(experts.len() * ENTRY_WORDS);
        for expert in experts {
            let FeedForward { gate, up, down, .. } = &**expert;
            let plain = [gate, up, down].iter().all(|linear| linear.bias.is_none());
            if !plain || !is_alike(first, expert) || gate.matrix.kind != up.matrix.kind {
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
        let entries = gpu.upload("places of experts", bytemuck::cast_slice(&entries))?;
        let slabs = slabs.into_iter().map(|(_, buffer)| buffer).collect();
        Ok(Some(Self { experts: experts.to_vec(), entries, slabs }))
    }

    /// # Errors
    /// [`EngineError::LevelMissing`] for a level that an expert does not hold.
    pub(crate) fn check(&self, level: Level) -> Result<(), EngineError> {
        let mut all = self.experts.iter().flat_map(|expert| matrices(expert));
        all.try_for_each(|matrix| matrix.prefix(level).map(|_| ()))
    }
}
