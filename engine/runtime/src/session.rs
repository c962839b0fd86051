//! Sessions: a token history and the operations on it.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;

use crate::engine::EngineCore;
use crate::event::{FinishReason, Stats, Usage};
use crate::event_buffer::EventBuffer;
use crate::generate::Generation;
use crate::input::{Input, Prompt};
use crate::model_core::ModelCore;
use crate::open::Model;
use crate::options::GenerateOptions;
use crate::prefix::PrefixScope;
use crate::sequence::Sequence;
use crate::slot::{SessionSlot, SlotState};
use crate::starting::PendingStart;
use crate::step_loop::{Answer, AnswerText, Guard, GuardParts, PromptRows, QueuePermit, Task};
use crate::stored_pages::bring;
use nestling_core::batch::LevelPolicy;
use nestling_core::cancel::CancelToken;
use nestling_core::clock::Moment;
use nestling_core::error::EngineError;
use nestling_core::schedule::{GenerationPhase, SchedulingOptions};
use nestling_core::sync::MutexGuard;
use nestling_formats::memory::{try_reserve, try_to_vec};
use nestling_text::Sampler;
use nestling_text::{OutputParser, StopMatcher};

/// Name of the allocation in out-of-memory errors.
const HISTORY: &str = "tokens of a session";

/// A token history of a model, with its KV cache.
///
/// A session runs one generation at a time. While it runs, calls that access the history fail with
/// [`EngineError::SessionBusy`]. If the generation was cancelled or its handle dropped, they wait until it
/// has stopped, at most one layer.
#[derive(Debug)]
pub struct Session {
    model: Model,
    slot: Arc<SessionSlot>,
}

impl Model {
    /// Creates a session with an empty history.
    pub fn session(&self) -> Session {
        Session::new(self.clone(), Sequence::new(self.core.pool.clone()))
    }
}

impl Session {
    pub(crate) fn new(model: Model, sequence: Sequence) -> Self {
        let slot = model.core.add_slot(sequence);
        Self { model, slot }
    }

    /// Returns the model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Returns the history: prompts and outputs, oldest first.
    ///
    /// # Errors
    /// Fails with [`EngineError::SessionBusy`] while a generation runs.
    pub fn tokens(&self) -> Result<Vec<u32>, EngineError> {
        Ok(self.with(|sequence| try_to_vec(HISTORY, sequence.tokens()))??)
    }

    /// Returns the number of tokens in the KV cache.
    ///
    /// # Errors
    /// Fails with [`EngineError::SessionBusy`] while a generation runs.
    pub fn computed_tokens(&self) -> Result<usize, EngineError> {
        self.with(|sequence| sequence.computed())
    }

    /// Appends tokens to the history. The next generation computes them.
    ///
    /// # Errors
    /// Returns an error for tokens outside the vocabulary. Fails with [`EngineError::ContextFull`], or with
    /// [`EngineError::SessionBusy`] while a generation runs. The history is then unchanged.
    pub fn append(&mut self, tokens: &[u32]) -> Result<(), EngineError> {
        let core = &self.model.core;
        core.check_tokens(tokens)?;
        self.with(|sequence| {
            core.check_length(sequence.tokens().len() + tokens.len())?;
            Ok(sequence.extend(tokens)?)
        })?
    }

    /// Removes all tokens from position `length` on.
    ///
    /// # Errors
    /// Fails with [`EngineError::SessionBusy`] while a generation runs.
    pub fn truncate(&mut self, length: usize) -> Result<(), EngineError> {
        self.with(|sequence| sequence.truncate(length))
    }

    /// Replaces the history by `tokens`. The prefix shared with the old history is not recomputed.
    ///
    /// # Errors
    /// Fails as [`Session::append`] does.
    pub fn replace(&mut self, tokens: Vec<u32>) -> Result<(), EngineError> {
        let core = &self.model.core;
        core.check_tokens(&tokens)?;
        core.check_length(tokens.len())?;
        self.with(|sequence| sequence.replace(tokens))
    }

