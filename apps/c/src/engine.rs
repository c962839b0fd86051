//! Engines, which models may share.
#![expect(unsafe_code, reason = "functions that C calls")]
#![expect(
    clippy::missing_safety_doc,
    reason = "the header's introduction says what callers promise"
)]

use nestling::system::{MemoryState, SystemFiles};
use nestling::{Engine, EngineOptions};

use crate::error::{NestlingError, NestlingStatus, call, quietly};
use crate::given::{put, require};
use crate::owner::{self, HasOwner, Owner};
use crate::sized::{self, SizedStruct};

/// Threads and a memory budget that models share. Any number of threads may use it at once; its models keep it running.
#[derive(Debug)]
pub struct NestlingEngine {
    pub(crate) engine: Engine,
    pub(crate) owner: Owner,
}

impl HasOwner for NestlingEngine {
    const NAME: &'static str = "engine";

    fn owner(&self) -> Owner {
        self.owner
    }
}

/// How an engine is started. Set by nestling_engine_options_init; change what differs.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct NestlingEngineOptions {
    /// sizeof of this struct.
    pub size: usize,
    /// Memory budget of all models in bytes: weights, KV cache and scratch. 0 means the free memory that the system
    /// reports, less a margin, or no limit if the system does not report it. UINT64_MAX means no limit.
    pub memory_budget: u64,
    /// Number of compute threads, at most 1024; 0 means one per core.
    pub threads: u32,
    /// Generations that may wait for room, further ones are NESTLING_STATUS_BUSY; 0 is the library's own number.
    pub waiting_max: u32,
}

// SAFETY: `repr(C)`, the size first, and numbers.
unsafe impl SizedStruct for NestlingEngineOptions {
    fn unset() -> Self {
        Self { size: size_of::<Self>(), memory_budget: 0, threads: 0, waiting_max: 0 }
    }
}

/// Returns a requested number, or `None` for 0.
pub(crate) fn nonzero(number: u32) -> Option<usize> {
    (number > 0).then_some(number as usize)
}

/// Options with every default. `size` is sizeof(nestling_engine_options).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nestling_engine_options_init(
    options: *mut NestlingEngineOptions,
    size: usize,
) {
    // SAFETY: the caller gives the size of what it points to.
    unsafe { sized::init(options, size) };
}

/// Starts an engine for models that are to share it. `options` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nestling_engine_new(
    options: *const NestlingEngineOptions,
    engine: *mut *mut NestlingEngine,
    error: *mut *mut NestlingError,
) -> NestlingStatus {
    let make = || {
        // SAFETY: as the caller says.
        let options = unsafe { sized::read("engine options", options) }?;
        let free =
            || MemoryState::read(&SystemFiles::default()).map(|state| state.default_budget());
        let budget = (options.memory_budget > 0).then_some(options.memory_budget);
        let mut made = EngineOptions {
            threads: nonzero(options.threads),
            memory_budget: budget.or_else(free),
            ..EngineOptions::default()
        };
        if let Some(waiting_max) = nonzero(options.waiting_max) {
            made.waiting_max = waiting_max;
        }
        Ok(NestlingEngine { engine: Engine::new(made)?, owner: Owner::current() })
    };
    // SAFETY: as the caller says of every pointer.
    unsafe { call(error, || put("engine", engine, make)) }
}

/// Releases an engine. It ends when its models are freed too. NULL is ignored.
#[unsafe(no_mangle)]
pub extern "C" fn nestling_engine_free(engine: Option<Box<NestlingEngine>>) {
    owner::free(engine);
}

/// Ends every generation of an engine, with NESTLING_STATUS_STOPPED, and refuses further ones: for a program that is about
/// to end. Nothing for NULL.
#[unsafe(no_mangle)]
pub extern "C" fn nestling_engine_shutdown(engine: Option<&NestlingEngine>) {
    if let Some(engine) = engine.filter(|engine| owner::check(*engine).is_ok()) {
        quietly(|| engine.engine.shutdown());
    }
}

/// State and counters of an engine. The caller sets `size` to sizeof.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct NestlingEngineStatus {
    /// sizeof of this struct.
    pub size: usize,
    /// Bytes that its models may take; UINT64_MAX is no limit.
    pub memory_budget: u64,
    /// Bytes of them in use.
    pub memory_used: u64,
    /// Generations whose tokens are computed.
    pub running: u64,
    /// Generations that wait for room.
    pub waiting: u64,
    /// Pages of keys and values.
    pub pages_total: u64,
    /// Free KV pages.
    pub pages_free: u64,
    /// Steps that were computed.
    pub steps: u64,
    /// Tokens of prompts and answers that were computed.
    pub rows: u64,
    /// How often a generation lost its pages to another.
    pub preemptions: u64,
    /// First tokens that came after their deadline.
    pub late: u64,
    /// Streamed experts that were there when they were wanted.
    pub expert_hits: u64,
    /// Streamed experts of which something had to be read.
    pub expert_misses: u64,
    /// Bytes of them that were read.
    pub read_bytes: u64,
    /// Tokens of prompts for which beginnings were looked for that others had computed.
    pub prefix_asked_tokens: u64,
    /// Prompt tokens found in the prefix cache.
    pub prefix_found_tokens: u64,
}

// SAFETY: `repr(C)`, the size first, and numbers.
unsafe impl SizedStruct for NestlingEngineStatus {
    fn unset() -> Self {
        Self {
            size: size_of::<Self>(),
            memory_budget: 0,
            memory_used: 0,
            running: 0,
            waiting: 0,
            pages_total: 0,
            pages_free: 0,
            steps: 0,
            rows: 0,
            preemptions: 0,
            late: 0,
            expert_hits: 0,
            expert_misses: 0,
            read_bytes: 0,
            prefix_asked_tokens: 0,
            prefix_found_tokens: 0,
        }
    }
}

/// Writes the present state of an engine. `status->size` must be set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nestling_engine_status_now(
    engine: Option<&NestlingEngine>,
    status: *mut NestlingEngineStatus,
    error: *mut *mut NestlingError,
) -> NestlingStatus {
    let work = || {
        let found = status_of(&require("engine", engine)?.engine);
        // SAFETY: as the caller says of `status`.
        unsafe { sized::write("status", status, &found) }
    };
    // SAFETY: as the caller says of `error`.
    unsafe { call(error, work) }
}

fn status_of(engine: &Engine) -> NestlingEngineStatus {
    let now = engine.status();
    let streaming = &now.experts.streaming;
    NestlingEngineStatus {
        size: size_of::<NestlingEngineStatus>(),
        // Default: no limit, as the field says.
        memory_budget: engine.budget().total_bytes().unwrap_or(u64::MAX),
        memory_used: engine.budget().used_bytes(),
        running: now.running as u64,
        waiting: (now.waiting + now.parked) as u64,
        pages_total: now.pages.total as u64,
        pages_free: now.pages.free as u64,
        steps: now.steps,
        rows: now.rows,
        preemptions: now.preemptions,
        late: now.late,
        expert_hits: streaming.expert_hits,
        expert_misses: streaming.expert_misses,
        read_bytes: streaming.read_total(),
        prefix_asked_tokens: now.prefixes.asked_tokens,
        prefix_found_tokens: now.prefixes.found_tokens,
    }
}
