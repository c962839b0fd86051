//! Queues of an emulated device's streams and the order between their operations. The order is defined by
//! streams, events and waits of the host. Among operations that may run, the next one is random.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use super::QueuedWork;

/// Vector clock: the number of operations of each stream that precede something.
pub(super) type Clock = BTreeMap<usize, u64>;

/// Position in a stream: the operation with this number, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket {
    pub stream: usize,
    pub count: u64,
}

/// An operation of a stream.
pub(super) struct Operation {
    /// Position of the operation itself.
    pub ticket: Ticket,
    /// Preceding operations of other streams.
    pub before: Arc<Clock>,
    pub work: QueuedWork,
}

struct Queue {
    waiting: VecDeque<Operation>,
    given: u64,
    done: u64,
    before: Arc<Clock>,
    /// Value of the host's counter when `before` was computed.
    host_changes: u64,
    pub is_late: bool,
}

#[derive(Default)]
struct EventState {
    /// Position where the event was last recorded, and the operations before it.
    at: Option<(Ticket, Arc<Clock>)>,
    reached: Option<Instant>,
}

/// All streams and events.
pub(super) struct Queues {
    random: Xoshiro256PlusPlus,
    streams: BTreeMap<usize, Queue>,
    events: BTreeMap<usize, EventState>,
    named: usize,
    /// Operations known to the host to be complete.
    host: Clock,
    host_changes: u64,
}

fn join(clock: &mut Clock, other: &Clock) {
    for (stream, count) in other {
        let known = clock.entry(*stream).or_default();
        *known = (*known).max(*count);
    }
}

impl Queues {
    pub fn new(seed: u64) -> Self {
        Self {
            random: Xoshiro256PlusPlus::seed_from_u64(seed),
            streams: BTreeMap::new(),
            events: BTreeMap::new(),
            named: 0,
            host: Clock::new(),
            host_changes: 0,
        }
    }

    /// Reseeds the random order.
    pub fn reseed(&mut self, seed: u64) {
        self.random = Xoshiro256PlusPlus::seed_from_u64(seed);
    }

    /// Returns true once in `one_in` calls on average.
    pub fn is_drawn(&mut self, one_in: u64) -> bool {
        self.random.next_u64().is_multiple_of(one_in)
    }

    /// Returns a random number less than `below`.
    pub fn draw(&mut self, below: usize) -> usize {
        (self.random.next_u64() % below.max(1) as u64) as usize
    }

    fn name(&mut self) -> usize {
        self.named += 1;
        self.named
    }

    pub fn stream(&mut self, is_late: bool) -> usize {
        let name = self.name();
        let (waiting, before) = (VecDeque::new(), Arc::default());
        let queue = Queue { waiting, given: 0, done: 0, before, host_changes: 0, is_late };
        self.streams.insert(name, queue);
        name
    }

    /// Removes a stream, whose operations must be complete.
    pub fn end_stream(&mut self, stream: usize) {
        self.streams.remove(&stream);
    }

    pub fn event(&mut self) -> usize {
        let name = self.name();
        self.events.insert(name, EventState::default());
        name
    }

    pub fn end_event(&mut self, event: usize) {
        self.events.remove(&event);
    }

    /// Appends an operation to a stream.
    pub fn give(&mut self, stream: usize, work: QueuedWork) {
        // Default: operations of a destroyed stream are ignored.
        let Some(queue) = self.streams.get_mut(&stream) else { return };
        if queue.host_changes != self.host_changes {
            queue.host_changes = self.host_changes;
            join(Arc::make_mut(&mut queue.before), &self.host);
        }
        queue.given += 1;
        let ticket = Ticket { stream, count: queue.given };
        queue.waiting.push_back(Operation { ticket, before: Arc::clone(&queue.before), work });
    }

    /// Records an event at the end of a stream.
    pub fn record(&mut self, event: usize, stream: usize) {
        self.give(stream, QueuedWork::Record(event));
        let last = self.streams.get(&stream).and_then(|queue| queue.waiting.back());
        let at = last.map(|last| (last.ticket, Arc::clone(&last.before)));
        if let Some(noted) = self.events.get_mut(&event) {
            *noted = EventState { at, reached: None };
        }
    }

    /// Orders later operations of a stream after an event's current position.
    pub fn wait_for(&mut self, stream: usize, event: usize) {
        let noted = self.events.get(&event).and_then(|noted| noted.at.clone());
        // Default: as in CUDA, waiting for an unrecorded event has no effect.
        let Some((ticket, before)) = noted else { return };
        if let Some(queue) = self.streams.get_mut(&stream) {
            let known = Arc::make_mut(&mut queue.before);
            join(known, &before);
            join(known, &Clock::from([(ticket.stream, ticket.count)]));
        }
        self.give(stream, QueuedWork::Wait(ticket));
    }

