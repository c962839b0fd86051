//! Output of tests, printed if a test fails or with `--show-output` or `--nocapture`.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::cell::RefCell;
use std::panic::{self, AssertUnwindSafe};

thread_local! {
    /// Notes of the test that runs on this thread.
    static NOTES: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Records a line of the running test; [`note`](crate::note) formats it.
pub fn keep(line: &str) {
    NOTES.with_borrow_mut(|notes| {
        let notes = notes.get_or_insert_default();
        notes.push_str(line);
        notes.push('\n');
    });
}

/// Records output of the running test, in the format of `eprintln!`.
#[macro_export]
macro_rules! note {
    ($($words:tt)*) => { $crate::keep_note(&format!($($words)*)) };
}

/// Installs a hook that records panics of test threads as notes. Other panics are reported as usual.
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

/// Runs a test and returns whether it passed, and its output.
pub(crate) fn of(test: fn()) -> (bool, String) {
    NOTES.set(Some(String::new()));
    let passed = panic::catch_unwind(AssertUnwindSafe(test)).is_ok();
    (passed, NOTES.take().unwrap_or_default())
}
