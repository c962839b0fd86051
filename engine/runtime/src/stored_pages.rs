//! Pages and recurrent states between a model's pools and its store on disk.
//!
//! What a generation computed is offered to the store when it ends or loses its pages: the store reads it out of
//! the pool when its turn comes, one page at a time between two steps, if it is still there. What a prompt begins with
//! is brought back before the step loop hears of the generation, on the caller's thread, into pages that no
//! generation was promised; from there it is found as if another generation had computed it just now.

use std::sync::Arc;

use crate::model_core::ModelCore;
use crate::page_store::{PageName, PageStore, StoredKind, StoredPage};
use crate::prefix::{PrefixScope, page_keys};
use crate::sequence::{Sequence, SequencePool};
use nestling_core::cancel::CancelToken;
use nestling_core::kv_cache::{KeptPlace, PAGE_POSITIONS, PageId, PrefixKey};
use nestling_core::recurrent::StateId;
use nestling_core::sync::whole;

/// Bytes that are read before they are written to the pool at once: so long a step waits at most.
const BATCH_BYTES: usize = 64 << 20;

/// Recurrent states that stay for others: one that is brought is read, and another one written, in the next step.
const STATES_LEFT: usize = 2;

/// A place of a pool that is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeptPart {
    Page(KeptPlace<PageId>),
    State(KeptPlace<StateId>),
}

impl KeptPart {
    fn kind(self) -> StoredKind {
        match self {
            Self::Page(_) => StoredKind::Page,
            Self::State(_) => StoredKind::State,
        }
    }
}

/// What is kept under a key.
fn find(pool: &SequencePool, kind: StoredKind, key: &PrefixKey) -> Option<KeptPart> {
    pool.with(|pages, states| match kind {
        StoredKind::Page => pages.find_kept(key).map(KeptPart::Page),
        StoredKind::State => states.find_kept(key).map(KeptPart::State),
    })
}

/// Offers to the store what was computed for a sequence and is kept.
pub(crate) fn offer_kept(model: &Arc<ModelCore>, sequence: &Sequence) {
    // Default: without a store nothing is stored.
    let Some(store) = &model.page_store else { return };
    // The first page last, since those unused for longest are removed first and are worth nothing without it.
    for key in sequence.kept_keys().iter().rev() {
        for kind in [StoredKind::State, StoredKind::Page] {
            if let Some(kept) = find(&model.pool, kind, key) {
                let (core, key) = (Arc::clone(model), *key);
                store.offer(kind, PageName::new(kind, &key), move || read_kept(&core, &key, kept));
            }
        }
    }
}

/// Removes from the store what was computed for a sequence.
pub(crate) fn disown_stored(model: &ModelCore, sequence: &Sequence) {
    // Default: without a store nothing is stored.
    let Some(store) = &model.page_store else { return };
    for key in sequence.kept_keys() {
        store.remove(PageName::new(StoredKind::Page, key));
        if model.pool.is_recurrent() {
            store.remove(PageName::new(StoredKind::State, key));
        }
    }
}

/// The contents of a place, if it was kept all the time: what is kept is not written.
fn read_kept(core: &ModelCore, key: &PrefixKey, kept: KeptPart) -> Option<Vec<u8>> {
    let is_kept = || find(&core.pool, kept.kind(), key) == Some(kept);
    if !is_kept() {
        return None;
    }
    let mut runner = core.lock_runner().ok()?;
    let bytes = match kept {
        KeptPart::Page(kept) => runner.read_page(kept.place),
        KeptPart::State(kept) => runner.read_state(kept.place),
    };
    drop(runner);
    let bytes = bytes.inspect_err(|error| tracing::warn!(%error, "a page could not be stored"));
    bytes.ok().filter(|_| is_kept())
}

/// Pages and states of a prompt that are in the pool for now: nobody takes them for others.
#[derive(Debug)]
pub(crate) struct Brought {
    pool: SequencePool,
    pages: Vec<PageId>,
    states: Vec<StateId>,
}

impl Drop for Brought {
    fn drop(&mut self) {
        self.pool.with(|pages, states| {
            // The last ones first: they are worth nothing without those before them.
            self.pages.drain(..).rev().for_each(|page| pages.release(page));
            self.states.drain(..).for_each(|state| states.release(state));
        });
    }
}

impl Brought {
    /// Holds what is kept under a key; false if nothing is.
    fn hold(&mut self, kind: StoredKind, key: &PrefixKey) -> bool {
        let Self { pool, pages: held_pages, states: held_states } = self;
        pool.with(|pages, states| match kind {
            StoredKind::Page => pages.find(key).is_some_and(|page| {
                pages.retain(page);
                held_pages.push(page);
                true
            }),
            StoredKind::State => states.find(key).is_some_and(|state| {
                states.retain(state);
                held_states.push(state);
                true
            }),
        })
    }
}

/// Reads from disk what a model's store has of a prompt's beginning and its pool has not, as long as that is faster
/// than computing it.
pub(crate) fn bring(
    core: &ModelCore,
    scope: &PrefixScope,
    beginning: &[u32],
    cancel: &CancelToken,
) -> Option<Brought> {
    let store = core.page_store.as_ref()?;
    let keys = page_keys(scope, beginning, beginning.len() / PAGE_POSITIONS);
    let mut brought = Brought { pool: core.pool.clone(), pages: Vec::new(), states: Vec::new() };
    let mut missing = Missing::find(core, store, &keys, &mut brought)?;
    let bytes = missing.bytes(core);
    if missing.is_empty() || !store.pays(bytes, seconds_to_compute(core, missing.tokens())) {
        return None;
    }
    if let Some(key) = missing.state.take() {
        load_batch(core, store, StoredKind::State, &[key], &mut brought).then_some(())?;
    }
    let page_bytes = core.limits.page_bytes;
    for batch in missing.pages.chunks((BATCH_BYTES / page_bytes.max(1)).max(1)) {
        if cancel.is_cancelled() || !load_batch(core, store, StoredKind::Page, batch, &mut brought)
        {
            break;
        }
    }
    Some(brought)
}