    /// Returns the end of a stream.
    pub fn end_of(&self, stream: usize) -> Option<Ticket> {
        self.streams.get(&stream).map(|queue| Ticket { stream, count: queue.given })
    }

    /// Returns the position where an event was last recorded, and whether its stream is asynchronous.
    pub fn recorded(&self, event: usize) -> Option<(Ticket, bool)> {
        let (ticket, _) = self.events.get(&event)?.at.as_ref()?;
        let is_late = self.streams.get(&ticket.stream).is_some_and(|queue| queue.is_late);
        Some((*ticket, is_late))
    }

    /// Returns the time when an event was reached.
    pub fn reached(&self, event: usize) -> Option<Instant> {
        self.events.get(&event)?.reached
    }

    pub fn reach(&mut self, event: usize) {
        if let Some(noted) = self.events.get_mut(&event) {
            noted.reached = Some(Instant::now());
        }
    }

    pub fn is_late(&self, stream: usize) -> bool {
        self.streams.get(&stream).is_some_and(|queue| queue.is_late)
    }

    /// Returns whether the operations up to a position are complete.
    pub fn is_done(&self, ticket: Ticket) -> bool {
        self.streams.get(&ticket.stream).is_none_or(|queue| queue.done >= ticket.count)
    }

    /// Returns the operations of each stream that a position depends on.
    pub fn needed(&self, ticket: Ticket) -> Clock {
        let mut needed = Clock::new();
        let mut open = vec![ticket];
        while let Some(Ticket { stream, count }) = open.pop() {
            let Some(queue) = self.streams.get(&stream) else { continue };
            let known = needed.entry(stream).or_insert(queue.done);
            let from = std::mem::replace(known, count.max(*known));
            let more = queue.waiting.iter().skip_while(|one| one.ticket.count <= from);
            let more = more.take_while(|one| one.ticket.count <= count);
            open.extend(more.filter_map(|one| match one.work {
                QueuedWork::Wait(ticket) => Some(ticket),
                _ => None,
            }));
        }
        needed
    }

    /// Removes and returns a random operation that may run and is within `bounds`.
    pub fn next(&mut self, bounds: Option<&Clock>) -> Option<Operation> {
        let may_run = |(name, queue): (&usize, &Queue)| {
            let first = queue.waiting.front()?;
            // Default: a stream without a bound must not run.
            let bound = bounds.map_or(u64::MAX, |bounds| bounds.get(name).copied().unwrap_or(0));
            let waits = matches!(first.work, QueuedWork::Wait(ticket) if !self.is_done(ticket));
            (first.ticket.count <= bound && !waits).then_some(*name)
        };
        let ready: Vec<usize> = self.streams.iter().filter_map(may_run).collect();
        let chosen = *ready.get(self.draw(ready.len()))?;
        let queue = self.streams.get_mut(&chosen)?;
        let operation = queue.waiting.pop_front()?;
        queue.done = operation.ticket.count;
        Some(operation)
    }

    /// Iterates over pending operations.
    pub fn waiting(&self) -> impl Iterator<Item = &Operation> {
        self.streams.values().flat_map(|queue| &queue.waiting)
    }

    /// Notes that the host waited for a position: an event's position, or the end of a stream.
    pub fn note_wait(&mut self, ticket: Ticket, event: Option<usize>) {
        let noted = event.and_then(|event| self.events.get(&event)?.at.clone());
        let before = match noted {
            Some((_, before)) => Some(before),
            None => self.streams.get(&ticket.stream).map(|queue| Arc::clone(&queue.before)),
        };
        if let Some(before) = before {
            join(&mut self.host, &before);
        }
        join(&mut self.host, &Clock::from([(ticket.stream, ticket.count)]));
        self.host_changes += 1;
    }

    /// Returns whether the host waited for an operation.
    pub fn is_seen(&self, ticket: Ticket) -> bool {
        self.host.get(&ticket.stream).is_some_and(|count| *count >= ticket.count)
    }

    /// Returns the number of a stream's operations that precede all future ones.
    pub fn settled(&self, stream: usize) -> u64 {
        // Default: a clock without the stream precedes all its operations.
        let of = |clock: &Clock| clock.get(&stream).copied().unwrap_or(0);
        let firsts = self.streams.iter().filter(|(name, _)| **name != stream);
        let firsts = firsts.filter_map(|(_, queue)| queue.waiting.front());
        firsts.map(|one| of(&one.before)).fold(of(&self.host), u64::min)
    }
}
