//! What the step loop sees of a model on a device.

use std::pin::Pin;
use std::sync::Arc;

use nestling_formats::Level;
use nestling_import::ModelConfig;

use crate::backend::BackendCounters;
use crate::batch::Batch;
use crate::cancel::CancelToken;
use crate::driver::block_on;
use crate::error::EngineError;
use crate::expert_memory::ExpertMemory;
use crate::kv_cache::PageId;
use crate::recurrent::StateId;
use crate::routing_recorder::RoutingRecorder;
use crate::stream_stats::StreamStats;

/// A step under way. It waits only where experts or a device must arrive.
pub type StepFuture<'a> =
    Pin<Box<dyn Future<Output = Result<StepOutput, EngineError>> + Send + 'a>>;

/// What a runner can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunnerLimits {
    /// Tokens of the vocabulary: columns of the logits.
    pub vocab_size: usize,
    /// Positions that a sequence may have.
    pub context_max: usize,
    /// Rows of one step; a longer prompt is cut into several.
    pub rows_max: usize,
    /// Pages of the key/value pool.
    pub pages: usize,
    /// Bytes of one page over all layers.
    pub page_bytes: usize,
    /// States of the pool of recurrent states; 0 for a model without recurrent layers.
    pub states: usize,
    /// Bytes of one state over all layers.
    pub state_bytes: usize,
    /// How many rows of a prompt a step should take.
    pub prompt_steps: PromptSteps,
    /// Highest level that rows may ask for; none where weights are floats and levels mean nothing.
    pub level_max: Option<Level>,
}

/// How prompts are cut into steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PromptSteps {
    /// So that a layer takes no longer than others should wait.
    #[default]
    Timed,
    /// As few as possible: every step reads its experts anew.
    Long,
}

/// A sequence that cannot go on, while others in the batch can.
#[derive(Debug)]
pub struct SequenceFailure {
    /// Index into [`Batch::sequences`].
    pub sequence: usize,
    /// Why.
    pub error: EngineError,
}

/// What one step did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepStats {
    /// Rows computed.
    pub rows: usize,
    /// Rows whose logits were computed.
    pub logit_rows: usize,
    /// (Row, expert) pairs computed at each level, in the order of `Level::ALL`.
    pub expert_uses: [u64; 5],
    /// Bytes of the planes that those pairs use, as a store holds them, once for each pair: what rows
    /// would read alone.
    pub expert_use_bytes: u64,
    /// Bytes of weights read: the planes of every matrix that had rows, once for each level at which
    /// it was used, routers and rows of the embedding included.
    pub weight_bytes: u64,
    /// What was done to have the experts there.
    pub streaming: StreamStats,
    /// What a device was given to do.
    pub device: BackendCounters,
}

/// The result of a step.
#[derive(Debug, Default)]
pub struct StepOutput {
    /// Logits of the rows that wanted them, in the order of the batch.
    pub logits: Vec<f32>, // [rows with logits, vocab_size]
    /// Columns of `logits`.
    pub vocab_size: usize,
    /// The tokens with the highest logits, of the rows that wanted logits, in their place where no more was
    /// wanted; none where a logit is not finite.
    pub best: Vec<Option<u32>>, // [rows with logits]
    /// Hidden rows after the last norm, of the rows that wanted logits, where these were wanted too.
    pub hidden: Vec<f32>, // [rows with logits, hidden_size]
    /// Sequences whose logits are not finite. Their logits must not be used.
    pub failures: Vec<SequenceFailure>,
    /// What was done.
    pub stats: StepStats,
}

impl StepOutput {
    /// Logits of the `index`-th row that wanted them.
    pub fn row(&self, index: usize) -> Option<&[f32]> {
        self.logits.chunks_exact(self.vocab_size.max(1)).nth(index)
    }
}

/// A model on a device, with the pages of its sequences. Whoever holds it counts the pages
/// ([`crate::kv_cache::PageAllocator`]) and moves positions; a runner only computes.
pub trait ModelRunner: Send {
    /// The model's hyper-parameters.
    fn config(&self) -> &ModelConfig;

    /// Sizes and limits.
    fn limits(&self) -> RunnerLimits;

    /// Computes one batch of at most `rows_max` rows. `cancel` is looked at once per layer.
    ///
    /// # Errors
    /// [`EngineError::Cancelled`]; a batch that breaks the rules of [`Batch`]; failed reads of
    /// weights; a failed device. No sequence has advanced then, and the runner stays usable.
    fn step<'a>(&'a mut self, batch: &'a Batch, cancel: &'a CancelToken) -> StepFuture<'a>;

    /// [`ModelRunner::step`], waited for on this thread.
    ///
    /// # Errors
    /// As [`ModelRunner::step`].
    fn step_blocking(
        &mut self,
        batch: &Batch,
        cancel: &CancelToken,
    ) -> Result<StepOutput, EngineError> {
        block_on(self.step(batch, cancel))
    }

    /// What changes the memory of streamed experts; none where all are resident.
    fn expert_memory(&self) -> Option<Arc<ExpertMemory>> {
        None
    }

    /// Makes the memory of experts at once what was asked of [`ExpertMemory`]; steps do it too.
    ///
    /// # Errors
    /// A budget without room for one token's experts of one layer; the old one stays.
    fn change_expert_memory(&mut self) -> Result<(), EngineError> {
        Ok(())
    }

    /// What records the routing of steps; none where nothing is routed.
    fn routing_recorder(&self) -> Option<Arc<RoutingRecorder>> {
        None
    }

    /// Takes an output back, whose memory a later step may use.
    fn recycle(&mut self, output: StepOutput) {
        drop(output);
    }

    /// Copies a page in every layer.
    ///
    /// # Errors
    /// Pages that the pool does not have.
    fn copy_page(&mut self, source: PageId, destination: PageId) -> Result<(), EngineError>;

    /// The contents of a page, `page_bytes` bytes: for snapshots.
    ///
    /// # Errors
    /// A page that the pool does not have.
    fn read_page(&mut self, page: PageId) -> Result<Vec<u8>, EngineError>;

    /// Writes what [`ModelRunner::read_page`] gave.
    ///
    /// # Errors
    /// A page that the pool does not have, or bytes of another length.
    fn write_page(&mut self, page: PageId, bytes: &[u8]) -> Result<(), EngineError>;

    /// The contents of a recurrent state, `state_bytes` bytes: for snapshots.
    ///
    /// # Errors
    /// A state that was not written; a model without recurrent layers.
    fn read_state(&mut self, state: StateId) -> Result<Vec<u8>, EngineError> {
        Err(no_states(state))
    }

    /// Writes what [`ModelRunner::read_state`] gave.
    ///
    /// # Errors
    /// A state that the pool does not have, or bytes of another length; a model without recurrent
    /// layers.
    fn write_state(&mut self, state: StateId, bytes: &[u8]) -> Result<(), EngineError> {
        let _ = bytes;
        Err(no_states(state))
    }
}

fn no_states(state: StateId) -> EngineError {
    EngineError::mismatch("recurrent state", "a model with recurrent layers", state.0)
}
