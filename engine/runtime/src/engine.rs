//! The engine: the memory budget, the step loop and whoever drives it.

use std::num::NonZero;
use std::sync::Arc;
use std::thread::available_parallelism;

use crate::encode_worker::EncodeWorker;
use crate::options::{Driver, EngineOptions};
use crate::step_loop::{LoopInbox, LoopProgress, StepLoop, Task};
use nestling_core::budget::Budget;
use nestling_core::error::EngineError;
use nestling_core::sync::thread::{self, JoinHandle};
use nestling_core::sync::{Mutex, whole};
use nestling_cpu::threads::ThreadPool;

/// Owns the threads, the memory budget and the step loop that all its models share. There are no
/// globals: several engines live side by side.
///
/// Clones are the same engine. Models, sessions and generations keep it alive, and its threads are
/// joined when the last of all these handles is dropped.
#[derive(Clone, Debug)]
pub struct Engine {
    pub(crate) core: Arc<EngineCore>,
}

impl Engine {
    /// Starts an engine.
    ///
    /// # Errors
    /// [`EngineError::Thread`] where the platform gives no thread.
    pub fn new(options: EngineOptions) -> Result<Self, EngineError> {
        let inbox = Arc::new(LoopInbox::new());
        let step_loop = StepLoop::new(Arc::clone(&inbox));
        let runs = match options.driver {
            Driver::Caller => Runs::InCalls(Mutex::new(step_loop)),
            Driver::Thread => {
                let builder = thread::Builder::new().name("nestling-steps".into());
                let placement = options.placement;
                let handle = builder.spawn(move || {
                    placement.place(0);
                    step_loop.run();
                });
                Runs::OnThread(Mutex::new(Some(handle.map_err(EngineError::Thread)?)))
            }
        };
        let budget = Budget::new(options.memory_budget);
        let cores = || available_parallelism().map_or(1, NonZero::get);
        let threads = options.threads.unwrap_or_else(cores);
        let pool = Arc::new(ThreadPool::placed(threads, options.placement));
        let encoder = EncodeWorker::default();
        Ok(Self { core: Arc::new(EngineCore { inbox, runs, budget, options, pool, encoder }) })
    }

    /// The memory budget that all models of this engine share.
    pub fn budget(&self) -> &Budget {
        &self.core.budget
    }

    /// The options it was started with.
    pub fn options(&self) -> &EngineOptions {
        &self.core.options
    }

    /// Ends every generation with [`EngineError::EngineClosed`], within one layer, and waits for
    /// it. No generation can be started afterwards; handles stay valid and may be dropped in any
    /// order.
    pub fn shutdown(&self) {
        self.core.close();
    }
}

/// What all handles of an engine share.
#[derive(Debug)]
pub(crate) struct EngineCore {
    inbox: Arc<LoopInbox>,
    runs: Runs,
    pub budget: Budget,
    pub options: EngineOptions,
    /// The threads that compute, for all models: one step runs at a time.
    pub pool: Arc<ThreadPool>,
    /// Turns the long texts of all models into tokens.
    pub encoder: EncodeWorker,
}

/// Where the step loop runs.
#[derive(Debug)]
enum Runs {
    OnThread(Mutex<Option<JoinHandle<()>>>),
    InCalls(Mutex<StepLoop>),
}

impl EngineCore {
    /// Whether the loop runs by itself; otherwise whoever waits calls [`EngineCore::drive`].
    pub(crate) fn drives_itself(&self) -> bool {
        matches!(self.runs, Runs::OnThread(_))
    }

    /// One turn of the loop, unless it runs by itself.
    pub(crate) fn drive(&self) {
        if let Runs::InCalls(step_loop) = &self.runs {
            let mut step_loop = step_loop.lock().unwrap_or_else(|poisoned| {
                // Somebody panicked within a turn, a waker perhaps. As on a thread of its own, the loop
                // ends; this turn tells all its generations so.
                self.inbox.close();
                poisoned.into_inner()
            });
            let turn = step_loop.turn();
            drop(step_loop);
            if turn != LoopProgress::Worked {
                thread::yield_now();
            }
        }
    }

    /// Notices what has been cancelled. A loop in calls does it here, if it is not in a turn:
    /// maybe nobody waits for events any more.
    pub(crate) fn notice_cancelled(&self) {
        match &self.runs {
            Runs::OnThread(_) => self.inbox.wake(),
            Runs::InCalls(step_loop) => {
                if let Ok(mut step_loop) = step_loop.try_lock() {
                    step_loop.sweep();
                }
            }
        }
    }

    pub(crate) fn send(&self, task: Task) {
        self.inbox.send(task);
    }

    pub(crate) fn wake(&self) {
        self.inbox.wake();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.inbox.is_closed()
    }

    /// Waits until the loop has let go of everything that ended before this call.
    pub(crate) fn settle(&self) {
        match &self.runs {
            Runs::InCalls(_) => self.drive(),
            Runs::OnThread(_) => self.inbox.settle(),
        }
    }

    fn close(&self) {
        self.inbox.close();
        match &self.runs {
            // Whoever holds the lock is in a turn, maybe further up this very stack: the next
            // turn ends it, or the drop of the loop does.
            Runs::InCalls(step_loop) => {
                if let Ok(mut step_loop) = step_loop.try_lock() {
                    step_loop.turn();
                }
            }
            Runs::OnThread(handle) => {
                let handle = whole(handle.lock()).take();
                // The last handle may be dropped by a waker, on the loop's own thread.
                let own = |handle: &JoinHandle<()>| handle.thread().id() == thread::current().id();
                if let Some(handle) = handle.filter(|handle| !own(handle)) {
                    // A panic of the loop has been reported to every generation already.
                    drop(handle.join());
                }
            }
        }
    }
}

impl Drop for EngineCore {
    fn drop(&mut self) {
        self.close();
    }
}
