//! A group of ranks whose messages go through rings of bytes in shared memory.
//!
//! Each pair of ranks has a ring in each direction. A message is a header and a part, and may be larger than a ring: it is
//! written and read in turns. Code of the browser moves the bytes ([`Rings`]); this file decides what they are.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use nestling::engine::group::{Failure, Group, GroupCounters, LossCause, RankError, RankShare};
use web_time::{Duration, Instant};

/// Bytes of the header of a message: number of the exchange, kind and length of the part.
const HEADER_BYTES: usize = 12;

/// Kind of a message with a part of an exchange.
const PART: u32 = 0;

/// Kind of a message with the failure of the sender's step.
const FAILED: u32 = 1;

/// Longest time of one wait. A waiting rank then reports that it is alive, and looks whether the others are.
const WAIT_MAX: Duration = Duration::from_millis(100);

/// Rings of bytes between one rank and the others, in memory that all ranks share.
pub trait Rings: Send + Sync {
    /// Appends bytes to the ring to rank `to`, as many as fit. Returns their number.
    fn write(&self, to: usize, bytes: &[u8]) -> usize;

    /// Takes bytes from the ring of rank `from`, as many as are there, at most `out.len()`. Returns their number.
    fn read(&self, from: usize, out: &mut [u8]) -> usize;

    /// Returns the number of calls by which other ranks have changed a ring of this rank.
    fn changes(&self) -> u32;

    /// Waits until [`Rings::changes`] differs from `seen`. Returns false if it did not within `timeout`.
    fn wait(&self, seen: u32, timeout: Duration) -> bool;

    /// Reports that this rank is alive.
    fn beat(&self);

    /// Returns a number that changes whenever a rank reports that it is alive.
    fn beats(&self, rank: usize) -> u32;

    /// Reports that this rank ends.
    fn end(&self);

    /// Returns whether a rank has ended.
    fn has_ended(&self, rank: usize) -> bool;

    /// Tells all ranks that `rank` was lost, unless another loss is known.
    fn lose(&self, rank: usize);

    /// Returns the first lost rank.
    fn lost(&self) -> Option<usize>;
}

/// A rank whose messages go through rings. Ends for the others when it is dropped.
pub struct RingGroup {
    share: RankShare,
    rings: Box<dyn Rings>,
    timeout: Duration,
    /// Number of the next exchange.
    next: AtomicU32,
    state: Mutex<RingState>,
    /// Error by which the group became unusable.
    broken: OnceLock<RankError>,
}

#[derive(Default)]
struct RingState {
    outgoing: Vec<Outgoing>, // [ranks]
    incoming: Vec<Incoming>, // [ranks]
    /// Time of the last look at the other ranks, since the current transfer started.
    looked: Option<Instant>,
    counters: GroupCounters,
}

/// A message that is being sent.
#[derive(Default)]
struct Outgoing {
    bytes: Vec<u8>,
    sent: usize,
}

impl Outgoing {
    fn set(&mut self, exchange: u32, kind: u32, part: &[u8]) {
        self.sent = 0;
        self.bytes.clear();
        // Default: a part exceeds no memory of 32 bits.
        let length = u32::try_from(part.len()).unwrap_or(u32::MAX);
        [exchange, kind, length].iter().for_each(|word| self.bytes.extend(word.to_le_bytes()));
        self.bytes.extend_from_slice(part);
    }

    fn is_done(&self) -> bool {
        self.sent == self.bytes.len()
    }
}

/// A message that is being received.
#[derive(Default)]
struct Incoming {
    header: [u8; HEADER_BYTES],
    part: Vec<u8>,
    /// Received bytes of header and part.
    received: usize,
    /// Time without a sign of life, and the beats before it.
    silent: Duration,
    beats: u32,
}

impl Incoming {
    fn start(&mut self, beats: u32) {
        *self = Self { part: std::mem::take(&mut self.part), beats, ..Self::default() };
        self.part.clear();
    }

    /// Returns a word of the header.
    fn word(&self, index: usize) -> u32 {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(&self.header[4 * index..4 * index + 4]);
        u32::from_le_bytes(bytes)
    }

    fn is_done(&self) -> bool {
        self.received >= HEADER_BYTES && self.received - HEADER_BYTES == self.part.len()
    }

    /// Receives what is there. Returns the number of bytes.
    fn take(&mut self, rings: &dyn Rings, from: usize) -> usize {
        let before = self.received;
        if self.received < HEADER_BYTES {
            self.received += rings.read(from, &mut self.header[self.received..]);
            if self.received == HEADER_BYTES {
                self.part.resize(self.word(2) as usize, 0);
            }
        }
        if self.received >= HEADER_BYTES && !self.is_done() {
            self.received += rings.read(from, &mut self.part[self.received - HEADER_BYTES..]);
        }
        self.received - before
    }
}

