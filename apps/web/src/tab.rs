//! A model in a tab: it answers with the highest level that has arrived, one step a call.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Poll;

use nestling::ranks::open_on_workers;
use nestling::{
    CancelToken, Chat, Conversation, Engine, Event, FinishReason, GenerateOptions, Generation,
    GenerationSummary, Level, Message, Model, ModelOptions, ModelSource, SamplingOptions,
};
use serde::{Deserialize, Serialize};

use crate::arrival::Arrival;
use crate::blocks::Blocks;
use crate::error::TabError;
use crate::ranges::RangeSource;
use crate::storage::RangeStorage;
use crate::workers::{Workers, engine_options};

/// Options of a tab.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct TabOptions {
    /// Highest level to fetch, in bits. `None` means the whole store.
    pub level: Option<u8>,
    /// Budget in bytes for weights, KV cache and scratch memory. `None` means no limit.
    pub memory_budget: Option<u64>,
    /// Maximum number of tokens of a conversation. `None` means the model's.
    pub context_length: Option<usize>,
}

/// Options of one answer.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct AnswerOptions {
    /// Maximum number of tokens.
    pub max_tokens: Option<usize>,
    /// Sampling temperature; 0 chooses the likeliest token.
    pub temperature: Option<f32>,
    /// Number of likeliest tokens to sample from.
    pub top_k: Option<usize>,
    /// Probability mass of the likeliest tokens to sample from.
    pub top_p: Option<f32>,
    /// Seed of the sampler.
    pub seed: Option<u64>,
    /// Stop strings.
    pub stop: Vec<String>,
}

impl AnswerOptions {
    fn options(self) -> GenerateOptions {
        let Self { max_tokens, temperature, top_k, top_p, seed, stop } = self;
        let sampling =
            SamplingOptions { temperature, top_k, top_p, seed, ..SamplingOptions::default() };
        GenerateOptions { sampling, max_tokens, stop, ..GenerateOptions::default() }
    }
}

/// Progress of an answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Step {
    /// A step was computed without output.
    Pending,
    /// Further text.
    Text(String),
    /// Further text of the reasoning before the answer.
    Reasoning(String),
    /// The end of the answer.
    Finished(Summary),
}

/// Summary of an answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    /// "stop", "length", "context" or "cancelled".
    pub reason: &'static str,
    /// Level of the answer in bits.
    pub level: u8,
    /// Number of prompt tokens.
    pub prompt_tokens: usize,
    /// Number of tokens of the answer.
    pub answer_tokens: usize,
    /// Tokens per second after the first one; 0 for a single token.
    pub tokens_per_second: f64,
}

/// State of a tab.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// Level that has arrived, in bits; 0 before the first one.
    pub level: u8,
    /// True once the requested sections have arrived.
    pub is_complete: bool,
    /// Bytes fetched by this tab.
    pub fetched_bytes: u64,
    /// Bytes stored on this device.
    pub stored_bytes: u64,
    /// Bytes of the requested sections.
    pub wanted_bytes: u64,
    /// Number of requests for bytes.
    pub requests: u64,
    /// Bytes of memory in use by the model, in all workers.
    pub memory_bytes: u64,
    /// Number of workers that compute.
    pub threads: usize,
}

/// A conversation. Its session is created again when the level rises.
struct ChatSlot {
    messages: Vec<Message>,
    chat: Option<Chat>,
}

impl ChatSlot {
    /// Ends the session, and keeps the transcript.
    fn close(&mut self) {
        if let Some(chat) = self.chat.take() {
            self.messages = chat.transcript();
        }
    }
}

/// A model, its conversations and at most one answer.
pub struct Tab {
    arrival: Arrival,
    engine: Engine,
    options: TabOptions,
    /// Further workers. `None` means that this one computes alone.
    workers: Option<Box<dyn Workers>>,
    model: Option<Model>,
    chats: BTreeMap<u32, ChatSlot>,
    next_chat: u32,
    answer: Option<Generation>,
}

