//! Runs the model tests of all GPU backends on this one, and its own.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

mod biased;
mod budget;
mod harness;
mod uploads;

use harness::{Vulkan, lacks_device};
use nestling_testkit::models::common::lacks_store;
use nestling_testkit::{Suite, models};

pub fn suite() -> Suite {
    let own = [biased::suite(), budget::suite(), uploads::suite()].concat();
    Suite::new([models::suite::<Vulkan>(), own].concat())
        .unless(|| lacks_device().or_else(lacks_store))
}
