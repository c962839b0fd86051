//! Reader thread for rows, so that a slow disk cannot block a step indefinitely.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nestling_formats::memory::try_reserve;
use nestling_formats::store::RowScratch;

use super::row_table::{EmbeddedRows, RowTable, WantedRow};
use crate::reads::Threads;
use nestling_core::cancel::CancelToken;
use nestling_core::error::EngineError;
use nestling_core::sync::whole;

/// Interval at which a waiting step checks for cancellation.
const LOOK: Duration = Duration::from_millis(20);

/// Requested rows, with the memory for their values.
struct Request {
    number: u64,
    wanted: Vec<WantedRow>,
    values: Vec<f32>,
}

struct Reply {
    request: Request,
    result: Result<(), EngineError>,
}

#[derive(Debug, Default)]
struct RequestCounters {
    /// Number of the current request; older ones are not worth reading.
    wanted: AtomicU64,
    read: AtomicU64,
}

/// A thread that reads rows of one table.
pub(super) struct RowReader {
    shared: Arc<RequestCounters>,
    requests: Option<Sender<Request>>,
    replies: Mutex<Receiver<Reply>>,
    timeout: Option<Duration>,
    threads: Threads,
}

impl std::fmt::Debug for RowReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RowReader").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

impl RowReader {
    /// # Errors
    /// [`EngineError::Thread`].
    pub fn start(table: &Arc<RowTable>, timeout: Option<Duration>) -> Result<Self, EngineError> {
        let (requests, asked) = channel();
        let (answers, replies) = channel();
        let shared = Arc::new(RequestCounters::default());
        let threads = Threads::default();
        let (theirs, table) = (Arc::clone(&shared), Arc::clone(table));
        threads.spawn("nestling-rows", move || answer(&table, &theirs, &asked, &answers))?;
        let replies = Mutex::new(replies);
        Ok(Self { shared, requests: Some(requests), replies, timeout, threads })
    }

    /// Reads `out.wanted` into `out.values`.
    ///
    /// # Errors
    /// [`EngineError::Cancelled`], [`EngineError::ReadStalled`] if no row arrived within the timeout, or the
    /// error of a row.
    pub fn read(
        &self,
        table: &RowTable,
        out: &mut EmbeddedRows,
        cancel: &CancelToken,
    ) -> Result<(), EngineError> {
        let gone = || EngineError::Panicked { what: "the thread that reads rows" };
        let replies = whole(self.replies.lock());
        let number = self.shared.wanted.fetch_add(1, Ordering::Relaxed) + 1;
        let (wanted, values) = (std::mem::take(&mut out.wanted), std::mem::take(&mut out.values));
        let requests = self.requests.as_ref().ok_or_else(gone)?;
        let first = wanted.first().copied();
        requests.send(Request { number, wanted, values }).map_err(|_| gone())?;
        let (mut seen, mut since) = (self.shared.read.load(Ordering::Relaxed), Instant::now());
        loop {
            match replies.recv_timeout(LOOK) {
                Ok(Reply { request, result }) if request.number == number => {
                    (out.wanted, out.values) = (request.wanted, request.values);
                    return result;
                }
                // Reply to an earlier request that was abandoned.
                Ok(_) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(gone()),
                Err(RecvTimeoutError::Timeout) => {
                    let read = self.shared.read.load(Ordering::Relaxed);
                    if read != seen {
                        (seen, since) = (read, Instant::now());
                    }
                }
            }
            if cancel.is_cancelled() {
                return Err(EngineError::Cancelled);
            }
            if let Some(timeout) = self.timeout.filter(|timeout| since.elapsed() > *timeout) {
                return Err(table.stalled(first.as_ref(), timeout.as_secs_f64()));
            }
        }
    }
}

impl Drop for RowReader {
    fn drop(&mut self) {
        self.shared.wanted.fetch_add(1, Ordering::Relaxed);
        self.requests = None;
        self.threads.join();
    }
}

/// Answers requests until the channel closes.
fn answer(
    table: &RowTable,
    shared: &RequestCounters,
    asked: &Receiver<Request>,
    answers: &Sender<Reply>,
) {
    let mut scratch = RowScratch::default();
    while let Ok(mut request) = asked.recv() {
        let Request { number, wanted, values } = &mut request;
        let read = AssertUnwindSafe(|| {
            let count = wanted.len() * table.cols();
            try_reserve(values, "embeddings of a step", count.saturating_sub(values.len()))?;
            values.resize(count, 0.0);
            for (row, out) in wanted.iter().zip(values.chunks_exact_mut(table.cols().max(1))) {
                if shared.wanted.load(Ordering::Relaxed) != *number {
                    return Err(EngineError::Cancelled);
                }
                table.read(*row, &mut scratch, out)?;
                shared.read.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        });
        let result = catch_unwind(read);
        let result = result.unwrap_or(Err(EngineError::Panicked { what: "a read of the store" }));
        if answers.send(Reply { request, result }).is_err() {
            return;
        }
    }
}
