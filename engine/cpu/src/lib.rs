//! Arithmetic of the CPU backend: the definition of each operation, and its implementations for each
//! instruction set.
//!
//! [`math`] defines each float operation once, in plain loops over 16 lanes. Kernels for an instruction set
//! are the same loops compiled for it, or are tested to give the same bits.

mod affinity;
mod aligned;
pub mod attention;
mod backend;
pub mod bandwidth;
mod columns;
pub mod delta_net;
mod device;
mod encoder;
pub mod kernels;
pub mod math;
mod matrix;
pub mod nested;
mod pages;
mod planes;
pub mod reference;
pub mod rows;
pub mod scaled;
#[cfg(test)]
mod shape_tests;
mod shapes;
mod states;
mod team;
pub mod thread_count;
pub mod threads;
mod vector;

pub use affinity::ThreadPlacement;
pub use device::Cpu;
pub use encoder::CpuEncoder;
pub use matrix::{CpuBuffer, CpuMatrix};
pub use pages::CpuPool;
pub use states::CpuStates;
