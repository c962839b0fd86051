//! What streams of an emulated device have still to do, and what comes before what: only the order of a stream,
//! events and what the host waited for say so. Which of all that may run next runs next is drawn by lot.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use super::Work;

/// How many operations of each stream come before something.
pub(super) type Clock = BTreeMap<usize, u64>;

/// A place in a stream: behind so many operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket {
    pub stream: usize,
    pub count: u64,
}

/// Something that a stream does.
pub(super) struct Operation {
    /// Itself the last one.
    pub ticket: Ticket,
    /// What comes before it, in other streams.
    pub before: Arc<Clock>,
    pub work: Work,
}

struct Queue {
    waiting: VecDeque<Operation>,
    given: u64,
    done: u64,
    before: Arc<Clock>,
    /// What the host had seen when that was made.
    host_changes: u64,
    pub is_late: bool,
}

#[derive(Default)]
struct Noted {
    /// Where it was recorded last, and what comes before that.
    at: Option<(Ticket, Arc<Clock>)>,
    reached: Option<Instant>,
}

/// All streams.
pub(super) struct Queues {
    random: Xoshiro256PlusPlus,
    streams: BTreeMap<usize, Queue>,
    events: BTreeMap<usize, Noted>,
    named: usize,
    /// What the host knows to be done.
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

    /// Draws by another lot from now on.
    pub fn reseed(&mut self, seed: u64) {
        self.random = Xoshiro256PlusPlus::seed_from_u64(seed);
    }

    /// One in so many times.
    pub fn is_drawn(&mut self, one_in: u64) -> bool {
        self.random.next_u64().is_multiple_of(one_in)
    }

    /// A number below.
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

    /// Whatever it was given is done.
    pub fn end_stream(&mut self, stream: usize) {
        self.streams.remove(&stream);
    }

    pub fn event(&mut self) -> usize {
        let name = self.name();
        self.events.insert(name, Noted::default());
        name
    }

    pub fn end_event(&mut self, event: usize) {
        self.events.remove(&event);
    }

    /// Something more for a stream to do.
    pub fn give(&mut self, stream: usize, work: Work) {
        // Default: a stream that was destroyed does nothing more.
        let Some(queue) = self.streams.get_mut(&stream) else { return };
        if queue.host_changes != self.host_changes {
            queue.host_changes = self.host_changes;
            join(Arc::make_mut(&mut queue.before), &self.host);
        }
        queue.given += 1;
        let ticket = Ticket { stream, count: queue.given };
        queue.waiting.push_back(Operation { ticket, before: Arc::clone(&queue.before), work });
    }

    /// Notes in an event how far a stream is.
    pub fn record(&mut self, event: usize, stream: usize) {
        self.give(stream, Work::Record(event));
        let last = self.streams.get(&stream).and_then(|queue| queue.waiting.back());
        let at = last.map(|last| (last.ticket, Arc::clone(&last.before)));
        if let Some(noted) = self.events.get_mut(&event) {
            *noted = Noted { at, reached: None };
        }
    }

    /// What a stream is given from now on comes behind what an event notes now.
    pub fn wait_for(&mut self, stream: usize, event: usize) {
        let noted = self.events.get(&event).and_then(|noted| noted.at.clone());
        // Default: as with CUDA, nothing comes before an event that was not recorded.
        let Some((ticket, before)) = noted else { return };
        if let Some(queue) = self.streams.get_mut(&stream) {
            let known = Arc::make_mut(&mut queue.before);
            join(known, &before);
            join(known, &Clock::from([(ticket.stream, ticket.count)]));
        }
        self.give(stream, Work::Wait(ticket));
    }

    /// Where a stream ends.
    pub fn end_of(&self, stream: usize) -> Option<Ticket> {
        self.streams.get(&stream).map(|queue| Ticket { stream, count: queue.given })
    }

    /// Where an event was recorded last, and whether that stream is late.
    pub fn noted(&self, event: usize) -> Option<(Ticket, bool)> {
        let (ticket, _) = self.events.get(&event)?.at.as_ref()?;
        let is_late = self.streams.get(&ticket.stream).is_some_and(|queue| queue.is_late);
        Some((*ticket, is_late))
    }

    /// When an event was come to.
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

    /// Whether what comes before a place has run.
    pub fn is_done(&self, ticket: Ticket) -> bool {
        self.streams.get(&ticket.stream).is_none_or(|queue| queue.done >= ticket.count)
    }

    /// How far each stream must come for a place to be reached.
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
                Work::Wait(ticket) => Some(ticket),
                _ => None,
            }));
        }
        needed
    }

    /// The next operation, of those that may run now and are not beyond `bounds`, by lot.
    pub fn next(&mut self, bounds: Option<&Clock>) -> Option<Operation> {
        let may_run = |(name, queue): (&usize, &Queue)| {
            let first = queue.waiting.front()?;
            // Default: nothing of a stream without a bound is to run.
            let bound = bounds.map_or(u64::MAX, |bounds| bounds.get(name).copied().unwrap_or(0));
            let waits = matches!(first.work, Work::Wait(ticket) if !self.is_done(ticket));
            (first.ticket.count <= bound && !waits).then_some(*name)
        };
        let ready: Vec<usize> = self.streams.iter().filter_map(may_run).collect();
        let chosen = *ready.get(self.draw(ready.len()))?;
        let queue = self.streams.get_mut(&chosen)?;
        let operation = queue.waiting.pop_front()?;
        queue.done = operation.ticket.count;
        Some(operation)
    }

    /// What is waiting.
    pub fn waiting(&self) -> impl Iterator<Item = &Operation> {
        self.streams.values().flat_map(|queue| &queue.waiting)
    }

    /// The host waited for what comes before a place: an event's or the end of a stream.
    pub fn seen(&mut self, ticket: Ticket, event: Option<usize>) {
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

    /// Whether the host waited for an operation.
    pub fn is_seen(&self, ticket: Ticket) -> bool {
        self.host.get(&ticket.stream).is_some_and(|count| *count >= ticket.count)
    }

    /// Operations of a stream that come before whatever runs from now on.
    pub fn settled(&self, stream: usize) -> u64 {
        // Default: a clock without a stream is before all that ran there.
        let of = |clock: &Clock| clock.get(&stream).copied().unwrap_or(0);
        let firsts = self.streams.iter().filter(|(name, _)| **name != stream);
        let firsts = firsts.filter_map(|(_, queue)| queue.waiting.front());
        firsts.map(|one| of(&one.before)).fold(of(&self.host), u64::min)
    }
}
