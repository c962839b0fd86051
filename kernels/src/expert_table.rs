//! Expert tables of a layer, as kernels read them.

use nestling_core::EngineError;
use nestling_core::backend::{FeedForward, HeldExpert, LevelWeights};
use nestling_formats::Level;
use nestling_gpu::{ExpertForm, ProductForm, ProductKind, TableEntries, TableExperts, linears};

use crate::backend::CudaBackend;
use crate::driver::Address;
use crate::params::ExpertEntry;
use crate::slabs::{SlabRange, address};

/// Expert entries of a layer, `[experts]`, followed by the minimum weights of levels as float bits,
/// `[experts, 4]`.
pub struct CudaEntries(SlabRange);

/// Returns the entry of an expert whose lowest `levels` levels are resident.
fn entry(expert: &FeedForward<CudaBackend>, levels: usize) -> ExpertEntry {
    let matrices = linears(expert).map(|linear| linear.matrix.weights.address());
    ExpertEntry { matrices, levels: levels as u32, padding: 0 }
}

impl CudaEntries {
    /// Returns the address of the minimum weights of levels.
    pub(crate) fn least(&self, experts: usize) -> Address {
        address(&self.0) + (size_of::<ExpertEntry>() * experts) as u64
    }
}

impl TableEntries<CudaBackend> for CudaEntries {
    type Entry = ExpertEntry;

    fn takes(form: &ExpertForm) -> bool {
        let is_taken =
            |form: ProductForm| form.kind == ProductKind::Float || form.is_tiled || form.is_scaled;
        is_taken(form.gate) && is_taken(form.down)
    }

    fn new(
        backend: &mut CudaBackend,
        experts: TableExperts<'_, CudaBackend>,
    ) -> Result<Option<Self>, EngineError> {
        let entries = match experts {
            TableExperts::Streamed { count, .. } => vec![ExpertEntry::default(); count],
            // A level that is not resident is refused before a kernel reads the table.
            TableExperts::Resident(experts) => {
                experts.iter().map(|expert| entry(expert, Level::ALL.len())).collect()
            }
        };
        let mut bytes = bytemuck::cast_slice(&entries).to_vec();
        // Minimum weights are not set yet.
        bytes.resize(bytes.len() + size_of::<LevelWeights>() * entries.len(), 0);
        Ok(Some(Self(backend.recorder.upload(&bytes)?)))
    }

    fn entry(held: Option<HeldExpert<'_, CudaBackend>>) -> Result<ExpertEntry, EngineError> {
        Ok(held.map_or_else(ExpertEntry::default, |HeldExpert { weights, level }| {
            entry(weights, level.index() + 1)
        }))
    }

    fn binding(&self) -> Address {
        address(&self.0)
    }
}
