//! Every operation on the device against the CPU, through the engine's traits.
//!
//! Without an adapter the tests say so and pass: `.ci/run` installs a software one.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test that cannot go on should say where, and one that is skipped why"
)]

mod attention;
mod delta_net;
mod elementwise;
mod embed;
mod experts_sum;
mod feed_forward;
mod harness;
mod instructions;
mod limits;
mod matrices;
mod norms;
mod products;
mod route;
mod values;
