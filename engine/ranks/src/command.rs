//! Messages between rank 0 and the other ranks, outside of the layers' exchanges.

use nestling_core::batch::Batch;
use nestling_core::error::EngineError;
use nestling_core::group::{Group, RankError};
use nestling_core::kv_cache::PageId;
use nestling_core::recurrent::StateId;
use nestling_core::runner::{ModelRunner, StepStats};
use serde::{Deserialize, Serialize};

/// Call of a [`ModelRunner`] that all ranks carry out.
#[derive(Debug, Serialize, Deserialize)]
pub enum Command {
    Step(Batch),
    ChangeExpertMemory,
    CopyPage { source: PageId, destination: PageId },
    WritePage { page: PageId, bytes: Vec<u8> },
    WriteState { state: StateId, bytes: Vec<u8> },
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

/// What a rank reports after a successful command.
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

pub fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, EngineError> {
    postcard::to_allocvec(value).map_err(|error| message_error(0, &error))
}

/// Decodes the message of a rank.
pub fn decode<'a, T: Deserialize<'a>>(rank: usize, bytes: &'a [u8]) -> Result<T, EngineError> {
    postcard::from_bytes(bytes).map_err(|error| message_error(rank, &error))
}

fn message_error(rank: usize, error: &postcard::Error) -> EngineError {
    let (expected, found) = ("a message of this version".into(), error.to_string());
    RankError::Mismatch { rank, expected, found }.into()
}

/// Agrees on the outcome of a command. All ranks return an error if one has failed; otherwise the reports of all
/// ranks, which `report` makes from the own result.
pub fn settle<T>(
    group: &dyn Group,
    result: Result<T, EngineError>,
    report: impl FnOnce(&T) -> Report,
) -> Result<(T, Vec<Report>), EngineError> {
    let done = match result {
        Ok(done) => done,
        // All ranks noticed the failure at the same exchange.
        Err(error @ EngineError::Rank(RankError::Failed { .. })) => return Err(error),
        Err(error) => {
            group.fail(&error.to_string())?;
            return Err(error);
        }
    };
    let mut reports = Vec::new();
    group.all_gather(&encode(&report(&done))?, &mut reports)?;
    let reports = reports.iter().enumerate().map(|(rank, bytes)| decode(rank, bytes));
    Ok((done, reports.collect::<Result<_, _>>()?))
}
