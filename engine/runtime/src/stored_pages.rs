//! Transfer of KV pages and recurrent states between a model's pools and its page store on disk.
//!
//! The pages of a generation are offered to the store when it ends or is preempted. The store reads them from
//! the pool later, one page at a time between two steps, and skips pages that were reused since. A stored
//! prefix of a prompt is loaded on the caller's thread before the generation reaches the step loop. It is
//! loaded into pages not promised to any generation, where it is found as if another generation had just
//! computed it.

use std::sync::Arc;

use crate::model_core::ModelCore;
use crate::page_store::{PageName, PageStore, StoredKind, StoredPage};
use crate::prefix::{PrefixScope, page_keys};
use crate::sequence::{Sequence, SequencePool};
use nestling_core::cancel::CancelToken;
use nestling_core::kv_cache::{KeptPlace, PAGE_POSITIONS, PageId, PrefixKey};
use nestling_core::recurrent::StateId;
use nestling_core::sync::whole;

/// Maximum bytes read before they are written to the pool. It bounds the wait of a step.
const BATCH_BYTES: usize = 64 << 20;

/// Minimum number of free recurrent states besides a loaded one: the next step reads the loaded state and
/// writes another.
const STATES_LEFT: usize = 2;

/// A page or state kept in a pool for shared prefixes.
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

/// Returns the page or state kept under a key.
fn find(pool: &SequencePool, kind: StoredKind, key: &PrefixKey) -> Option<KeptPart> {
    pool.with(|pages, states| match kind {
        StoredKind::Page => pages.find_kept(key).map(KeptPart::Page),
        StoredKind::State => states.find_kept(key).map(KeptPart::State),
    })
}

/// Offers the kept pages and states of a sequence to the store.
pub(crate) fn offer_kept(model: &Arc<ModelCore>, sequence: &Sequence) {
    // Default: without a store nothing is stored.
    let Some(store) = &model.page_store else { return };
    // The first page is offered last: the least recently used are removed first, and the others are useless
    // without it.
    for key in sequence.kept_keys().iter().rev() {
        for kind in [StoredKind::State, StoredKind::Page] {
            if let Some(kept) = find(&model.pool, kind, key) {
                let (core, key) = (Arc::clone(model), *key);
                store.offer(kind, PageName::new(kind, &key), move || read_kept(&core, &key, kept));
            }
        }
    }
}

/// Removes the pages and states of a sequence from the store.
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

/// Reads the contents of a kept place. Returns `None` unless it stayed kept throughout, since kept places are
/// never written.
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

/// Pages and states of a prompt, held in the pool until the generation adopts them.
#[derive(Debug)]
pub(crate) struct RestoredPrefix {
    pool: SequencePool,
    pages: Vec<PageId>,
    states: Vec<StateId>,
}

impl Drop for RestoredPrefix {
    fn drop(&mut self) {
        self.pool.with(|pages, states| {
            // The last ones are released first: they are useless without the pages before them.
            self.pages.drain(..).rev().for_each(|page| pages.release(page));
            self.states.drain(..).for_each(|state| states.release(state));
        });
    }
}

impl RestoredPrefix {
    /// Holds the page or state kept under a key. Returns false if there is none.
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

/// Loads the parts of a stored prefix that the pool lacks, if loading is faster than computing.
pub(crate) fn bring(
    core: &ModelCore,
    scope: &PrefixScope,
    beginning: &[u32],
    cancel: &CancelToken,
) -> Option<RestoredPrefix> {
    let store = core.page_store.as_ref()?;
    let keys = page_keys(scope, beginning, beginning.len() / PAGE_POSITIONS);
    let mut brought =
        RestoredPrefix { pool: core.pool.clone(), pages: Vec::new(), states: Vec::new() };
    let missing = MissingKeys::find(core, store, &keys, &mut brought)?;
    let bytes = missing.bytes(core);
    if missing.is_empty() || !store.pays(bytes, seconds_to_compute(core, missing.tokens())) {
        return None;
    }
    let mut load = |kind, keys: &[PrefixKey]| load_batch(core, store, kind, keys, &mut brought);
    let has_state = missing.state.is_none_or(|key| load(StoredKind::State, &[key]));
    let mut batches = missing.pages.chunks((BATCH_BYTES / core.limits.page_bytes.max(1)).max(1));
    let is_loaded =
        has_state && batches.all(|batch| !cancel.is_cancelled() && load(StoredKind::Page, batch));
    // What follows an unreadable page is recomputed. It may be unreadable too, so it is also written again.
    let is_read = |key: &&PrefixKey| has_state && is_known(core, store, StoredKind::Page, key);
    for key in keys.iter().filter(|_| !is_loaded).skip_while(is_read) {
        store.forget(&[StoredKind::Page, StoredKind::State].map(|kind| PageName::new(kind, key)));
    }
    has_state.then_some(brought)
}

/// Estimates the seconds for computing `tokens` prompt tokens from measured steps.
fn seconds_to_compute(core: &ModelCore, tokens: usize) -> Option<f64> {
    let scheduler = core.scheduler();
    let rows = core.limits.rows_max.clamp(1, tokens.max(1));
    let step = scheduler.costs.seconds(rows)?;
    Some(step * tokens as f64 / rows as f64)
}

fn is_known(core: &ModelCore, store: &PageStore, kind: StoredKind, key: &PrefixKey) -> bool {
    find(&core.pool, kind, key).is_some() || store.holds(&PageName::new(kind, key))
}

/// Keys found in the store but not in the pool.
struct MissingKeys {
    pages: Vec<PrefixKey>,
    state: Option<PrefixKey>,
}

impl MissingKeys {
    /// Finds the longest known prefix, and holds its pages that are in the pool.
    ///
    /// Returns `None` if loading would save nothing.
    fn find(
        core: &ModelCore,
        store: &PageStore,
        keys: &[PrefixKey],
        brought: &mut RestoredPrefix,
    ) -> Option<Self> {
        let known = |kind, key: &PrefixKey| is_known(core, store, kind, key);
        let count = keys.iter().take_while(|key| known(StoredKind::Page, key)).count();
        let mut keys = &keys[..count];
        let mut state = None;
        if core.pool.is_recurrent() {
            // For recurrent models a prefix is useless without the state at its end.
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

    /// Returns the number of tokens saved from computation.
    fn tokens(&self) -> usize {
        self.pages.len().max(1) * PAGE_POSITIONS
    }

    fn bytes(&self, core: &ModelCore) -> u64 {
        let state = if self.state.is_some() { core.limits.state_bytes } else { 0 };
        self.pages.len() as u64 * core.limits.page_bytes as u64 + state as u64
    }
}

/// Reads pages or states and keeps them in the pool. Returns false unless all of them are available then.
fn load_batch(
    core: &ModelCore,
    store: &PageStore,
    kind: StoredKind,
    keys: &[PrefixKey],
    brought: &mut RestoredPrefix,
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
        // If another thread kept the same key first, its copy is held, and this one is emptied when released.
        brought.hold(kind, key);
    }
    store.used(&names[..written.len()]);
    written.len() == keys.len()
}

/// A newly allocated place in a pool.
#[derive(Clone, Copy, Debug)]
enum PoolPlace {
    Page(PageId),
    State(StateId),
}

/// Allocates places for the contents read and writes them. Returns the leading places that were written.
fn write_to_pool(
    core: &ModelCore,
    kind: StoredKind,
    read: &[StoredPage],
    brought: &mut RestoredPrefix,
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
    // Default: nothing is written to a broken model.
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
