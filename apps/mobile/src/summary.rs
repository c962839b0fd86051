//! Results of generations.

use nestling::{FinishReason, GenerationSummary};

/// Reason for the end of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, uniffi::Enum)]
pub enum EndReason {
    /// The model ended its turn, or produced a stop string.
    Stop,
    /// The answer reached `max_tokens`.
    Length,
    /// The context is full.
    ContextFull,
    /// The answer consists of tool calls.
    ToolCalls,
    /// The answer was cancelled.
    Cancelled,
    /// A reason that this version of the bindings does not know.
    Other,
}

/// Token counts of an answer.
#[derive(Clone, Debug, PartialEq, Eq, uniffi::Record)]
pub struct Usage {
    /// Number of tokens of the prompt.
    pub prompt_tokens: u64,
    /// Number of tokens of the prompt that were computed before.
    pub cached_tokens: u64,
    /// Number of tokens of the answer.
    pub completion_tokens: u64,
}

/// Timings of an answer, in seconds.
#[derive(Clone, Debug, PartialEq, uniffi::Record)]
pub struct Stats {
    /// Number of computed tokens of the prompt.
    pub prompt_tokens: u64,
    /// Time to compute the prompt.
    pub prompt_seconds: f64,
    /// Number of tokens after the first.
    pub decode_tokens: u64,
    /// Time to compute the tokens after the first.
    pub decode_seconds: f64,
    /// Time from the call to the first token.
    pub first_token_seconds: f64,
    /// Mean number of bits per weight of the computation.
    pub mean_level: Option<f64>,
    /// Bytes of weights that were read from the file.
    pub weight_read_bytes: u64,
}

/// A call of a tool.
#[derive(Clone, Debug, PartialEq, Eq, uniffi::Record)]
pub struct ToolCall {
    /// Id of the call, unique in a conversation.
    pub id: String,
    /// Name of the tool.
    pub name: String,
    /// Arguments as JSON.
    pub arguments: String,
}

impl From<&nestling::ToolCall> for ToolCall {
    fn from(call: &nestling::ToolCall) -> Self {
        let arguments = call.arguments_text();
        Self { id: call.id.clone(), name: call.name.clone(), arguments }
    }
}

/// Result of an answer.
#[derive(Clone, Debug, PartialEq, uniffi::Record)]
pub struct Summary {
    /// Reason for the end.
    pub reason: EndReason,
    /// Index in `GenerateOptions.stop` of the stop string that ended the answer.
    pub stop: Option<u64>,
    /// Seed of the draws.
    pub seed: u64,
    /// Token counts.
    pub usage: Usage,
    /// Timings.
    pub stats: Stats,
}

impl From<&GenerationSummary> for Summary {
    fn from(finished: &GenerationSummary) -> Self {
        let (usage, stats) = (&finished.usage, &finished.stats);
        Self {
            reason: match finished.reason {
                FinishReason::Stop => EndReason::Stop,
                FinishReason::Length => EndReason::Length,
                FinishReason::ContextFull => EndReason::ContextFull,
                FinishReason::ToolCalls => EndReason::ToolCalls,
                FinishReason::Cancelled => EndReason::Cancelled,
                _ => EndReason::Other,
            },
            stop: finished.stop.map(|index| index as u64),
            seed: finished.seed,
            usage: Usage {
                prompt_tokens: usage.prompt_tokens as u64,
                cached_tokens: usage.cached_tokens as u64,
                completion_tokens: usage.completion_tokens as u64,
            },
            stats: Stats {
                prompt_tokens: stats.prompt_tokens as u64,
                prompt_seconds: stats.prompt_seconds,
                decode_tokens: stats.decode_tokens as u64,
                decode_seconds: stats.decode_seconds,
                first_token_seconds: stats.time_to_first_token_seconds,
                mean_level: stats.mean_level(),
                weight_read_bytes: stats.weight_read_bytes,
            },
        }
    }
}
