//! Arithmetic of the CPU backend: the definition of each operation, and its implementations for each
//! instruction set.
//!
//! [`math`] defines each float operation once, in plain loops over 16 lanes. Kernels for an instruction set
//! are the same loops compiled for it, or are tested to give the same bits.
//!
//! ```
//! use nestling_cpu::kernels::Kernels;
//!
//! let x: Vec<f32> = (0u8..64).map(|n| f32::from(n).sin()).collect();
//! let weight = vec![0.5; 64];
//! let (mut portable, mut fastest) = (vec![0.0; 64], vec![0.0; 64]);
//! Kernels::portable().rms_norm(&x, &weight, 1e-6, &mut portable);
//! Kernels::detect().rms_norm(&x, &weight, 1e-6, &mut fastest);
//! assert_eq!(portable, fastest);
//! ```
//!
//! | subject | items |
//! |---|---|
//! | the device of an engine | [`Cpu`], [`CpuEncoder`] |
//! | its memory | [`CpuMatrix`], [`CpuBuffer`], [`CpuPool`], [`CpuStates`] |
//! | kernels per instruction set | [`kernels::Kernels`], [`nested`], [`scaled`], [`attention`] |
//! | definitions of the operations | [`math`], [`delta_net`], [`reference`](mod@reference) |
//! | quantized activations | [`rows`] |
//! | threads | [`threads::ThreadPool`], [`ThreadPlacement`], [`thread_count::best_thread_count`] |
//! | memory bandwidth of the machine | [`bandwidth`] |

#[cfg(test)]
mod attention_tests;
mod backend;
mod columns;
mod conv_rows;
mod device;
mod encoder;
pub mod kernels;
mod matrix;
pub mod nested;
mod pages;
mod planes;
pub mod reference;
pub mod scaled;
#[cfg(test)]
mod shape_tests;
mod shapes;
mod states;
mod team;

use nestling_math::{aligned, fused, vector};

pub use device::Cpu;
pub use encoder::CpuEncoder;
pub use matrix::{CpuBuffer, CpuMatrix};
pub use nestling_math::{attention, delta_net, math, rows};
pub use nestling_threads::{ThreadPlacement, bandwidth, thread_count, threads};
pub use pages::CpuPool;
pub use states::CpuStates;
