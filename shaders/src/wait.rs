//! Blocking waits for the device.
//!
//! Natively, the thread waits while the device is polled. A browser settles its promises only between tasks, so
//! there the WebAssembly stack is suspended: the module `suspend.js` beside the program exports `suspend`, a
//! `WebAssembly.Suspending` function that returns after the next call of its other function, `wake`. Every call
//! that may wait must then enter the program through `WebAssembly.promising`.

#[cfg(not(target_family = "wasm"))]
mod native;
#[cfg(target_family = "wasm")]
mod suspended;

#[cfg(not(target_family = "wasm"))]
pub(crate) use native::{block_on, idle, received, wake};
#[cfg(target_family = "wasm")]
pub(crate) use suspended::{block_on, idle, received, wake};
