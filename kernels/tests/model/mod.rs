//! The bundled model and a tiny one of every family against the CPU: on a GPU where there is one, on the
//! emulated device elsewhere. The cases are those of the other GPU backend.
#![expect(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test that cannot go on should say where, and one that is skipped why"
)]

mod budget;
mod graphs;
mod harness;
mod on_host;
mod tables;
mod tiers;

#[path = "../../../shaders/tests/model/best.rs"]
mod best;
#[path = "../../../shaders/tests/model/common.rs"]
mod common;
#[path = "../../../shaders/tests/model/families.rs"]
mod families;
#[path = "../../../shaders/tests/model/forced.rs"]
mod forced;
#[path = "../../../shaders/tests/model/greedy.rs"]
mod greedy;
#[path = "../../../shaders/tests/model/lost.rs"]
mod lost;
#[path = "../../../shaders/tests/model/residency.rs"]
mod residency;
#[path = "../../../shaders/tests/model/slow.rs"]
mod slow;
#[path = "../../../shaders/tests/model/streamed.rs"]
mod streamed;
