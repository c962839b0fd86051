//! The bundled model on the device, against the CPU.
//!
//! Without an adapter or a bundled store the tests say so and pass.
#![expect(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test that cannot go on should say where, and one that is skipped why"
)]

mod best;
mod biased;
mod budget;
mod common;
mod families;
mod forced;
mod greedy;
mod harness;
mod lost;
mod residency;
mod slow;
mod streamed;
mod uploads;
