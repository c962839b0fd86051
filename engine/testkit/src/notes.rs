//! What tests say of themselves: shown where one fails, or `--show-output` or `--nocapture` asks for it.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::cell::RefCell;
use std::panic::{self, AssertUnwindSafe};

thread_local! {
    /// Of the test that runs on this thread.
    static NOTES: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Keeps a line of the test that runs; [`note`](crate::note) formats it.
pub fn keep(line: &str) {
    NOTES.with_borrow_mut(|notes| {
        let notes = notes.get_or_insert_default();
        notes.push_str(line);
        notes.push('\n');
    });
}

/// Says something of the test that runs, as `eprintln!` would.
#[macro_export]
macro_rules! note {
    ($($words:tt)*) => { $crate::keep_note(&format!($($words)*)) };
}

/// Panics of threads that run a test are kept as notes; all others are reported as ever.
pub(crate) fn keep_panics() {
    let others = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        if NOTES.with_borrow(Option::is_none) {
            return others(panic);
        }
        keep(&panic.to_string());
        let trace = Backtrace::capture();
        if trace.status() == BacktraceStatus::Captured {
            keep(&trace.to_string());
        }
    }));
}

/// Runs a test: whether it passed, and what it said.
pub(crate) fn of(test: fn()) -> (bool, String) {
    NOTES.set(Some(String::new()));
    let passed = panic::catch_unwind(AssertUnwindSafe(test)).is_ok();
    (passed, NOTES.take().unwrap_or_default())
}
