//! What a model will do on a machine, before it runs there: a forecast from the index of its store,
//! a simulation of streaming that drives the engine's own residency, and stores of random weights to
//! measure with. Programs and benchmarks use it; no engine does.

pub mod plan;
pub mod simulate;
pub mod synthetic;
