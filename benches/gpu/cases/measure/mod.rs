//! What is measured: each a test that is ignored unless it is asked for by name.

mod argmax;
mod card;
mod device;
mod layer;
mod memory;
mod products;
mod profiled;
mod tokens;

use device::on_device;

#[test]
#[ignore = "describes the card for the GPU kit"]
fn card() {
    card::describe().unwrap();
}

#[test]
#[ignore = "measures for the GPU kit"]
fn memory() {
    if device::name() == "cuda" {
        memory::copies().unwrap();
    }
    on_device(&memory::Scaled).unwrap();
}

#[test]
#[ignore = "measures for the GPU kit"]
fn products() {
    on_device(&products::Products).unwrap();
}

#[test]
#[ignore = "measures for the GPU kit"]
fn layer() {
    on_device(&layer::Layers).unwrap();
}

#[test]
#[ignore = "measures for the GPU kit"]
fn argmax() {
    on_device(&argmax::Argmax).unwrap();
}

#[test]
#[ignore = "measures for the GPU kit"]
fn resident() {
    on_device(&tokens::Resident).unwrap();
}

#[test]
#[ignore = "measures for the GPU kit"]
fn quarter() {
    on_device(&tokens::Quarter).unwrap();
}

#[test]
#[ignore = "starts five kernels for a profiler"]
fn profiled() {
    on_device(&profiled::Kernels).unwrap();
}
