//! Every operation of the backend against the CPU, through the engine's traits: on a GPU where there
//! is one, on the emulated device elsewhere. The cases are those of the other GPU backend.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test that cannot go on should say where, and one that is skipped why"
)]

mod cut_steps;
mod decay;
mod harness;
mod timer;

#[path = "../../../shaders/tests/parity/attention.rs"]
#[expect(dead_code, reason = "instructions of the other GPU backend flush what is small")]
mod attention;
#[path = "../../../shaders/tests/parity/delta_net.rs"]
mod delta_net;
#[path = "../../../shaders/tests/parity/elementwise.rs"]
mod elementwise;
#[path = "../../../shaders/tests/parity/embed.rs"]
mod embed;
#[path = "../../../shaders/tests/parity/experts_sum.rs"]
mod experts_sum;
#[path = "../../../shaders/tests/parity/feed_forward.rs"]
mod feed_forward;
#[path = "../../../shaders/tests/parity/matrices.rs"]
mod matrices;
#[path = "../../../shaders/tests/parity/norms.rs"]
mod norms;
#[path = "../../../shaders/tests/parity/products.rs"]
mod products;
#[path = "../../../shaders/tests/parity/route.rs"]
mod route;
#[path = "../../../shaders/tests/parity/values.rs"]
mod values;
