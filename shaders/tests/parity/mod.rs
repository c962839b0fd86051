//! Runs the operation tests of all GPU backends on this one, and its own.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

mod harness;
mod instructions;
mod limits;

use harness::{Vulkan, every_shader_was_started, lacks_device};
use nestling_testkit::{Suite, operations};

pub fn suite() -> Suite {
    let own = [instructions::suite(), limits::suite()].concat();
    Suite::new([operations::suite::<Vulkan>(), own].concat())
        .unless(lacks_device)
        .judged(every_shader_was_started)
}
