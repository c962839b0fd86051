//! What a model will do on a machine, before it runs there: a forecast from the index of its store,
//! simulations of streaming and of many generations that drive the engine's own residency and scheduler, and stores of random weights to
//! measure with. Programs and benchmarks use it; no engine does.

pub mod plan;
pub mod service;
pub mod simulate;
pub mod synthetic;
