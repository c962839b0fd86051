//! Log lines of the library, passed to a callback.
#![expect(unsafe_code, reason = "functions that C calls")]
#![expect(
    clippy::missing_safety_doc,
    reason = "the header's introduction says what callers promise"
)]

use std::ffi::{c_char, c_void};
use std::fmt::{self, Write as _};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};
use tracing_subscriber::registry::Registry;

use crate::error::{Failure, NestlingError, NestlingStatus, call};
use crate::text::c_text;

/// How important a line of the log is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum NestlingLogLevel {
    /// A failure.
    Error = 1,
    /// A condition that deserves attention.
    Warn = 2,
    /// Information for users.
    Info = 3,
    /// Details for debugging.
    Debug = 4,
    /// Everything.
    Trace = 5,
}

/// Hears of a line of the log, on the thread that it comes from, several at once perhaps. It must return soon and call
/// nothing of this library.
pub type NestlingLogCallback = Option<
    unsafe extern "C" fn(user_data: *mut c_void, level: NestlingLogLevel, line: *const c_char),
>;

/// Passes log lines up to `level_max` (1: errors only, 5: everything) to a callback until the process ends. Works once,
/// and only if no Rust program around this library has installed a subscriber.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nestling_set_log_callback(
    callback: NestlingLogCallback,
    user_data: *mut c_void,
    level_max: i32,
    error: *mut *mut NestlingError,
) -> NestlingStatus {
    let work = || {
        let callback = callback.ok_or_else(|| Failure::caller("callback is NULL"))?;
        let most = match level_max {
            1 => Level::ERROR,
            2 => Level::WARN,
            3 => Level::INFO,
            4 => Level::DEBUG,
            5 => Level::TRACE,
            other => return Err(Failure::caller(format!("level_max is {other}, not 1 to 5"))),
        };
        let lines = Lines { callback, user_data: UserData(user_data), most };
        let subscriber = Registry::default().with(lines);
        tracing::subscriber::set_global_default(subscriber)
            .map_err(|_| Failure::caller("a callback or another subscriber is there already"))
    };
    // SAFETY: as the caller says of `error`.
    unsafe { call(error, work) }
}

struct UserData(*mut c_void);

// SAFETY: it is handed back to the callback and nothing else; the header says that it is called from any thread.
unsafe impl Send for UserData {}
// SAFETY: as for `Send`.
unsafe impl Sync for UserData {}

struct Lines {
    callback: unsafe extern "C" fn(*mut c_void, NestlingLogLevel, *const c_char),
    user_data: UserData,
    most: Level,
}

impl<S: Subscriber> Layer<S> for Lines {
    fn enabled(&self, metadata: &tracing::Metadata<'_>, _: Context<'_, S>) -> bool {
        *metadata.level() <= self.most && metadata.target().starts_with("nestling")
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        let level = match *event.metadata().level() {
            Level::ERROR => NestlingLogLevel::Error,
            Level::WARN => NestlingLogLevel::Warn,
            Level::INFO => NestlingLogLevel::Info,
            Level::DEBUG => NestlingLogLevel::Debug,
            Level::TRACE => NestlingLogLevel::Trace,
        };
        let line = c_text(line.0);
        // SAFETY: a function of this type, which gets what was given for it and a text that lives as long.
        unsafe { (self.callback)(self.user_data.0, level, line.as_ptr()) };
    }
}

/// The message, and the other fields after it.
struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a text cannot fail.
        let _ = match field.name() {
            "message" => {
                let before = std::mem::replace(&mut self.0, format!("{value:?}"));
                self.0.write_str(&before)
            }
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}
