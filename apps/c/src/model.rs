//! Models.
#![expect(unsafe_code, reason = "functions that C calls")]
#![expect(
    clippy::missing_safety_doc,
    reason = "the header's introduction says what callers promise"
)]

use std::ffi::{c_char, c_void};

use nestling::formats::Level;
use nestling::{
    CancelToken, DeviceOptions, EngineOptions, KvDtype, Model, ModelOptions, OpenOptions,
    OpenProgress, Residence,
};

use crate::cancel::NestlingCancel;
use crate::engine::{NestlingEngine, nonzero};
use crate::error::{Failure, NestlingError, NestlingStatus, call};
use crate::given::{self, put, require};
use crate::owner::{self, HasOwner, Owner};
use crate::sized::{self, SizedStruct};

/// Experts in memory if all of them fit the budget, streamed otherwise.
pub const NESTLING_RESIDENCE_AUTO: u32 = 0;
/// All experts in memory.
pub const NESTLING_RESIDENCE_OWNED: u32 = 1;
/// Keeps as many planes of experts in memory as the budget holds, and reads others on demand.
pub const NESTLING_RESIDENCE_STREAMED: u32 = 2;
/// Like AUTO, but the model opens before its experts are loaded.
pub const NESTLING_RESIDENCE_LAZY: u32 = 3;

/// A model, open. Any number of threads may use it at once; its sessions, chats and generations keep it open.
#[derive(Debug)]
pub struct NestlingModel {
    pub(crate) model: Model,
    pub(crate) owner: Owner,
}

impl HasOwner for NestlingModel {
    const NAME: &'static str = "model";

    fn owner(&self) -> Owner {
        self.owner
    }
}

/// Hears how far the opening of a model is, on the thread that opens it. Once it returns 0, the opening is cancelled.
pub type NestlingProgress =
    Option<unsafe extern "C" fn(user_data: *mut c_void, parts_done: u64, parts_total: u64) -> i32>;

/// How a model is opened. Set by nestling_model_options_init; change what differs.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct NestlingModelOptions {
    /// sizeof of this struct.
    pub size: usize,
    /// Compute device: "auto", "cpu", or "cuda" and "wgpu" if the library was built with them, with ":INDEX" or ":NAME".
    /// NULL means "auto".
    pub device: *const c_char,
    /// Memory budget in bytes for weights, KV cache and scratch. 0 means the free memory that the system reports, less a
    /// margin, or no limit if the system does not report it. UINT64_MAX means no limit. Must be 0 with `engine`, like
    /// `threads`.
    pub memory_budget: u64,
    /// GPU memory budget in bytes; 0 means all of it.
    pub device_budget: u64,
    /// Number of compute threads, at most 1024; 0 means one per core.
    pub threads: u32,
    /// Maximum number of tokens of a session, at most the trained context length; 0 means the trained context length, at
    /// most 8192. nestling_model_status_now reports the value in effect.
    pub context_length: u32,
    /// Tokens whose keys and values all sessions may hold together; 0 is twice the context length.
    pub kv_tokens: u32,
    /// Bits of every weight to use, 2, 3, 4, 6 or 8; 0 is all that the store holds.
    pub level: u32,
    /// Residence of the experts: a NESTLING_RESIDENCE_ constant.
    pub residence: u32,
    /// Keys and values in 8 bits where not 0, else in 16.
    pub kv_int8: u32,
    /// Hears of the progress; may be NULL.
    pub progress: NestlingProgress,
    /// Argument of `progress`.
    pub progress_data: *mut c_void,
    /// Cancels the opening; may be NULL.
    pub cancel: *const NestlingCancel,
    /// Engine whose threads and memory budget the model shares; NULL creates an engine for this model.
    pub engine: *const NestlingEngine,
}

// SAFETY: `repr(C)`, the size first; numbers, pointers and a function that may be absent, for which every pattern that
// C can write is a value.
unsafe impl SizedStruct for NestlingModelOptions {
    fn unset() -> Self {
        Self {
            size: size_of::<Self>(),
            device: std::ptr::null(),
            memory_budget: 0,
            device_budget: 0,
            threads: 0,
            context_length: 0,
            kv_tokens: 0,
            level: 0,
            residence: NESTLING_RESIDENCE_AUTO,
            kv_int8: 0,
            progress: None,
            progress_data: std::ptr::null_mut(),
            cancel: std::ptr::null(),
            engine: std::ptr::null(),
        }
    }
}

/// Options with every default. `size` is sizeof(nestling_model_options).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nestling_model_options_init(
    options: *mut NestlingModelOptions,
    size: usize,
) {
    // SAFETY: the caller gives the size of what it points to.
    unsafe { sized::init(options, size) };
}

