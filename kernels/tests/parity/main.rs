//! Kernels, built by the host compiler, against the CPU: `emulation/` runs their threads and looks at what
//! they read and write. A device alone shows speed.
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
