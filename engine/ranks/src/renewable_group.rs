//! Connection of a rank whose group is replaced after a loss.

use std::sync::{Arc, Mutex, RwLock};

use nestling_core::group::{Failure, Group, GroupCounters, RankError, RankShare};
use nestling_core::sync::whole;

/// A rank's connection to the current group. The backend of a rank holds it for as long as the model is open, so a new
/// group needs no new backend.
#[derive(Debug)]
pub struct RenewableGroup {
    share: RankShare,
    current: RwLock<Arc<dyn Group>>,
    /// Counters of earlier groups.
    past: Mutex<GroupCounters>,
}

impl RenewableGroup {
    pub fn new(group: Arc<dyn Group>) -> Self {
        Self { share: group.share(), current: RwLock::new(group), past: Mutex::default() }
    }

    /// Replaces the group by a new one, in which this rank has the same share.
    pub fn replace(&self, group: Arc<dyn Group>) {
        let before = std::mem::replace(&mut *whole(self.current.write()), group);
        let mut past = whole(self.past.lock());
        add(&mut past, before.counters());
    }

    fn current(&self) -> Arc<dyn Group> {
        Arc::clone(&*whole(self.current.read()))
    }
}

fn add(sum: &mut GroupCounters, more: GroupCounters) {
    sum.exchanges += more.exchanges;
    sum.messages += more.messages;
    sum.sent_bytes += more.sent_bytes;
    sum.received_bytes += more.received_bytes;
}

impl Group for RenewableGroup {
    fn share(&self) -> RankShare {
        self.share
    }

    fn exchange(&self, parts: &[Vec<u8>], incoming: &mut Vec<Vec<u8>>) -> Result<(), RankError> {
        self.current().exchange(parts, incoming)
    }

    fn all_gather(&self, part: &[u8], incoming: &mut Vec<Vec<u8>>) -> Result<(), RankError> {
        self.current().all_gather(part, incoming)
    }

    fn broadcast(&self, bytes: &[u8]) -> Result<Vec<u8>, RankError> {
        self.current().broadcast(bytes)
    }

    fn fail(&self, failure: &Failure) -> Result<(), RankError> {
        self.current().fail(failure)
    }

    fn beat(&self) {
        self.current().beat();
    }

    fn counters(&self) -> GroupCounters {
        let mut sum = *whole(self.past.lock());
        add(&mut sum, self.current().counters());
        sum
    }
}
