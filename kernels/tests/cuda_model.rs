//! Compares the bundled model and a tiny model of every family with the CPU. Runs on a GPU if available,
//! otherwise on the emulated device.

mod model;

use nestling_testkit::models::{SLOW_FAMILIES, SLOW_RANKS};

/// Tests that are slowest on the emulated device. Other tests, or the software Vulkan device, partly cover
/// their cases. `.ci/deep` runs them.
const SLOW: &[&str] = &[
    "best::",
    "budget::the_least_budget_is_enough_and_one_byte_less_is_refused",
    "forced::",
    "on_host::bits_do_not_depend_on_where_an_expert_is_computed",
    "on_host::ranks_compute_experts_on_the_host",
    "on_host::levels_by_weight_and_rows_of_several_sequences_are_the_same_on_the_host",
    "on_host::what_moves_to_the_device_is_there_later",
    "residency::",
    "scaled::streamed_files_have_the_bits_of_resident_ones",
    "slow::",
    "streamed::a_budget_that_changes_while_running_changes_no_bit",
    "streamed::a_device_without_memory_for_all_slots_gives_fewer",
    "streamed::biases_of_experts_are_found_by_the_device",
    "streamed::levels_by_weight_are_the_same_from_the_device_and_the_host",
    "streamed::reads_that_fail_while_a_step_waits_are_errors_of_that_step",
    "tables::tables_that_do_not_fit_change_no_bit",
    "tiers::what_leaves_the_device_comes_back_from_the_host",
];

fn main() -> std::process::ExitCode {
    let [all, losses] = model::suites();
    nestling_testkit::run(&[all.slow(SLOW_FAMILIES).slow(SLOW_RANKS).slow(SLOW), losses])
}
