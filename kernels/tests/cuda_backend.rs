//! Every operation of the backend against the CPU, through the engine's traits: on a GPU where there is one, on the
//! emulated device elsewhere.

mod backend;

fn main() -> std::process::ExitCode {
    nestling_testkit::run(&[backend::suite()])
}
