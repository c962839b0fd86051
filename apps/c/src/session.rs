//! Sessions: token histories and their state.
#![expect(unsafe_code, reason = "functions that C calls")]
#![expect(
    clippy::missing_safety_doc,
    reason = "the header's introduction says what callers promise"
)]

use std::ffi::c_char;
use std::sync::{Mutex, MutexGuard, TryLockError};

use nestling::{Conversation, ConversationJson, Input, Session, SnapshotContents, ToolSchema};

use crate::error::{Failure, NestlingError, NestlingStatus, call, quietly};
use crate::generation::NestlingGeneration;
use crate::given::{put, require};
use crate::model::NestlingModel;
use crate::options::NestlingGenerateOptions;
use crate::owner::{self, HasOwner, Owner};
use crate::{given, sized};

/// A token history and its computed state. One thread at a time may use it.
#[derive(Debug)]
pub struct NestlingSession {
    session: Mutex<Session>,
    pub(crate) owner: Owner,
}

impl HasOwner for NestlingSession {
    const NAME: &'static str = "session";

    fn owner(&self) -> Owner {
        self.owner
    }
}

impl NestlingSession {
    fn new(session: Session) -> Self {
        Self { session: Mutex::new(session), owner: Owner::current() }
    }

    fn lock(&self) -> Result<MutexGuard<'_, Session>, Failure> {
        match self.session.try_lock() {
            Ok(session) => Ok(session),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => Err(Failure::in_use("session")),
        }
    }
}

/// Begins an empty session of a model. Costs nothing until it computes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nestling_session_new(
    model: Option<&NestlingModel>,
    session: *mut *mut NestlingSession,
    error: *mut *mut NestlingError,
) -> NestlingStatus {
    let make = || Ok(NestlingSession::new(require("model", model)?.model.session()));
    // SAFETY: as the caller says of every pointer.
    unsafe { call(error, || put("session", session, make)) }
}

/// Forks a session. Both share KV pages until one of them continues.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nestling_session_fork(
    session: Option<&NestlingSession>,
    fork: *mut *mut NestlingSession,
    error: *mut *mut NestlingError,
) -> NestlingStatus {
    let make = || {
        let forked = require("session", session)?.lock()?.fork()?;
        Ok(NestlingSession::new(forked))
    };
    // SAFETY: as the caller says of every pointer.
    unsafe { call(error, || put("fork", fork, make)) }
}

/// Frees a session. A running generation continues. NULL is ignored.
#[unsafe(no_mangle)]
pub extern "C" fn nestling_session_free(session: Option<Box<NestlingSession>>) {
    owner::free(session);
}

/// Writes the number of tokens of a session. After a generation was freed, the call may wait up to one layer for its end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nestling_session_length(
    session: Option<&NestlingSession>,
    tokens: *mut usize,
    error: *mut *mut NestlingError,
) -> NestlingStatus {
    let work = || {
        let length = require("session", session)?.lock()?.tokens()?.len();
        if tokens.is_null() {
            return Err(Failure::caller("tokens is NULL"));
        }
        // SAFETY: not NULL, so a number can be written there, as the caller says.
        unsafe { tokens.write(length) };
        Ok(())
    };
    // SAFETY: as the caller says of `error`.
    unsafe { call(error, work) }
}

/// Forgets all but the first tokens.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nestling_session_truncate(
    session: Option<&NestlingSession>,
    tokens: usize,
    error: *mut *mut NestlingError,
) -> NestlingStatus {
    let work = || Ok(require("session", session)?.lock()?.truncate(tokens)?);
    // SAFETY: as the caller says of `error`.
    unsafe { call(error, work) }
}

/// Input and options of a generation.
struct GenerationInput {
    input: Input,
    tools: Vec<ToolSchema>,
}

impl From<ConversationJson> for GenerationInput {
    fn from(mut asked: ConversationJson) -> Self {
        let tools = std::mem::take(&mut asked.tools);
        Self { input: Conversation::from(asked).into(), tools }
    }
}

/// # Safety
/// What the pointers point to is valid until this returns.
unsafe fn generate(
    session: Option<&NestlingSession>,
    asked: impl FnOnce() -> Result<GenerationInput, Failure>,
    options: *const NestlingGenerateOptions,
    generation: *mut *mut NestlingGeneration,
) -> Result<(), Failure> {
    let make = || {
        let mut session = require("session", session)?.lock()?;
        let GenerationInput { mut input, tools } = asked()?;
        // SAFETY: as the caller says.
        let (options, choice) = unsafe { sized::read("generate options", options)?.read(&tools)? };
        if let Input::Messages(conversation) = &mut input {
            conversation.tools = choice.tools(&tools).to_vec();
        }
        let begun = session.generate(input, &options)?;
        Ok(NestlingGeneration::new(begun.into_stream()))
    };
    // SAFETY: as the caller says.
    unsafe { put("generation", generation, make) }
}