    /// Frees context space: removes `discard` tokens after the first `keep`.
    ///
    /// Later tokens move to other positions and are recomputed.
    ///
    /// # Errors
    /// Fails with [`EngineError::SessionBusy`] while a generation runs.
    pub fn shift(&mut self, keep: usize, discard: usize) -> Result<(), EngineError> {
        self.with(|sequence| {
            let mut tokens = try_to_vec(HISTORY, sequence.tokens())?;
            let start = keep.min(tokens.len());
            let end = start.saturating_add(discard).min(tokens.len());
            tokens.drain(start..end);
            sequence.replace(tokens);
            Ok(())
        })?
    }

    /// Creates a second session with the same history. The KV cache is shared until the histories diverge.
    ///
    /// ```
    /// # use nestling_runtime::{Engine, Model};
    /// # let store = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/nestling-storyteller.nest");
    /// # let engine = Engine::new(Default::default())?;
    /// # let model = Model::open(&engine, store, &Default::default(), &mut |_| {}, &Default::default())?;
    /// let mut session = model.session();
    /// session.append(&[3, 1, 4])?;
    /// let mut fork = session.fork()?;
    /// fork.append(&[1])?;
    /// assert_eq!((session.tokens()?.len(), fork.tokens()?.len()), (3, 4));
    /// # Ok::<(), nestling_core::EngineError>(())
    /// ```
    ///
    /// # Errors
    /// Fails with [`EngineError::SessionBusy`] while a generation runs.
    pub fn fork(&self) -> Result<Self, EngineError> {
        let sequence = self.with(|sequence| sequence.fork())??;
        Ok(Self::new(self.model.clone(), sequence))
    }

    /// Starts a generation that continues from `input`. All input errors are detected before any computation.
    ///
    /// ```no_run
    /// # fn tell(mut session: nestling_runtime::Session) -> Result<(), nestling_core::EngineError> {
    /// for event in session.generate("Once upon a time", &Default::default())? {
    ///     println!("{:?}", event?);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Rendering and tokenization run within this call, and block for long inputs. Other sessions continue
    /// meanwhile, but the engine tokenizes one long text at a time. Input that is too long by its byte length
    /// alone is rejected immediately.
    ///
    /// The handle does not borrow the session. Both may move to other threads, and the generation continues
    /// if the session is dropped.
    ///
    /// # Errors
    /// Fails with [`EngineError::ContextFull`] if the prompt leaves no space for output,
    /// [`EngineError::SessionBusy`], [`EngineError::EngineClosed`], or [`EngineError::Busy`] if the queue is
    /// full. Returns an error for invalid options or tokens. The history is then unchanged.
    pub fn generate(
        &mut self,
        input: impl Into<Input>,
        options: &GenerateOptions,
    ) -> Result<Generation, EngineError> {
        self.generate_with_cancel(input, options, &CancelToken::new())
    }

    /// Works as [`Session::generate`], but returns an error if the generation would have to wait.
    ///
    /// That is the case if other generations wait, or if the prompt and part of the output do not fit the
    /// free pages. A generation started concurrently may still take those pages first.
    ///
    /// # Errors
    /// Fails as [`Session::generate`] does, or with [`EngineError::Busy`], which reports the shortage. The
    /// history is then unchanged.
    pub fn try_generate(
        &mut self,
        input: impl Into<Input>,
        options: &GenerateOptions,
    ) -> Result<Generation, EngineError> {
        self.begin(input.into(), options, &CancelToken::new(), true)
    }

