//! Background reads of weight groups, ahead of the loader.
//!
//! The device uploads one group while others are read. Files that must be transcoded keep all cores busy.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::thread;

use nestling_formats::store::GroupId;

use super::source::ExpertSource;
use super::store::Matrices;
use nestling_core::backend::Backend;
use nestling_core::error::EngineError;
use nestling_core::sync::whole;

/// Maximum number of groups held in memory for a device that copies them.
const COPIED_AHEAD_MAX: usize = 2;

/// Groups of a source in the order in which the loader takes them.
pub struct GroupsAhead<'a> {
    source: &'a dyn ExpertSource,
    groups: Vec<GroupId>,
    /// Maximum number of groups read but not yet taken.
    window: usize,
    state: Mutex<ReadAhead>,
    /// Signalled when a group was read or taken, and at the end.
    changed: Condvar,
}

struct ReadAhead {
    read: Vec<Group>, // [groups]
    /// Index after the last group taken.
    taken: usize,
    closed: bool,
}

enum Group {
    Waiting,
    Reading,
    Read(Result<Matrices, EngineError>),
    Taken,
}

impl<'a> GroupsAhead<'a> {
    /// Creates a reader without reading yet.
    ///
    /// If the backend uses weights in the memory that they are read into, all groups may be read at once,
    /// otherwise a few.
    pub fn new<B: Backend>(
        source: &'a dyn ExpertSource,
        groups: Vec<GroupId>,
        threads: usize,
    ) -> Self {
        let window = if B::WEIGHTS_IN_PLACE { groups.len() } else { threads.min(COPIED_AHEAD_MAX) };
        let read = groups.iter().map(|_| Group::Waiting).collect();
        let state = Mutex::new(ReadAhead { read, taken: 0, closed: false });
        Self { source, groups, window, state, changed: Condvar::new() }
    }

    /// Runs `load` while other threads read.
    pub fn run<T>(&self, threads: usize, load: impl FnOnce() -> T) -> T {
        thread::scope(|scope| {
            for _ in 1..threads.min(self.groups.len()) {
                // If the thread cannot be spawned, the others take its share.
                let _ = thread::Builder::new().spawn_scoped(scope, || self.read());
            }
            let _close = CloseOnDrop(self);
            load()
        })
    }

    /// Returns a group, waiting for its read or reading it on this thread.
    pub fn take(&self, id: &GroupId) -> Result<Matrices, EngineError> {
        let Some(at) = self.groups.iter().position(|group| group == id) else {
            return self.source.matrices(id);
        };
        let mut state = self.lock();
        state.taken = state.taken.max(at);
        self.changed.notify_all();
        loop {
            match std::mem::replace(&mut state.read[at], Group::Taken) {
                Group::Read(result) => return result,
                // No thread reads it yet, or it was taken before.
                Group::Waiting | Group::Taken => {
                    drop(state);
                    return self.source.matrices(id);
                }
                Group::Reading => {
                    state.read[at] = Group::Reading;
                    state = whole(self.changed.wait(state));
                }
            }
        }
    }

    fn read(&self) {
        let mut state = self.lock();
        while !state.closed {
            let end = (state.taken + self.window).min(state.read.len());
            let mut within = state.read[..end].iter();
            let Some(at) = within.position(|group| matches!(group, Group::Waiting)) else {
                if end == state.read.len() {
                    return;
                }
                state = whole(self.changed.wait(state));
                continue;
            };
            state.read[at] = Group::Reading;
            drop(state);
            let read = catch_unwind(AssertUnwindSafe(|| self.source.matrices(&self.groups[at])));
            let panicked = EngineError::Panicked { what: "a read of weights" };
            state = self.lock();
            state.read[at] = Group::Read(read.unwrap_or(Err(panicked)));
            self.changed.notify_all();
        }
    }

    fn lock(&self) -> MutexGuard<'_, ReadAhead> {
        whole(self.state.lock())
    }
}

struct CloseOnDrop<'a>(&'a GroupsAhead<'a>);

impl Drop for CloseOnDrop<'_> {
    fn drop(&mut self) {
        self.0.lock().closed = true;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use crate::expert::StoreSource;
    use nestling_cpu::Cpu;
    use nestling_formats::FloatKind;
    use nestling_formats::Level;
    use nestling_import::ModelConfig;

    use super::{EngineError, ExpertSource, GroupId, GroupsAhead, Matrices};

    /// A source of groups without matrices that counts its reads. It can panic at a given layer.
    struct CountingSource {
        reads: AtomicUsize,
        panics_at: Option<u32>,
    }

    impl CountingSource {
        fn new(panics_at: Option<u32>) -> Self {
            Self { reads: AtomicUsize::new(0), panics_at }
        }
    }

    impl ExpertSource for CountingSource {
        fn config(&self) -> &ModelConfig {
            unreachable!("groups are read by their names")
        }

        fn level_max(&self) -> Option<Level> {
            None
        }

        fn matrices(&self, group: &GroupId) -> Result<Matrices, EngineError> {
            self.reads.fetch_add(1, Ordering::Relaxed);
            let panics_at = self.panics_at.map(|layer| GroupId::Dense { layer });
            assert_ne!(Some(group), panics_at.as_ref(), "a source that panics");
            Ok(Matrices { group: group.clone(), list: Vec::new() })
        }

        fn floats(&self, _: Option<u32>) -> Result<Vec<(FloatKind, Vec<f32>)>, EngineError> {
            Ok(Vec::new())
        }

        fn store_source(self: Arc<Self>) -> Option<Arc<StoreSource>> {
            None
        }
    }

    fn dense(layers: impl Iterator<Item = u32>) -> Vec<GroupId> {
        layers.map(|layer| GroupId::Dense { layer }).collect()
    }

    #[test]
    fn every_group_is_read_once_whatever_the_order_and_the_threads() {
        for threads in [1, 2, 5] {
            for order in [dense(0..20), dense((0..20).rev())] {
                let source = CountingSource::new(None);
                let ahead = GroupsAhead::new::<Cpu>(&source, dense(0..20), threads);
                ahead.run(threads, || {
                    for id in &order {
                        assert_eq!(ahead.take(id).unwrap().group, *id);
                    }
                });
                assert_eq!(source.reads.into_inner(), 20, "{threads} threads");
            }
        }
    }

    #[test]
    fn a_loader_that_stops_early_and_groups_that_nobody_listed_are_no_trouble() {
        let source = CountingSource::new(None);
        let ahead = GroupsAhead::new::<Cpu>(&source, dense(0..20), 3);
        ahead.run(3, || assert_eq!(ahead.take(&GroupId::Head).unwrap().group, GroupId::Head));
        assert!(source.reads.into_inner() <= 21);
    }

    #[test]
    fn a_read_that_panics_on_another_thread_is_an_error() {
        let source = CountingSource::new(Some(7));
        let ahead = GroupsAhead::new::<Cpu>(&source, dense(0..8), 2);
        ahead.run(2, || {
            // The other thread reaches it, since the loader takes nothing before all others are read.
            while source.reads.load(Ordering::Relaxed) < 8 {
                std::thread::yield_now();
            }
            let read = ahead.take(&GroupId::Dense { layer: 7 });
            assert!(matches!(read, Err(EngineError::Panicked { .. })));
        });
    }
}
