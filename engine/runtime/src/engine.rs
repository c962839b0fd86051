//! The engine: the memory budget, the step loop and the thread or caller that drives it.

use std::num::NonZero;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Weak};
use std::thread::available_parallelism;

use crate::encode_worker::EncodeWorker;
use crate::mask_worker::MaskWorker;
use crate::model_core::ModelCore;
use crate::options::{Driver, EngineOptions, THREADS_MAX};
use crate::page_store::PageStore;
use crate::status::ServiceStatus;
use crate::step_loop::{LoopInbox, LoopProgress, QueuePermit, StepLoop, Task};
use nestling_core::budget::Budget;
use nestling_core::clock::Moment;
use nestling_core::error::EngineError;
use nestling_core::kv_cache::pages_for;
use nestling_core::schedule::ANSWER_TOKENS;
use nestling_core::sync::thread::{self, JoinHandle};
use nestling_core::sync::{Mutex, whole};
use nestling_cpu::kernels::Kernels;
use nestling_cpu::threads::ThreadPool;

/// Owns the threads, the memory budget and the step loop shared by all its models.
///
/// There is no global state: several engines can coexist. Clones refer to the same engine. Models, sessions
/// and generations keep it alive. Its threads are joined when the last of these handles is dropped.
#[derive(Clone, Debug)]
pub struct Engine {
    pub(crate) core: Arc<EngineCore>,
}

impl Engine {
    /// Starts an engine.
    ///
    /// ```
    /// use nestling_runtime::{Engine, EngineOptions};
    ///
    /// let options = EngineOptions { memory_budget: Some(1 << 30), ..EngineOptions::default() };
    /// let engine = Engine::new(options)?;
    /// assert_eq!(engine.budget().available_bytes(), 1 << 30);
    /// # Ok::<(), nestling_core::EngineError>(())
    /// ```
    ///
    /// # Errors
    /// Fails with [`EngineError::Limit`] for more than [`THREADS_MAX`] threads, with [`EngineError::Thread`] if the
    /// thread of the step loop cannot be spawned, and with [`EngineError::Mismatch`] if the machine lacks the
    /// instruction set.
    pub fn new(options: EngineOptions) -> Result<Self, EngineError> {
        let inbox = Arc::new(LoopInbox::new());
        let cores = || available_parallelism().map_or(1, NonZero::get);
        let threads = options.threads.filter(|threads| *threads > 0).unwrap_or_else(cores);
        if threads > THREADS_MAX {
            let (limit, found) = (THREADS_MAX as u64, threads as u64);
            return Err(EngineError::Limit { what: "number of compute threads", limit, found });
        }
        let kernels = Kernels::of(options.instruction_set)?;
        let pool = Arc::new(ThreadPool::placed(threads, options.placement));
        let step_loop = StepLoop::new(Arc::clone(&inbox), Arc::clone(&pool));
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
        let (encoder, masks, starting) = (EncodeWorker::default(), Arc::default(), Arc::default());
        let (models, page_stores) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
        let core = EngineCore {
            inbox,
            runs,
            budget,
            options,
            pool,
            kernels,
            encoder,
            masks,
            starting,
            models,
            page_stores,
        };
        Ok(Self { core: Arc::new(core) })
    }

    /// Returns the memory budget shared by all models of this engine.
    pub fn budget(&self) -> &Budget {
        &self.core.budget
    }

    /// Returns the options that the engine was started with.
    pub fn options(&self) -> &EngineOptions {
        &self.core.options
    }

    /// Returns the status, summed over all models; for times, the maximum. Never waits for a step.
    pub fn status(&self) -> ServiceStatus {
        let mut sum = ServiceStatus::default();
        for model in self.core.models() {
            sum.add(&self.core.status_of(&model));
        }
        for store in &*whole(self.core.page_stores.lock()) {
            sum.page_store.add(&store.status());
        }
        sum
    }

    /// Ends all generations with [`EngineError::EngineClosed`] within one layer, and waits for them to end.
    ///
    /// No generation can be started afterwards. Handles stay valid and may be dropped in any order.
    pub fn shutdown(&self) {
        self.core.close();
    }
}

/// State shared by all handles of an engine.
#[derive(Debug)]
pub(crate) struct EngineCore {
    inbox: Arc<LoopInbox>,
    runs: Runs,
    pub budget: Budget,
    pub options: EngineOptions,
    /// Compute threads, shared by all models since one step runs at a time.
    pub pool: Arc<ThreadPool>,
    /// Kernels of models on the CPU.
    pub kernels: &'static Kernels,
    /// Tokenizer of long texts, shared by all models.
    pub encoder: EncodeWorker,
    /// Number of generations being started on threads.
    pub starting: Arc<AtomicUsize>,
    models: Mutex<Vec<Weak<ModelCore>>>,
    /// Page stores of the models, each once. Pending writes are flushed on drop.
    page_stores: Mutex<Vec<PageStore>>,
    /// Threads that compute the masks of all constraints.
    pub masks: Arc<MaskWorker>,
}

