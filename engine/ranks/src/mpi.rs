//! Ranks that are processes under MPI.
//!
//! One thread makes all calls of MPI: it carries messages between the queues of a [`QueueGroup`] and the other
//! processes, and tells them that this process is alive. Since a stopped process closes no connection, silence is the
//! only sign of its loss. MPI returns errors here, and the group then loses the rank instead of ending the process.
//!
//! Calls do not block: MPI implementations wait by polling, which would take a core from the computation.
#![expect(unsafe_code, reason = "calls of MPI")]

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, TryRecvError, channel, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use mpi_sys as ffi;
use nestling_core::error::EngineError;
use nestling_core::group::{Failure, Group, RankError, RankShare};
use serde::{Deserialize, Serialize};

use crate::queue_group::{Message, Payload, QueueGroup, Queues, SignsOfLife};

/// Tag of messages that carry parts of exchanges.
const MESSAGE: c_int = 1;

/// Tag of messages that say that a process is alive.
const BEAT: c_int = 2;

/// Interval of these messages.
const BEAT_INTERVAL: Duration = Duration::from_millis(100);

/// Number of idle rounds after which the thread sleeps between rounds.
const SPINS: u32 = 2_000;

/// Longest sleep between rounds.
const SLEEP_MAX: Duration = Duration::from_micros(200);

/// Time for the last messages to leave when the group is closed.
const DRAIN_MAX: Duration = Duration::from_secs(5);

/// A rank under MPI, with the thread that carries its messages.
#[derive(Debug)]
pub struct MpiRank {
    /// The rank in the group of all processes.
    pub group: Arc<QueueGroup>,
    /// Place of the process among those that share its machine's memory, by which it takes one of the machine's GPUs.
    pub local: RankShare,
    carrier: thread::JoinHandle<()>,
}

impl MpiRank {
    /// Returns true for rank 0, which leads the others.
    pub fn is_lead(&self) -> bool {
        self.group.share().rank == 0
    }

    /// Joins the group of all processes that `mpirun` has started. To be called once in a process.
    ///
    /// # Errors
    /// [`EngineError::Thread`] if the thread cannot be started, and [`EngineError::Rank`] if MPI cannot.
    pub fn join(timeout: Duration) -> Result<Self, EngineError> {
        let (ready, started) = sync_channel(1);
        let builder = thread::Builder::new().name("nestling-mpi".into());
        let carrier = builder.spawn(move || carry(&ready)).map_err(EngineError::Thread)?;
        let Started { share, local, queues, alive } =
            started.recv().map_err(|_| not_started())??;
        let group = Arc::new(QueueGroup::with_queues(share, queues, alive, timeout));
        Ok(Self { group, local, carrier })
    }

    /// Waits until the last messages have left, after the model was dropped. Does not wait for a model that is still
    /// in use.
    pub fn close(self) {
        let Self { group, local: _, carrier } = self;
        drop(group);
        let begun = Instant::now();
        while !carrier.is_finished() && begun.elapsed() < DRAIN_MAX {
            thread::sleep(SLEEP_MAX);
        }
    }
}

fn not_started() -> RankError {
    let (expected, found) = ("MPI to start".into(), "an error".into());
    RankError::Mismatch { rank: 0, expected, found }
}

/// Parts of a rank after MPI was started.
struct Started {
    share: RankShare,
    local: RankShare,
    queues: Queues,
    alive: Arc<SignsOfLife>,
}

fn carry(ready: &SyncSender<Result<Started, EngineError>>) {
    let started = start().and_then(|share| Some((share, place_on_machine(share)?)));
    let Some((share, local)) = started else {
        let _ = ready.send(Err(not_started().into()));
        return;
    };
    let alive = Arc::new(SignsOfLife::new(share.ranks));
    let (queues, ends) = queues(share);
    let started = Started { share, local, queues, alive: Arc::clone(&alive) };
    if ready.send(Ok(started)).is_err() {
        return;
    }
    let mut carrier = Carrier { ends, alive, sending: Vec::new(), lost: false };
    carrier.run();
    if !carrier.lost {
        // SAFETY: no call follows, and all ranks get here since none was lost.
        unsafe { ffi::MPI_Finalize() };
    }
}

/// Starts MPI with errors that are returned. Returns `None` if it does not start.
fn start() -> Option<RankShare> {
    let (mut provided, mut rank, mut ranks) = (0, 0, 0);
    // SAFETY: called once, before any other call; only this thread calls MPI. The pointers are valid for the calls.
    let codes = unsafe {
        let threads = ffi::RSMPI_THREAD_FUNNELED;
        [
            ffi::MPI_Init_thread(ptr::null_mut(), ptr::null_mut(), threads, &raw mut provided),
            ffi::MPI_Comm_set_errhandler(ffi::RSMPI_COMM_WORLD, ffi::RSMPI_ERRORS_RETURN),
            ffi::MPI_Comm_rank(ffi::RSMPI_COMM_WORLD, &raw mut rank),
            ffi::MPI_Comm_size(ffi::RSMPI_COMM_WORLD, &raw mut ranks),
        ]
    };
    let (rank, ranks) = (usize::try_from(rank).ok()?, usize::try_from(ranks).ok()?);
    codes.iter().all(|code| *code == 0).then_some(RankShare { rank, ranks })
}