    /// Works as [`Session::generate`], and also stops if `cancel` is triggered.
    ///
    /// Useful for a token that exists before the generation or cancels several operations. Otherwise use
    /// [`Generation::cancel_token`].
    ///
    /// # Errors
    /// Fails as [`Session::generate`] does, or with [`EngineError::Cancelled`] if `cancel` is triggered
    /// before tokenization ends. The history is then unchanged.
    pub fn generate_with_cancel(
        &mut self,
        input: impl Into<Input>,
        options: &GenerateOptions,
        cancel: &CancelToken,
    ) -> Result<Generation, EngineError> {
        self.begin(input.into(), options, cancel, false)
    }

    /// Works as [`Session::generate`] without blocking, and without requiring an async runtime.
    ///
    /// Rendering, tokenization and the wait for a cancelled generation run on a thread of the engine.
    /// Dropping the future cancels the start and leaves the history unchanged. On platforms without threads,
    /// its first poll does the work.
    ///
    /// ```no_run
    /// # use nestling_runtime::{GenerateOptions, Session};
    /// # async fn answer(mut session: Session) -> Result<(), nestling_core::EngineError> {
    /// let options = GenerateOptions { max_tokens: Some(100), ..GenerateOptions::default() };
    /// let (text, finished) = session.generate_async("Call me", &options).await?.await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails as [`Session::generate`] does, with [`EngineError::Thread`], or with [`EngineError::Busy`] if
    /// too many starts are running.
    pub async fn generate_async(
        &mut self,
        input: impl Into<Input>,
        options: &GenerateOptions,
    ) -> Result<Generation, EngineError> {
        let (input, options) = (input.into(), options.clone());
        let start = move |session: &mut Self, cancel: &CancelToken| {
            session.begin(input, &options, cancel, false)
        };
        self.begin_elsewhere(start).await
    }