/// Limit of the time for which a rank waits for others.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Patience {
    /// Until the others are silent for longer than the timeout.
    Timeout,
    /// Until the others end.
    Endless,
}

impl fmt::Debug for RingGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RingGroup({} of {})", self.share.rank, self.share.ranks)
    }
}

impl Drop for RingGroup {
    fn drop(&mut self) {
        self.rings.end();
    }
}

impl RingGroup {
    /// Creates a rank. A rank that neither waits nor reports that it is alive for `timeout` is lost; time in which the
    /// whole machine sleeps does not count.
    pub fn new(share: RankShare, rings: Box<dyn Rings>, timeout: Duration) -> Self {
        let mut state = RingState::default();
        state.outgoing.resize_with(share.ranks, Outgoing::default);
        state.incoming.resize_with(share.ranks, Incoming::default);
        let (next, broken) = (AtomicU32::new(0), OnceLock::new());
        Self { share, rings, timeout, next, state: Mutex::new(state), broken }
    }

    fn state(&self) -> MutexGuard<'_, RingState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let own = self.share.rank;
        (0..self.share.ranks).filter(move |rank| *rank != own)
    }

    /// Returns the number of the next exchange, or the error of a broken group.
    fn start(&self) -> Result<u32, RankError> {
        match self.broken.get() {
            Some(error) => Err(error.clone()),
            None => Ok(self.next.fetch_add(1, Ordering::Relaxed)),
        }
    }

    fn break_with(&self, error: RankError) -> RankError {
        self.broken.get_or_init(|| error).clone()
    }

    /// Makes the group unusable, and tells the other ranks of the loss.
    fn lose(&self, rank: usize, cause: LossCause) -> RankError {
        self.rings.lose(rank);
        self.break_with(RankError::Lost { rank, cause })
    }

    /// Sends the outgoing messages to `to`, and receives a message from each of `from`.
    fn transfer(
        &self,
        state: &mut RingState,
        to: &[usize],
        from: &[usize],
        patience: Patience,
    ) -> Result<(), RankError> {
        let rings = &*self.rings;
        rings.beat();
        state.looked = None;
        from.iter().for_each(|rank| state.incoming[*rank].start(rings.beats(*rank)));
        loop {
            let seen = rings.changes();
            let (mut moved, mut is_done) = (0, true);
            for rank in to {
                let Outgoing { bytes, sent } = &mut state.outgoing[*rank];
                if *sent < bytes.len() {
                    let written = rings.write(*rank, &bytes[*sent..]);
                    (*sent, moved) = (*sent + written, moved + written);
                }
                is_done &= state.outgoing[*rank].is_done();
            }
            for rank in from {
                let has_ended = rings.has_ended(*rank);
                let incoming = &mut state.incoming[*rank];
                let read = if incoming.is_done() { 0 } else { incoming.take(rings, *rank) };
                moved += read;
                is_done &= incoming.is_done();
                // The last message of a rank precedes its end.
                if has_ended && read == 0 && !incoming.is_done() {
                    return Err(self.ended(*rank));
                }
            }
            if is_done {
                return Ok(());
            }
            if moved == 0 && !rings.wait(seen, WAIT_MAX.min(self.timeout / 4)) {
                self.look_around(state, to, from, patience)?;
            }
        }
    }

    /// Reports that this rank is alive, and fails if another one is not.
    fn look_around(
        &self,
        state: &mut RingState,
        to: &[usize],
        from: &[usize],
        patience: Patience,
    ) -> Result<(), RankError> {
        self.rings.beat();
        if let Some(rank) = self.rings.lost() {
            return Err(self.break_with(RankError::Lost { rank, cause: LossCause::Reported }));
        }
        let (wait, now) = (WAIT_MAX.min(self.timeout / 4), Instant::now());
        // Default: the first look follows one wait.
        let waited = state.looked.map_or(wait, |last| now.duration_since(last));
        state.looked = Some(now);
        for rank in to.iter().chain(from.iter().filter(|rank| !to.contains(rank))) {
            let is_open = from.contains(rank) && !state.incoming[*rank].is_done();
            if !is_open && (!to.contains(rank) || state.outgoing[*rank].is_done()) {
                continue;
            }
            if self.rings.has_ended(*rank) && !is_open {
                return Err(self.ended(*rank));
            }
            let (beats, incoming) = (self.rings.beats(*rank), &mut state.incoming[*rank]);
            if beats != incoming.beats {
                (incoming.silent, incoming.beats) = (Duration::ZERO, beats);
            }
            // A machine that slept was silent as a whole.
            incoming.silent += waited.min(4 * wait);
            if patience == Patience::Timeout && incoming.silent > self.timeout {
                return Err(self.lose(*rank, LossCause::Silent(incoming.silent)));
            }
        }
        Ok(())
    }

    /// Makes the group unusable because a rank ended. It may have ended because another was lost, which it then said.
    fn ended(&self, rank: usize) -> RankError {
        match self.rings.lost() {
            Some(rank) => self.break_with(RankError::Lost { rank, cause: LossCause::Reported }),
            None => self.lose(rank, LossCause::Ended),
        }
    }

    /// Checks a received message. Returns the failure of its sender, if it has one.
    fn failure_in(
        &self,
        rank: usize,
        incoming: &Incoming,
        exchange: u32,
    ) -> Result<Option<RankError>, RankError> {
        let mismatch = |expected: String, found: String| {
            self.break_with(RankError::Mismatch { rank, expected, found })
        };
        if incoming.word(0) != exchange {
            return Err(mismatch(format!("exchange {exchange}"), incoming.word(0).to_string()));
        }
        match incoming.word(1) {
            PART => Ok(None),
            FAILED => match serde_json::from_slice::<Failure>(&incoming.part) {
                Ok(failure) => Ok(Some(RankError::Failed { rank, failure })),
                Err(error) => Err(mismatch("a failure".into(), error.to_string())),
            },
            kind => Err(mismatch("a part or a failure".into(), format!("kind {kind}"))),
        }
    }

    /// Sends a part to each other rank, and replaces `incoming` with the parts of all ranks.
    fn call<'p>(
        &self,
        kind: u32,
        part_of: impl Fn(usize) -> &'p [u8],
        incoming: &mut Vec<Vec<u8>>,
    ) -> Result<(), RankError> {
        let exchange = self.start()?;
        let others: Vec<usize> = self.others().collect();
        let state = &mut *self.state();
        for rank in &others {
            state.outgoing[*rank].set(exchange, kind, part_of(*rank));
        }
        self.transfer(state, &others, &others, Patience::Timeout)?;
        incoming.resize_with(self.share.ranks, Vec::new);
        let (mut failed, mut received) = (None, 0);
        for (rank, part) in incoming.iter_mut().enumerate() {
            part.clear();
            if rank == self.share.rank {
                part.extend_from_slice(part_of(rank));
                continue;
            }
            let arrived = &mut state.incoming[rank];
            failed = failed.or(self.failure_in(rank, arrived, exchange)?);
            received += arrived.part.len() as u64;
            std::mem::swap(part, &mut arrived.part);
        }
        state.count_sent(&others);
        state.counters.exchanges += 1;
        state.counters.received_bytes += received;
        failed.map_or(Ok(()), Err)
    }
}

