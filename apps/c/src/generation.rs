//! Generations under way: polled, or told to a callback.
#![expect(unsafe_code, reason = "functions that C calls")]
#![expect(
    clippy::missing_safety_doc,
    reason = "the header's introduction says what callers promise"
)]

use std::ffi::c_void;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, TryLockError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use futures_core::Stream;
use nestling::{CancelToken, Event, EventStream};

use crate::error::{Failure, NestlingError, NestlingStatus, call, quietly};
use crate::event::{EventTexts, NestlingEvent, NestlingEventKind};
use crate::given::require;
use crate::owner::{self, HasOwner, Owner};
use crate::sized::{self, SizedStruct};

/// A generation under way. Its events are asked for by one thread at a time; any thread may cancel it. Freeing it cancels
/// it.
#[derive(Debug)]
pub struct NestlingGeneration {
    cancel: CancelToken,
    state: Mutex<StreamState>,
    pub(crate) owner: Owner,
}

impl HasOwner for NestlingGeneration {
    const NAME: &'static str = "generation";

    fn owner(&self) -> Owner {
        self.owner
    }
}

#[derive(Debug)]
struct StreamState {
    events: EventStream,
    texts: EventTexts,
    /// Set once the last event or the error was returned.
    ended: bool,
}

impl NestlingGeneration {
    pub(crate) fn new(events: EventStream) -> Self {
        let cancel = events.cancel_token();
        let state = StreamState { events, texts: EventTexts::default(), ended: false };
        Self { cancel, state: Mutex::new(state), owner: Owner::current() }
    }

    fn next(&self, timeout: Option<Duration>) -> Result<NestlingEvent, Failure> {
        let mut state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Err(Failure::in_use("generation")),
        };
        state.next(timeout)
    }
}

impl StreamState {
    fn next(&mut self, timeout: Option<Duration>) -> Result<NestlingEvent, Failure> {
        let only = |kind| Ok(NestlingEvent { kind, ..NestlingEvent::unset() });
        if self.ended {
            return only(NestlingEventKind::End);
        }
        match wait(&mut self.events, timeout) {
            None => only(NestlingEventKind::None),
            Some(None) => {
                self.ended = true;
                only(NestlingEventKind::End)
            }
            Some(Some(Err(error))) => {
                self.ended = true;
                Err(error.into())
            }
            Some(Some(Ok(event))) => Ok(self.texts.hold(event)),
        }
    }
}

/// Wakes a thread that waits for an event.
struct Unpark {
    thread: Thread,
    woken: AtomicBool,
}

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

/// The next event of a stream, or that none came in time.
fn wait(
    events: &mut EventStream,
    timeout: Option<Duration>,
) -> Option<Option<Result<Event, nestling::EngineError>>> {
    // Default: a time that no clock can tell is for ever.
    let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    let unpark = Arc::new(Unpark { thread: thread::current(), woken: AtomicBool::new(false) });
    let waker = Waker::from(Arc::clone(&unpark));
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(event) = Pin::new(&mut *events).poll_next(&mut context) {
            return Some(event);
        }
        while !unpark.woken.swap(false, Ordering::Acquire) {
            let Some(until) = until else {
                thread::park();
                continue;
            };
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            thread::park_timeout(left);
        }
    }
}

/// Gives the next event, and waits for it at most `timeout_ms` milliseconds: 0 not at all, negative for ever. Where
/// none comes in time, the event is NESTLING_EVENT_KIND_NONE; after the last it is NESTLING_EVENT_KIND_END.
/// `event->size` must be set. A generation that failed is an error once, and has no further events.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nestling_generation_next(
    generation: Option<&NestlingGeneration>,
    timeout_ms: i64,
    event: *mut NestlingEvent,
    error: *mut *mut NestlingError,
) -> NestlingStatus {
    let work = || {
        let timeout = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
        // Before it is asked for, so that no event is lost.
        // SAFETY: as the caller says of `event`.
        unsafe { sized::room("event", event) }?;
        let told = require("generation", generation)?.next(timeout)?;
        // SAFETY: as the caller says of `event`.
        unsafe { sized::write("event", event, &told) }
    };
    // SAFETY: as the caller says of `error`.
    unsafe { call(error, work) }
}

/// Hears of an event, whose texts are valid until it returns. Once it returns 0, the generation is cancelled; its last
/// events follow.
pub type NestlingEventCallback =
    Option<unsafe extern "C" fn(user_data: *mut c_void, event: *const NestlingEvent) -> i32>;

/// Gives every event to a callback, on this thread, until the last one. The callback may free nothing that it is called
/// for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nestling_generation_run(
    generation: Option<&NestlingGeneration>,
    callback: NestlingEventCallback,
    user_data: *mut c_void,
    error: *mut *mut NestlingError,
) -> NestlingStatus {
    let work = || {
        let generation = require("generation", generation)?;
        let callback = callback.ok_or_else(|| Failure::caller("callback is NULL"))?;
        loop {
            let event = generation.next(None)?;
            if event.kind == NestlingEventKind::End {
                return Ok(());
            }
            // SAFETY: a function of this type, which gets what was given for it and an event that lives as long.
            if unsafe { callback(user_data, &raw const event) } == 0 {
                generation.cancel.cancel();
            }
        }
    };
    // SAFETY: as the caller says of `error`.
    unsafe { call(error, work) }
}

/// Asks a generation to stop, which it does within one layer; returns at once. Its last event then says so. Nothing for
/// NULL.
#[unsafe(no_mangle)]
pub extern "C" fn nestling_generation_cancel(generation: Option<&NestlingGeneration>) {
    if let Some(generation) = generation.filter(|generation| owner::check(*generation).is_ok()) {
        quietly(|| generation.cancel.cancel());
    }
}

/// Cancels and frees a generation. Computed tokens stay in its session. NULL is ignored.
#[unsafe(no_mangle)]
pub extern "C" fn nestling_generation_free(generation: Option<Box<NestlingGeneration>>) {
    owner::free(generation);
}
