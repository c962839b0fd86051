//! The parts that both GPU backends share: the encoder, which checks and splits the operations of a step;
//! activations, KV pages and recurrent states in device memory; and checks of shapes, levels and routing.
//!
//! A backend implements [`Storage`], [`CommandRecorder`] and [`Device`]: it allocates memory, records
//! commands, and records [`Operation`]s as launches of its kernels.

mod allocation;
mod backend_items;
mod base_plane;
mod calibration;
mod command_recorder;
mod device;
mod device_budget;
mod device_routing;
mod device_scratch;
mod encoder;
mod encoder_state;
mod error;
mod expert_form;
mod expert_table;
mod free_ranges;
mod heads;
mod held_levels;
mod matrix;
mod memory;
mod noted_uses;
mod notes;
mod operation;
mod page_layout;
mod page_lists;
mod pages;
mod peers;
mod plane_memory;
mod product_form;
mod requested_memory;
mod router;
mod row_pairs;
mod scratch;
mod shapes;
mod sizes;
mod slot_layout;
mod slot_slabs;
mod slots;
mod snapshot;
mod states;
mod storage;
mod weight_slabs;
mod work;
mod work_meter;

use nestling_core::EngineError;
use nestling_core::backend::{CheckedEncoder, RankEncoder};

pub use allocation::Allocation;
pub use base_plane::{BASE_PARTS, base_ranges};
pub use calibration::measure_rates;
pub use command_recorder::CommandRecorder;
pub use device::{Device, in_group, with_peers};
pub use device_budget::{DeviceBudget, Purpose, Reservation, WorkReservation};
pub use device_scratch::DeviceScratch;
pub use encoder::{GpuEncoder, HEAD_DIM_MAX, LIMITS};
pub use encoder_state::EncoderState;
pub use error::{BudgetTooSmall, GpuError, ModelBytes};
pub use expert_form::{ExpertForm, RoutedRows};
pub use expert_table::{GpuExpertTable, TableEntries, TableExperts, linears};
pub use free_ranges::FreeRanges;
pub use heads::HeadCounts;
pub use held_levels::{HeldLevels, SlotPlanes};
pub use matrix::GpuMatrix;
pub use memory::{GpuBuffer, GpuFloats, GpuRouting, QuantizedActivations};
pub use noted_uses::{NOTED_USES_MAX, NotedUses};
pub use notes::{NOTES_BYTES, SelectionNotes};
pub use operation::{
    AddGated, Argmax, ArgmaxMerge, Attend, DeltaNetRuns, Embed, ExpertsSum, FindExperts,
    FoundExperts, FoundProducts, Gate, Gated, GatedOutput, GatedProducts, GatesAndUps, GatherRows,
    HeadsRest, Input, Job, Joint, Mamba2Runs, NormParts, NormWeight, NotedCall, Operation, Output,
    Products, Quantize, RmsNorm, Rope, Route, Scalar, ScalarKind, ShortConvRuns, StoreKeys,
};
pub use page_layout::{PageLayout, PageWords};
pub use page_lists::{PageLists, place_of};
pub use pages::{ChunkPage, GpuPages};
pub use peers::{PeerLink, PeerPart, PeerState};
pub use plane_memory::{NewMatrix, NewPlanes, PlaneMemory, SlotPlane, SlotRegion};
pub use product_form::{HeadsForm, ProductForm, ProductKind};
pub use requested_memory::{BufferSize, InnerSize, LayerExperts, MemorySizes, RequestedMemory};
pub use router::{RouterLimits, check_limit};
pub use row_pairs::{RowPair, by_way_of, pairs_by_level, push_head, push_uses, within};
pub use scratch::{QuantizedRoom, Scratch, ScratchRoom};
pub use sizes::{AttendSizes, RopeSizes, RouteSizes, StoreSizes};
pub use slot_layout::{MatrixLayout, PlaneSizes, SLOT_ALIGN, SlotLayout};
pub use slot_slabs::SlotSlabs;
pub use slots::{GpuSlots, SlotAllocation, SlotDevice};
pub use states::GpuStates;
pub use storage::{Storage, word};
pub use weight_slabs::{WEIGHT_ALIGN, WeightRange, WeightSlabs};
pub use work::{
    LAUNCH_NANOSECONDS, SUBMISSION_NANOSECONDS, WorkKind, WorkRates, at_once, mamba2_row_work,
    pieces, recurrence_row_work, seen_positions, short_conv_row_work, work_of,
};
pub use work_meter::WorkMeter;

/// The encoder of a step: completes the results of a rank, checks operands, and records.
pub type StepEncoder<'a, D> = RankEncoder<CheckedEncoder<GpuEncoder<'a, D>>>;

/// Checks that a size has the expected value.
///
/// # Errors
/// Returns an error if the sizes differ.
pub fn expect(what: &str, expected: usize, found: usize) -> Result<(), EngineError> {
    if expected == found { Ok(()) } else { Err(EngineError::mismatch(what, expected, found)) }
}

/// Replaces the contents of `out` with values that a device returned, four bytes each.
pub fn fill<T>(out: &mut Vec<T>, bytes: &[u8], value: impl Fn([u8; 4]) -> T) {
    out.clear();
    out.extend(bytes.as_chunks().0.iter().map(|bytes| value(*bytes)));
}
