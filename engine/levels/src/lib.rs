//! Choice of levels: how many planes of each matrix to use.
//!
//! [`allocation`] gives each matrix one level, within a budget of bytes. [`dual`] gives each use of an expert a level, by
//! the router's weight of the token.
//!
//! ```
//! use nestling_formats::Level;
//! use nestling_levels::dual::{DualPolicy, Threshold};
//!
//! let policy = DualPolicy::up_to(Level::L4, Threshold::new(0.5));
//! let scores = [f32::INFINITY, 1.0, 0.1, 0.0, 0.0]; // the plane of level 4 gains too little
//! assert_eq!(policy.level(&scores), Level::L3);
//! ```

pub mod allocation;
pub mod dual;

pub use allocation::{Allocation, AllocationHash};
pub use dual::DualOptions;
