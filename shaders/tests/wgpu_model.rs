//! The bundled model and a tiny one of every family on the device, against the CPU. Without an adapter the tests
//! are ignored.

mod model;

fn main() -> std::process::ExitCode {
    nestling_testkit::run(&[model::suite()])
}
