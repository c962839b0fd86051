//! Conversations that keep their own transcript.
#![expect(unsafe_code, reason = "functions that C calls")]
#![expect(
    clippy::missing_safety_doc,
    reason = "the header's introduction says what callers promise"
)]

use std::ffi::c_char;
use std::sync::{Mutex, TryLockError};

use nestling::{Chat, ConversationJson, GenerateOptions, Message, ToolSchema};

use crate::error::{Failure, NestlingError, NestlingStatus, call};
use crate::generation::NestlingGeneration;
use crate::given::{put, require};
use crate::model::NestlingModel;
use crate::options::NestlingGenerateOptions;
use crate::owner::{self, HasOwner, Owner};
use crate::{given, sized, text};

/// A conversation and its session: messages, answers, reasoning and tool calls. One thread at a time may use it.
#[derive(Debug)]
pub struct NestlingChat {
    state: Mutex<ChatState>,
    pub(crate) owner: Owner,
}

impl HasOwner for NestlingChat {
    const NAME: &'static str = "chat";

    fn owner(&self) -> Owner {
        self.owner
    }
}

#[derive(Debug)]
struct ChatState {
    chat: Chat,
    tools: Vec<ToolSchema>,
}

/// Starts a conversation. `conversation` is JSON as for nestling_session_generate_conversation, with earlier messages and
/// tools; NULL is an empty conversation.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nestling_chat_new(
    model: Option<&NestlingModel>,
    conversation: *const c_char,
    chat: *mut *mut NestlingChat,
    error: *mut *mut NestlingError,
) -> NestlingStatus {
    let make = || {
        // SAFETY: as the caller says.
        let mut asked = match unsafe { given::optional("conversation", conversation) }? {
            Some(json) => ConversationJson::parse(json)?,
            None => ConversationJson::default(),
        };
        let tools = std::mem::take(&mut asked.tools);
        let chat = Chat::new(require("model", model)?.model.session(), asked.into());
        Ok(NestlingChat { state: Mutex::new(ChatState { chat, tools }), owner: Owner::current() })
    };
    // SAFETY: as the caller says of every pointer.
    unsafe { call(error, || put("chat", chat, make)) }
}

/// Frees a conversation. A running generation continues. NULL is ignored.
#[unsafe(no_mangle)]
pub extern "C" fn nestling_chat_free(chat: Option<Box<NestlingChat>>) {
    owner::free(chat);
}

impl NestlingChat {
    fn with<T>(
        &self,
        work: impl FnOnce(&mut ChatState) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        match self.state.try_lock() {
            Ok(mut state) => work(&mut state),
            Err(TryLockError::Poisoned(poisoned)) => work(&mut poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => Err(Failure::in_use("chat")),
        }
    }
}

impl ChatState {
    /// # Safety
    /// The options are NULL, or valid until this returns.
    unsafe fn options(
        &mut self,
        options: *const NestlingGenerateOptions,
    ) -> Result<GenerateOptions, Failure> {
        // SAFETY: as the caller says.
        let (options, choice) =
            unsafe { sized::read("generate options", options)?.read(&self.tools)? };
        self.chat.conversation_mut()?.tools = choice.tools(&self.tools).to_vec();
        Ok(options)
    }
}

/// Says something as the user, and starts the answer, which is part of the conversation as far as it comes. `options` may
/// be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nestling_chat_send(
    chat: Option<&NestlingChat>,
    message: *const c_char,
    options: *const NestlingGenerateOptions,
    generation: *mut *mut NestlingGeneration,
    error: *mut *mut NestlingError,
) -> NestlingStatus {
    let make = || {
        // SAFETY: as the caller says.
        let message = Message::user(unsafe { given::text("message", message) }?);
        require("chat", chat)?.with(|state| {
            // SAFETY: as the caller says.
            let options = unsafe { state.options(options) }?;
            Ok(NestlingGeneration::new(state.chat.send(message, &options)?.into_stream()))
        })
    };
    // SAFETY: as the caller says of every pointer.
    unsafe { call(error, || put("generation", generation, make)) }
}

/// Gives the results of the last answer's tool calls, in the order of the calls, and starts the next answer. `options` may
/// be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nestling_chat_reply_to_tools(
    chat: Option<&NestlingChat>,
    results: *const *const c_char,
    count: usize,
    options: *const NestlingGenerateOptions,
    generation: *mut *mut NestlingGeneration,
    error: *mut *mut NestlingError,
) -> NestlingStatus {
    let make = || {
        // SAFETY: as the caller says.
        let results = unsafe { given::texts("results", results, count) }?;
        require("chat", chat)?.with(|state| {
            let calls = state.chat.open_calls();
            if calls.len() != results.len() {
                let (calls, results) = (calls.len(), results.len());
                let text = format!("results: {results} of them for {calls} tool calls");
                return Err(Failure::caller(text));
            }
            let replies =
                calls.into_iter().zip(results).map(|(call, result)| Message::tool(call.id, result));
            let replies = replies.collect();
            // SAFETY: as the caller says.
            let options = unsafe { state.options(options) }?;
            let begun = state.chat.reply_to_tools(replies, &options)?;
            Ok(NestlingGeneration::new(begun.into_stream()))
        })
    };
    // SAFETY: as the caller says of every pointer.
    unsafe { call(error, || put("generation", generation, make)) }
}

/// Gives all that was said as JSON, a list of messages as in the OpenAI API, with the answer under way as far as it has
/// come. It never waits. The text is freed with nestling_string_free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nestling_chat_transcript(
    chat: Option<&NestlingChat>,
    json: *mut *mut c_char,
    error: *mut *mut NestlingError,
) -> NestlingStatus {
    let work = || {
        if json.is_null() {
            return Err(Failure::caller("json is NULL"));
        }
        let messages = require("chat", chat)?.with(|state| Ok(state.chat.transcript()))?;
        let made = serde_json::to_string(&messages);
        let made = made.map_err(|error| Failure::caller(format!("transcript: {error}")))?;
        // SAFETY: not NULL, so a pointer can be written there.
        unsafe { json.write(text::c_text(made).into_raw()) };
        Ok(())
    };
    // SAFETY: as the caller says of `error`.
    unsafe { call(error, work) }
}
