//! Waits of a thread that polls the device.

use std::sync::mpsc::Receiver;

pub(crate) use nestling_core::driver::block_on;

/// Waits until all submissions to a device are complete.
///
/// # Errors
/// Returns the driver's message if polling failed.
pub(crate) fn idle(device: &wgpu::Device, _is_done: impl Fn() -> bool) -> Result<(), String> {
    let polled = device.poll(wgpu::PollType::wait_indefinitely());
    polled.map(|_| ()).map_err(|error| error.to_string())
}

/// Waits until all submissions are complete, and returns the value that a callback of the device sent.
///
/// # Errors
/// Returns a message if polling failed, or if the callback was dropped.
pub(crate) fn received<T>(device: &wgpu::Device, receiver: &Receiver<T>) -> Result<T, String> {
    idle(device, || true)?;
    receiver.recv().map_err(|error| error.to_string())
}

/// Does nothing: polling runs the callbacks of the device on the waiting thread.
pub(crate) fn wake() {}
