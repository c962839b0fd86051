//! Messages between rank 0 and the other ranks, outside of the layers' exchanges.

use nestling_core::batch::Batch;
use nestling_core::error::EngineError;
use nestling_core::group::{Group, RankError};
use nestling_core::kv_cache::PageId;
use nestling_core::recurrent::StateId;
use nestling_core::replicas::Replicas;
use nestling_core::runner::{ModelRunner, StepStats};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Call of a [`ModelRunner`] that all ranks carry out.
#[derive(Debug, Serialize, Deserialize)]
pub enum Command {
    Step(Batch),
    ChangeExpertMemory,
    /// Sends the rank's part of a page to rank 0, if ranks hold parts.
    ReadPage {
        page: PageId,
    },
    CopyPage {
        source: PageId,
        destination: PageId,
    },
    WritePage {
        page: PageId,
        bytes: Vec<u8>,
    },
    WriteState {
        state: StateId,
        bytes: Vec<u8>,
    },
    /// Writes a page on replacements of lost ranks.
    RestorePage {
        ranks: Vec<usize>,
        page: PageId,
        bytes: Vec<u8>,
    },
    /// Writes a recurrent state on replacements of lost ranks.
    RestoreState {
        ranks: Vec<usize>,
        state: StateId,
        bytes: Vec<u8>,
    },
    /// Loads the replicas of experts that all ranks hold from the next step on.
    Replicate(Replicas),
    /// Repeats the replicas in force for ranks that lack them.
    RestoreReplicas(Replicas),
    /// The model is closed.
    Close,
}

/// A command, and changes of the memory of experts that precede it.
#[derive(Debug, Serialize, Deserialize)]
pub struct Order {
    pub command: Command,
    /// Budget of the experts of one rank in bytes, if it was changed.
    pub expert_budget: Option<u64>,
    /// Bytes of experts that each rank evicts.
    pub shed_bytes: u64,
}

/// Report of a rank after a successful command.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    pub stats: StepStats,
    /// Bytes of streamed experts held.
    pub expert_bytes: u64,
}

impl Order {
    /// Applies the changes of the memory of experts. Streaming never changes a result, so ranks need not agree.
    pub fn set_expert_memory(&self, runner: &dyn ModelRunner) {
        // Default: resident experts have no budget.
        let Some(memory) = runner.expert_memory() else { return };
        if let Some(bytes) = self.expert_budget {
            memory.set_budget(bytes);
        }
        if self.shed_bytes > 0 {
            memory.shed(self.shed_bytes);
        }
    }
}

/// Sends this rank's part of a page to rank 0, which receives those of all ranks.
///
/// # Errors
/// Fails as [`Group::exchange`] does.
pub fn gather_page(group: &dyn Group, part: Vec<u8>) -> Result<Vec<Vec<u8>>, RankError> {
    let mut parts = vec![Vec::new(); group.share().ranks];
    let mut incoming = Vec::new();
    if let Some(of_lead) = parts.first_mut() {
        *of_lead = part;
    }
    group.exchange(&parts, &mut incoming)?;
    Ok(incoming)
}

pub fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, EngineError> {
    postcard::to_allocvec(value).map_err(|error| message_error(0, &error))
}

/// Decodes the message of a rank.
pub fn decode<T: DeserializeOwned>(rank: usize, bytes: &[u8]) -> Result<T, EngineError> {
    postcard::from_bytes(bytes).map_err(|error| message_error(rank, &error))
}

fn message_error(rank: usize, error: &postcard::Error) -> EngineError {
    let (expected, found) = ("a message of this version".into(), error.to_string());
    RankError::Mismatch { rank, expected, found }.into()
}

/// Own result of work that all ranks did, with the reports of all ranks.
pub type Settled<T, R> = Result<(T, Vec<R>), EngineError>;

/// Agrees on the outcome of work that all ranks did. All get an error if one has failed; otherwise the reports of all
/// ranks, each made from the rank's own result.
///
/// # Errors
/// The error by which the group became unusable.
pub fn settle<T, R: Serialize + DeserializeOwned>(
    group: &dyn Group,
    result: Result<T, EngineError>,
    report: impl FnOnce(&T) -> R,
) -> Result<Settled<T, R>, RankError> {
    let reported = result.and_then(|done| Ok((encode(&report(&done))?, done)));
    let (report, done) = match reported {
        Ok(reported) => reported,
        // All ranks noticed the failure at the same exchange.
        Err(error @ EngineError::Rank(RankError::Failed { .. })) => return Ok(Err(error)),
        Err(error) => {
            group.fail(&error.as_failure())?;
            return Ok(Err(error));
        }
    };
    let mut reports = Vec::new();
    match group.all_gather(&report, &mut reports) {
        Ok(()) => {}
        Err(error @ RankError::Failed { .. }) => return Ok(Err(error.into())),
        Err(error) => return Err(error),
    }
    let reports = reports.iter().enumerate().map(|(rank, bytes)| decode(rank, bytes));
    Ok(reports.collect::<Result<_, _>>().map(|reports| (done, reports)))
}