impl std::fmt::Debug for Tab {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tab").field("arrival", &self.arrival).finish_non_exhaustive()
    }
}

impl Tab {
    /// Opens a model on a server: fetches its index, unless `blocks` has it.
    ///
    /// # Errors
    /// Fails if the index cannot be fetched or is damaged, or with invalid options.
    pub fn open(
        source: Box<dyn RangeSource>,
        blocks: Blocks,
        options: TabOptions,
    ) -> Result<Self, TabError> {
        let level = options.level.map(level_of).transpose()?;
        let storage = Arc::new(RangeStorage::open(source, blocks)?);
        let engine = Engine::new(engine_options(options.memory_budget))?;
        let arrival = Arrival::open(storage, level)?;
        let (workers, model, chats, answer) = (None, None, BTreeMap::new(), None);
        Ok(Self { arrival, engine, options, workers, model, chats, next_chat: 0, answer })
    }

    /// Divides models opened later among further workers.
    pub fn divide(&mut self, workers: Box<dyn Workers>) {
        self.workers = Some(workers);
    }

    /// Fetches or verifies the next part of the store. Returns true once all of it is there.
    ///
    /// # Errors
    /// Fails as [`Arrival::step`] does. A later call continues.
    pub fn fetch_more(&mut self) -> Result<bool, TabError> {
        self.arrival.step()
    }

    /// Returns the state.
    pub fn status(&self) -> Status {
        let storage = self.arrival.storage();
        Status {
            level: bits(self.arrival.level()),
            is_complete: self.arrival.is_complete(),
            fetched_bytes: storage.fetched_bytes(),
            stored_bytes: storage.stored_bytes(),
            wanted_bytes: self.arrival.bytes_wanted(),
            requests: storage.requests(),
            memory_bytes: self.engine.budget().used_bytes(),
            // Default: this worker alone.
            threads: self.workers.as_ref().map_or(1, |workers| workers.count()),
        }
    }

    /// Creates a conversation, with instructions if `system` is not empty.
    pub fn new_chat(&mut self, system: &str) -> u32 {
        let messages = if system.is_empty() { Vec::new() } else { vec![Message::system(system)] };
        let id = self.next_chat;
        self.next_chat += 1;
        self.chats.insert(id, ChatSlot { messages, chat: None });
        id
    }

    /// Removes a conversation.
    pub fn close_chat(&mut self, id: u32) {
        self.chats.remove(&id);
    }

    /// Sends a message of the user, and starts the answer. [`Tab::step`] computes it.
    ///
    /// # Errors
    /// Fails with [`TabError::Busy`], [`TabError::NotReady`] or [`TabError::Invalid`], and as
    /// [`Chat::send`] does.
    pub fn send(&mut self, id: u32, text: &str, options: AnswerOptions) -> Result<(), TabError> {
        let model = self.ready_model()?;
        let slot = self
            .chats
            .get_mut(&id)
            .ok_or_else(|| TabError::Invalid { what: "chat", reason: "it is closed".into() })?;
        let chat = slot.chat.get_or_insert_with(|| {
            Chat::new(model.session(), Conversation::new(std::mem::take(&mut slot.messages)))
        });
        self.answer = Some(chat.send(text, &options.options())?);
        Ok(())
    }

    /// Starts the completion of raw text. [`Tab::step`] computes it.
    ///
    /// # Errors
    /// Fails as [`Tab::send`] does.
    pub fn complete(&mut self, text: &str, options: AnswerOptions) -> Result<(), TabError> {
        let model = self.ready_model()?;
        self.answer = Some(model.session().generate(text, &options.options())?);
        Ok(())
    }