/// Returns the place of this process among those of its machine. All processes call it. Returns `None` if MPI fails.
fn place_on_machine(share: RankShare) -> Option<RankShare> {
    let key = c_int::try_from(share.rank).ok()?;
    let (mut rank, mut ranks) = (0, 0);
    // SAFETY: the null communicator is replaced before it is used.
    let mut machine = unsafe { ffi::RSMPI_COMM_NULL };
    // SAFETY: MPI was started by this thread. The pointers are valid for the calls, and the communicator is made by
    // the first of them before the others use it.
    let codes = unsafe {
        let (world, shared) = (ffi::RSMPI_COMM_WORLD, ffi::RSMPI_COMM_TYPE_SHARED);
        let info = ffi::RSMPI_INFO_NULL;
        let split = ffi::MPI_Comm_split_type(world, shared, key, info, &raw mut machine);
        if split != 0 {
            return None;
        }
        [
            ffi::MPI_Comm_rank(machine, &raw mut rank),
            ffi::MPI_Comm_size(machine, &raw mut ranks),
            ffi::MPI_Comm_free(&raw mut machine),
        ]
    };
    let (rank, ranks) = (usize::try_from(rank).ok()?, usize::try_from(ranks).ok()?);
    codes.iter().all(|code| *code == 0).then_some(RankShare { rank, ranks })
}

/// The carrier's ends of the queues of one other rank.
struct Ends {
    rank: usize,
    outgoing: Receiver<Message>,
    incoming: Option<Sender<Message>>,
}

fn queues(share: RankShare) -> (Queues, Vec<Ends>) {
    let mut queues = Queues { senders: Vec::new(), receivers: Vec::new() };
    let mut ends = Vec::new();
    for rank in 0..share.ranks {
        let (sender, outgoing) = channel();
        let (incoming, receiver) = channel();
        let is_other = rank != share.rank;
        queues.senders.push(is_other.then_some(sender));
        queues.receivers.push(is_other.then_some(receiver));
        if is_other {
            ends.push(Ends { rank, outgoing, incoming: Some(incoming) });
        }
    }
    (queues, ends)
}

/// A message that MPI is sending.
struct Sending {
    request: ffi::MPI_Request,
    rank: usize,
    /// Read by MPI until the request is complete.
    _bytes: Vec<u8>,
}

struct Carrier {
    ends: Vec<Ends>, // [ranks - 1]
    alive: Arc<SignsOfLife>,
    sending: Vec<Sending>,
    /// True if a call of MPI failed, or a rank was lost.
    lost: bool,
}

/// A message as MPI carries it.
#[derive(Serialize, Deserialize)]
struct Packet<'a> {
    exchange: u64,
    #[serde(borrow)]
    content: Content<'a>,
}

#[derive(Serialize, Deserialize)]
enum Content<'a> {
    #[serde(borrow)]
    Part(&'a [u8]),
    Failed(Failure),
    Lost(usize),
}

impl Carrier {
    /// Carries messages until the group is dropped.
    fn run(&mut self) {
        let (mut idle, mut last_beat) = (0u32, Instant::now());
        loop {
            if last_beat.elapsed() >= BEAT_INTERVAL {
                last_beat = Instant::now();
                let ranks: Vec<usize> = self.ends.iter().map(|ends| ends.rank).collect();
                ranks.into_iter().for_each(|rank| self.send(rank, BEAT, Vec::new()));
            }
            let (sent, is_open) = self.take_outgoing();
            let received = self.receive_all();
            self.forget_sent();
            if !is_open {
                return self.drain();
            }
            idle = if sent || received { 0 } else { idle.saturating_add(1) };
            match idle {
                0..SPINS => std::hint::spin_loop(),
                _ => thread::sleep(SLEEP_MAX),
            }
        }
    }

    /// Hands the messages of the group to MPI. Returns whether there were any, and whether the group is in use.
    fn take_outgoing(&mut self) -> (bool, bool) {
        let (mut messages, mut is_open) = (Vec::new(), self.ends.is_empty());
        for ends in &self.ends {
            loop {
                match ends.outgoing.try_recv() {
                    Ok(message) => messages.push((ends.rank, message)),
                    Err(TryRecvError::Empty) => {
                        is_open = true;
                        break;
                    }
                    Err(TryRecvError::Disconnected) => break,
                }
            }
        }
        let any = !messages.is_empty();
        for (rank, message) in messages {
            self.lost |= matches!(message.payload, Payload::Lost(_));
            match postcard::to_allocvec(&packet_of(&message)) {
                Ok(bytes) => self.send(rank, MESSAGE, bytes),
                Err(_) => self.lose(rank),
            }
        }
        (any, is_open)
    }

