//! A group whose ranks exchange messages through queues: directly between threads, or through a carrier between
//! processes.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use nestling_core::group::{Failure, Group, GroupCounters, LossCause, RankError, RankShare};
use nestling_core::sync::whole;

/// Interval at which a waiting rank reports that it is alive, and looks whether the others are.
const POLL_MAX: Duration = Duration::from_millis(100);

/// A rank whose messages go through queues.
///
/// Each pair of ranks has a queue in each direction. A rank is lost if its queues are closed because it was dropped,
/// or if it was silent for longer than the timeout: it neither called the group nor reported that it is alive.
pub struct QueueGroup {
    share: RankShare,
    /// Queues to the other ranks; none to itself.
    senders: Vec<Option<Sender<Message>>>, // [ranks]
    /// Queues from the other ranks.
    receivers: Mutex<Vec<Option<Receiver<Message>>>>, // [ranks]
    alive: Arc<SignsOfLife>,
    timeout: Duration,
    /// Number of the next exchange.
    next: AtomicU64,
    counters: Mutex<GroupCounters>,
    /// Error by which the group became unusable.
    broken: OnceLock<RankError>,
}

/// Time of each rank's last sign of life.
pub(crate) struct SignsOfLife {
    start: Instant,
    /// Milliseconds since `start`.
    beats: Vec<AtomicU64>, // [ranks]
}

impl SignsOfLife {
    pub fn new(ranks: usize) -> Self {
        Self { start: Instant::now(), beats: (0..ranks).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Records that a rank is alive now.
    pub fn beat(&self, rank: usize) {
        if let Some(beat) = self.beats.get(rank) {
            beat.store(self.start.elapsed().as_millis() as u64, Ordering::Relaxed);
        }
    }

    fn silence_of(&self, rank: usize) -> Duration {
        // Default: every rank of the group has a time.
        let beat = self.beats.get(rank).map_or(0, |beat| beat.load(Ordering::Relaxed));
        self.start.elapsed().saturating_sub(Duration::from_millis(beat))
    }
}

/// Queues of a rank to and from the others.
pub(crate) struct Queues {
    pub senders: Vec<Option<Sender<Message>>>,     // [ranks]
    pub receivers: Vec<Option<Receiver<Message>>>, // [ranks]
}

/// A part of an exchange.
#[derive(Clone)]
pub(crate) struct Message {
    /// Number of the exchange.
    pub exchange: u64,
    pub payload: Payload,
}

#[derive(Clone)]
pub(crate) enum Payload {
    Part(Arc<[u8]>),
    /// The sender's step failed, with this error.
    Failed(Arc<Failure>),
    /// A rank was lost.
    Lost(usize),
}

/// Limit of the time for which a rank waits for others.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Patience {
    /// Until the others are silent for longer than the timeout.
    Timeout,
    /// Until the others end.
    Endless,
}

impl fmt::Debug for QueueGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QueueGroup({} of {})", self.share.rank, self.share.ranks)
    }
}

impl QueueGroup {
    /// Creates a group of `ranks` threads of this process, one value for each.
    pub fn of_threads(ranks: usize, timeout: Duration) -> Vec<Self> {
        let alive = Arc::new(SignsOfLife::new(ranks));
        let none = || Queues {
            senders: (0..ranks).map(|_| None).collect(),
            receivers: (0..ranks).map(|_| None).collect(),
        };
        let mut queues: Vec<Queues> = (0..ranks).map(|_| none()).collect();
        for from in 0..ranks {
            for to in (0..ranks).filter(|to| *to != from) {
                let (sender, receiver) = channel();
                queues[from].senders[to] = Some(sender);
                queues[to].receivers[from] = Some(receiver);
            }
        }
        let shares = RankShare { rank: 0, ranks }.all();
        let group = shares
            .zip(queues)
            .map(|(share, queues)| Self::with_queues(share, queues, Arc::clone(&alive), timeout));
        group.collect()
    }

    pub(crate) fn with_queues(
        share: RankShare,
        queues: Queues,
        alive: Arc<SignsOfLife>,
        timeout: Duration,
    ) -> Self {
        let Queues { senders, receivers } = queues;
        Self {
            share,
            senders,
            receivers: Mutex::new(receivers),
            alive,
            timeout,
            next: AtomicU64::new(0),
            counters: Mutex::default(),
            broken: OnceLock::new(),
        }
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<'_> {
        (0..self.share.ranks).filter(|rank| *rank != self.share.rank)
    }

    /// Returns the error of a broken group.
    fn check(&self) -> Result<(), RankError> {
        self.broken.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    fn send(&self, to: usize, exchange: u64, payload: Payload) -> Result<(), RankError> {
        let bytes = match &payload {
            Payload::Part(part) => part.len(),
            Payload::Failed(_) | Payload::Lost(_) => 0,
        };
        let sent = self.senders.get(to).and_then(Option::as_ref);
        let sent = sent.map(|sender| sender.send(Message { exchange, payload }));
        if !matches!(sent, Some(Ok(()))) {
            return Err(self.ended(to));
        }
        let mut counters = whole(self.counters.lock());
        counters.messages += 1;
        counters.sent_bytes += bytes as u64;
        Ok(())
    }

    /// Receives one rank's message of an exchange.
    fn receive(
        &self,
        receiver: &Receiver<Message>,
        from: usize,
        exchange: u64,
        patience: Patience,
    ) -> Result<Payload, RankError> {
        let poll = POLL_MAX.min(self.timeout / 4);
        let message = loop {
            self.beat();
            match receiver.recv_timeout(poll) {
                Ok(message) => break message,
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(self.lose(from, LossCause::Ended));
                }
                Err(RecvTimeoutError::Timeout) if patience == Patience::Endless => {}
                Err(RecvTimeoutError::Timeout) => {
                    let silent = self.alive.silence_of(from);
                    if silent > self.timeout {
                        return Err(self.lose(from, LossCause::Silent(silent)));
                    }
                }
            }
        };
        match message.payload {
            Payload::Lost(rank) => Err(self.lose(rank, LossCause::Reported)),
            payload if message.exchange == exchange => Ok(payload),
            _ => {
                let (expected, found) = (format!("exchange {exchange}"), message.exchange);
                let found = found.to_string();
                Err(self.break_with(RankError::Mismatch { rank: from, expected, found }))
            }
        }
    }

