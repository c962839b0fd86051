//! Float arithmetic of the forward pass and of the CPU backend.
//!
//! [`math`] defines each operation once, with the same bits on every machine and instruction set. [`vector`] has
//! sixteen floats of an instruction set, for kernels that need their registers, and [`product`] the small matrix
//! product of [`attention`]. [`float_tile`] multiplies rows of float weights. [`fused`] multiplies and adds with one
//! rounding everywhere. [`rope`] computes rotary angles. [`delta_net`] passes tokens through heads with a state of
//! fixed size. [`rows`] has activations quantized to int8, and [`aligned`] vectors of whole cache lines.
//!
//! ```
//! use nestling_math::math::{dot, silu};
//!
//! assert_eq!(dot(&[1.0_f32, 2.0], &[3.0, 4.0]), 11.0);
//! assert_eq!(silu(0.0), 0.0);
//! ```

pub mod aligned;
pub mod attention;
pub mod delta_net;
pub mod float_tile;
pub mod fused;
pub mod math;
pub mod product;
pub mod rope;
pub mod rows;
pub mod vector;
