//! All tests and measurements of both GPU backends in one program. `gpu-kit` starts it separately for each
//! step. See benches/gpu/README.md.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

use std::process::ExitCode;

use nestling_testkit::Suite;

#[path = "../../../kernels/tests/model/mod.rs"]
mod cuda_models;
#[path = "../../../kernels/tests/backend/mod.rs"]
mod cuda_operations;
mod measure;
mod nccl;
#[path = "../../../shaders/tests/model/mod.rs"]
mod vulkan_models;
#[path = "../../../shaders/tests/parity/mod.rs"]
mod vulkan_operations;

fn main() -> ExitCode {
    let mut suites = vec![
        cuda_operations::suite().within("cuda_operations"),
        vulkan_models::suite().within("vulkan_models"),
        vulkan_operations::suite().within("vulkan_operations"),
        Suite::new(measure::suite()),
        // With the step of models, since it takes a second.
        Suite::new(nccl::suite()).within("cuda_models"),
    ];
    suites.extend(cuda_models::suites().map(|suite| suite.within("cuda_models")));
    nestling_testkit::run(&suites)
}
