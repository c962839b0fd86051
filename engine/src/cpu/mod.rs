//! The CPU backend's arithmetic: what one operation is, and how each instruction set does it.
//!
//! [`math`] says what every float operation computes, once, in plain loops over 16 lanes. Kernels
//! for an instruction set are the same loops compiled for it, or are tested to give the same bits.

pub mod kernels;
pub mod math;
pub mod nested;
pub mod reference;
pub mod rows;
