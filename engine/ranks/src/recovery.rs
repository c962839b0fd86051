//! Replacement of lost ranks that are threads.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use nestling_core::budget::{Budget, BudgetExceeded, Purpose, Reservation};
use nestling_core::error::{EngineError, ErrorClass};
use nestling_core::group::{Failure, Group, LossCause, RankError};
use nestling_core::sync::whole;

use crate::options::RankOptions;
use crate::queue_group::QueueGroup;
use crate::rank_memory::RankMemory;
use crate::rank_thread::{FollowerThread, OrphanMemory, Seat, join};
use crate::renewable_group::RenewableGroup;

/// Time span in which [`RankOptions::recoveries_max`] counts recoveries.
const RECOVERY_SPAN: Duration = Duration::from_secs(600);

/// Longest wait for a thread to release its memory after it left the group.
const END_WAIT_MAX: Duration = Duration::from_secs(1);

/// Creates the connection of a rank from its member of a new group.
pub type Connect = Arc<dyn Fn(QueueGroup) -> Arc<dyn Group> + Send + Sync>;

/// Starts the thread of a replacement, which holds the reservations until it ends.
pub type Start =
    Box<dyn FnMut(Seat, Vec<Reservation>) -> Result<FollowerThread, EngineError> + Send>;

/// Rank 0's ends of its connections to another rank.
pub struct RankThread {
    pub thread: FollowerThread,
    pub groups: Sender<Arc<dyn Group>>,
    pub orphan: OrphanMemory,
    /// Memory of the rank, which a replacement needs as well.
    pub memory: RankMemory,
}

/// A lost rank, as rank 0 knows it.
#[derive(Clone, Copy, Debug)]
pub struct Loss {
    pub rank: usize,
    pub cause: LossCause,
}

/// Threads of the ranks other than 0, and the means to replace them.
pub struct Recovery {
    pub options: RankOptions,
    /// Connection of rank 0.
    pub own: Arc<RenewableGroup>,
    pub threads: Vec<RankThread>, // [ranks - 1]
    pub connect: Connect,
    pub start: Start,
    /// Memory budget of all ranks together.
    pub budget: Budget,
    /// Memory of rank 0.
    pub memory: RankMemory,
    /// Times of the recoveries within [`RECOVERY_SPAN`].
    pub recent: VecDeque<Instant>,
    /// Replacements that lack the pages and states.
    pub unrestored: Vec<usize>,
    /// Error of a loss that no recovery followed.
    pub given_up: Option<RankError>,
}

impl fmt::Debug for Recovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Recovery({} ranks)", self.options.ranks)
    }
}

/// Returns the ends of rank 0 and of the other rank of a new pair of connections.
pub fn seat(rank: Arc<RenewableGroup>) -> (Sender<Arc<dyn Group>>, Seat) {
    let (sender, groups) = channel();
    (sender, Seat { rank, groups, orphan: OrphanMemory::default() })
}

impl Recovery {
    /// Creates the state of a model of which no rank was lost, without threads and the means to start them.
    pub fn new(
        options: RankOptions,
        own: Arc<RenewableGroup>,
        budget: Budget,
        memory: RankMemory,
    ) -> Self {
        Self {
            options,
            own,
            threads: Vec::new(),
            connect: Arc::new(|member| Arc::new(member)),
            start: Box::new(|_, _| Err(EngineError::EngineClosed)),
            budget,
            memory,
            recent: VecDeque::new(),
            unrestored: Vec::new(),
            given_up: None,
        }
    }

    /// Fails if a loss was not recovered from.
    pub fn check(&self) -> Result<(), RankError> {
        self.given_up.clone().map_or(Ok(()), Err)
    }

    /// Ends all ranks, and makes all further calls fail.
    pub fn give_up(&mut self, loss: Loss, failure: Failure) -> EngineError {
        let Loss { rank, cause } = loss;
        self.threads.clear();
        tracing::warn!("rank {rank} was lost ({cause}) and cannot be replaced: {}", failure.reason);
        // No fault of a request.
        let class = match failure.class {
            ErrorClass::Caller | ErrorClass::Busy | ErrorClass::Stopped => ErrorClass::Broken,
            class => class,
        };
        let failure = Failure { class, ..failure };
        let given_up = RankError::NotReplaced { rank, cause, failure };
        self.given_up.insert(given_up).clone().into()
    }