/// Appends a text to the session and generates a completion, without a chat template. `options` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nestling_session_generate_text(
    session: Option<&NestlingSession>,
    prompt: *const c_char,
    options: *const NestlingGenerateOptions,
    generation: *mut *mut NestlingGeneration,
    error: *mut *mut NestlingError,
) -> NestlingStatus {
    let asked = || {
        // SAFETY: as the caller says.
        let prompt = unsafe { given::text("prompt", prompt) }?;
        Ok(GenerationInput { input: prompt.into(), tools: Vec::new() })
    };
    // SAFETY: as the caller says of every pointer.
    unsafe { call(error, || generate(session, asked, options, generation)) }
}

/// Appends tokens to the session and generates a completion. `options` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nestling_session_generate_tokens(
    session: Option<&NestlingSession>,
    tokens: *const u32,
    count: usize,
    options: *const NestlingGenerateOptions,
    generation: *mut *mut NestlingGeneration,
    error: *mut *mut NestlingError,
) -> NestlingStatus {
    let asked = || {
        // SAFETY: as the caller says.
        let tokens = unsafe { given::slice("tokens", tokens, count) }?;
        Ok(GenerationInput { input: tokens.into(), tools: Vec::new() })
    };
    // SAFETY: as the caller says of every pointer.
    unsafe { call(error, || generate(session, asked, options, generation)) }
}

/// Generates the answer to a whole conversation, which replaces the session's history. A shared prefix is not computed
/// again. `conversation` is JSON: {"messages": [...], "tools": [...], "chat_template_kwargs": {...}} as in the
/// OpenAI API, the last two optional. `options` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nestling_session_generate_conversation(
    session: Option<&NestlingSession>,
    conversation: *const c_char,
    options: *const NestlingGenerateOptions,
    generation: *mut *mut NestlingGeneration,
    error: *mut *mut NestlingError,
) -> NestlingStatus {
    let asked = || {
        // SAFETY: as the caller says.
        let json = unsafe { given::text("conversation", conversation) }?;
        Ok(ConversationJson::parse(json)?.into())
    };
    // SAFETY: as the caller says of every pointer.
    unsafe { call(error, || generate(session, asked, options, generation)) }
}

/// Bytes that the library gave; freed with nestling_bytes_free.
#[derive(Debug)]
pub struct NestlingBytes {
    bytes: Vec<u8>,
}

impl NestlingBytes {
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        Self { bytes }
    }
}

/// The bytes; they belong to the handle.
#[unsafe(no_mangle)]
pub extern "C" fn nestling_bytes_data(bytes: Option<&NestlingBytes>) -> *const u8 {
    bytes.map_or(std::ptr::null(), |bytes| bytes.bytes.as_ptr())
}

/// How many there are.
#[unsafe(no_mangle)]
pub extern "C" fn nestling_bytes_length(bytes: Option<&NestlingBytes>) -> usize {
    bytes.map_or(0, |bytes| bytes.bytes.len())
}

/// Frees bytes; nothing for NULL.
#[unsafe(no_mangle)]
pub extern "C" fn nestling_bytes_free(bytes: Option<Box<NestlingBytes>>) {
    quietly(|| drop(bytes));
}

/// Gives a session as bytes, for nestling_model_restore in this process or another. With `with_pages` not 0 they hold what
/// was computed, else the tokens alone, which are computed again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nestling_session_snapshot(
    session: Option<&NestlingSession>,
    with_pages: u32,
    bytes: *mut *mut NestlingBytes,
    error: *mut *mut NestlingError,
) -> NestlingStatus {
    let contents = match with_pages {
        0 => SnapshotContents::Tokens,
        _ => SnapshotContents::TokensAndPages,
    };
    let make =
        || Ok(NestlingBytes { bytes: require("session", session)?.lock()?.snapshot(contents)? });
    // SAFETY: as the caller says of every pointer.
    unsafe { call(error, || put("bytes", bytes, make)) }
}

/// Makes the session that bytes of nestling_session_snapshot hold, with the same model opened with the same options.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nestling_model_restore(
    model: Option<&NestlingModel>,
    data: *const u8,
    length: usize,
    session: *mut *mut NestlingSession,
    error: *mut *mut NestlingError,
) -> NestlingStatus {
    let make = || {
        // SAFETY: as the caller says.
        let bytes = unsafe { given::slice("data", data, length) }?;
        let restored = require("model", model)?.model.restore(bytes)?;
        Ok(NestlingSession::new(restored))
    };
    // SAFETY: as the caller says of every pointer.
    unsafe { call(error, || put("session", session, make)) }
}
