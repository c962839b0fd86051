//! Memory budget of a model.

use crate::bytes::ByteSize;
use nestling::system::{MemoryState, SystemFiles};

/// Returns the given budget, or free memory less a margin. Returns `None` if the system does not report it.
pub fn memory_budget(given: Option<ByteSize>) -> Option<u64> {
    let free = || MemoryState::read(&SystemFiles::default()).map(|state| state.default_budget());
    given.map(|size| size.0).or_else(free)
}