/// Opens a model: a .nest store, a GGUF file in place, or the folder of a Hugging Face checkpoint. Takes seconds for a
/// store, up to minutes for a checkpoint. `options` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nestling_model_open(
    path: *const c_char,
    options: *const NestlingModelOptions,
    model: *mut *mut NestlingModel,
    error: *mut *mut NestlingError,
) -> NestlingStatus {
    let make = || {
        // SAFETY: as the caller says of every text and struct.
        let (path, options) =
            unsafe { (given::text("path", path)?, sized::read("model options", options)?) };
        // SAFETY: what the options point to is there until this call returns.
        Ok(NestlingModel { model: unsafe { open(path, &options) }?, owner: Owner::current() })
    };
    // SAFETY: as the caller says of every pointer.
    unsafe { call(error, || put("model", model, make)) }
}

/// # Safety
/// What the options point to is valid until this returns.
unsafe fn open(path: &str, options: &NestlingModelOptions) -> Result<Model, Failure> {
    // SAFETY: as the caller says.
    let device = unsafe { given::optional("device", options.device) }?;
    let device = device.map(str::parse).transpose();
    let device =
        device.map_err(|error: nestling::DeviceError| Failure::caller(error.to_string()))?;
    let bytes = |number: u64| (number > 0).then_some(number);
    let open = OpenOptions {
        device: DeviceOptions {
            // Default: nothing was named.
            device: device.unwrap_or_default(),
            device_budget: bytes(options.device_budget),
            ..DeviceOptions::default()
        },
        engine: EngineOptions {
            threads: nonzero(options.threads),
            memory_budget: bytes(options.memory_budget),
            ..EngineOptions::default()
        },
        model: ModelOptions {
            level: level(options.level)?,
            context_length: nonzero(options.context_length),
            kv_tokens: nonzero(options.kv_tokens),
            kv_dtype: if options.kv_int8 == 0 { KvDtype::F16 } else { KvDtype::Int8 },
            residence: residence(options.residence)?,
            ..ModelOptions::default()
        },
    };
    // SAFETY: NULL, or a token that lives long enough, as the caller says.
    let cancel = unsafe { options.cancel.as_ref() };
    // Default: nothing cancels it from outside.
    let cancel = cancel.map_or_else(CancelToken::new, |cancel| cancel.token.child());
    let mut progress = |at: OpenProgress| {
        let Some(hears) = options.progress else { return }; // Default: nobody listens.
        // SAFETY: a function of this type, which gets what was given for it.
        let goes_on =
            unsafe { hears(options.progress_data, at.parts_done as u64, at.parts_total as u64) };
        if goes_on == 0 {
            cancel.cancel();
        }
    };
    // SAFETY: NULL, or an engine that lives long enough, as the caller says.
    let Some(engine) = (unsafe { options.engine.as_ref() }) else {
        return Ok(nestling::open_with(path, &open, &mut progress, &cancel)?);
    };
    if options.memory_budget != 0 || options.threads != 0 {
        let words =
            "memory_budget and threads are those of the engine that was given: leave them 0";
        return Err(Failure::caller(words));
    }
    owner::check(engine)?;
    Ok(nestling::open_in(&engine.engine, path, &open, &mut progress, &cancel)?)
}

pub(crate) fn level(bits: u32) -> Result<Option<Level>, Failure> {
    if bits == 0 {
        return Ok(None);
    }
    let level = u8::try_from(bits).ok().and_then(Level::from_bits);
    let wrong = || Failure::caller(format!("level: {bits} bits; a level is 2, 3, 4, 6 or 8"));
    level.map(Some).ok_or_else(wrong)
}

fn residence(residence: u32) -> Result<Residence, Failure> {
    match residence {
        NESTLING_RESIDENCE_AUTO => Ok(Residence::Auto),
        NESTLING_RESIDENCE_OWNED => Ok(Residence::Owned),
        NESTLING_RESIDENCE_STREAMED => Ok(Residence::Streamed),
        NESTLING_RESIDENCE_LAZY => Ok(Residence::Lazy),
        other => {
            Err(Failure::caller(format!("residence: expected one of its constants, found {other}")))
        }
    }
}

/// Releases a model. It closes when its sessions, chats and generations are freed too. NULL is ignored.
#[unsafe(no_mangle)]
pub extern "C" fn nestling_model_free(model: Option<Box<NestlingModel>>) {
    owner::free(model);
}

/// Returns the engine of a model, to share it with further models or to read its status.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nestling_model_engine(
    model: Option<&NestlingModel>,
    engine: *mut *mut NestlingEngine,
    error: *mut *mut NestlingError,
) -> NestlingStatus {
    let make = || {
        let engine = require("model", model)?.model.engine().clone();
        Ok(NestlingEngine { engine, owner: Owner::current() })
    };
    // SAFETY: as the caller says of every pointer.
    unsafe { call(error, || put("engine", engine, make)) }
}

