//! Re-exports of the engine's parts from their crates.

#[cfg(feature = "convert")]
pub use nestling_convert::{calibrate, convert, in_place, judge};
pub use nestling_core::{
    ActivationMode, Backend, BackendCounters, Batch, Budget, BudgetExceeded, CancelToken,
    DualPolicy, Encoder, EngineError, KvDtype, LevelMode, LevelPolicy, MemoryTooSmall, ModelRunner,
    RoutingRecorder, Row, SequenceRef, StepOutput, StreamStats, Threshold, arena, backend, batch,
    budget, cancel, driver, error, expert_memory, group, kv_cache, kv_heads, level_policy,
    recurrent, routing_recorder, routing_trace, runner, stream_stats, weights,
};
pub use nestling_cpu as cpu;
pub use nestling_experts::{expert, reads, record, residency};
pub use nestling_levels::{Allocation, AllocationHash, DualOptions, allocation, dual};
pub use nestling_runtime::{
    AnswerFuture, Conversation, Driver, Engine, EngineOptions, Event, EventStream, FinishReason,
    FittedConversation, GenerateOptions, Generation, GenerationSummary, Input, MemoryPlan, Model,
    ModelIdentity, ModelOptions, ModelParts, ModelSource, OpenProgress, PlannedResidence,
    Residence, Session, SnapshotContents, Stats, TokenEvent, Usage, model, sample_tokens,
};
pub use nestling_text as text;
pub use nestling_text::SamplingParams;
pub use nestling_threads::{ThreadPlacement, bandwidth, thread_count, threads};
