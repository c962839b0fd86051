//! The open models of a source. A model is opened on demand, one at a time. It is closed when it was idle for
//! a while or another one needs its memory. A model with running requests is never closed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use nestling::CancelToken;
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};

use crate::blocking::blocking;
use crate::error::ApiError;
use crate::limits::LOAD_TIME;
use crate::metrics::{Loads, Metrics};
use crate::served_model::{ServedModel, ServedOptions};
use crate::source::{ListedModel, ModelSource, OpenModelError, OpenedModel, PoolOptions};

/// Interval between checks whether a busy model has become idle.
const LOOK_EVERY: Duration = Duration::from_millis(25);

/// Bounds of the interval between checks for models whose idle time has expired.
const REAP_EVERY: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// Divisor of a model's file size that estimates its memory besides the weights.
const BESIDE_SHARE: u64 = 8;

/// Shared handle of the pool. Clones refer to the same pool.
#[derive(Clone, Debug)]
pub(crate) struct Pool {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    source: Arc<dyn ModelSource>,
    options: PoolOptions,
    served: ServedOptions,
    state: Mutex<PoolState>,
    /// Notified after a load has ended.
    changed: Notify,
}

#[derive(Debug, Default)]
struct PoolState {
    open: Vec<Open>,
    loading: Option<Loading>,
    /// Counters by model name. They are kept after a model is closed.
    metrics: BTreeMap<String, Arc<Metrics>>,
    loads: Loads,
    is_reaped: bool,
}

#[derive(Debug)]
struct Open {
    served: Arc<ServedModel>,
    last_used: Instant,
    /// Idle time after which the model is closed; `None` means never.
    keep_alive: Option<Duration>,
}

impl Open {
    /// Returns true if a request holds the model. Requests acquire it only under the lock of the state.
    fn is_busy(&self) -> bool {
        Arc::strong_count(&self.served) > 1
    }
}

type Outcome = Option<Result<(), ApiError>>;

#[derive(Debug)]
struct Loading {
    name: String,
    cancel: CancelToken,
    outcome: watch::Receiver<Outcome>,
    waiting: usize,
    /// True if the load continues even without waiting requests.
    goes_on: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ModelState {
    Unloaded,
    Loading,
    Loaded,
}

impl ModelState {
    pub fn name(self) -> &'static str {
        match self {
            Self::Unloaded => "unloaded",
            Self::Loading => "loading",
            Self::Loaded => "loaded",
        }
    }
}

#[derive(Debug)]
pub(crate) struct OpenState {
    pub served: Arc<ServedModel>,
    /// Time until the model is closed if it stays idle; `None` means never.
    pub left: Option<Duration>,
}

enum Step {
    Ready(Arc<ServedModel>),
    Joined(Waiter),
    /// Another load or a busy model must end first.
    Wait,
}

/// A request that waits for a load. Dropping the last waiter cancels the load.
struct Waiter {
    pool: Arc<Inner>,
    cancel: CancelToken,
    outcome: watch::Receiver<Outcome>,
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let mut state = self.pool.lock();
        if let Some(loading) = state.loading.as_mut().filter(|load| load.is(&self.outcome)) {
            loading.waiting -= 1;
            if loading.waiting == 0 && !loading.goes_on {
                self.cancel.cancel();
            }
        }
    }
}

impl Loading {
    fn is(&self, outcome: &watch::Receiver<Outcome>) -> bool {
        self.outcome.same_channel(outcome)
    }
}

impl Pool {
    pub fn new(source: Arc<dyn ModelSource>, options: PoolOptions, served: ServedOptions) -> Self {
        let (state, changed) = (Mutex::default(), Notify::new());
        Self { inner: Arc::new(Inner { source, options, served, state, changed }) }
    }

    /// Returns all available models.
    ///
    /// # Errors
    /// An internal error if the source panics.
    pub async fn list(&self) -> Result<Vec<ListedModel>, ApiError> {
        let source = Arc::clone(&self.inner.source);
        blocking(move || source.list()).await
    }

    /// Returns the state of a listed model.
    pub fn state_of(&self, name: &str) -> ModelState {
        let state = self.inner.lock();
        if state.open.iter().any(|open| open.served.id == name) {
            return ModelState::Loaded;
        }
        match &state.loading {
            Some(loading) if loading.name == name => ModelState::Loading,
            _ => ModelState::Unloaded,
        }
    }

    /// Returns the open models.
    pub fn open(&self) -> Vec<OpenState> {
        let now = Instant::now();
        let state = self.inner.lock();
        let open = state.open.iter().map(|open| {
            let since = if open.is_busy() { Duration::ZERO } else { now - open.last_used };
            let left = open.keep_alive.map(|keep| keep.saturating_sub(since));
            OpenState { served: Arc::clone(&open.served), left }
        });
        open.collect()
    }

    /// Returns the counters of each model that was ever open, with the model if it is open.
    pub fn metrics(&self) -> Vec<(String, Arc<Metrics>, Option<Arc<ServedModel>>)> {
        let state = self.inner.lock();
        let all = state.metrics.iter().map(|(name, metrics)| {
            let open = state.open.iter().find(|open| open.served.id == *name);
            (name.clone(), Arc::clone(metrics), open.map(|open| Arc::clone(&open.served)))
        });
        all.collect()
    }

