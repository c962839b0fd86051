//! History of an emulated device's operations and their accesses. Two unordered operations on the same bytes,
//! one of which writes, are an error regardless of the order in which they ran.

use std::collections::{BTreeMap, VecDeque};

use super::Address;
use super::queue::{Clock, Operation, Queues, Ticket};

/// Bytes that an operation accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Access {
    pub start: Address,
    pub bytes: u64,
    pub writes: bool,
}

impl Access {
    /// Returns the first byte of a conflict, if both accesses overlap and at least one writes.
    pub fn conflict(&self, other: &Self) -> Option<Address> {
        let start = self.start.max(other.start);
        let end = (self.start + self.bytes).min(other.start + other.bytes);
        (start < end && (self.writes || other.writes)).then_some(start)
    }
}

struct FinishedWork {
    ticket: Ticket,
    name: String,
    accesses: Vec<Access>,
}

/// Completed operations that may be unordered with later ones, by stream.
#[derive(Default)]
pub(super) struct History {
    streams: BTreeMap<usize, VecDeque<FinishedWork>>,
}

/// Returns the name of an operation for error messages.
pub(super) fn full_name(name: &str, ticket: Ticket) -> String {
    format!("{name} (operation {} of stream {})", ticket.count, ticket.stream)
}

impl History {
    /// Adds an operation.
    ///
    /// # Errors
    /// Returns an error if an unordered operation accesses the same bytes.
    pub fn add(
        &mut self,
        operation: &Operation,
        name: String,
        accesses: Vec<Access>,
    ) -> Result<(), String> {
        let ticket = operation.ticket;
        if let Some((other, at)) = self.conflict(&operation.before, ticket.stream, &accesses) {
            let (one, other) = (full_name(&name, ticket), full_name(&other.name, other.ticket));
            return Err(format!(
                "{one} and {other} use the same bytes at {at:#x}, and nothing orders them"
            ));
        }
        if !accesses.is_empty() {
            let done = FinishedWork { ticket, name, accesses };
            self.streams.entry(ticket.stream).or_default().push_back(done);
        }
        Ok(())
    }

    /// Returns a completed operation that is not ordered before `clock` and conflicts with `accesses`.
    fn conflict(
        &self,
        clock: &Clock,
        own: usize,
        accesses: &[Access],
    ) -> Option<(&FinishedWork, Address)> {
        let others = self.streams.iter().filter(|(stream, _)| **stream != own);
        let mut later = others.flat_map(|(stream, all)| {
            // Default: a clock without the stream precedes all its operations.
            let known = clock.get(stream).copied().unwrap_or(0);
            all.iter().rev().take_while(move |done| done.ticket.count > known)
        });
        later.find_map(|done| {
            let mut pairs =
                done.accesses.iter().flat_map(|one| accesses.iter().map(move |other| (one, other)));
            pairs.find_map(|(one, other)| one.conflict(other)).map(|at| (done, at))
        })
    }

    /// Returns the name of a completed operation that the host did not wait for and that conflicts with
    /// `access`.
    pub fn unseen(&self, queues: &Queues, access: Access) -> Option<String> {
        let mut all = self.streams.values().flatten();
        let unseen = all.find(|done| {
            !queues.is_seen(done.ticket)
                && done.accesses.iter().any(|one| one.conflict(&access).is_some())
        });
        unseen.map(|done| full_name(&done.name, done.ticket))
    }

    /// Removes operations that precede all future ones.
    pub fn settle(&mut self, queues: &Queues) {
        self.streams.retain(|stream, all| {
            let settled = queues.settled(*stream);
            while all.front().is_some_and(|done| done.ticket.count <= settled) {
                all.pop_front();
            }
            !all.is_empty()
        });
    }
}
