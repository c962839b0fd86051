//! Every operation on the device against the CPU, through the engine's traits. Without an adapter the tests are
//! ignored: `.ci/run` installs a software one.

mod parity;

fn main() -> std::process::ExitCode {
    nestling_testkit::run(&[parity::suite()])
}
