//! How much of the machine's memory a model may take.

use crate::bytes::ByteSize;
use nestling::system::{MemoryState, SystemFiles};

/// The budget that was given, or what is free, less a margin; none where the system does not say.
pub fn memory_budget(given: Option<ByteSize>) -> Option<u64> {
    let free = || MemoryState::read(&SystemFiles::default()).map(|state| state.default_budget());
    given.map(|size| size.0).or_else(free)
}
