//! Thread of a rank other than 0, which outlives the loss of another rank.

use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use nestling_core::budget::Reservation;
use nestling_core::error::EngineError;
use nestling_core::group::{Group, RankError};
use nestling_core::runner::ModelRunner;

use crate::command::{Settled, settle};
use crate::follow::follow;
use crate::rank_memory::RankMemory;
use crate::renewable_group::RenewableGroup;

/// A thread of a rank other than 0.
pub type FollowerThread = JoinHandle<Result<(), EngineError>>;

/// Reservation for the experts of a lost rank, released when its thread ends.
pub type OrphanMemory = Arc<Mutex<Option<Reservation>>>;

/// A rank's ends of its connections to rank 0.
pub struct Seat {
    pub rank: Arc<RenewableGroup>,
    /// New groups after losses. Closed once rank 0 does not count on this rank any more.
    pub groups: Receiver<Arc<dyn Group>>,
    /// Held by the thread until it ends.
    pub orphan: OrphanMemory,
}

/// Reports to the other ranks that this one is open.
///
/// # Errors
/// [`EngineError::Rank`] if another rank failed or was lost.
pub fn join(group: &dyn Group, memory: RankMemory) -> Result<Vec<RankMemory>, EngineError> {
    let settled: Settled<(), RankMemory> = settle(group, Ok(()), |()| memory)?;
    settled.map(|(_, ranks)| ranks)
}

/// Carries out the commands of rank 0 until it closes the model. After the loss of another rank, waits for a new group.
/// `joined` is the result of joining the first group.
///
/// # Errors
/// [`EngineError::Rank`] if a rank was lost and rank 0 does not replace it, or gave this rank up.
pub fn serve(
    runner: &mut dyn ModelRunner,
    seat: &Seat,
    memory: RankMemory,
    joined: Result<(), EngineError>,
) -> Result<(), EngineError> {
    let mut joined = joined;
    loop {
        let Err(error) = joined.and_then(|()| follow(runner, &*seat.rank)) else { return Ok(()) };
        if !matches!(error, EngineError::Rank(RankError::Lost { .. })) {
            return Err(error);
        }
        let Ok(group) = seat.groups.recv() else { return Err(error) };
        seat.rank.replace(group);
        joined = join(&*seat.rank, memory).map(|_| ());
    }
}
