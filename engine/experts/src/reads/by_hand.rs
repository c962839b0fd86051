//! Reads that a test completes manually, in any order, with success or failure.

use std::sync::Arc;

use nestling_formats::store::Store;

use super::Reads;
use super::fetch::fetch;
use super::options::{Checks, ReadMethod, ReadOptions};
use super::shared::{QueuedRead, SharedReads};
use nestling_core::error::EngineError;

pub(crate) struct DiskByHand {
    shared: Arc<SharedReads>,
    running: Vec<QueuedRead>,
}

impl Reads {
    /// Opens reads that complete when the test calls [`DiskByHand::finish`].
    pub(crate) fn by_hand(store: Arc<Store>, options: &ReadOptions) -> (Self, DiskByHand) {
        let shared = Arc::new(SharedReads::new(store, options, Checks::Done));
        let disk = DiskByHand { shared: Arc::clone(&shared), running: Vec::new() };
        (Self { shared, method: ReadMethod::Threads, _workers: None }, disk)
    }
}

impl DiskByHand {
    /// Completes one of the reads in flight. Returns its tag, or `None` if there is none.
    pub(crate) fn finish(&mut self, pick: usize, fails: bool) -> Option<u64> {
        let mut state = self.shared.lock();
        while let Some(job) = self.shared.start(&mut state) {
            self.running.push(job);
        }
        drop(state);
        if self.running.is_empty() {
            return None;
        }
        let job = self.running.swap_remove(pick % self.running.len());
        let result = match fails {
            true => Err(EngineError::Panicked { what: "the disk of a test" }),
            false => fetch(&self.shared, &job),
        };
        self.shared.finish(&job, result);
        Some(job.tag)
    }
}
