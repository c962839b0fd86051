//! Every case of both GPU backends, and what is measured of them, in one program for the kit: `gpu-kit`
//! starts it anew for each step. See benches/gpu/README.md.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should say where")]
#![expect(clippy::duplicate_mod, reason = "both backends have the same cases")]

#[path = "../../../kernels/tests/model/main.rs"]
mod cuda_models;
#[path = "../../../kernels/tests/backend/main.rs"]
mod cuda_operations;
mod measure;
#[path = "../../../shaders/tests/model/main.rs"]
mod vulkan_models;
#[path = "../../../shaders/tests/parity/main.rs"]
mod vulkan_operations;