    /// Runs `begin` on a thread of the engine.
    pub(crate) async fn begin_elsewhere<T: Send + 'static>(
        &mut self,
        begin: impl FnOnce(&mut Self, &CancelToken) -> Result<T, EngineError> + Send + 'static,
    ) -> Result<T, EngineError> {
        let engine = &self.model.engine;
        let most = engine.options.waiting_max.max(1);
        let mut session = self.handle();
        let start = move |cancel: &CancelToken| begin(&mut session, cancel);
        PendingStart::new(&engine.starting, most, start)?.await
    }

    /// Returns a second handle of the same session, for use on a thread while the session is borrowed.
    pub(crate) fn handle(&self) -> Self {
        Self { model: self.model.clone(), slot: Arc::clone(&self.slot) }
    }

    fn begin(
        &mut self,
        input: Input,
        options: &GenerateOptions,
        cancel: &CancelToken,
        at_once: bool,
    ) -> Result<Generation, EngineError> {
        let started = Moment::now();
        let core = &self.model.core;
        let levels = core.levels(options.level, options.dual)?;
        if self.model.engine.is_closed() {
            return Err(EngineError::EngineClosed);
        }
        if core.is_broken() {
            return Err(EngineError::ModelBroken);
        }
        // The slot is locked briefly here and again below, but not while foreign code tokenizes text of any
        // length. The history cannot change meanwhile, since the session is borrowed.
        let history = self.tokens()?;
        core.touch(&self.slot);
        let tokens_max = options.max_tokens.unwrap_or(usize::MAX);
        let reserve = usize::from(tokens_max > 0);
        let prompt = self.model.prompt_tokens(input, history, reserve, cancel)?;
        core.check_tokens(&prompt.tokens)?;
        if prompt.tokens.is_empty() {
            return Err(EngineError::EmptyPrompt);
        }
        let answer = self.answer(&prompt, tokens_max, options)?;
        if cancel.is_cancelled() {
            return Err(EngineError::Cancelled);
        }
        let place =
            self.model.engine.place(core, prompt.tokens.len(), answer.tokens_max, at_once)?;
        let (logprobs, hidden) = (options.prompt_logprobs, options.hidden);
        let length = prompt.tokens.len();
        let done = hidden.map_or(options.prompt_logprobs_from.saturating_sub(1), |_| 0);
        let prompt_rows = PromptRows { logprobs, hidden, length, done };
        let first_needed = prompt_rows.first_needed(length - 1, answer.tokens_max > 0);
        let scope = core.prefix_scope(levels, options.cache_salt.clone());
        let beginning = &prompt.tokens[..first_needed];
        // Holds the loaded pages until the sequence has adopted them.
        let _brought = scope.as_ref().and_then(|scope| bring(core, scope, beginning, cancel));
        self.start(Start {
            prompt: prompt.tokens,
            answer,
            levels,
            scope,
            prompt_rows,
            first_needed,
            cancel: cancel.child(),
            options,
            started,
            place,
        })
    }

    /// Hands the sequence with a validated prompt to the step loop.
    fn start(&self, start: Start<'_>) -> Result<Generation, EngineError> {
        let Start { mut prompt, answer, levels, scope, prompt_rows, first_needed, .. } = start;
        let Start { cancel, options, started, place, .. } = start;
        let core = &self.model.core;
        let engine = &self.model.engine;
        let prompt_tokens = prompt.len();
        let mut state = self.acquire()?;
        if cancel.is_cancelled() {
            // After a cancelled asynchronous start, the history may have changed.
            return Err(EngineError::Cancelled);
        }
        // Reserved in advance, so that adding output tokens does not allocate.
        let room = core.context_length().saturating_sub(prompt_tokens).min(answer.tokens_max);
        try_reserve(&mut prompt, HISTORY, room)?;
        let taken = std::mem::replace(&mut *state, SlotState::Running(cancel.clone()));
        let SlotState::Resting(mut sequence) = taken else {
            *state = taken;
            return Err(EngineError::SessionBusy);
        };
        drop(state);
        sequence.set_levels(levels);
        sequence.set_scope(scope);
        sequence.replace(prompt);
        if first_needed < sequence.computed() {
            sequence.forget_computed(first_needed);
        }
        core.pool.note_prefix(sequence.adopt(first_needed));
        let cached_tokens = sequence.computed();
        let buffer = Arc::new(EventBuffer::new(options.events_max));
        core.touch(&self.slot);
        let now = started.seconds_since(engine.epoch());
        let deadline = options.deadline.map(|deadline| now + deadline.as_secs_f64());
        let wishes =
            SchedulingOptions { priority: options.priority, deadline, group: options.group };
        let turn = core.scheduler().turns.arrive(wishes, sequence.pending().len(), now);
        let done = sequence.pending().is_empty().then_some(FinishReason::Length);
        let task = Task {
            model: Arc::clone(core),
            slot: Arc::clone(&self.slot),
            sequence,
            buffer: Arc::clone(&buffer),
            cancel: cancel.clone(),
            answer,
            prompt_rows,
            levels,
            usage: Usage { prompt_tokens, cached_tokens, completion_tokens: 0 },
            stats: Stats::default(),
            started,
            deadline: options.deadline,
            first_token: None,
            turn,
            standing: GenerationPhase::Waiting,
            alone: false,
            done,
            failed: None,
        };
        engine.send(task, place);
        Ok(Generation { buffer, engine: Arc::clone(engine), cancel })
    }

    fn answer(
        &self,
        prompt: &Prompt,
        tokens_max: usize,
        options: &GenerateOptions,
    ) -> Result<Answer, EngineError> {
        let core = &self.model.core;
        core.check_tokens(&options.stop_tokens)?;
        for (token, _) in options.sampling.logit_bias.iter().flatten() {
            core.check_tokens(&[*token])?;
        }
        let sampling = options.sampling.over(&core.sampling);
        let token_events = options.token_events || sampling.top_logprobs.is_some();
        // Token ids unknown to the tokenizer have no text, so they are excluded from sampling.
        let vocab_size = match &core.tokenizer {
            Some(tokenizer) => tokenizer.vocab_size().min(core.limits.vocab_size),
            None => core.limits.vocab_size,
        };
        let mut sampler =
            Sampler::new(sampling, vocab_size, new_seed()).map_err(EngineError::sample)?;
        sampler.accept_prompt(&prompt.tokens);
        if let Some(tokenizer) = &core.tokenizer {
            sampler.find_breakers(tokenizer).map_err(EngineError::text)?;
        }
        let stops = StopMatcher::new(options.stop.clone()).map_err(EngineError::text)?;
        let mut end_tokens = options.stop_tokens.clone();
        if !options.ignore_end {
            end_tokens.extend(&core.end_tokens);
        }
        let guard = self.guard(prompt, &sampler, &end_tokens, options)?;
        let is_raw = guard.as_ref().is_some_and(|guard| guard.is_text());
        let text = core.tokenizer.as_ref().map(|tokenizer| AnswerText {
            decoder: tokenizer
                .decode_stream(options.show_special)
                .keeping(&prompt.format.marker_texts()),
            stops,
            parser: OutputParser::new(prompt.format.clone(), prompt.next_call),
            is_raw,
        });
        Ok(Answer {
            sampler,
            guard,
            text,
            end_tokens,
            token_events,
            tokens_max,
            tokens: 0,
            called_tools: false,
            stopped: false,
            stop: None,
        })
    }

    fn guard(
        &self,
        prompt: &Prompt,
        sampler: &Sampler,
        end_tokens: &[u32],
        options: &GenerateOptions,
    ) -> Result<Option<Box<Guard>>, EngineError> {
        // Default: the output is unconstrained.
        let Some(source) = &options.constraint else { return Ok(None) };
        let room = self.model.core.context_length().saturating_sub(prompt.tokens.len());
        let guard = Guard::new(GuardParts {
            source: source.as_ref(),
            tokenizer: self.model.core.tokenizer.as_ref(),
            format: &prompt.format,
            vocab_size: sampler.vocab_size(),
            end_tokens,
            one_by_one: sampler.params().top_logprobs.is_some(),
            tokens_max: options.max_tokens.map_or(room, |limit| limit.min(room)),
            workers: Arc::clone(&self.model.engine.masks),
            cache: &self.model.core.constraint_cache,
        });
        Ok(Some(Box::new(guard.map_err(EngineError::constraint)?)))
    }

    pub(crate) fn core(&self) -> &ModelCore {
        &self.model.core
    }

    /// Calls `work` with the sequence. Fails while a generation runs.
    pub(crate) fn with<T>(&self, work: impl FnOnce(&mut Sequence) -> T) -> Result<T, EngineError> {
        match &mut *self.acquire()? {
            SlotState::Resting(sequence) => Ok(work(sequence)),
            SlotState::Running(_) => Err(EngineError::SessionBusy),
        }
    }

    /// Locks the slot once it holds the sequence, waiting for a cancelled generation to stop.
    fn acquire(&self) -> Result<MutexGuard<'_, SlotState>, EngineError> {
        let engine: &EngineCore = &self.model.engine;
        let mut state = self.slot.lock()?;
        loop {
            match &*state {
                SlotState::Resting(_) => return Ok(state),
                SlotState::Running(cancel) if !cancel.is_cancelled() => {
                    return Err(EngineError::SessionBusy);
                }
                SlotState::Running(_) if engine.drives_itself() => state = self.slot.wait(state)?,
                SlotState::Running(_) => {
                    drop(state);
                    engine.drive();
                    state = self.slot.lock()?;
                }
            }
        }
    }
}

struct Start<'a> {
    prompt: Vec<u32>,
    answer: Answer,
    levels: LevelPolicy,
    scope: Option<PrefixScope>,
    prompt_rows: PromptRows,
    /// Position of the first token that must be computed even if it is cached.
    first_needed: usize,
    cancel: CancelToken,
    options: &'a GenerateOptions,
    started: Moment,
    place: QueuePermit,
}

fn new_seed() -> u64 {
    RandomState::new().build_hasher().finish()
}
