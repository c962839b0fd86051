//! Interface of a model on a device, as used by the step loop.

use std::pin::Pin;
use std::sync::Arc;

use nestling_formats::Level;
use nestling_import::ModelConfig;
use serde::{Deserialize, Serialize};

use crate::backend::BackendCounters;
use crate::batch::Batch;
use crate::cancel::CancelToken;
use crate::divided_pages::DividedPages;
use crate::driver::block_on;
use crate::error::EngineError;
use crate::expert_memory::ExpertMemory;
use crate::kv_cache::PageId;
use crate::placement::MovableReplicas;
use crate::recurrent::StateId;
use crate::routing_recorder::RoutingRecorder;
use crate::stream_stats::StreamStats;

/// A step in progress. It waits only for experts or a device.
pub type StepFuture<'a> =
    Pin<Box<dyn Future<Output = Result<StepOutput, EngineError>> + Send + 'a>>;

/// Sizes and limits of a runner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunnerLimits {
    /// Vocabulary size: the number of columns of the logits.
    pub vocab_size: usize,
    /// Maximum number of positions per sequence.
    pub context_max: usize,
    /// Maximum rows per step; longer prompts are divided over several steps.
    pub rows_max: usize,
    /// Number of pages of the KV cache.
    pub pages: usize,
    /// Size in bytes of one page over all layers.
    pub page_bytes: usize,
    /// Number of recurrent states in the pool; 0 for a model without recurrent layers.
    pub states: usize,
    /// Size in bytes of one state over all layers.
    pub state_bytes: usize,
    /// Strategy for dividing prompts into steps.
    pub prompt_steps: PromptSteps,
    /// Highest level that rows may request; `None` if weights are floats without levels.
    pub level_max: Option<Level>,
}

/// Strategy for dividing prompts into steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PromptSteps {
    /// Steps are limited in time, so that other generations do not wait too long.
    #[default]
    Timed,
    /// Steps are as few as possible, since each step reads its experts again.
    Long,
}

/// A failed sequence in a batch whose other sequences can continue.
#[derive(Debug)]
pub struct SequenceFailure {
    /// Index into [`Batch::sequences`].
    pub sequence: usize,
    /// Reason of the failure.
    pub error: EngineError,
}

/// Statistics of one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepStats {
    /// Number of computed rows.
    pub rows: usize,
    /// Number of rows with computed logits.
    pub logit_rows: usize,
    /// Number of (row, expert) pairs computed at each level, in the order of `Level::ALL`.
    pub expert_uses: [u64; 5],
    /// Bytes of the planes used by these pairs, as stored in a store, counted per pair: the bytes read if
    /// each row ran alone.
    pub expert_use_bytes: u64,
    /// Bytes of weights read: the planes of all matrices with rows, once for each level used, including
    /// routers and embedding rows.
    pub weight_bytes: u64,
    /// Statistics of expert streaming.
    pub streaming: StreamStats,
    /// Counters of work submitted to the device.
    pub device: BackendCounters,
    /// Number of lost ranks that were replaced since the last successful step.
    pub ranks_replaced: u64,
}

impl StepStats {
    /// Adds the work of another rank in the same step.
    pub fn add_rank(&mut self, other: &Self) {
        for (uses, more) in self.expert_uses.iter_mut().zip(other.expert_uses) {
            *uses += more;
        }
        self.expert_use_bytes += other.expert_use_bytes;
        self.weight_bytes += other.weight_bytes;
        self.streaming.add(&other.streaming);
        self.device += other.device;
    }
}

/// Output of a step.
#[derive(Debug, Default)]
pub struct StepOutput {
    /// Requested logits, in the order of the batch.
    pub logits: Vec<f32>, // [rows with logits, vocab_size]
    /// Number of columns of `logits`.
    pub vocab_size: usize,
    /// Tokens with the highest logits of the rows with requested logits, if only the argmax was requested.
    /// `None` for a row with non-finite logits.
    pub best: Vec<Option<u32>>, // [rows with logits]
    /// Hidden rows after the last norm for the rows with requested logits, if hidden rows were requested.
    pub hidden: Vec<f32>, // [rows with logits, hidden_size]
    /// Sequences with non-finite logits, which must not be used.
    pub failures: Vec<SequenceFailure>,
    /// Statistics of the step.
    pub stats: StepStats,
}