    /// Returns the number of loads.
    pub fn loads(&self) -> Loads {
        self.inner.lock().loads
    }

    /// Returns the model with this name, and opens it if necessary.
    ///
    /// # Errors
    /// [`ApiError::no_listed_model`], the error of a failed load, or [`ApiError::busy`] after a timeout.
    pub async fn acquire(&self, name: &str) -> Result<Arc<ServedModel>, ApiError> {
        if let Some(served) = self.inner.lock().ready(name) {
            return Ok(served);
        }
        let list = self.list().await?;
        let listed = list.into_iter().find(|listed| listed.name == name);
        let listed = listed.ok_or_else(|| ApiError::no_listed_model(name))?;
        let end = Instant::now() + LOAD_TIME;
        loop {
            let changed = self.inner.changed.notified();
            match self.inner.step(&listed) {
                Step::Ready(served) => return Ok(served),
                Step::Joined(waiter) => waiter.end(end).await?,
                Step::Wait if Instant::now() >= end => {
                    return Err(ApiError::busy(
                        "other models answer and leave no room for this one",
                    ));
                }
                // The end of a running request sends no notification, so the wait is limited.
                Step::Wait => drop(timeout(LOOK_EVERY, changed).await),
            }
        }
    }

    /// Sets the idle time after which the model is closed.
    pub fn keep(&self, name: &str, keep_alive: Option<Duration>) {
        let mut state = self.inner.lock();
        if let Some(open) = state.open.iter_mut().find(|open| open.served.id == name) {
            open.keep_alive = keep_alive;
        }
    }
}

impl Waiter {
    async fn end(mut self, end: Instant) -> Result<(), ApiError> {
        let left = end.saturating_duration_since(Instant::now());
        let outcome = timeout(left, self.outcome.wait_for(Option::is_some)).await;
        // The sender of a panicked load is dropped without a value.
        let outcome = outcome.map(|outcome| outcome.ok().and_then(|outcome| outcome.clone()));
        if let Ok(outcome) = outcome {
            return outcome.unwrap_or_else(|| Err(ApiError::internal("a model was not loaded")));
        }
        let mut state = self.pool.lock();
        if let Some(loading) = state.loading.as_mut().filter(|load| load.is(&self.outcome)) {
            loading.goes_on = true;
        }
        Err(ApiError::busy("the model is still being loaded"))
    }
}

impl PoolState {
    fn ready(&mut self, name: &str) -> Option<Arc<ServedModel>> {
        let open = self.open.iter_mut().find(|open| open.served.id == name);
        let open = open.filter(|open| !open.served.is_stale())?;
        open.last_used = Instant::now();
        Some(Arc::clone(&open.served))
    }

    /// Removes idle models, least recently used first, until `needed` bytes are free. Returns the removed
    /// models and the free memory, or `None` if busy models occupy too much.
    fn make_room(
        &mut self,
        needed: u64,
        total: Option<u64>,
    ) -> Option<(Vec<Arc<ServedModel>>, Option<u64>)> {
        let Some(total) = total else {
            // Without a memory budget, only one model is open at a time.
            if self.open.iter().any(Open::is_busy) {
                return None;
            }
            return Some((self.open.drain(..).map(|open| open.served).collect(), None));
        };
        let used = |open: &[Open]| open.iter().map(|open| open.served.used_bytes()).sum::<u64>();
        let busy = self.open.iter().filter(|open| open.is_busy());
        let busy: u64 = busy.map(|open| open.served.used_bytes()).sum();
        let fits = |used: u64| used == 0 || used.saturating_add(needed) <= total;
        if !fits(busy) {
            return None;
        }
        self.open.sort_by_key(|open| open.last_used);
        let mut gone = Vec::new();
        while !fits(used(&self.open)) {
            let index = self.open.iter().position(|open| !open.is_busy())?;
            gone.push(self.open.remove(index).served);
        }
        Some((gone, Some(total.saturating_sub(used(&self.open)))))
    }