    fn send(&mut self, rank: usize, tag: c_int, bytes: Vec<u8>) {
        let (Ok(count), Ok(to)) = (c_int::try_from(bytes.len()), c_int::try_from(rank)) else {
            return self.lose(rank);
        };
        // SAFETY: the null request is replaced before it is used.
        let mut request = unsafe { ffi::RSMPI_REQUEST_NULL };
        // SAFETY: the bytes stay in `sending`, at the same address, until the request is complete.
        let code = unsafe {
            let (bytes, kind) = (bytes.as_ptr().cast::<c_void>(), ffi::RSMPI_UINT8_T);
            let world = ffi::RSMPI_COMM_WORLD;
            ffi::MPI_Isend(bytes, count, kind, to, tag, world, &raw mut request)
        };
        match code {
            0 => self.sending.push(Sending { request, rank, _bytes: bytes }),
            _ => self.lose(rank),
        }
    }

    /// Drops the bytes of messages that have left.
    fn forget_sent(&mut self) {
        let mut failed = Vec::new();
        self.sending.retain_mut(|sending| {
            let mut is_done = 0;
            // SAFETY: the request was made by `MPI_Isend` and is not complete yet.
            let code = unsafe {
                let status = ffi::RSMPI_STATUS_IGNORE;
                ffi::MPI_Test(&raw mut sending.request, &raw mut is_done, status)
            };
            if code != 0 {
                failed.push(sending.rank);
            }
            code == 0 && is_done == 0
        });
        failed.into_iter().for_each(|rank| self.lose(rank));
    }

    /// Receives all messages that have arrived. Returns whether there were any parts.
    fn receive_all(&mut self) -> bool {
        let mut any = false;
        for index in 0..self.ends.len() {
            let rank = self.ends[index].rank;
            while let Some((tag, bytes)) = self.receive(rank) {
                self.alive.beat(rank);
                if tag != MESSAGE {
                    continue;
                }
                any = true;
                let Ok(packet) = postcard::from_bytes::<Packet>(&bytes) else {
                    self.lose(rank);
                    break;
                };
                let message = message_of(packet);
                self.lost |= matches!(message.payload, Payload::Lost(_));
                if let Some(incoming) = &self.ends[index].incoming {
                    // The group may have been dropped.
                    let _ = incoming.send(message);
                }
            }
        }
        any
    }

    /// Receives the next message of a rank, if one has arrived.
    fn receive(&mut self, rank: usize) -> Option<(c_int, Vec<u8>)> {
        let from = c_int::try_from(rank).ok()?;
        let (mut is_there, mut count) = (0, 0);
        // SAFETY: a status is plain data, which the calls fill in.
        let mut status: ffi::MPI_Status = unsafe { std::mem::zeroed() };
        // SAFETY: the pointers are valid for the calls.
        let codes = unsafe {
            let (any, world) = (ffi::RSMPI_ANY_TAG, ffi::RSMPI_COMM_WORLD);
            let probed = ffi::MPI_Iprobe(from, any, world, &raw mut is_there, &raw mut status);
            if probed == 0 && is_there == 0 {
                return None;
            }
            let kind = ffi::RSMPI_UINT8_T;
            [probed, ffi::MPI_Get_count(&raw const status, kind, &raw mut count)]
        };
        let length = usize::try_from(count).ok().filter(|_| codes == [0, 0]);
        let Some(length) = length else {
            self.lose(rank);
            return None;
        };
        let mut bytes = vec![0u8; length];
        let tag = status.MPI_TAG;
        // SAFETY: the buffer has the length of the message that was found, and only this thread receives.
        let code = unsafe {
            let (buffer, kind) = (bytes.as_mut_ptr().cast::<c_void>(), ffi::RSMPI_UINT8_T);
            let (world, status) = (ffi::RSMPI_COMM_WORLD, ffi::RSMPI_STATUS_IGNORE);
            ffi::MPI_Recv(buffer, count, kind, from, tag, world, status)
        };
        if code != 0 {
            self.lose(rank);
            return None;
        }
        Some((tag, bytes))
    }

    /// Closes the queue of a rank that MPI cannot reach, by which the group loses it.
    fn lose(&mut self, rank: usize) {
        self.lost = true;
        for ends in self.ends.iter_mut().filter(|ends| ends.rank == rank) {
            ends.incoming = None;
        }
    }

    /// Waits until the last messages have left.
    fn drain(&mut self) {
        let begun = Instant::now();
        while !self.sending.is_empty() && begun.elapsed() < DRAIN_MAX {
            self.receive_all();
            self.forget_sent();
            thread::sleep(SLEEP_MAX);
        }
        self.lost |= !self.sending.is_empty();
    }
}

fn packet_of(message: &Message) -> Packet<'_> {
    let content = match &message.payload {
        Payload::Part(part) => Content::Part(part),
        Payload::Failed(failure) => Content::Failed(Failure::clone(failure)),
        Payload::Lost(rank) => Content::Lost(*rank),
    };
    Packet { exchange: message.exchange, content }
}

fn message_of(packet: Packet<'_>) -> Message {
    let payload = match packet.content {
        Content::Part(part) => Payload::Part(part.into()),
        Content::Failed(failure) => Payload::Failed(Arc::new(failure)),
        Content::Lost(rank) => Payload::Lost(rank),
    };
    Message { exchange: packet.exchange, payload }
}