    /// Builds a new group of the ranks that are left and of replacements, which load their shares.
    /// `expert_share` is the present budget of the experts of one rank in bytes, if it was changed.
    ///
    /// # Errors
    /// [`RankError::Lost`] if another rank was lost meanwhile, and [`RankError::NotReplaced`] if a rank cannot be
    /// replaced.
    pub fn rebuild(&mut self, loss: Loss, expert_share: Option<u64>) -> Result<(), EngineError> {
        self.count(loss)?;
        let is_stalled = !self.waits_for_end(loss);
        let lost: Vec<usize> = (1..self.options.ranks)
            .filter(|rank| *rank == loss.rank || self.is_finished(*rank))
            .collect();
        let mut reserved = Vec::new();
        for rank in &lost {
            let is_stalled = is_stalled && *rank == loss.rank;
            let memory = self.reserve(*rank, is_stalled, expert_share);
            reserved.push(memory.map_err(|error| self.give_up(loss, short(error, is_stalled)))?);
        }
        // Released once the replacements have the budget in force.
        let (owned, _opening): (Vec<_>, Vec<_>) = reserved.into_iter().unzip();
        self.regroup(&lost, owned).map_err(|error| self.give_up(loss, error.as_failure()))?;
        for rank in lost {
            if !self.unrestored.contains(&rank) {
                self.unrestored.push(rank);
            }
        }
        match join(&*self.own, self.memory) {
            Ok(_) => Ok(()),
            Err(error @ EngineError::Rank(RankError::Lost { .. })) => Err(error),
            Err(error) => Err(self.give_up(loss, error.as_failure())),
        }
    }

    /// Counts a recovery.
    fn count(&mut self, loss: Loss) -> Result<(), EngineError> {
        let now = Instant::now();
        self.recent.retain(|time| now.duration_since(*time) < RECOVERY_SPAN);
        let (limit, found) = (self.options.recoveries_max as u64, self.recent.len() as u64 + 1);
        if found > limit {
            let what = "number of recoveries from lost ranks within ten minutes";
            let error = EngineError::Limit { what, limit, found };
            return Err(self.give_up(loss, error.as_failure()));
        }
        self.recent.push_back(now);
        Ok(())
    }

    fn is_finished(&self, rank: usize) -> bool {
        let thread = rank.checked_sub(1).and_then(|index| self.threads.get(index));
        // Default: rank 0 is running.
        thread.is_some_and(|rank| rank.thread.is_finished())
    }

    /// Waits for a lost rank that has left the group to release its memory. Returns false if it still holds it.
    fn waits_for_end(&self, loss: Loss) -> bool {
        let limit = match loss.cause {
            LossCause::Silent(_) => Duration::ZERO,
            _ => END_WAIT_MAX,
        };
        let begun = Instant::now();
        while !self.is_finished(loss.rank) {
            if loss.rank == 0 || begun.elapsed() >= limit {
                return false;
            }
            thread::sleep(Duration::from_millis(1));
        }
        true
    }

    /// Reserves the memory of a replacement. The second reservation is for the time of its opening.
    fn reserve(
        &self,
        rank: usize,
        is_stalled: bool,
        expert_share: Option<u64>,
    ) -> Result<(Vec<Reservation>, Option<Reservation>), BudgetExceeded> {
        let thread = rank.checked_sub(1).and_then(|index| self.threads.get(index));
        // Default: rank 0 is never replaced.
        let Some(RankThread { memory, orphan, .. }) = thread else { return Ok((Vec::new(), None)) };
        // Rank 0 holds the reservation for the streamed experts of all ranks, at their present budget.
        // Default: a budget that was not changed is the one at opening.
        let experts = expert_share.unwrap_or(memory.reserved).min(memory.reserved);
        let reserve = |purpose, bytes| self.budget.reserve(purpose, bytes);
        if is_stalled && memory.reserved > 0 {
            // Default: see above.
            let held = expert_share.unwrap_or(memory.reserved);
            let held = reserve(Purpose::Experts, held)?;
            *whole(orphan.lock()) = Some(held);
        }
        let own = memory.own().into_iter().map(|(purpose, bytes)| reserve(purpose, bytes));
        let own = own.collect::<Result<Vec<_>, _>>()?;
        Ok((own, Some(reserve(Purpose::Experts, memory.reserved - experts)?)))
    }

    /// Connects all ranks by a new group, and starts the threads of replacements.
    fn regroup(
        &mut self,
        lost: &[usize],
        reserved: Vec<Vec<Reservation>>,
    ) -> Result<(), EngineError> {
        let mut group = QueueGroup::of_threads(self.options.ranks, self.options.timeout)
            .into_iter()
            .map(|member| (self.connect)(member));
        let first = group.next();
        first.into_iter().for_each(|first| self.own.replace(first));
        let mut reserved = reserved.into_iter();
        for (rank, (thread, member)) in (1..).zip(self.threads.iter_mut().zip(group)) {
            if !lost.contains(&rank) {
                // A rank that has ended meanwhile is lost again.
                let _ = thread.groups.send(member);
                continue;
            }
            let (groups, seat) = seat(Arc::new(RenewableGroup::new(member)));
            let orphan = Arc::clone(&seat.orphan);
            // Default: each lost rank has its reservations.
            let started = (self.start)(seat, reserved.next().unwrap_or_default())?;
            *thread = RankThread { thread: started, groups, orphan, memory: thread.memory };
        }
        Ok(())
    }
}

/// Returns the failure of a replacement for which memory is short.
fn short(error: BudgetExceeded, is_stalled: bool) -> Failure {
    let mut failure = EngineError::from(error).as_failure();
    if is_stalled {
        failure.reason += "; the lost rank has not ended and holds its memory";
    }
    failure
}
