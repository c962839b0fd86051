//! The thread that owns the engine.

mod engine;
#[cfg(test)]
mod tests;

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use nestling::CancelToken;

use crate::messages::{Command, Report};
use engine::EngineLoop;

/// Settings of all answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Maximum number of tokens of an answer.
    pub max_tokens: usize,
    /// True if the likeliest token is always chosen.
    pub greedy: bool,
    /// True if plans have a forecast, for which memory and disk are measured.
    pub predict: bool,
}

/// Handle of the engine's thread, which ends when the handle is dropped.
pub struct Worker {
    commands: Sender<Command>,
    reports: Receiver<Report>,
    thread: Option<JoinHandle<()>>,
    /// Cancels the opening in progress.
    opening: CancelToken,
}

impl Worker {
    /// Starts the thread. It calls `wake` after each report.
    ///
    /// # Errors
    /// Fails if the system refuses a thread.
    pub fn start(
        settings: Settings,
        wake: impl Fn() + Send + 'static,
    ) -> Result<Self, std::io::Error> {
        let (commands, received) = channel();
        let (sender, reports) = channel();
        let report = move |report| {
            // Without a receiver the thread is about to end.
            let _ = sender.send(report);
            wake();
        };
        let engine = EngineLoop::new(settings, received, Box::new(report));
        let thread = std::thread::Builder::new().name("engine".into()).spawn(|| engine.run())?;
        Ok(Self { commands, reports, thread: Some(thread), opening: CancelToken::new() })
    }

    /// Sends a command. Never blocks.
    pub fn send(&mut self, command: Command) {
        if let Command::Open { cancel, .. } = &command {
            self.opening = cancel.clone();
        }
        // The thread ends only after `Quit`.
        let _ = self.commands.send(command);
    }

    /// Returns the next report, if there is one. Never blocks.
    pub fn report(&self) -> Option<Report> {
        self.reports.try_recv().ok()
    }

    /// Waits for the next report. Returns `None` after the timeout.
    ///
    /// # Errors
    /// Fails if the thread has ended.
    pub fn wait(&self, timeout: Duration) -> Result<Option<Report>, String> {
        match self.reports.recv_timeout(timeout) {
            Ok(report) => Ok(Some(report)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err("the engine's thread has ended".into()),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.opening.cancel();
        self.send(Command::Quit);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported by its hook.
            let _ = thread.join();
        }
    }
}