impl StepOutput {
    /// Returns the logits of the `index`-th row with requested logits.
    pub fn row(&self, index: usize) -> Option<&[f32]> {
        self.logits.chunks_exact(self.vocab_size.max(1)).nth(index)
    }
}

/// A model on a device, with the pages of its sequences. The owner manages pages
/// ([`crate::kv_cache::PageAllocator`]) and positions; a runner only computes.
pub trait ModelRunner: Send {
    /// Returns the model's hyper-parameters.
    fn config(&self) -> &ModelConfig;

    /// Returns the sizes and limits.
    fn limits(&self) -> RunnerLimits;

    /// Computes one batch of at most `rows_max` rows. `cancel` is checked once per layer.
    ///
    /// # Errors
    /// [`EngineError::Cancelled`]; an error if the batch breaks the rules of [`Batch`], a read of weights
    /// failed, or the device failed. No sequence has advanced then, and the runner stays usable.
    fn step<'a>(&'a mut self, batch: &'a Batch, cancel: &'a CancelToken) -> StepFuture<'a>;

    /// Runs [`ModelRunner::step`] and blocks the thread until it completes.
    ///
    /// # Errors
    /// The errors of [`ModelRunner::step`].
    fn step_blocking(
        &mut self,
        batch: &Batch,
        cancel: &CancelToken,
    ) -> Result<StepOutput, EngineError> {
        block_on(self.step(batch, cancel))
    }

    /// Returns the control of the memory of streamed experts, or `None` if all experts are resident.
    fn expert_memory(&self) -> Option<Arc<ExpertMemory>> {
        None
    }

    /// Applies pending requests of [`ExpertMemory`] immediately; steps apply them too.
    ///
    /// # Errors
    /// Returns an error if the budget cannot hold one token's experts of one layer; the old budget stays in effect.
    fn change_expert_memory(&mut self) -> Result<(), EngineError> {
        Ok(())
    }

    /// Returns the recorder of routing, or `None` if the model has no experts.
    fn routing_recorder(&self) -> Option<Arc<RoutingRecorder>> {
        None
    }

    /// Returns the replicas of experts, if this runner is a rank that holds some or may hold some later.
    fn replicas(&mut self) -> Option<&mut dyn MovableReplicas> {
        None
    }

    /// Takes back an output, so that a later step can reuse its memory.
    fn recycle(&mut self, output: StepOutput) {
        drop(output);
    }

    /// Copies a page in all layers.
    ///
    /// # Errors
    /// Returns an error if the pool does not have one of the pages.
    fn copy_page(&mut self, source: PageId, destination: PageId) -> Result<(), EngineError>;

    /// Returns the contents of a page, `page_bytes` bytes, for a snapshot.
    ///
    /// # Errors
    /// Returns an error if the pool does not have the page.
    fn read_page(&mut self, page: PageId) -> Result<Vec<u8>, EngineError>;

    /// Returns the layout of the pages if this runner is a rank of several that hold the keys and values of some heads.
    /// [`ModelRunner::read_page`] then returns the rank's part of a page, and [`ModelRunner::write_page`] takes that of a
    /// page with all heads.
    fn divided_pages(&self) -> Option<&DividedPages> {
        None
    }

    /// Restores a page from the output of [`ModelRunner::read_page`].
    ///
    /// # Errors
    /// Returns an error if the pool does not have the page or the length is wrong.
    fn write_page(&mut self, page: PageId, bytes: &[u8]) -> Result<(), EngineError>;

    /// Returns the contents of a recurrent state, `state_bytes` bytes, for a snapshot.
    ///
    /// # Errors
    /// Returns an error if the state was never written or the model has no recurrent layers.
    fn read_state(&mut self, state: StateId) -> Result<Vec<u8>, EngineError> {
        Err(no_states(state))
    }

    /// Restores a state from the output of [`ModelRunner::read_state`].
    ///
    /// # Errors
    /// Returns an error if the pool does not have the state, the length is wrong, or the model has no recurrent
    /// layers.
    fn write_state(&mut self, state: StateId, bytes: &[u8]) -> Result<(), EngineError> {
        let _ = bytes;
        Err(no_states(state))
    }
}

fn no_states(state: StateId) -> EngineError {
    EngineError::mismatch("recurrent state", "a model with recurrent layers", state.0)
}
