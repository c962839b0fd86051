//! Compares every operation with the CPU through the engine's traits. Tests are ignored if there is no
//! adapter; `.ci/run` installs a software one.

mod parity;

fn main() -> std::process::ExitCode {
    nestling_testkit::run(&[parity::suite()])
}
