//! Locks and threads, as the engine uses them: what a lock guards after a panic, and how schedules of
//! threads are explored.
//!
//! Built with `--cfg shuttle`, the types here are those of shuttle, which runs threads one at a time
//! and draws at every lock, wait and start which of them goes on; tests then look at many schedules of
//! the code as it is.

#[cfg(not(shuttle))]
pub use std::sync::{Condvar, Mutex, MutexGuard};
#[cfg(not(shuttle))]
pub use std::thread;

#[cfg(shuttle)]
pub use shuttle::sync::{Condvar, Mutex, MutexGuard};
#[cfg(shuttle)]
pub use shuttle::thread;

use std::sync::{LockResult, PoisonError};

/// What a lock guards, also after a panic of somebody who held it.
///
/// For data that no panic leaves half changed: under the lock are nothing but single assignments, pushes
/// and pops, counters of which each change is one statement, caches whose entries are whole before they
/// come in, and scratch that is written before it is read; or several changes in an order of which each
/// beginning loses something (a range that is never lent again, a count that stays too high) and lends
/// nothing twice. Where that does not hold, whoever owns the lock asks for the poison and gives up what
/// it guards: the runner of a model, the history of a session, the pages of a pool, a step loop that
/// runs in calls.
pub fn whole<T>(locked: LockResult<T>) -> T {
    locked.unwrap_or_else(PoisonError::into_inner)
}