    /// Makes the group unusable because a rank ended. It may have ended because another was lost, which it then said.
    fn ended(&self, rank: usize) -> RankError {
        let receivers = whole(self.receivers.lock());
        let receiver = receivers.get(rank).and_then(Option::as_ref);
        let mut last = receiver.into_iter().flat_map(Receiver::try_iter);
        let lost = last.find_map(|message| match message.payload {
            Payload::Lost(lost) => Some(lost),
            Payload::Part(_) | Payload::Failed(_) => None,
        });
        match lost {
            Some(lost) => self.lose(lost, LossCause::Reported),
            None => self.lose(rank, LossCause::Ended),
        }
    }

    /// Makes the group unusable, and tells the other ranks of the loss.
    fn lose(&self, rank: usize, cause: LossCause) -> RankError {
        let error = self.break_with(RankError::Lost { rank, cause });
        let exchange = self.next.load(Ordering::Relaxed);
        for sender in self.others().filter_map(|other| self.senders.get(other)?.as_ref()) {
            // A rank that has ended need not know.
            let _ = sender.send(Message { exchange, payload: Payload::Lost(rank) });
        }
        error
    }

    fn break_with(&self, error: RankError) -> RankError {
        self.broken.get_or_init(|| error).clone()
    }

    /// Sends a payload to each other rank, and replaces `incoming` with the parts of all ranks.
    fn call(
        &self,
        own: &[u8],
        payload: &dyn Fn(usize) -> Payload,
        incoming: &mut Vec<Vec<u8>>,
    ) -> Result<(), RankError> {
        self.check()?;
        let exchange = self.next.fetch_add(1, Ordering::Relaxed);
        for rank in self.others() {
            self.send(rank, exchange, payload(rank))?;
        }
        incoming.resize_with(self.share.ranks, Vec::new);
        let receivers = whole(self.receivers.lock());
        let (mut failed, mut received) = (None, 0);
        for (rank, (receiver, part)) in receivers.iter().zip(&mut *incoming).enumerate() {
            part.clear();
            let Some(receiver) = receiver else {
                part.extend_from_slice(own);
                continue;
            };
            match self.receive(receiver, rank, exchange, Patience::Timeout)? {
                Payload::Part(bytes) => part.extend_from_slice(&bytes),
                Payload::Failed(failure) => {
                    let failure = Failure::clone(&failure);
                    failed = failed.or(Some(RankError::Failed { rank, failure }));
                }
                Payload::Lost(rank) => return Err(self.lose(rank, LossCause::Reported)),
            }
            received += part.len() as u64;
        }
        let mut counters = whole(self.counters.lock());
        counters.exchanges += 1;
        counters.received_bytes += received;
        failed.map_or(Ok(()), Err)
    }
}

impl Group for QueueGroup {
    fn share(&self) -> RankShare {
        self.share
    }

    fn exchange(&self, parts: &[Vec<u8>], incoming: &mut Vec<Vec<u8>>) -> Result<(), RankError> {
        // Default: a rank without a part gets an empty one.
        let part_of = |rank: usize| parts.get(rank).map(Vec::as_slice).unwrap_or_default();
        let payload = |rank| Payload::Part(part_of(rank).into());
        self.call(part_of(self.share.rank), &payload, incoming)
    }

    fn all_gather(&self, part: &[u8], incoming: &mut Vec<Vec<u8>>) -> Result<(), RankError> {
        let shared = Payload::Part(part.into());
        self.call(part, &|_| shared.clone(), incoming)
    }

    fn broadcast(&self, bytes: &[u8]) -> Result<Vec<u8>, RankError> {
        self.check()?;
        let exchange = self.next.fetch_add(1, Ordering::Relaxed);
        if self.share.rank == 0 {
            let payload = Payload::Part(bytes.into());
            self.others().try_for_each(|rank| self.send(rank, exchange, payload.clone()))?;
            return Ok(bytes.to_vec());
        }
        let receivers = whole(self.receivers.lock());
        let first = receivers.first().and_then(Option::as_ref);
        let Some(receiver) = first else { return Err(self.lose(0, LossCause::Ended)) };
        match self.receive(receiver, 0, exchange, Patience::Endless)? {
            Payload::Part(bytes) => Ok(bytes.to_vec()),
            Payload::Failed(failure) => {
                Err(RankError::Failed { rank: 0, failure: Failure::clone(&failure) })
            }
            Payload::Lost(rank) => Err(self.lose(rank, LossCause::Reported)),
        }
    }

    fn fail(&self, failure: &Failure) -> Result<(), RankError> {
        let failure = Payload::Failed(Arc::new(failure.clone()));
        match self.call(&[], &|_| failure.clone(), &mut Vec::new()) {
            Ok(()) | Err(RankError::Failed { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn beat(&self) {
        self.alive.beat(self.share.rank);
    }

    fn counters(&self) -> GroupCounters {
        *whole(self.counters.lock())
    }
}
