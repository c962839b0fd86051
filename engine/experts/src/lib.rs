//! Experts that do not fit into memory: where they come from, which are there, and at which level each is used.
//!
//! Planes are read ([`reads`]), kept and evicted under a budget ([`residency`]), and handed to a step ([`expert`]); [`dual`] and
//! [`allocation`] decide levels.

pub mod allocation;
pub mod dual;
pub mod expert;
pub mod reads;
pub mod record;
pub mod residency;
mod store_config;

pub use allocation::{Allocation, AllocationHash};
pub use dual::DualOptions;
pub use store_config::config_of;
