//! Measurements of the GPU kit. Each is a test that is ignored unless selected by name.

mod argmax;
mod card;
mod device;
mod layer;
mod memory;
mod products;
mod profiled;
mod tokens;

use device::on_device;
use nestling_testkit::{Test, tests};

fn card() {
    card::describe().unwrap();
}

fn memory() {
    if device::name() == "cuda" {
        memory::copies().unwrap();
    }
    on_device(&memory::ScaleKernel).unwrap();
}

fn products() {
    on_device(&products::Products).unwrap();
}

fn layer() {
    on_device(&layer::Layers).unwrap();
}

fn argmax() {
    on_device(&argmax::Argmax).unwrap();
}

fn resident() {
    on_device(&tokens::Resident).unwrap();
}

fn quarter() {
    on_device(&tokens::QuarterOnDevice).unwrap();
}

fn profiled() {
    on_device(&profiled::Kernels).unwrap();
}

pub fn suite() -> Vec<Test> {
    tests![
        card => "describes the card for the GPU kit",
        memory => "measures for the GPU kit",
        products => "measures for the GPU kit",
        layer => "measures for the GPU kit",
        argmax => "measures for the GPU kit",
        resident => "measures for the GPU kit",
        quarter => "measures for the GPU kit",
        profiled => "starts five kernels for a profiler",
    ]
}
