//! Kernels of the CPU, as limited by `NESTLING_CPU`.

use crate::failure::{Failure, Result};
use nestling::engine::EngineError;
use nestling::engine::cpu::kernels::{InstructionSet, Kernels};

/// Variable that selects an instruction set, to measure what machines with fewer instructions do.
const VARIABLE: &str = "NESTLING_CPU";

/// Returns the instruction set that `NESTLING_CPU` selects; the fastest one if it is unset or empty.
pub fn instruction_set() -> std::result::Result<InstructionSet, EngineError> {
    // Default: empty if the variable is unset.
    let name = std::env::var_os(VARIABLE).unwrap_or_default();
    if name.is_empty() {
        return Ok(InstructionSet::Fastest);
    }
    let set = name.to_string_lossy().trim().parse().map_err(with_variable)?;
    Kernels::of(set).map_err(with_variable)?;
    Ok(set)
}

/// Returns the kernels of [`instruction_set`].
pub fn kernels() -> Result<&'static Kernels> {
    let kernels = instruction_set().and_then(Kernels::of);
    kernels.map_err(|error| Failure::new(error.to_string()))
}

/// Names the variable in an error.
fn with_variable(error: EngineError) -> EngineError {
    match error {
        EngineError::Mismatch { what, expected, found } => {
            EngineError::Mismatch { what: format!("{VARIABLE}: {what}"), expected, found }
        }
        other => other,
    }
}