    /// Removes all idle models, for a load that lacked memory. Returns them and the memory left of `total`,
    /// or `None` if no model was idle.
    fn all_idle(&mut self, total: Option<u64>) -> Option<(Vec<Arc<ServedModel>>, Option<u64>)> {
        let (busy, idle): (Vec<_>, Vec<_>) = self.open.drain(..).partition(Open::is_busy);
        self.open = busy;
        let used: u64 = self.open.iter().map(|open| open.served.used_bytes()).sum();
        let gone = idle.into_iter().map(|open| open.served).collect::<Vec<_>>();
        (!gone.is_empty()).then(|| (gone, total.map(|total| total.saturating_sub(used))))
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, PoolState> {
        // A panic cannot leave the state in an inconsistent state.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn step(self: &Arc<Self>, listed: &ListedModel) -> Step {
        let mut state = self.lock();
        if let Some(served) = state.ready(&listed.name) {
            return Step::Ready(served);
        }
        if state.loading.is_none() {
            let mut stale = Vec::new();
            if let Some(index) = state.open.iter().position(|open| open.served.id == listed.name) {
                // Requests of a stale model fail and end soon; then the model can be closed.
                if state.open[index].is_busy() {
                    return Step::Wait;
                }
                stale.push(state.open.remove(index).served);
            }
            let needed = listed.bytes.saturating_add(listed.bytes / BESIDE_SHARE);
            let Some((mut gone, room)) = state.make_room(needed, self.options.memory_bytes) else {
                // Closing a model may block.
                tokio::task::spawn_blocking(move || drop(stale));
                return Step::Wait;
            };
            gone.append(&mut stale);
            state.loading = Some(self.begin(&listed.name, gone, room));
        }
        match &mut state.loading {
            Some(loading) if loading.name == listed.name && !loading.cancel.is_cancelled() => {
                loading.waiting += 1;
                let (cancel, outcome) = (loading.cancel.clone(), loading.outcome.clone());
                Step::Joined(Waiter { pool: Arc::clone(self), cancel, outcome })
            }
            _ => Step::Wait,
        }
    }

    fn begin(
        self: &Arc<Self>,
        name: &str,
        gone: Vec<Arc<ServedModel>>,
        room: Option<u64>,
    ) -> Loading {
        let (sender, outcome) = watch::channel(None);
        let cancel = CancelToken::new();
        let (source, token) = (Arc::clone(&self.source), cancel.clone());
        let (pool, asked) = (Arc::clone(self), name.to_owned());
        tokio::spawn(async move {
            let (mut gone, mut room) = (gone, room);
            let opened = loop {
                let (source, wanted, token) = (Arc::clone(&source), asked.clone(), token.clone());
                let work = move || {
                    // The memory of the removed models must be released before the load starts.
                    drop(gone);
                    source.open(&wanted, room, &token)
                };
                let opened = blocking(work).await;
                let lacks = |error: &OpenModelError| error.lacks_memory;
                if !matches!(&opened, Ok(Err(error)) if lacks(error)) {
                    break opened;
                }
                // The model needs more memory than its file size suggested.
                let Some(more) = pool.lock().all_idle(pool.options.memory_bytes) else {
                    break opened;
                };
                (gone, room) = more;
            };
            let outcome = pool.loaded(asked, opened);
            pool.changed.notify_waiters();
            // All waiting requests may be gone.
            let _ = sender.send(Some(outcome));
        });
        let (waiting, goes_on) = (0, false);
        Loading { name: name.to_owned(), cancel, outcome, waiting, goes_on }
    }

    fn loaded(
        self: &Arc<Self>,
        name: String,
        opened: Result<Result<OpenedModel, OpenModelError>, ApiError>,
    ) -> Result<(), ApiError> {
        let mut state = self.lock();
        let is_alone = state.open.is_empty();
        let failed = |error: OpenModelError| match error.lacks_memory && !is_alone {
            // The busy models may be closed later, so a retry can succeed.
            true => ApiError::busy("other models answer and leave no room for this one"),
            false => ApiError::not_opened(&name, &error.message),
        };
        let opened = opened.and_then(|opened| opened.map_err(failed));
        state.loading = None;
        let OpenedModel { model, hold } = match opened {
            Ok(opened) => opened,
            Err(error) => {
                state.loads.failed += 1;
                return Err(error);
            }
        };
        state.loads.opened += 1;
        let metrics = Arc::clone(state.metrics.entry(name.clone()).or_default());
        let served = ServedModel::new(model, name, &self.served, metrics, Some(hold), true);
        let served = Arc::new(served);
        let keep_alive = self.options.keep_alive;
        state.open.push(Open { served, last_used: Instant::now(), keep_alive });
        if !std::mem::replace(&mut state.is_reaped, true) {
            tokio::spawn(reap(Arc::downgrade(self)));
        }
        Ok(())
    }

    /// Removes the models whose idle time has expired. Returns `None` if no model is left.
    fn reaped(&self) -> Option<Vec<Arc<ServedModel>>> {
        let now = Instant::now();
        let mut state = self.lock();
        if state.open.is_empty() {
            state.is_reaped = false;
            return None;
        }
        let mut gone = Vec::new();
        for index in (0..state.open.len()).rev() {
            let open = &mut state.open[index];
            if open.is_busy() {
                open.last_used = now;
            } else if open.served.is_stale()
                || open.keep_alive.is_some_and(|keep| now - open.last_used >= keep)
            {
                gone.push(state.open.remove(index).served);
            }
        }
        Some(gone)
    }
}

/// Closes idle models whose time has expired, until no model is open.
async fn reap(pool: Weak<Inner>) {
    let (least, most) = REAP_EVERY;
    while let Some(keep) = pool.upgrade().map(|pool| pool.options.keep_alive) {
        sleep(keep.map_or(most, |keep| (keep / 4).clamp(least, most))).await;
        let gone = pool.upgrade().and_then(|pool| pool.reaped());
        let Some(gone) = gone else { break };
        if !gone.is_empty()
            && let Err(error) = blocking(move || drop(gone)).await
        {
            tracing::warn!("a model was not closed: {}", error.message);
        }
    }
}
