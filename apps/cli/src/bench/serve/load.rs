//! A load: requests sent when they are due, by as many clients as are allowed at a time.

use super::client::{Client, Outcome};
use super::work::Request;
use nestling::CancelToken;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often a client that waits for its time looks whether it is wanted still.
const LOOK: Duration = Duration::from_millis(50);

/// How a load went.
#[derive(Clone, Debug)]
pub struct Run {
    /// In the order of the requests; those that were not sent have none.
    pub outcomes: Vec<Outcome>,
    /// Seconds from the begin to the end of the last answer.
    pub seconds: f64,
}

/// What all clients of a load share.
struct Load<'a> {
    client: &'a Client,
    model: &'a str,
    requests: &'a [Request],
    cancel: &'a CancelToken,
    begin: Instant,
    next: AtomicUsize,
    outcomes: Mutex<Vec<Option<Outcome>>>,
}

/// Sends all requests, at most `clients` at a time, and waits for their answers.
pub fn run(
    client: &Client,
    model: &str,
    requests: &[Request],
    clients: usize,
    cancel: &CancelToken,
) -> Run {
    let (begin, next) = (Instant::now(), AtomicUsize::new(0));
    let outcomes = Mutex::new(vec![None; requests.len()]);
    let load = Load { client, model, requests, cancel, begin, next, outcomes };
    std::thread::scope(|scope| {
        for _ in 1..clients.min(requests.len()) {
            // Fewer clients are a smaller load, which the figures tell.
            let _ = std::thread::Builder::new().spawn_scoped(scope, || load.work());
        }
        load.work();
    });
    let seconds = begin.elapsed().as_secs_f64();
    let outcomes = load.outcomes.into_inner().unwrap_or_else(PoisonError::into_inner);
    Run { outcomes: outcomes.into_iter().flatten().collect(), seconds }
}

impl Load<'_> {
    /// One client: takes the next request until there is none.
    fn work(&self) {
        loop {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            // Default: after the last request there is nothing to do.
            let Some(request) = self.requests.get(index) else { return };
            if !self.wait(request.at) {
                return;
            }
            let late = self.begin.elapsed().saturating_sub(request.at).as_secs_f64();
            let mut outcome = self.client.complete(self.model, request, self.cancel);
            outcome.late = late;
            let mut outcomes = self.outcomes.lock().unwrap_or_else(PoisonError::into_inner);
            outcomes[index] = Some(outcome);
        }
    }

    /// Waits until a request is due; false if nobody wants it any more.
    fn wait(&self, at: Duration) -> bool {
        loop {
            if self.cancel.is_cancelled() {
                return false;
            }
            let left = at.saturating_sub(self.begin.elapsed());
            if left.is_zero() {
                return true;
            }
            std::thread::sleep(left.min(LOOK));
        }
    }
}