    /// Computes at most one step of the answer.
    ///
    /// # Errors
    /// Returns the error that ended the answer. If a worker was lost, the next answer is computed by this one alone.
    pub fn step(&mut self) -> Result<Step, TabError> {
        let Some(answer) = &mut self.answer else { return Err(TabError::NotReady) };
        match answer.try_next() {
            Poll::Pending => Ok(Step::Pending),
            Poll::Ready(Some(Ok(Event::Text(text)))) => Ok(Step::Text(text)),
            Poll::Ready(Some(Ok(Event::Reasoning(text)))) => Ok(Step::Reasoning(text)),
            Poll::Ready(Some(Ok(Event::Finished(summary)))) => {
                self.answer = None;
                Ok(Step::Finished(self.summary(&summary)))
            }
            Poll::Ready(Some(Ok(_))) => Ok(Step::Pending),
            Poll::Ready(Some(Err(error))) => {
                self.answer = None;
                if error.needs_reopening() {
                    self.close_model();
                    self.workers = None;
                }
                Err(error.into())
            }
            Poll::Ready(None) => {
                self.answer = None;
                Err(nestling::EngineError::EngineClosed.into())
            }
        }
    }

    /// Cancels the answer, whose next step is then the last one.
    pub fn cancel(&self) {
        if let Some(answer) = &self.answer {
            answer.cancel();
        }
    }

    fn summary(&self, summary: &GenerationSummary) -> Summary {
        let stats = &summary.stats;
        let has_speed = stats.decode_seconds > 0.0;
        Summary {
            reason: match summary.reason {
                FinishReason::Length => "length",
                FinishReason::ContextFull => "context",
                FinishReason::Cancelled => "cancelled",
                _ => "stop",
            },
            level: bits(self.model.as_ref().and_then(|model| model.limits().level_max)),
            prompt_tokens: summary.usage.prompt_tokens,
            answer_tokens: summary.usage.completion_tokens,
            tokens_per_second: match has_speed {
                true => stats.decode_tokens as f64 / stats.decode_seconds,
                false => 0.0,
            },
        }
    }

    /// Returns the model at the highest level that has arrived, opening it if necessary.
    fn ready_model(&mut self) -> Result<Model, TabError> {
        if self.answer.is_some() {
            return Err(TabError::Busy);
        }
        let level = self.arrival.level().ok_or(TabError::NotReady)?;
        if let Some(model) = &self.model
            && model.limits().level_max >= Some(level)
        {
            return Ok(model.clone());
        }
        // Closed first, so that two levels need not fit the memory.
        self.close_model();
        let model = match self.open_divided() {
            Some(Ok(model)) => model,
            _ => {
                // A model whose shares do not fit may fit as a whole.
                self.workers = None;
                let (source, options) = self.source()?;
                let cancel = CancelToken::new();
                Model::open_source(&self.engine, source, &options, &mut |_| {}, &cancel)?
            }
        };
        Ok(self.model.insert(model).clone())
    }

    fn close_model(&mut self) {
        self.chats.values_mut().for_each(ChatSlot::close);
        self.model = None;
    }

    fn source(&self) -> Result<(ModelSource, ModelOptions), TabError> {
        let context_length = self.options.context_length;
        let options = ModelOptions { context_length, ..ModelOptions::default() };
        Ok((ModelSource::Store(self.arrival.open_store()?), options))
    }

    /// Opens the model with the further workers, if there are any.
    fn open_divided(&mut self) -> Option<Result<Model, TabError>> {
        let bytes = self.arrival.bytes_ready();
        let group = self.workers.as_mut()?.start(bytes);
        let open = |(source, options), group| {
            let cancel = CancelToken::new();
            open_on_workers(&self.engine, source, &options, group, &mut |_| {}, &cancel)
        };
        let opened = group.and_then(|group| Ok(open(self.source()?, group)?));
        Some(opened.and_then(|model| model.ok_or(TabError::NotReady)))
    }
}

fn level_of(bits: u8) -> Result<Level, TabError> {
    let level = Level::ALL.into_iter().find(|level| level.bits() == bits);
    let reason = || format!("{bits} is not 2, 3, 4, 6 or 8");
    level.ok_or_else(|| TabError::Invalid { what: "level", reason: reason() })
}

/// Returns the bits of a level.
fn bits(level: Option<Level>) -> u8 {
    // Default: 0 means no level yet.
    level.map_or(0, Level::bits)
}
