//! A model in a tab: it answers with the highest level that has arrived, one step a call.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Poll;

use nestling::ranks::open_on_workers;
use nestling::{
    CancelToken, Device, DeviceOptions, Engine, EngineError, Generation, Level, Message, Model,
    OpenDevice, SnapshotContents,
};
use serde::{Deserialize, Serialize};

use crate::answer::{AnswerOptions, Step};
use crate::arrival::Arrival;
use crate::blocks::Blocks;
use crate::error::TabError;
use crate::options::{DeviceChoice, TabOptions};
use crate::ranges::RangeSource;
use crate::slots::{ChatSlot, SessionSlot};
use crate::storage::RangeStorage;
use crate::workers::{Workers, engine_options};

/// State of a tab.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// Level that has arrived, in bits; 0 before the first one, and for a GGUF file.
    pub level: u8,
    /// True once a message can be answered.
    pub is_usable: bool,
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
    /// Device that computes: "cpu" or "gpu".
    pub device: &'static str,
}

/// A model, its conversations and at most one answer.
pub struct Tab {
    arrival: Arrival,
    engine: Engine,
    options: TabOptions,
    device_options: DeviceOptions,
    device: OpenDevice,
    /// Further workers. `None` means that this one computes alone.
    workers: Option<Box<dyn Workers>>,
    model: Option<Model>,
    chats: BTreeMap<u32, ChatSlot>,
    sessions: BTreeMap<u32, SessionSlot>,
    next_slot: u32,
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
        Ok(Self {
            arrival,
            engine,
            options,
            device_options: DeviceOptions { device: Device::Cpu, ..DeviceOptions::default() },
            device: OpenDevice::Cpu { reason: None },
            workers: None,
            model: None,
            chats: BTreeMap::new(),
            sessions: BTreeMap::new(),
            next_slot: 0,
            answer: None,
        })
    }

    /// Opens the device of the options. Before this call, and for [`DeviceChoice::Cpu`], the CPU computes.
    ///
    /// # Errors
    /// Fails with [`TabError::Device`] if [`DeviceChoice::Gpu`] is unavailable.
    pub fn open_device(&mut self) -> Result<(), TabError> {
        let device = match self.options.device {
            DeviceChoice::Auto => Ok(Device::Auto),
            DeviceChoice::Cpu => Ok(Device::Cpu),
            // A browser has one adapter at most.
            DeviceChoice::Gpu => "wgpu:0".parse(),
        };
        let unavailable = |reason: String| TabError::Device { reason };
        let device =
            device.map_err(|error: nestling::DeviceError| unavailable(error.to_string()))?;
        let device_budget = self.options.memory_budget;
        let options = DeviceOptions { device, device_budget, ..DeviceOptions::default() };
        self.device = options.open().map_err(|error| unavailable(error.to_string()))?;
        self.device_options = options;
        Ok(())
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
            is_usable: self.arrival.is_usable(),
            is_complete: self.arrival.is_complete(),
            fetched_bytes: storage.fetched_bytes(),
            stored_bytes: storage.stored_bytes(),
            wanted_bytes: self.arrival.bytes_wanted(),
            requests: storage.requests(),
            memory_bytes: self.engine.budget().used_bytes(),
            device: if self.device.is_cpu() { "cpu" } else { "gpu" },
            // Default: this worker alone.
            threads: self.workers.as_ref().map_or(1, |workers| workers.count()),
        }
    }

    /// Sets the budget of a model that is open, or of the next one.
    ///
    /// # Errors
    /// Fails if the model needs more; nothing changes then.
    pub fn set_memory_budget(&mut self, bytes: u64) -> Result<(), TabError> {
        match &self.model {
            Some(model) => model.set_memory_budget(bytes)?,
            None => self.engine.budget().set_total_bytes(Some(bytes)),
        }
        Ok(())
    }

    /// Creates a conversation from its JSON form, [`nestling::ConversationJson`].
    ///
    /// # Errors
    /// Fails with [`TabError::Invalid`].
    pub fn new_chat(&mut self, conversation: &str) -> Result<u32, TabError> {
        let chat = ChatSlot::new(conversation)?;
        let id = self.next_slot();
        self.chats.insert(id, chat);
        Ok(id)
    }

    /// Removes a conversation.
    pub fn close_chat(&mut self, id: u32) {
        self.chats.remove(&id);
    }

    /// Returns the messages of a conversation.
    ///
    /// # Errors
    /// Fails with [`TabError::Invalid`] if it is closed.
    pub fn transcript(&mut self, id: u32) -> Result<Vec<Message>, TabError> {
        Ok(found(&mut self.chats, id)?.transcript())
    }

    /// Sends a message of the user, and starts the answer. [`Tab::step`] computes it.
    ///
    /// # Errors
    /// Fails with [`TabError::Busy`], [`TabError::NotReady`] or [`TabError::Invalid`], and as
    /// [`nestling::Chat::send`] does.
    pub fn send(&mut self, id: u32, text: &str, options: AnswerOptions) -> Result<(), TabError> {
        let model = self.ready_model()?;
        let slot = found(&mut self.chats, id)?;
        let asked = options.options(&slot.tools)?;
        let chat = slot.on(&model);
        chat.conversation_mut()?.tools = asked.tools;
        self.answer = Some(chat.send(text, &asked.options)?);
        Ok(())
    }

    /// Returns the results of the tool calls that are open, in their order, and starts the answer.
    ///
    /// # Errors
    /// Fails as [`Tab::send`] does, and with [`TabError::Invalid`] if there are not as many calls.
    pub fn reply_to_tools(
        &mut self,
        id: u32,
        results: Vec<String>,
        options: AnswerOptions,
    ) -> Result<(), TabError> {
        let model = self.ready_model()?;
        let slot = found(&mut self.chats, id)?;
        let asked = options.options(&slot.tools)?;
        let chat = slot.on(&model);
        let calls = chat.open_calls();
        if calls.len() != results.len() {
            let reason = format!("{} of them for {} tool calls", results.len(), calls.len());
            return Err(TabError::Invalid { what: "results", reason });
        }
        let both = calls.into_iter().zip(results);
        let replies = both.map(|(call, result)| Message::tool(call.id, result)).collect();
        chat.conversation_mut()?.tools = asked.tools;
        self.answer = Some(chat.reply_to_tools(replies, &asked.options)?);
        Ok(())
    }

    /// Creates an empty session.
    pub fn new_session(&mut self) -> u32 {
        self.add_session(SessionSlot::default())
    }

    /// Creates a session from a snapshot.
    ///
    /// # Errors
    /// Fails with [`TabError::NotReady`], or if the snapshot is damaged or belongs to another model.
    pub fn restore(&mut self, snapshot: &[u8]) -> Result<u32, TabError> {
        let session = self.ready_model()?.restore(snapshot)?;
        Ok(self.add_session(SessionSlot::new(session)))
    }

    /// Copies a session.
    ///
    /// # Errors
    /// Fails with [`TabError::Invalid`] if it is closed, and with an error of the engine if it is in use.
    pub fn fork_session(&mut self, id: u32) -> Result<u32, TabError> {
        let model = self.ready_model()?;
        let fork = found(&mut self.sessions, id)?.on(&model)?.fork()?;
        Ok(self.add_session(SessionSlot::new(fork)))
    }

    /// Returns the tokens of a session.
    ///
    /// # Errors
    /// Fails as [`Tab::fork_session`] does.
    pub fn session_tokens(&mut self, id: u32) -> Result<Vec<u32>, TabError> {
        let model = self.ready_model()?;
        Ok(found(&mut self.sessions, id)?.on(&model)?.tokens()?)
    }

    /// Returns the bytes of a session with its computed state.
    ///
    /// # Errors
    /// Fails as [`Tab::fork_session`] does, and if the memory does not suffice.
    pub fn snapshot(&mut self, id: u32) -> Result<Vec<u8>, TabError> {
        let model = self.ready_model()?;
        let session = found(&mut self.sessions, id)?.on(&model)?;
        Ok(session.snapshot(SnapshotContents::TokensAndPages)?)
    }

    /// Removes a session.
    pub fn close_session(&mut self, id: u32) {
        self.sessions.remove(&id);
    }

    /// Starts the continuation of a session by a text or by tokens. [`Tab::step`] computes it.
    ///
    /// # Errors
    /// Fails as [`Tab::send`] does.
    pub fn generate(
        &mut self,
        id: u32,
        prompt: Prompt,
        options: AnswerOptions,
    ) -> Result<(), TabError> {
        let asked = options.options(&[])?;
        let model = self.ready_model()?;
        let session = found(&mut self.sessions, id)?.on(&model)?;
        self.answer = Some(match prompt {
            Prompt::Text(text) => session.generate(text, &asked.options)?,
            Prompt::Tokens(tokens) => session.generate(tokens, &asked.options)?,
        });
        Ok(())
    }

    /// Computes at most one step of the answer.
    ///
    /// # Errors
    /// Returns the error that ended the answer. If a worker was lost, the next answer is computed by this one alone.
    pub fn step(&mut self) -> Result<Step, TabError> {
        let Some(answer) = &mut self.answer else { return Err(TabError::NotReady) };
        let error = match answer.try_next() {
            Poll::Pending => return Ok(Step::Pending),
            Poll::Ready(Some(Ok(event))) => {
                let level = bits(self.model.as_ref().and_then(|model| model.limits().level_max));
                let step = Step::of(event, level);
                if matches!(step, Step::Finished { .. }) {
                    self.answer = None;
                }
                return Ok(step);
            }
            Poll::Ready(Some(Err(error))) => error,
            Poll::Ready(None) => EngineError::EngineClosed,
        };
        self.answer = None;
        if error.needs_reopening() {
            self.close_model()?;
            self.workers = None;
        }
        Err(error.into())
    }

    /// Cancels the answer, whose next step is then the last one.
    pub fn cancel(&self) {
        if let Some(answer) = &self.answer {
            answer.cancel();
        }
    }

    fn next_slot(&mut self) -> u32 {
        self.next_slot += 1;
        self.next_slot
    }

    fn add_session(&mut self, session: SessionSlot) -> u32 {
        let id = self.next_slot();
        self.sessions.insert(id, session);
        id
    }

    /// Returns the model at the highest level that has arrived, opening it if necessary.
    fn ready_model(&mut self) -> Result<Model, TabError> {
        if self.answer.is_some() {
            return Err(TabError::Busy);
        }
        if let Some(model) = &self.model
            && model.limits().level_max >= self.arrival.level()
        {
            return Ok(model.clone());
        }
        if !self.arrival.is_usable() {
            return Err(TabError::NotReady);
        }
        // Closed first, so that two levels need not fit the memory.
        self.close_model()?;
        let model = match self.open_divided() {
            Some(Ok(model)) => model,
            _ => {
                // A model whose shares do not fit may fit as a whole.
                self.workers = None;
                self.open_on_device()?
            }
        };
        Ok(self.model.insert(model).clone())
    }

    fn close_model(&mut self) -> Result<(), TabError> {
        self.chats.values_mut().for_each(ChatSlot::close);
        self.sessions.values_mut().try_for_each(SessionSlot::close)?;
        self.model = None;
        Ok(())
    }

    /// Opens the model with the further workers, if there are any.
    fn open_divided(&mut self) -> Option<Result<Model, TabError>> {
        let bytes = self.arrival.bytes_shared()?;
        let group = self.workers.as_mut()?.start(bytes);
        let open = |group| -> Result<Option<Model>, TabError> {
            let (source, options) =
                (self.arrival.source(&self.device)?, self.options.model_options());
            let cancel = CancelToken::new();
            Ok(open_on_workers(&self.engine, source, &options, group, &mut |_| {}, &cancel)?)
        };
        Some(group.and_then(open).and_then(|model| model.ok_or(TabError::NotReady)))
    }

    /// Opens the model on the device, or on the CPU if the device was not asked for by name and refuses it.
    fn open_on_device(&mut self) -> Result<Model, TabError> {
        match self.try_device()? {
            Ok(model) => Ok(model),
            Err(error) => {
                self.device = self.device_options.instead(&self.device, error)?;
                Ok(self.try_device()??)
            }
        }
    }

    /// Opens what has arrived on the device. The inner error is the engine's.
    fn try_device(&self) -> Result<Result<Model, EngineError>, TabError> {
        let (source, options) = (self.arrival.source(&self.device)?, self.options.model_options());
        let cancel = CancelToken::new();
        Ok(self.device.open_model(&self.engine, source, &options, &mut |_| {}, &cancel))
    }
}

/// Prompt of a session.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Prompt {
    /// Text, without a chat template.
    Text(String),
    /// Token ids.
    Tokens(Vec<u32>),
}

/// Returns an open conversation or session.
fn found<T>(slots: &mut BTreeMap<u32, T>, id: u32) -> Result<&mut T, TabError> {
    slots.get_mut(&id).ok_or_else(|| TabError::Invalid {
        what: "conversation or session",
        reason: "it is closed".into(),
    })
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
