//! What every backend of a device keeps in the same way: books and checks over shapes, levels and
//! routing, which know no device and hold none of its memory.

mod free_ranges;
mod held_levels;
mod noted_uses;

pub use free_ranges::FreeRanges;
pub use held_levels::{HeldLevels, SlotPlanes};
pub use noted_uses::{NOTED_USES_MAX, NotedUses};

/// Values that a device gave, in place of what was there.
pub fn fill<T>(out: &mut Vec<T>, bytes: &[u8], value: impl Fn([u8; 4]) -> T) {
    out.clear();
    out.extend(bytes.as_chunks().0.iter().map(|bytes| value(*bytes)));
}
