//! Runs the model tests of all GPU backends on this one, and its own.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

mod budget;
mod graphs;
mod harness;
mod on_host;
mod peers;
mod tables;
mod tiers;

use harness::{Cuda, lacks_losses};
use nestling_testkit::models::common::lacks_store;
use nestling_testkit::{Suite, models};

pub fn suites() -> [Suite; 2] {
    let own = [
        budget::suite(),
        graphs::suite(),
        on_host::suite(),
        peers::suite(),
        tables::suite(),
        tiers::suite(),
    ];
    let all = [models::suite::<Cuda>(), own.concat()].concat();
    let losses = Suite::new(graphs::suite_of_losses());
    [Suite::new(all).unless(lacks_store), losses.unless(|| lacks_store().or_else(lacks_losses))]
}
