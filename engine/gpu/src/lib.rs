//! What both GPU backends share: the encoder, which checks and cuts the operations of a step, activations,
//! KV pages and recurrent states in memory of a device, and checks over shapes, levels and routing.
//!
//! A backend implements [`Storage`] and [`Device`]: it allocates, and records [`Operation`]s as launches of
//! its own kernels.

mod backend_items;
mod calibration;
mod device;
mod device_budget;
mod device_matrix;
mod device_routing;
mod encoder;
mod expert_form;
mod expert_table;
mod free_ranges;
mod heads;
mod held_levels;
mod memory;
mod noted_uses;
mod notes;
mod operation;
mod page_layout;
mod page_lists;
mod pages;
mod product_form;
mod router;
mod row_pairs;
mod scratch;
mod shapes;
mod slot_layout;
mod slot_slabs;
mod slots;
mod snapshot;
mod states;
mod storage;
mod work;

use nestling_core::EngineError;

pub use calibration::measure_rates;
pub use device::Device;
pub use device_budget::{DeviceBudget, Purpose, Reservation, WorkReservation};
pub use device_matrix::DeviceMatrix;
pub use encoder::{GpuEncoder, HEAD_DIM_MAX, LIMITS, gated, input_for};
pub use expert_form::{ExpertForm, RoutedRows};
pub use expert_table::{GpuExpertTable, TableEntries, linears};
pub use free_ranges::FreeRanges;
pub use heads::HeadCounts;
pub use held_levels::{HeldLevels, SlotPlanes};
pub use memory::{GpuBuffer, GpuFloats, GpuRouting, Quantized};
pub use noted_uses::{NOTED_USES_MAX, NotedUses};
pub use notes::{NOTES_BYTES, Notes};
pub use operation::{
    AddGated, Argmax, ArgmaxMerge, Attend, AttendSizes, DeltaNetRuns, Embed, ExpertsSum, Gate,
    Gated, GatedOutput, GatedProducts, GatherRows, HeadsRest, Input, Job, Joint, NormParts,
    NormWeight, Operation, Output, Products, Quantize, RmsNorm, Rope, Route, RoutedExperts, Scalar,
    ScalarKind, StoreKeys,
};
pub use page_layout::PageLayout;
pub use page_lists::{PageLists, place_of};
pub use pages::{GpuPages, PagePlace};
pub use product_form::{HeadsForm, ProductForm, ProductKind};
pub use router::{RouterLimits, check_limit};
pub use row_pairs::{RowPair, by_way_of, pairs_by_level, push_head, push_uses, within};
pub use scratch::{QuantizedRoom, Scratch, ScratchRoom};
pub use slot_layout::{MatrixRoom, SLOT_ALIGN, SlotLayout};
pub use slot_slabs::SlotSlabs;
pub use slots::{GpuSlots, SlotAllocation, SlotDevice, SlotRoom};
pub use states::GpuStates;
pub use storage::{Storage, word};
pub use work::{
    LAUNCH_NANOSECONDS, SUBMISSION_NANOSECONDS, WorkKind, WorkRates, at_once, pieces,
    recurrence_row_work, seen_positions, work_of,
};

/// Checks a size.
///
/// # Errors
/// Sizes that differ.
pub fn expect(what: &str, expected: usize, found: usize) -> Result<(), EngineError> {
    if expected == found { Ok(()) } else { Err(EngineError::mismatch(what, expected, found)) }
}

/// Values that a device gave, in place of what was there.
pub fn fill<T>(out: &mut Vec<T>, bytes: &[u8], value: impl Fn([u8; 4]) -> T) {
    out.clear();
    out.extend(bytes.as_chunks().0.iter().map(|bytes| value(*bytes)));
}
