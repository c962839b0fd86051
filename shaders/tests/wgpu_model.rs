//! Compares the bundled model and a tiny model of every family with the CPU. Tests are ignored if there is no
//! adapter.

mod model;

use nestling_testkit::models::{SLOW_FAMILIES, SLOW_RANKS};

/// Tests that are slowest on a software device. Other tests, or the emulated CUDA device, partly cover their
/// cases. `.ci/deep` runs them.
const SLOW: &[&str] = &[
    "best::tokens_chosen_on_the_device_are_those_of_its_logits",
    "biased::slots_are_written_while_another_thread_waits_for_the_device",
    "biased::streamed_experts_with_biases_give_the_bits_of_resident_ones",
    "budget::",
    "scaled::",
    "slow::",
    "streamed::a_device_without_memory_for_all_slots_gives_fewer",
    "streamed::levels_by_weight_are_the_same_from_the_device_and_the_host",
    "uploads::",
];

fn main() -> std::process::ExitCode {
    nestling_testkit::run(&[model::suite().slow(SLOW_FAMILIES).slow(SLOW_RANKS).slow(SLOW)])
}
