//! Conversion of checkpoints to stores, calibration, and evaluation of stores by perplexity and divergence.

pub mod calibrate;
pub mod convert;
pub mod in_place;
pub mod judge;
