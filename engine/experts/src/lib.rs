//! Experts that do not fit into memory: sources, residency, and the level of each use.
//!
//! Planes are read ([`reads`]), cached and evicted under a budget ([`residency`]), and handed to a step
//! ([`expert`]). [`dual`] and [`allocation`] choose levels.

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
