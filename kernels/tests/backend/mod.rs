//! The suite of all GPU backends on this one, and what it alone has.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

mod cut_steps;
mod decay;
mod harness;
mod timer;

use harness::{Cuda, every_kernel_was_started};
use nestling_testkit::{Suite, operations};

/// All tests of operations.
pub fn suite() -> Suite {
    let own = [cut_steps::suite(), decay::suite(), timer::suite()].concat();
    Suite::new([operations::suite::<Cuda>(), own].concat()).judged(every_kernel_was_started)
}
