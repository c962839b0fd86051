//! Runs the operation tests of all GPU backends on this one, and its own.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

mod cut_steps;
mod decay;
mod harness;
mod timer;

use harness::{Cuda, every_kernel_was_started};
use nestling_testkit::{Suite, operations};

pub fn suite() -> Suite {
    let own = [cut_steps::suite(), decay::suite(), timer::suite()].concat();
    Suite::new([operations::suite::<Cuda>(), own].concat()).judged(every_kernel_was_started)
}
