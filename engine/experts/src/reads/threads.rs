//! Threads that are joined when their owner is dropped.

use std::sync::Mutex;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nestling_core::error::EngineError;
use nestling_core::sync::whole;

/// Time to wait for running reads on drop.
const GRACE: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
pub(crate) struct Threads {
    handles: Mutex<Vec<JoinHandle<()>>>,
}

impl Threads {
    pub fn spawn(
        &self,
        name: &str,
        run: impl FnOnce() + Send + 'static,
    ) -> Result<(), EngineError> {
        let thread = thread::Builder::new().name(name.to_owned());
        let handle = thread.spawn(run).map_err(EngineError::Thread)?;
        whole(self.handles.lock()).push(handle);
        Ok(())
    }

    /// Joins all threads that end in time. The others keep their resources alive until they end.
    pub fn join(&self) {
        let deadline = Instant::now() + GRACE;
        let mut pause = Duration::from_micros(50);
        let handles = std::mem::take(&mut *whole(self.handles.lock()));
        for handle in handles {
            while !handle.is_finished() && Instant::now() < deadline {
                thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(10));
            }
            if handle.is_finished() {
                // The result is ignored: a panic within a read is already reported as its result.
                let _ = handle.join();
            }
        }
    }
}
