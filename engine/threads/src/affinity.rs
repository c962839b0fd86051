//! Binding of threads to processors.

use serde::{Deserialize, Serialize};

/// Placement of an engine's threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ThreadPlacement {
    /// Scheduled freely by the operating system.
    #[default]
    Free,
    /// Bound: each thread to a separate processor, among those that the process may use, as far as they
    /// suffice. Only threads of the engine are bound, and only on Linux; elsewhere this equals
    /// [`Self::Free`].
    Pinned,
}

impl ThreadPlacement {
    /// Places the calling thread, the `index`th of its engine. Returns whether the thread is bound. It stays
    /// free if the system rejects the request.
    pub fn place(self, index: usize) -> bool {
        self == Self::Pinned && bind(index)
    }
}

#[cfg(target_os = "linux")]
fn bind(index: usize) -> bool {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    let Ok(allowed) = sched_getaffinity(None) else { return false };
    let Some(processor) = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).nth(index) else {
        return false;
    };
    let mut own = CpuSet::new();
    own.set(processor);
    sched_setaffinity(None, &own).is_ok()
}

#[cfg(not(target_os = "linux"))]
fn bind(_: usize) -> bool {
    false
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use rustix::thread::sched_getaffinity;

    use super::ThreadPlacement;

    /// Processors of a new thread after its placement.
    #[expect(clippy::unwrap_used, reason = "a test that cannot go on should say where")]
    fn processors(placement: ThreadPlacement, index: usize) -> (bool, u32) {
        let thread = std::thread::spawn(move || {
            let bound = placement.place(index);
            (bound, sched_getaffinity(None).map_or(0, |set| set.count()))
        });
        thread.join().unwrap()
    }

    #[test]
    fn a_thread_is_bound_to_one_processor_or_left_alone() {
        let (_, all) = processors(ThreadPlacement::Free, 0);
        assert!(all > 0);
        assert_eq!(processors(ThreadPlacement::Free, 0), (false, all));
        assert_eq!(processors(ThreadPlacement::Pinned, 0), (true, 1));
        assert_eq!(processors(ThreadPlacement::Pinned, all as usize), (false, all));
    }
}
