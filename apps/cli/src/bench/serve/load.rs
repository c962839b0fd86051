//! A load: requests sent at their scheduled times by a limited number of concurrent clients.

use super::client::{Client, Outcome};
use super::work::Request;
use nestling::CancelToken;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Interval at which a waiting client checks for cancellation.
const LOOK: Duration = Duration::from_millis(50);

/// Results of a load.
#[derive(Clone, Debug)]
pub struct Run {
    /// Outcomes in the order of the requests. Requests that were not sent have none.
    pub outcomes: Vec<Outcome>,
    /// Duration in seconds from the start to the end of the last response.
    pub seconds: f64,
}

struct Load<'a> {
    client: &'a Client,
    model: &'a str,
    requests: &'a [Request],
    cancel: &'a CancelToken,
    begin: Instant,
    next: AtomicUsize,
    outcomes: Mutex<Vec<Option<Outcome>>>,
}

/// Sends all requests with at most `clients` concurrent clients and waits for the responses.
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
            // If a thread cannot be started, the load has fewer clients, which the measurements show.
            let _ = std::thread::Builder::new().spawn_scoped(scope, || load.work());
        }
        load.work();
    });
    let seconds = begin.elapsed().as_secs_f64();
    let outcomes = load.outcomes.into_inner().unwrap_or_else(PoisonError::into_inner);
    Run { outcomes: outcomes.into_iter().flatten().collect(), seconds }
}

impl Load<'_> {
    /// Sends requests, one at a time, until none is left.
    fn work(&self) {
        loop {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            // Default: the client ends after the last request.
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

    /// Waits until the scheduled time of a request. Returns false if the load was cancelled.
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
