//! Runners over ranks that are threads, for programs that drive steps themselves.

use std::sync::Arc;
use std::thread;

use nestling_core::error::EngineError;
use nestling_core::group::Group;
use nestling_core::runner::ModelRunner;
use nestling_formats::Invariant;

use crate::command::settle;
use crate::follow::follow;
use crate::lead::LeadRunner;
use crate::open::cause_of;
use crate::options::RankOptions;
use crate::queue_group::QueueGroup;

/// A runner of one rank, with whatever else its opening returned.
pub struct OpenRunner<T> {
    /// The runner.
    pub runner: Box<dyn ModelRunner>,
    /// Other results of the opening.
    pub extra: T,
}

/// Opens a runner over ranks that are threads of this process. `open` opens the runner of one rank, on that rank's
/// thread; the calling thread is rank 0, whose other results are returned. Runners are not part of an engine, and
/// reserve no memory.
///
/// # Errors
/// Fails as `open` does for any rank, with [`EngineError::Limit`] for no rank or more than
/// [`RANKS_MAX`](crate::RANKS_MAX), and with [`EngineError::Thread`] if a thread cannot be started.
pub fn lead_on_threads<T>(
    ranks: RankOptions,
    open: impl Fn(&Arc<dyn Group>) -> Result<OpenRunner<T>, EngineError> + Send + Sync + 'static,
) -> Result<OpenRunner<T>, EngineError> {
    ranks.check()?;
    let open = Arc::new(open);
    let group = QueueGroup::of_threads(ranks.ranks, ranks.timeout);
    let mut group = group.into_iter().map(|rank| Arc::new(rank) as Arc<dyn Group>);
    let first = group.next().invariant("a group has a first rank")?;
    let mut followers = Vec::new();
    for rank in group {
        let open = Arc::clone(&open);
        let builder = thread::Builder::new().name(format!("nestling-rank-{}", rank.share().rank));
        let thread = builder.spawn(move || {
            let (mut opened, _) = settle(&*rank, open(&rank), |_| ())??;
            follow(&mut *opened.runner, &*rank)
        });
        followers.push(thread.map_err(EngineError::Thread)?);
    }
    let settled = settle(&*first, open(&first), |_| ());
    match settled.map_err(EngineError::from).and_then(|settled| settled) {
        Ok((OpenRunner { runner, extra }, _)) => {
            let runner = LeadRunner::new(runner, first).with_threads(followers);
            Ok(OpenRunner { runner: Box::new(runner), extra })
        }
        Err(error) => {
            drop(first);
            Err(cause_of(error, followers))
        }
    }
}
