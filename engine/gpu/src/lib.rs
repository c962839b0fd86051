//! What every backend of a device keeps in the same way: books and checks over shapes, levels and
//! routing, which know no device and hold none of its memory.

mod calibration;
mod expert_form;
mod free_ranges;
mod heads;
mod held_levels;
mod noted_uses;
mod page_layout;
mod page_lists;
mod product_form;
mod router;
mod row_pairs;
mod work;

use nestling_core::EngineError;

pub use calibration::measure_rates;
pub use expert_form::{ExpertForm, RoutedRows};
pub use free_ranges::FreeRanges;
pub use heads::HeadCounts;
pub use held_levels::{HeldLevels, SlotPlanes};
pub use noted_uses::{NOTED_USES_MAX, NotedUses};
pub use page_layout::PageLayout;
pub use page_lists::{PageLists, place_of};
pub use product_form::{HeadsForm, ProductForm, ProductKind, check_feed_forward};
pub use router::{RouterLimits, check_limit, check_routing};
pub use row_pairs::{RowPair, by_way_of, pairs_by_level, push_head, push_uses, within};
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
