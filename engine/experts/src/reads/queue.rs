//! Which read is started next.

use std::collections::VecDeque;

use nestling_formats::store::Extent;

use super::{ReadClass, ReadRequest};

/// A request on its way.
#[derive(Clone, Debug)]
pub(super) struct Job {
    /// Number that no other job of the same [`super::Reads`] ever has.
    pub ticket: u64,
    pub tag: u64,
    pub extent: Extent,
    pub class: ReadClass,
    pub queued_ns: u64,
    pub started_ns: u64,
}

/// Requests that have not started.
#[derive(Debug, Default)]
pub(super) struct Queue {
    urgent: VecDeque<Job>,
    idle: VecDeque<Job>,
    tickets: u64,
}

impl Queue {
    pub fn push(&mut self, request: ReadRequest, queued_ns: u64) {
        let ReadRequest { tag, extent, class } = request;
        self.tickets += 1;
        let job = Job { ticket: self.tickets, tag, extent, class, queued_ns, started_ns: 0 };
        match class {
            ReadClass::Urgent => self.urgent.push_back(job),
            ReadClass::Idle => self.idle.push_back(job),
        }
    }

    /// The next one to start.
    pub fn pop(&mut self, idle: IdleReads) -> Option<Job> {
        self.urgent.pop_front().or_else(|| match idle {
            IdleReads::May => self.idle.pop_front(),
            IdleReads::Wait => None,
        })
    }

    /// Whether something was made urgent.
    pub fn promote(&mut self, tag: u64) -> bool {
        let Some(mut job) = take(&mut self.idle, tag) else { return false };
        job.class = ReadClass::Urgent;
        self.urgent.push_back(job);
        true
    }

    /// Whether it was there.
    pub fn withdraw(&mut self, tag: u64) -> bool {
        take(&mut self.urgent, tag).or_else(|| take(&mut self.idle, tag)).is_some()
    }

    /// All that have waited since before `queued_ns`.
    #[cfg(not(target_family = "wasm"))]
    pub fn take_older(&mut self, queued_ns: u64) -> Vec<Job> {
        let mut taken = Vec::new();
        for queue in [&mut self.urgent, &mut self.idle] {
            for job in std::mem::take(queue) {
                let old = job.queued_ns < queued_ns;
                if old { taken.push(job) } else { queue.push_back(job) }
            }
        }
        taken
    }

    #[cfg(not(target_family = "wasm"))]
    pub fn clear(&mut self) {
        self.urgent.clear();
        self.idle.clear();
    }

    pub fn len(&self) -> usize {
        self.urgent.len() + self.idle.len()
    }
}

/// Whether idle reads may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IdleReads {
    May,
    Wait,
}

fn take(queue: &mut VecDeque<Job>, tag: u64) -> Option<Job> {
    let place = queue.iter().position(|job| job.tag == tag)?;
    queue.remove(place)
}