impl RingState {
    fn count_sent(&mut self, to: &[usize]) {
        self.counters.messages += to.len() as u64;
        let bytes = to.iter().map(|rank| self.outgoing[*rank].bytes.len() - HEADER_BYTES);
        self.counters.sent_bytes += bytes.sum::<usize>() as u64;
    }
}

impl Group for RingGroup {
    fn share(&self) -> RankShare {
        self.share
    }

    fn exchange(&self, parts: &[Vec<u8>], incoming: &mut Vec<Vec<u8>>) -> Result<(), RankError> {
        // Default: a rank without a part gets an empty one.
        let part_of = |rank: usize| parts.get(rank).map(Vec::as_slice).unwrap_or_default();
        self.call(PART, part_of, incoming)
    }

    fn all_gather(&self, part: &[u8], incoming: &mut Vec<Vec<u8>>) -> Result<(), RankError> {
        self.call(PART, |_| part, incoming)
    }

    fn broadcast(&self, bytes: &[u8]) -> Result<Vec<u8>, RankError> {
        let exchange = self.start()?;
        let state = &mut *self.state();
        if self.share.rank == 0 {
            let others: Vec<usize> = self.others().collect();
            for rank in &others {
                state.outgoing[*rank].set(exchange, PART, bytes);
            }
            self.transfer(state, &others, &[], Patience::Timeout)?;
            state.count_sent(&others);
            return Ok(bytes.to_vec());
        }
        self.transfer(state, &[], &[0], Patience::Endless)?;
        let arrived = &state.incoming[0];
        match self.failure_in(0, arrived, exchange)? {
            Some(error) => Err(error),
            None => Ok(arrived.part.clone()),
        }
    }

    fn fail(&self, failure: &Failure) -> Result<(), RankError> {
        // Default: a failure that cannot be encoded is a message that the others refuse.
        let failure = serde_json::to_vec(failure).unwrap_or_default();
        match self.call(FAILED, |_| &failure, &mut Vec::new()) {
            Ok(()) | Err(RankError::Failed { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn beat(&self) {
        self.rings.beat();
    }

    fn counters(&self) -> GroupCounters {
        self.state().counters
    }
}
