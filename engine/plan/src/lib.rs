//! Predictions of a model's behaviour on a machine, before it runs there. Contains a forecast from a store's
//! index, simulations of streaming and of serving that drive the engine's own residency and scheduler, and
//! stores of random weights for measurements. Used by programs and benchmarks, not by the engine.

pub mod plan;
pub mod service;
pub mod simulate;
pub mod synthetic;
