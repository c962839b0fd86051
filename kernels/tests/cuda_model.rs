//! The bundled model and a tiny one of every family against the CPU: on a GPU where there is one, on the emulated
//! device elsewhere.

mod model;

fn main() -> std::process::ExitCode {
    nestling_testkit::run(&model::suites())
}
