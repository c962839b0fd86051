//! What every backend of a device keeps in the same way: books and checks over shapes, levels and
//! routing, which know no device and hold none of its memory.

mod free_ranges;

pub use free_ranges::FreeRanges;
