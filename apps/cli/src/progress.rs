//! Progress display: a bar on a terminal, occasional lines in a log, nothing under `--quiet`.

use crate::bytes::ByteSize;
use crate::console::Console;
use crate::words::printable;
use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use std::fmt::Write;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Interval between log lines.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// Progress of one task over a known number of bytes.
pub struct Progress {
    bar: Option<ProgressBar>,
    log: Option<Log>,
}

struct Log {
    console: Console,
    what: String,
    total: u64,
    done: u64,
    before: u64,
    started: Instant,
    spoken: Instant,
}

impl Progress {
    /// Creates a progress bar. `what` names the task in one or two words, `total` is its size in bytes, and
    /// `done` bytes are already complete.
    pub fn bytes(console: &Console, what: &str, total: u64, done: u64) -> Self {
        if console.quiet {
            return Self { bar: None, log: None };
        }
        if !std::io::stderr().is_terminal() {
            let now = Instant::now();
            let (console, what) = (console.clone(), what.to_owned());
            let log = Log { console, what, total, done, before: done, started: now, spoken: now };
            return Self { bar: None, log: Some(log) };
        }
        let bar = ProgressBar::new(total).with_position(done).with_message(printable(what));
        // The wording matches that of the log lines.
        let template = "{msg:12} [{bar:28}] {done} of {total}, {rate}/s{left}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            let style = style
                .with_key("done", |state: &ProgressState, out: &mut dyn Write| {
                    let _ = write!(out, "{}", ByteSize(state.pos()));
                })
                .with_key("total", |state: &ProgressState, out: &mut dyn Write| {
                    // Default: an unknown total is shown as 0.
                    let _ = write!(out, "{}", ByteSize(state.len().unwrap_or(0)));
                })
                .with_key("rate", |state: &ProgressState, out: &mut dyn Write| {
                    let _ = write!(out, "{}", ByteSize(state.per_sec() as u64));
                })
                .with_key("left", |state: &ProgressState, out: &mut dyn Write| {
                    if state.per_sec() > 0.0 {
                        let _ = write!(out, ", {} left", duration(state.eta().as_secs_f64()));
                    }
                });
            bar.set_style(style.progress_chars("=> "));
        }
        bar.reset_eta();
        Self { bar: Some(bar), log: None }
    }

    /// Creates a spinner for a task of unknown length.
    pub fn spinner(console: &Console, what: &str) -> Self {
        if console.quiet || !std::io::stderr().is_terminal() {
            return Self { bar: None, log: None };
        }
        let bar = ProgressBar::new_spinner().with_message(printable(what));
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(120));
        Self { bar: Some(bar), log: None }
    }

    /// Creates a progress bar over parts without a size, such as layers. It is shown only on a terminal.
    pub fn parts(console: &Console, what: &str) -> Self {
        let progress = Self::spinner(console, what);
        if let Some(bar) = &progress.bar
            && let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {pos}/{len}")
        {
            bar.set_style(style);
        }
        progress
    }

    pub fn set(&mut self, done: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(done);
        }
        if let Some(log) = &mut self.log {
            log.set(done);
        }
    }

    /// Sets the number of finished parts and the total.
    pub fn set_of(&mut self, done: usize, total: usize) {
        self.set_total(total as u64);
        self.set(done as u64);
    }

    pub fn set_total(&mut self, total: u64) {
        if let Some(bar) = &self.bar {
            bar.set_length(total);
        }
        if let Some(log) = &mut self.log {
            log.total = total;
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

impl Log {
    fn set(&mut self, done: u64) {
        self.done = done;
        if self.spoken.elapsed() < LINE_EVERY {
            return;
        }
        self.spoken = Instant::now();
        let rate = done.saturating_sub(self.before) as f64 / self.started.elapsed().as_secs_f64();
        let left = if rate > 0.0 {
            let seconds = self.total.saturating_sub(done) as f64 / rate;
            format!(", {} left", duration(seconds))
        } else {
            String::new()
        };
        self.console.line(format_args!(
            "{}: {} of {}, {}/s{left}",
            self.what,
            ByteSize(done),
            ByteSize(self.total),
            ByteSize(rate as u64),
        ));
    }
}

/// Formats an approximate duration: `75 s`, `12 min` or `3 h 20 min`.
pub fn duration(seconds: f64) -> String {
    let seconds = seconds.clamp(0.0, 1e9) as u64;
    match seconds {
        0..100 => format!("{seconds} s"),
        100..6000 => format!("{} min", seconds.div_ceil(60)),
        _ => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}