#[derive(Debug)]
enum Runs {
    OnThread(Mutex<Option<JoinHandle<()>>>),
    InCalls(Mutex<StepLoop>),
}

impl EngineCore {
    /// Returns true if the loop has a thread. Otherwise waiting callers call [`EngineCore::drive`].
    pub(crate) fn drives_itself(&self) -> bool {
        matches!(self.runs, Runs::OnThread(_))
    }

    /// Runs one turn of the loop, unless it has a thread.
    pub(crate) fn drive(&self) {
        if let Runs::InCalls(step_loop) = &self.runs {
            let mut step_loop = step_loop.lock().unwrap_or_else(|poisoned| {
                // A turn panicked, perhaps in a waker. As on a thread, the loop ends: this turn reports the
                // closed engine to all generations.
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

    /// Processes cancellations. A loop without a thread does so here, unless a turn is running, since
    /// possibly no caller waits for events.
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

    pub(crate) fn send(&self, task: Task, place: QueuePermit) {
        self.inbox.send(task, place);
    }

    /// Reserves a place in the queue for a generation of `tokens` tokens and at most `tokens_max` more.
    ///
    /// # Errors
    /// Fails with [`EngineError::Busy`] if the queue is full, or if `at_once` is set and the generation would
    /// have to wait.
    pub(crate) fn place(
        &self,
        model: &Arc<ModelCore>,
        tokens: usize,
        tokens_max: usize,
        at_once: bool,
    ) -> Result<QueuePermit, EngineError> {
        let status = self.status_of(model);
        let growth = tokens_max.min(model.context_length().saturating_sub(tokens));
        let pages_wanted = pages_for(tokens + growth.clamp(1, ANSWER_TOKENS));
        let pages_free = status.pages.available();
        let busy = |waiting| EngineError::Busy { waiting, pages_wanted, pages_free };
        let waiting = status.waiting + status.parked;
        // A generation without competitors may start at any size.
        let is_short = pages_wanted > pages_free && status.running > 0;
        if at_once && (waiting > 0 || is_short) {
            return Err(busy(waiting));
        }
        self.inbox.place(self.options.waiting_max.max(1)).map_err(busy)
    }

    /// Returns the start time of the engine, which is 0 on its clock.
    pub(crate) fn epoch(&self) -> Moment {
        self.inbox.epoch
    }

    pub(crate) fn add_model(&self, model: &Arc<ModelCore>) {
        let mut models = whole(self.models.lock());
        models.retain(|model| model.strong_count() > 0);
        models.push(Arc::downgrade(model));
        drop(models);
        if let Some(store) = &model.page_store {
            let mut stores = whole(self.page_stores.lock());
            if !stores.contains(store) {
                stores.push(store.clone());
            }
        }
    }

    /// Returns the open models, cloned so that none is dropped under the lock.
    fn models(&self) -> Vec<Arc<ModelCore>> {
        whole(self.models.lock()).iter().filter_map(Weak::upgrade).collect()
    }

    pub(crate) fn status_of(&self, model: &Arc<ModelCore>) -> ServiceStatus {
        let mut status = *whole(model.service.lock());
        status.waiting += self.inbox.arrivals_of(model);
        status.pages.total = model.limits.pages;
        status.pages.free = model.pool.free_pages();
        status.pages.idle = model.pool.idle_pages();
        status.prefixes = model.pool.prefixes();
        // Default: a model without a page store has nothing on disk.
        status.page_store = model.page_store.as_ref().map(PageStore::status).unwrap_or_default();
        status.pages.resting = model.idle_pages();
        status
    }

    pub(crate) fn wake(&self) {
        self.inbox.wake();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.inbox.is_closed()
    }

    /// Waits until the loop has released everything that ended before this call.
    pub(crate) fn settle(&self) {
        match &self.runs {
            Runs::InCalls(_) => self.drive(),
            Runs::OnThread(_) => self.inbox.settle(),
        }
    }

    fn close(&self) {
        self.inbox.close();
        match &self.runs {
            // The holder of the lock is in a turn, possibly further up this call stack. The next turn, or the
            // drop of the loop, ends the generations.
            Runs::InCalls(step_loop) => {
                if let Ok(mut step_loop) = step_loop.try_lock() {
                    step_loop.turn();
                }
            }
            Runs::OnThread(handle) => {
                let handle = whole(handle.lock()).take();
                // A waker may drop the last handle on the loop's own thread, which cannot join itself.
                let own = |handle: &JoinHandle<()>| handle.thread().id() == thread::current().id();
                if let Some(handle) = handle.filter(|handle| !own(handle)) {
                    // A panic of the loop was already reported to all generations.
                    drop(handle.join());
                }
            }
        }
    }
}

impl Drop for EngineCore {
    fn drop(&mut self) {
        self.close();
        for store in std::mem::take(&mut *whole(self.page_stores.lock())) {
            // Writes that miss the flush are dropped: those pages are recomputed later.
            store.flush();
        }
    }
}
