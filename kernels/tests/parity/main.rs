//! Kernels, built by the host compiler, against the CPU: `emulation/` runs their threads. Checks logic,
//! indices and bits; a device alone shows races between threads that never meet, and speed.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on should say where")]

mod argmax;
mod attention;
mod experts;
mod harness;
mod layout;
mod nested;
mod norms;
mod products;
mod quantize;

#[path = "../../../shaders/tests/parity/matrices.rs"]
#[expect(dead_code, reason = "shared with the tests of the other GPU backend")]
mod matrices;
