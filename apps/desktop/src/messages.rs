//! Messages between the application and the thread that owns the engine.

use std::path::PathBuf;

use nestling::{CancelToken, ExpertMap};
use nestling_plan::plan::Forecast;

use crate::expert_cells::ServedLevels;
use crate::meter::Rates;
use crate::plan::Plan;

/// A request to the engine's thread.
#[derive(Clone, Debug)]
pub enum Command {
    /// Plans the memory of a model, within a budget in bytes or the default one. An open model is closed.
    Plan {
        /// Store, GGUF file or folder of a checkpoint.
        path: PathBuf,
        /// Budget in bytes.
        budget: Option<u64>,
    },
    /// Opens the planned model.
    Open {
        /// Path of the model.
        path: PathBuf,
        /// Budget in bytes.
        budget: u64,
        /// Cancels the opening between two layers.
        cancel: CancelToken,
    },
    /// Sends a message to the open model.
    Send(String),
    /// Stops the answer within a layer.
    Stop,
    /// Changes the memory budget of the open model, in bytes.
    SetBudget(u64),
    /// Closes the model.
    Close,
    /// Ends the thread.
    Quit,
}

/// Description of an open model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelDescription {
    /// Name of the device.
    pub device: String,
    /// Maximum number of tokens per session.
    pub context_length: usize,
    /// True if the model has a chat template. Without one, it continues the text of a message.
    pub has_template: bool,
    /// True if experts are streamed, so that a smaller budget evicts them.
    pub is_streamed: bool,
    /// Budget in force in bytes.
    pub budget: u64,
    /// Level that a number of planes serves, by layer; empty if experts are not streamed.
    pub levels: Vec<ServedLevels>,
}

/// Memory and rates of an open model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Status {
    /// Bytes in use of the engine's budget.
    pub used_bytes: u64,
    /// Bytes of streamed experts in memory.
    pub expert_bytes: Option<u64>,
    /// Planes of the streamed experts.
    pub map: Option<ExpertMap>,
    /// Recent speed, hits and bits.
    pub rates: Rates,
}

/// End of an answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AnswerSummary {
    /// Number of tokens of the prompt.
    pub prompt_tokens: usize,
    /// Number of tokens of the answer.
    pub answer_tokens: usize,
    /// True if the answer was stopped.
    pub was_stopped: bool,
    /// Decoding speed in tokens per second.
    pub tokens_per_second: f64,
    /// Share of requested bytes that were in memory, if experts are streamed.
    pub hit_rate: Option<f64>,
    /// Mean bits used for experts, if the model has experts with levels.
    pub bits: Option<f64>,
}

/// A report of the engine's thread.
#[derive(Clone, Debug)]
pub enum Report {
    /// A plan is complete, except for its forecast.
    Planned(Box<Plan>),
    /// The speed for the last plan was predicted.
    Predicted(Forecast),
    /// A file is no model, or cannot be opened.
    PlanFailed(String),
    /// A part of a model was opened.
    Opening {
        /// Number of opened parts.
        parts_done: usize,
        /// Number of all parts.
        parts_total: usize,
    },
    /// A model is open.
    Opened(ModelDescription),
    /// A model could not be opened; the reason is `None` if the opening was cancelled.
    OpenFailed(Option<String>),
    /// Part of an answer.
    Text(String),
    /// Part of the reasoning before an answer.
    Reasoning(String),
    /// An answer is complete.
    Finished(AnswerSummary),
    /// An answer failed.
    AnswerFailed(String),
    /// A budget in bytes is in force.
    BudgetSet(u64),
    /// A budget was refused; the earlier one stays in force.
    BudgetRefused {
        /// Budget in force, in bytes.
        in_force: u64,
        /// Reason of the refusal.
        reason: String,
    },
    /// The state of the open model.
    Status(Box<Status>),
    /// The model is closed.
    Closed,
}