/// Seconds in which so many tokens of a prompt are computed, by what steps took.
fn seconds_to_compute(core: &ModelCore, tokens: usize) -> Option<f64> {
    let scheduler = core.scheduler();
    let rows = core.limits.rows_max.clamp(1, tokens.max(1));
    let step = scheduler.costs.seconds(rows)?;
    Some(step * tokens as f64 / rows as f64)
}

/// Keys of what the store has and the pool has not.
struct Missing {
    pages: Vec<PrefixKey>,
    state: Option<PrefixKey>,
}

impl Missing {
    /// Looks from the first page on; what the pool has is held. None where nothing would be won.
    fn find(
        core: &ModelCore,
        store: &PageStore,
        keys: &[PrefixKey],
        brought: &mut Brought,
    ) -> Option<Self> {
        let has = |kind, key: &PrefixKey| find(&core.pool, kind, key).is_some();
        let stored = |kind, key: &PrefixKey| store.holds(&PageName::new(kind, key));
        let known = |kind, key: &PrefixKey| has(kind, key) || stored(kind, key);
        let count = keys.iter().take_while(|key| known(StoredKind::Page, key)).count();
        let mut keys = &keys[..count];
        let mut state = None;
        if core.pool.is_recurrent() {
            // Without the state at its end a beginning is worth nothing.
            let last = keys.iter().rposition(|key| known(StoredKind::State, key))?;
            keys = &keys[..=last];
            let key = keys.last()?;
            if !brought.hold(StoredKind::State, key) {
                if core.pool.free_states() <= STATES_LEFT {
                    return None;
                }
                state = Some(*key);
            }
        }
        let mut pages = Vec::new();
        for key in keys {
            if !brought.hold(StoredKind::Page, key) {
                pages.push(*key);
            }
        }
        let promised = whole(core.service.lock()).pages.promised;
        let room = core.pool.free_pages().saturating_sub(promised);
        if room < pages.len() {
            if core.pool.is_recurrent() {
                return None;
            }
            pages.truncate(room);
        }
        Some(Self { pages, state })
    }

    fn is_empty(&self) -> bool {
        self.pages.is_empty() && self.state.is_none()
    }

    /// Tokens that need not be computed.
    fn tokens(&self) -> usize {
        self.pages.len().max(1) * PAGE_POSITIONS
    }

    fn bytes(&self, core: &ModelCore) -> u64 {
        let state = if self.state.is_some() { core.limits.state_bytes } else { 0 };
        self.pages.len() as u64 * core.limits.page_bytes as u64 + state as u64
    }
}

/// Reads some pages, or states, and keeps them in the pool; false if not all of them are there now.
fn load_batch(
    core: &ModelCore,
    store: &PageStore,
    kind: StoredKind,
    keys: &[PrefixKey],
    brought: &mut Brought,
) -> bool {
    let bytes = match kind {
        StoredKind::Page => core.limits.page_bytes,
        StoredKind::State => core.limits.state_bytes,
    };
    let names: Vec<PageName> = keys.iter().map(|key| PageName::new(kind, key)).collect();
    let read: Vec<StoredPage> =
        names.iter().map_while(|name| store.read(kind, name, bytes)).collect();
    let written = write_to_pool(core, kind, &read, brought);
    for (key, place) in keys.iter().zip(&written) {
        core.pool.with(|pages, states| match place {
            PoolPlace::Page(page) => pages.keep(*page, *key),
            PoolPlace::State(state) => states.keep(*state, *key),
        });
        // Somebody else may have been faster: theirs is found, and this one is empty again when it is let go.
        brought.hold(kind, key);
    }
    store.used(&names[..written.len()]);
    written.len() == keys.len()
}

/// A place of a pool that nobody else knows.
#[derive(Clone, Copy, Debug)]
enum PoolPlace {
    Page(PageId),
    State(StateId),
}

/// Takes places for what was read, and writes it there; those that are written, from the first on.
fn write_to_pool(
    core: &ModelCore,
    kind: StoredKind,
    read: &[StoredPage],
    brought: &mut Brought,
) -> Vec<PoolPlace> {
    let mut places = Vec::new();
    for _ in read {
        let place = core.pool.with(|pages, states| match kind {
            StoredKind::Page => pages.allocate().ok().map(PoolPlace::Page),
            StoredKind::State => states.allocate().map(PoolPlace::State),
        });
        match place {
            Some(PoolPlace::Page(page)) => brought.pages.push(page),
            Some(PoolPlace::State(state)) => brought.states.push(state),
            None => break,
        }
        places.extend(place);
    }
    // Default: nothing is written to a model that computes no more.
    let Ok(mut runner) = core.lock_runner() else { return Vec::new() };
    let written = places.iter().zip(read).take_while(|(place, page)| {
        let written = match **place {
            PoolPlace::Page(id) => runner.write_page(id, page.contents()),
            PoolPlace::State(id) => runner.write_state(id, page.contents()),
        };
        written.inspect_err(|error| tracing::warn!(%error, "a stored page was not used")).is_ok()
    });
    let count = written.count();
    drop(runner);
    places.truncate(count);
    places
}
