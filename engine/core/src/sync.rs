//! Locks and threads of the engine: handling of poisoned locks, and exploration of thread schedules.
//!
//! With `--cfg shuttle`, this module exports shuttle's types. Shuttle runs one thread at a time and chooses
//! the next one at random at each lock, wait and start. Tests thereby explore many schedules of the
//! unmodified code.

#[cfg(not(shuttle))]
pub use std::sync::{Condvar, Mutex, MutexGuard};
#[cfg(not(shuttle))]
pub use std::thread;

#[cfg(shuttle)]
pub use shuttle::sync::{Condvar, Mutex, MutexGuard};
#[cfg(shuttle)]
pub use shuttle::thread;

use std::sync::{LockResult, PoisonError};

/// Returns the guard of a lock, even if a holder panicked.
///
/// The data must be such that a panic cannot leave it inconsistent. Examples are single assignments, pushes
/// and pops; counters changed in one statement; caches whose entries are complete on insertion; and scratch
/// memory that is written before it is read. Several changes are allowed if an interruption can only waste
/// something (a range that is never lent again, a count that stays too high) and never lends it twice.
/// Otherwise the owner of the lock checks for poisoning and discards the data, as for the runner of a model,
/// the history of a session, the pages of a pool, and a step loop that runs in calls.
pub fn whole<T>(locked: LockResult<T>) -> T {
    locked.unwrap_or_else(PoisonError::into_inner)
}
