//! Operations of the backend against the CPU, through the engine's traits: on a GPU where there
//! is one, on the emulated device elsewhere. The cases are those of the other GPU backend.
#![expect(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test that cannot go on should say where, and one that is skipped why"
)]

mod harness;

#[path = "../../../shaders/tests/parity/norms.rs"]
mod norms;
#[path = "../../../shaders/tests/parity/values.rs"]
mod values;
