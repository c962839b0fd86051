//! Choice of the extents that are requested next, and of neighbours that share a request.

use crate::copy_files::ArrivedSet;
use crate::error::Explanation;
use nestling_formats::store::Extent;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

/// Maximum size in bytes of a request for several extents.
pub const RUN_BYTES_MAX: u64 = 4 << 20;

/// Maximum size in bytes of a request that no step waits for. A step that needs one of its extents waits for those
/// before it.
const LATER_RUN_BYTES_MAX: u64 = 128 << 10;

/// Number of connections on which reads are requested at once.
pub const CONNECTIONS_MAX: usize = 4;

/// Maximum number of bytes between two requested extents that are read over.
const GAP_BYTES_MAX: u64 = 128 << 10;

/// Urgency of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// A step waits for the read.
    Urgent,
    /// The read is useful later.
    Later,
}

/// Error of a request, for each of the reads that wait for it.
#[derive(Clone, Debug)]
pub enum ReadFailure {
    /// The file on the server is another one.
    Changed,
    Explained(Explanation),
}

/// State of the fetching, guarded by a lock.
pub struct FetchState {
    pub arrived: ArrivedSet,
    /// Extents that some thread fetches.
    pub in_flight: BTreeSet<usize>,
    /// Number of reads that wait for an extent.
    pub waiting: HashMap<usize, usize>,
    /// Extents whose reads were announced or wait, and that nobody fetches.
    pub wanted: BTreeMap<usize, Urgency>,
    /// Errors of extents, for the reads that wait for them.
    pub failed: HashMap<usize, ReadFailure>,
    /// Number of threads that fetch wanted extents.
    pub fetchers: usize,
    pub unsaved_bytes: u64,
    /// True if no more extents are fetched.
    pub is_closing: bool,
}

/// Limits of the next request.
#[derive(Clone, Copy, Debug)]
pub struct RunLimits<'a> {
    pub extents: &'a [Extent],
    /// Offsets of the ends of the files; a request is within one file.
    pub file_ends: &'a [u64],
    /// Number of bytes that arrive in the time of an empty request.
    pub request_cost_bytes: u64,
}

impl FetchState {
    pub fn new(arrived: ArrivedSet) -> Self {
        Self {
            arrived,
            in_flight: BTreeSet::new(),
            waiting: HashMap::new(),
            wanted: BTreeMap::new(),
            failed: HashMap::new(),
            fetchers: 0,
            unsaved_bytes: 0,
            is_closing: false,
        }
    }

    /// Returns true if an extent has neither arrived nor is fetched.
    pub fn is_free(&self, extent: usize) -> bool {
        !self.arrived.contains(extent) && !self.in_flight.contains(&extent)
    }

    /// Notes that an extent will be read. Returns true if it must be requested for that.
    pub fn want(&mut self, extent: usize, urgency: Urgency) -> bool {
        if self.arrived.contains(extent) || self.in_flight.contains(&extent) {
            return false;
        }
        let known = self.wanted.entry(extent).or_insert(urgency);
        *known = urgency.min(*known);
        true
    }

    /// Notes that an extent has arrived.
    pub fn arrive(&mut self, extent: usize, bytes: u64) {
        self.in_flight.remove(&extent);
        self.wanted.remove(&extent);
        self.failed.remove(&extent);
        self.arrived.insert(extent);
        self.unsaved_bytes += bytes;
    }

    /// Reserves the extents of the next request: the first wanted one, and its wanted successors up to a gap that costs
    /// more than a request. Extents in smaller gaps are fetched too. Reads that may wait start only if a read waits
    /// for the extent, and together with announced ones.
    pub fn claim_wanted(&mut self, limits: RunLimits<'_>) -> Option<Range<usize>> {
        let urgent = |entry: &(&usize, &Urgency)| *entry.1 == Urgency::Urgent;
        let is_waited = |entry: &(&usize, &Urgency)| self.waiting.contains_key(entry.0);
        let first = self.wanted.iter().find(urgent).or_else(|| self.wanted.iter().find(is_waited));
        let (first, urgency) = first.map(|(first, urgency)| (*first, *urgency))?;
        let bytes_max = match urgency {
            Urgency::Later => LATER_RUN_BYTES_MAX,
            Urgency::Urgent => {
                let length = |entry: (&usize, &Urgency)| limits.extents[*entry.0].length;
                let all: u64 = self.wanted.iter().filter(urgent).map(length).sum();
                // The other connections take their share, unless a request costs more than it.
                let others = CONNECTIONS_MAX.saturating_sub(self.fetchers) as u64;
                let share = all.div_ceil(others + 1).max(limits.request_cost_bytes);
                share.min(RUN_BYTES_MAX)
            }
        };
        let gap_max = match urgency {
            Urgency::Urgent => limits.request_cost_bytes.min(GAP_BYTES_MAX),
            Urgency::Later => 0,
        };
        let joins = |number| self.wanted.get(&number).is_some_and(|other| *other <= urgency);
        let run = self.run(first, bytes_max, gap_max, limits, &joins);
        self.reserve(run.clone());
        Some(run)
    }

