//! The bundled model and a tiny one of every family against the CPU: on a GPU where there is one, on the emulated
//! device elsewhere.

mod model;

use nestling_testkit::models::SLOW_FAMILIES;

/// Tests that take the emulated device longest and whose cases others, or the software Vulkan device, cover in part.
/// `.ci/deep` runs them.
const SLOW: &[&str] = &[
    "best::hidden_rows_come_beside_logits_and_alone",
    "budget::the_least_budget_is_enough_and_one_byte_less_is_refused",
    "on_host::what_moves_to_the_device_is_there_later",
    "forced::",
    "residency::",
    "slow::",
    "scaled::streamed_files_have_the_bits_of_resident_ones",
    "streamed::levels_by_weight_are_the_same_from_the_device_and_the_host",
];

fn main() -> std::process::ExitCode {
    let [all, losses] = model::suites();
    nestling_testkit::run(&[all.slow(SLOW_FAMILIES).slow(SLOW), losses])
}
