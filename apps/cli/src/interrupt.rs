//! Ctrl-C handling: the first press stops the computation, the second ends the program.

use nestling::engine::cancel::CancelToken;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The computation that Ctrl-C stops, if any. Cloned into the signal handler.
#[derive(Clone, Default)]
pub struct Interrupt {
    running: Arc<Mutex<Option<CancelToken>>>,
    /// True if a signal has stopped the computation.
    is_stopping: Arc<AtomicBool>,
    /// Token that stops the computation instead of Ctrl-C.
    given: Option<CancelToken>,
}

impl Interrupt {
    /// Installs the handler; must be called only once. If it cannot be installed, Ctrl-C ends the program.
    pub fn install() -> Self {
        let interrupt = Self::default();
        let handler = interrupt.clone();
        let _ = ctrlc::set_handler(move || handler.signal());
        interrupt
    }

    /// Creates an interrupt controlled by a token instead of the keyboard.
    pub fn by(token: &CancelToken) -> Self {
        Self { given: Some(token.clone()), ..Self::default() }
    }

    /// Handles SIGTERM like Ctrl-C, and SIGHUP like the first Ctrl-C unless the program was started to ignore
    /// it (`nohup`). If the handlers cannot be installed, the signals end the program at once.
    #[cfg(unix)]
    pub fn obey_termination(&self) {
        use tokio::signal::unix::{SignalKind, signal};
        let interrupt = self.clone();
        let listen = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
            runtime.block_on(async {
                if !ignores_hang_up() {
                    let mut hang_ups = signal(SignalKind::hangup())?;
                    let interrupt = interrupt.clone();
                    tokio::spawn(async move {
                        while hang_ups.recv().await.is_some() {
                            interrupt.hang_up();
                        }
                    });
                }
                let mut requests = signal(SignalKind::terminate())?;
                while requests.recv().await.is_some() {
                    interrupt.signal();
                }
                std::io::Result::Ok(())
            })
        };
        let started = std::thread::Builder::new().name("nestling-signals".into()).spawn(listen);
        // Signals keep their previous effect if the thread cannot be started.
        drop(started);
    }

    /// Does nothing: these signals exist only on Unix.
    #[cfg(not(unix))]
    pub fn obey_termination(&self) {}

    /// Runs `work` with a token that Ctrl-C cancels.
    pub fn guard<T>(&self, work: impl FnOnce(&CancelToken) -> T) -> T {
        // Default: a new token that only Ctrl-C cancels.
        let token = self.given.clone().unwrap_or_default();
        *self.lock() = Some(token.clone());
        let out = work(&token);
        *self.lock() = None;
        out
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<CancelToken>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops the computation. A further signal is ignored: terminals and service managers may send SIGHUP
    /// twice, or after SIGTERM.
    #[cfg(unix)]
    fn hang_up(&self) {
        if !self.is_stopping.load(Ordering::SeqCst) {
            self.signal();
        }
    }

    fn signal(&self) {
        match &*self.lock() {
            Some(token) if !token.is_cancelled() => {
                self.is_stopping.store(true, Ordering::SeqCst);
                token.cancel();
            }
            _ => std::process::exit(i32::from(crate::failure::Exit::Interrupted as u8)),
        }
    }
}

/// Returns true if SIGHUP is ignored. If this is unknown, returns true, which leaves the signal unchanged.
#[cfg(unix)]
fn ignores_hang_up() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").ok();
    let ignored = status.as_deref().and_then(|status| {
        let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"))?;
        u64::from_str_radix(line.trim(), 16).ok()
    });
    // The lowest bit is signal 1, SIGHUP.
    ignored.is_none_or(|ignored| ignored & 1 != 0)
}
