//! The bundled model and a tiny one of every family on the device, against the CPU. Without an adapter the tests
//! are ignored.

mod model;

use nestling_testkit::models::SLOW_FAMILIES;

/// Tests that take a software device longest and whose cases others, or the emulated CUDA device, cover in part. `.ci/deep`
/// runs them.
const SLOW: &[&str] = &[
    "best::tokens_chosen_on_the_device_are_those_of_its_logits",
    "biased::slots_are_written_while_another_thread_waits_for_the_device",
    "budget::",
    "scaled::streamed_files_have_the_bits_of_resident_ones",
    "streamed::levels_by_weight_are_the_same_from_the_device_and_the_host",
];

fn main() -> std::process::ExitCode {
    nestling_testkit::run(&[model::suite().slow(SLOW_FAMILIES).slow(SLOW)])
}