/// Gives the model's engine another memory budget, in bytes. It may be called at any time, and waits for the step that is
/// under way. Streamed experts of this model give back what is too much; an engine whose models hold more without them is
/// NESTLING_STATUS_NO_ROOM, and nothing has changed. UINT64_MAX is no limit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nestling_model_set_memory_budget(
    model: Option<&NestlingModel>,
    bytes: u64,
    error: *mut *mut NestlingError,
) -> NestlingStatus {
    let work = || Ok(require("model", model)?.model.set_memory_budget(bytes)?);
    // SAFETY: as the caller says of `error`.
    unsafe { call(error, work) }
}

/// Evicts `bytes` bytes of streamed experts, least valuable first, before the next layer is computed; UINT64_MAX evicts
/// all. Intended for memory pressure: it returns immediately, so a callback of the system may call it. Evicted experts
/// return as they are used; nestling_model_set_memory_budget lowers the budget permanently.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nestling_model_relieve_pressure(
    model: Option<&NestlingModel>,
    bytes: u64,
    error: *mut *mut NestlingError,
) -> NestlingStatus {
    let work = || {
        let model = &require("model", model)?.model;
        // Default: nothing is streamed, so nothing can go.
        model.shed_experts(bytes.min(model.expert_bytes().unwrap_or(0)));
        Ok(())
    };
    // SAFETY: as the caller says of `error`.
    unsafe { call(error, work) }
}

/// Properties and state of a model. The caller sets `size` to sizeof.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct NestlingModelStatus {
    /// sizeof of this struct.
    pub size: usize,
    /// Maximum number of tokens of a session.
    pub context_length: u64,
    /// Bytes of weights that are held.
    pub weight_bytes: u64,
    /// Bytes of streamed experts in memory; 0 where they are not streamed.
    pub expert_bytes: u64,
    /// Bytes that its engine may take; UINT64_MAX is no limit.
    pub memory_budget: u64,
    /// Bytes of them in use.
    pub memory_used: u64,
    /// Generations whose tokens are computed.
    pub running: u64,
    /// Generations that wait for room.
    pub waiting: u64,
    /// Total number of KV pages; `pages_free` is the number of free ones.
    pub pages_total: u64,
    /// See pages_total.
    pub pages_free: u64,
    /// Nonzero if experts are streamed.
    pub is_streamed: u32,
    /// Nonzero if the model has a chat template, so that messages can be prompts.
    pub has_chat: u32,
    /// Nonzero if the chat template supports tools.
    pub has_tools: u32,
    /// Nonzero if answers may begin with reasoning.
    pub has_reasoning: u32,
}

// SAFETY: `repr(C)`, the size first, and numbers.
unsafe impl SizedStruct for NestlingModelStatus {
    fn unset() -> Self {
        Self {
            size: size_of::<Self>(),
            context_length: 0,
            weight_bytes: 0,
            expert_bytes: 0,
            memory_budget: 0,
            memory_used: 0,
            running: 0,
            waiting: 0,
            pages_total: 0,
            pages_free: 0,
            is_streamed: 0,
            has_chat: 0,
            has_tools: 0,
            has_reasoning: 0,
        }
    }
}

/// Writes the properties and the present state of a model. `status->size` must be set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nestling_model_status_now(
    model: Option<&NestlingModel>,
    status: *mut NestlingModelStatus,
    error: *mut *mut NestlingError,
) -> NestlingStatus {
    let work = || {
        let found = status_of(&require("model", model)?.model);
        // SAFETY: as the caller says of `status`.
        unsafe { sized::write("status", status, &found) }
    };
    // SAFETY: as the caller says of `error`.
    unsafe { call(error, work) }
}

fn status_of(model: &Model) -> NestlingModelStatus {
    let (engine, can) = (model.engine(), model.capabilities());
    let service = engine.status();
    let experts = model.expert_bytes();
    NestlingModelStatus {
        context_length: model.context_length() as u64,
        weight_bytes: model.weight_bytes(),
        // Default: no bytes are streamed.
        expert_bytes: experts.unwrap_or(0),
        // Default: no limit, as the field says.
        memory_budget: engine.budget().total_bytes().unwrap_or(u64::MAX),
        memory_used: engine.budget().used_bytes(),
        running: service.running as u64,
        waiting: (service.waiting + service.parked) as u64,
        pages_total: service.pages.total as u64,
        pages_free: service.pages.free as u64,
        is_streamed: u32::from(experts.is_some()),
        has_chat: u32::from(can.chat),
        has_tools: u32::from(can.tools),
        has_reasoning: u32::from(can.thinking),
        ..NestlingModelStatus::unset()
    }
}