    /// Reserves the next free extents among `extents`, of up to `bytes_max` bytes but at least one.
    pub fn claim_next(
        &mut self,
        extents: Range<usize>,
        bytes_max: u64,
        limits: RunLimits<'_>,
    ) -> Option<Range<usize>> {
        let first = extents.clone().find(|number| self.is_free(*number))?;
        let run = self.run(first, bytes_max, 0, limits, &|number| extents.contains(&number));
        self.reserve(run.clone());
        Some(run)
    }

    fn reserve(&mut self, run: Range<usize>) {
        for number in run {
            self.wanted.remove(&number);
            self.in_flight.insert(number);
        }
    }

    /// Returns the free extents from `first` to the last one that `joins` accepts within the limits.
    fn run(
        &self,
        first: usize,
        bytes_max: u64,
        gap_max: u64,
        limits: RunLimits<'_>,
        joins: &dyn Fn(usize) -> bool,
    ) -> Range<usize> {
        let start = limits.extents[first].offset;
        let file = limits.file_ends.iter().find(|end| **end > start);
        // Default: the last file has no end before the end of the store.
        let file_end = file.copied().unwrap_or(u64::MAX);
        let (mut end, mut joined) = (first + 1, end_of(&limits.extents[first]));
        for (number, extent) in limits.extents.iter().enumerate().skip(first + 1) {
            let fits = end_of(extent) <= file_end && end_of(extent) - start <= bytes_max;
            if !fits || !self.is_free(number) {
                break;
            }
            if joins(number) {
                (end, joined) = (number + 1, end_of(extent));
            } else if end_of(extent) - joined > gap_max {
                break;
            }
        }
        first..end
    }
}

pub fn end_of(extent: &Extent) -> u64 {
    extent.offset + extent.length
}

#[cfg(test)]
mod tests {
    use super::*;
    use nestling_formats::store::Store;
    use std::path::Path;

    fn store() -> Store {
        let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models");
        Store::open(models.join("nestling-storyteller.nest")).unwrap()
    }

    /// Claims all wanted extents, with one connection in use.
    fn claims(state: &mut FetchState, limits: RunLimits<'_>) -> Vec<Range<usize>> {
        state.fetchers = CONNECTIONS_MAX;
        std::iter::from_fn(|| state.claim_wanted(limits)).collect()
    }

    #[test]
    fn neighbours_share_a_request_and_gaps_must_be_cheap() {
        let store = store();
        let extents = store.index().extents();
        let (file_ends, cost) = ([extents[140].offset], extents[52].length + 8192);
        let limits = RunLimits { extents, file_ends: &file_ends, request_cost_bytes: cost };
        let mut state = FetchState::new(ArrivedSet::empty(extents.len()));
        let wanted = [50, 51, 53, 56, 57, 139, 140];
        for number in wanted {
            assert!(state.want(number, Urgency::Urgent));
        }
        // The gap of one extent costs less than a request, and that of two more.
        assert_eq!(claims(&mut state, limits), [50..54, 56..58, 139..140, 140..141]);
        assert!(!state.want(52, Urgency::Urgent), "it is in flight");
        // Nothing that has arrived is requested again.
        for number in 50..54 {
            state.arrive(number, 1);
        }
        state.want(49, Urgency::Urgent);
        state.want(54, Urgency::Urgent);
        assert_eq!(claims(&mut state, limits), [49..50, 54..55]);
    }

    #[test]
    fn requests_are_bounded_and_shared_by_the_connections() {
        let store = store();
        let extents = store.index().extents();
        let limits = RunLimits { extents, file_ends: &[u64::MAX], request_cost_bytes: 0 };
        let mut state = FetchState::new(ArrivedSet::empty(extents.len()));
        let all = 40..80;
        all.clone().for_each(|number| assert!(state.want(number, Urgency::Urgent)));
        state.fetchers = 1;
        let first = state.claim_wanted(limits).unwrap();
        assert!((9..=11).contains(&first.len()), "{first:?}: a quarter");
        // What may wait starts only with a read, in small requests, and never before what is urgent.
        (100..120).for_each(|number| assert!(state.want(number, Urgency::Later)));
        state.waiting.insert(104, 1);
        let runs = claims(&mut state, limits);
        assert!(runs[0].start == first.end && runs.iter().all(|run| run.start < 120));
        let later: Vec<_> = runs.iter().filter(|run| run.start >= 100).collect();
        assert_eq!((later.len(), later[0].start), (1, 104), "{runs:?}");
        let bytes = end_of(&extents[later[0].end - 1]) - extents[104].offset;
        assert!(later[0].len() > 1 && bytes <= LATER_RUN_BYTES_MAX);
        let run = state.claim_next(0..extents.len(), RUN_BYTES_MAX, limits).unwrap();
        assert!(
            run.start == 0 && end_of(&extents[run.end - 1]) <= RUN_BYTES_MAX + extents[0].offset
        );
    }
}
