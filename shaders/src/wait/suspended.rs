//! Waits in a browser, which suspend the WebAssembly stack.
#![expect(unsafe_code, reason = "imports of a WebAssembly module are unsafe functions")]

use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::task::{Context, Poll, Wake, Waker};

#[link(wasm_import_module = "./suspend.js")]
unsafe extern "C" {
    /// Suspends the stack until the next call of `wake`, or returns at once if that was called before.
    #[link_name = "suspend"]
    fn suspend_import();
    /// Resumes a suspended stack, after the current task.
    #[link_name = "wake"]
    fn wake_import();
}

struct Resume;

impl Wake for Resume {
    fn wake(self: Arc<Self>) {
        wake();
    }
}

fn suspend() {
    // SAFETY: the function takes and returns nothing, and changes no memory of the module. Tasks that run meanwhile
    // enter the module on a stack above this one, and leave it before this call returns.
    unsafe { suspend_import() }
}

/// Resumes the suspended stack. Callbacks of the device call it after they have stored their result.
pub(crate) fn wake() {
    // SAFETY: the function takes and returns nothing, and changes no memory of the module.
    unsafe { wake_import() }
}

/// Polls `future` to completion, suspending the stack while it is pending.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Resume));
    let mut context = Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => suspend(),
        }
    }
}

/// Waits until `is_done` returns true. A callback that changes its result must call [`wake`].
///
/// # Errors
/// Returns no error.
pub(crate) fn idle(_device: &wgpu::Device, is_done: impl Fn() -> bool) -> Result<(), String> {
    while !is_done() {
        suspend();
    }
    Ok(())
}

/// Waits for the value that a callback of the device sends. The callback must call [`wake`] afterwards.
///
/// # Errors
/// Returns a message if the callback was dropped.
pub(crate) fn received<T>(_device: &wgpu::Device, receiver: &Receiver<T>) -> Result<T, String> {
    loop {
        match receiver.try_recv() {
            Ok(value) => return Ok(value),
            Err(TryRecvError::Empty) => suspend(),
            Err(error @ TryRecvError::Disconnected) => return Err(error.to_string()),
        }
    }
}
