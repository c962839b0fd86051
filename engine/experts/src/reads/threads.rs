//! Threads that are joined when what they work for is dropped.

use std::sync::Mutex;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nestling_core::error::EngineError;
use nestling_core::sync::whole;

/// How long dropping waits for reads that are under way.
const GRACE: Duration = Duration::from_secs(2);

/// Those that run.
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

    /// Joins all that end in time; the rest keep what they use alive until they end.
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
                // A reader has nothing to say; what panics within one is a result of its read.
                let _ = handle.join();
            }
        }
    }
}
