//! The experts of one layer, where kernels find them.

use std::sync::Arc;

use nestling_engine::EngineError;
use nestling_engine::backend::FeedForward;
use nestling_formats::Level;

use crate::backend::CudaBackend;
use crate::driver::Address;
use crate::matrix::{CudaMatrix, ProductKind};
use crate::recorder::Recorder;
use crate::slabs::Place;

/// The experts of one layer, all alike in shape and form.
pub struct CudaExpertTable {
    pub(crate) experts: Vec<Arc<FeedForward<CudaBackend>>>,
    /// Of each expert its gate, up and down.
    matrices: Place,
}

fn matrices(expert: &FeedForward<CudaBackend>) -> [&CudaMatrix; 3] {
    [&expert.gate.matrix, &expert.up.matrix, &expert.down.matrix]
}

/// What experts of a table must have in common.
fn is_alike(one: &FeedForward<CudaBackend>, other: &FeedForward<CudaBackend>) -> bool {
    let same = |(a, b): (&CudaMatrix, &CudaMatrix)| {
        (a.rows, a.cols, a.rotated) == (b.rows, b.cols, b.rotated)
    };
    one.activation == other.activation && matrices(one).into_iter().zip(matrices(other)).all(same)
}

/// Whether the kernel that finds experts can compute this one.
fn is_plain(expert: &FeedForward<CudaBackend>) -> bool {
    let linears = [&expert.gate, &expert.up, &expert.down];
    let takes = |matrix: &CudaMatrix| matrix.kind == ProductKind::Int8 && matrix.is_tiled();
    linears.iter().all(|linear| linear.bias.is_none() && takes(&linear.matrix))
        && expert.gate.matrix.rows == expert.up.matrix.rows
}

impl CudaExpertTable {
    /// A table of these experts; none where they differ in form, have biases or are multiplied with
    /// float activations.
    ///
    /// # Errors
    /// A device whose memory is full.
    pub(crate) fn new(
        recorder: &mut Recorder,
        experts: &[Arc<FeedForward<CudaBackend>>],
    ) -> Result<Option<Self>, EngineError> {
        let Some(first) = experts.first() else { return Ok(None) };
        if !experts.iter().all(|expert| is_plain(expert) && is_alike(first, expert)) {
            return Ok(None);
        }
        let described: Vec<_> = experts
            .iter()
            .flat_map(|expert| matrices(expert).map(|matrix| matrix.described))
            .collect();
        let matrices = recorder.upload(bytemuck::cast_slice(&described))?;
        Ok(Some(Self { experts: experts.to_vec(), matrices }))
    }

    pub(crate) fn address(&self) -> Address {
        self.matrices.address()
    }

    /// # Errors
    /// [`EngineError::LevelMissing`] for a level that an expert does not hold.
    pub(crate) fn check(&self, level: Level) -> Result<(), EngineError> {
        let mut all = self.experts.iter().flat_map(|expert| matrices(expert));
        all.try_for_each(|matrix| matrix.check(level))
    }
}
