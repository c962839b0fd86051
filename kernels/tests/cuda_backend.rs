//! Compares every operation with the CPU through the engine's traits. Runs on a GPU if available, otherwise
//! on the emulated device.

mod backend;

/// Tests that are slowest on the emulated device. Other tests run the same kernels. `.ci/deep` runs them.
const SLOW: &[&str] = &[
    "attention::a_row_does_not_depend_on_how_the_prompt_was_cut",
    "attention::slow_devices_are_given_less_at_once_and_compute_the_same_bits",
    "products::bits_depend_on_neither_rows_nor_instructions_nor_planes",
    "products::slow_devices_multiply_less_at_once_and_compute_the_same_bits",
    "scaled::products_of_many_rows_have_the_bits_of_the_reference",
];

fn main() -> std::process::ExitCode {
    nestling_testkit::run(&[backend::suite().slow(SLOW)])
}
