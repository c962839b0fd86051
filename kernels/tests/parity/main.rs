//! Compares kernels built by the host compiler with the CPU. `emulation/` runs their threads and checks their
//! accesses. Only a device shows their speed.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on should say where")]

mod argmax;
mod attention;
mod experts;
mod faults;
mod harness;
mod layout;
mod nested;
mod norms;
mod products;
mod quantize;
