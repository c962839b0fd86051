//! How fast a disk gives what an engine reads, and which way of reading is best there.

use std::collections::VecDeque;
use std::sync::Arc;

use nestling_formats::Plane;
use nestling_formats::store::{Extent, Group, GroupId, Index, Store};
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

use super::{ReadClass, ReadMethod, ReadOptions, ReadRequest, Reads};
use nestling_core::clock::Moment;
use nestling_core::driver::block_on;
use nestling_core::error::EngineError;

/// Random reads begin at multiples of this.
const PLACE_BYTES: u64 = 4096;

/// What is not much slower than the best counts as equal: then fewer reads at a time are better,
/// since an urgent one waits for less.
const EQUAL: f64 = 0.97;

/// Share of a store that may be kept in memory while its disk is measured: one over this.
const KEPT_SHARE: u64 = 16;

/// What to measure.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasureOptions {
    /// Bytes of one read, each apart; sizes that the store does not have room for are left out.
    pub block_bytes: Vec<u64>,
    /// Reads under way at once.
    pub depths: Vec<usize>,
    /// By which means. Those that the system refuses are left out.
    pub methods: Vec<ReadMethod>,
    /// Whether the page cache is passed by where that is possible. Otherwise what was read before
    /// comes from memory and shows nothing of the disk.
    pub direct: bool,
    /// About how long each combination is measured.
    pub seconds: f64,
    /// Bytes that are kept before their memory is read into again, at most a small part of the store.
    /// A virtual disk fills memory that lies in the processor's cache faster than that where planes
    /// stay.
    pub kept_bytes: u64,
}

impl MeasureOptions {
    /// All methods at a few depths, with the sizes that planes of the store's experts have. Not one
    /// read at a time: while every core computes, a second one hides how long a thread takes to
    /// wake.
    pub fn of_store(store: &Store) -> Self {
        Self {
            block_bytes: plane_sizes(store),
            depths: vec![2, 4, 8],
            methods: vec![ReadMethod::IoUring, ReadMethod::Threads],
            direct: true,
            seconds: 0.2,
            kept_bytes: 64 << 20,
        }
    }
}

/// How fast reads of one kind were.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// By which means.
    pub method: ReadMethod,
    /// Whether the page cache was passed by.
    pub direct: bool,
    /// Reads under way at once.
    pub depth: usize,
    /// Bytes of one read.
    pub block_bytes: u64,
    /// Bytes that arrived in a second.
    pub bytes_per_second: f64,
}

/// A way of reading that was found best and may be remembered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadChoice {
    /// By which means.
    pub method: ReadMethod,
    /// Whether the page cache is passed by.
    pub direct: bool,
    /// Reads under way at once.
    pub depth: usize,
}

impl ReadOptions {
    /// Options that read as was chosen.
    #[must_use]
    pub fn chosen(self, choice: &ReadChoice) -> Self {
        Self { method: choice.method, direct: choice.direct, depth: choice.depth, ..self }
    }
}

/// The mean sizes of the planes that a store's experts have, ascending, without those that differ
/// little.
pub fn plane_sizes(store: &Store) -> Vec<u64> {
    sizes(store.index(), |group, plane| store.extent(group, plane))
}

/// The same for a store of which only the index is there, or planned.
pub fn plane_sizes_of_index(index: &Index) -> Vec<u64> {
    sizes(index, |group, plane| index.extent(group, plane))
}

fn sizes<'a>(
    index: &'a Index,
    extent: impl Fn(&'a Group, Plane) -> Option<&'a Extent>,
) -> Vec<u64> {
    let mut sums = [(0u64, 0u64); 5];
    let experts = index.groups().iter().filter(|group| matches!(group.id, GroupId::Expert(_)));
    for group in experts {
        for plane in Plane::ALL {
            if let Some(extent) = extent(group, plane) {
                let (bytes, count) = &mut sums[plane.index()];
                (*bytes, *count) = (*bytes + extent.length, *count + 1);
            }
        }
    }
    let means = sums.iter().filter(|(_, count)| *count > 0).map(|(bytes, count)| bytes / count);
    let mut sizes: Vec<u64> = means.collect();
    sizes.sort_unstable();
    sizes.dedup_by(|next, kept| *next < *kept + *kept / 8);
    sizes
}

/// Reads from random places of a store, of a derived one random experts, without checking what arrives,
/// in every combination of the options. Nothing where the platform has no clock.
///
/// # Errors
/// A read that failed; [`EngineError::Thread`].
pub fn measure(store: &Arc<Store>, options: &MeasureOptions) -> Result<Vec<Measured>, EngineError> {
    let mut measured = Vec::new();
    if cfg!(target_family = "wasm") {
        return Ok(measured);
    }
    store.storage().pass_page_cache(options.direct);
    for &block_bytes in &options.block_bytes {
        if block_bytes == 0 || block_bytes.saturating_add(PLACE_BYTES) > present_bytes(store) {
            continue;
        }
        for &method in &options.methods {
            for &depth in &options.depths {
                let direct = options.direct;
                let pool_bytes = options.kept_bytes;
                let base = ReadOptions { pool_bytes, ..ReadOptions::default() };
                let read_options = ReadOptions { method, depth, direct, ..base };
                let reads = Reads::unchecked(Arc::clone(store), &read_options)?;
                if reads.method() != method {
                    continue;
                }
                let direct = reads.is_direct();
                let bytes_per_second = speed(store, &reads, block_bytes, depth, options)?;
                measured.push(Measured { method, direct, depth, block_bytes, bytes_per_second });
            }
        }
    }
    Ok(measured)
}

/// The way of reading that is best over all sizes: of those that are nearly as fast as the fastest,
/// the one with the fewest reads at a time. None of nothing.
pub fn choose(measured: &[Measured]) -> Option<ReadChoice> {
    let mut scores: Vec<(ReadChoice, f64, u32)> = Vec::new();
    for one in measured {
        let same_size = measured.iter().filter(|other| other.block_bytes == one.block_bytes);
        let best = same_size.map(|other| other.bytes_per_second).fold(0.0, f64::max);
        let share = if best > 0.0 { one.bytes_per_second / best } else { 0.0 };
        let choice = ReadChoice { method: one.method, direct: one.direct, depth: one.depth };
        match scores.iter_mut().find(|(known, ..)| *known == choice) {
            Some((_, sum, count)) => (*sum, *count) = (*sum + share, *count + 1),
            None => scores.push((choice, share, 1)),
        }
    }
    // One that was not measured at every size is no better for that.
    let sizes = scores.iter().map(|(.., count)| *count).max()?;
    scores.retain(|(.., count)| *count == sizes);
    let best = scores.iter().map(|(_, sum, _)| *sum).fold(0.0, f64::max);
    scores.retain(|(_, sum, _)| *sum >= best * EQUAL);
    scores.into_iter().map(|(choice, ..)| choice).min_by_key(|choice| choice.depth)
}

/// Bytes from the start of a store that are there.
fn present_bytes(store: &Store) -> u64 {
    let sections = store.index().sections().get(..store.sections_present());
    sections.and_then(|sections| sections.last()).map_or(0, |last| last.end)
}

/// What is read while a disk is measured.
enum Places<'a> {
    /// Any run of bytes.
    Anywhere { count: u64, block_bytes: u64 },
    /// Extents of experts: a derived store makes each as a whole.
    Experts(Vec<&'a Extent>),
}

impl<'a> Places<'a> {
    fn new(store: &'a Store, block_bytes: u64) -> Self {
        let is_expert = |extent: &&Extent| {
            store.index().group_of(extent).is_some_and(|group| group.id.expert().is_some())
        };
        let experts = || store.index().extents().iter().filter(is_expert).collect::<Vec<_>>();
        let experts = if store.is_derived() { experts() } else { Vec::new() };
        if !experts.is_empty() {
            return Self::Experts(experts);
        }
        let count = (present_bytes(store) - block_bytes) / PLACE_BYTES + 1;
        Self::Anywhere { count, block_bytes }
    }

    fn extent(&self, random: u64) -> Extent {
        match self {
            Self::Anywhere { count, block_bytes } => {
                let (offset, length) = (random % count * PLACE_BYTES, *block_bytes);
                let (group, plane, hash) = (0, Plane::P2, [0; 16]);
                Extent { group, plane, offset, length, hash, error_drop: None }
            }
            Self::Experts(experts) => experts[(random % experts.len() as u64) as usize].clone(),
        }
    }
}

/// Bytes per second of random reads.
fn speed(
    store: &Store,
    reads: &Reads,
    block_bytes: u64,
    depth: usize,
    options: &MeasureOptions,
) -> Result<f64, EngineError> {
    let places = Places::new(store, block_bytes);
    let mut random = SplitMix64::seed_from_u64(block_bytes ^ depth as u64);
    let mut submit = |tag: u64| {
        let extent = places.extent(random.next_u64());
        reads.submit(ReadRequest { tag, extent, class: ReadClass::Urgent });
    };
    let ahead = 2 * depth as u64;
    (0..ahead).for_each(&mut submit);
    let mut tag = ahead;
    // Buffers are made and the disk is at work before the clock starts.
    let keep = options.kept_bytes.min(present_bytes(store) / KEPT_SHARE) / block_bytes.max(1);
    let first = ahead + keep.max(ahead);
    let mut kept = VecDeque::new();
    let (mut count, mut bytes, mut started) = (0u64, 0u64, Moment::now());
    loop {
        let plane = block_on(std::future::poll_fn(|context| reads.poll_next(context))).result?;
        let length = plane.as_ref().len() as u64;
        kept.push_back(plane);
        if kept.len() as u64 > keep {
            kept.pop_front();
        }
        submit(tag);
        tag += 1;
        if tag == first {
            started = Moment::now();
        }
        if tag > first {
            (count, bytes) = (count + 1, bytes + length);
        }
        let took = Moment::now().seconds_since(started);
        if count >= ahead && took >= options.seconds {
            return Ok(bytes as f64 / took.max(1e-9));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Measured, ReadMethod, choose};

    fn measured(method: ReadMethod, depth: usize, block_bytes: u64, speed: f64) -> Measured {
        Measured { method, direct: true, depth, block_bytes, bytes_per_second: speed }
    }

    #[test]
    fn the_fewest_reads_at_a_time_that_are_fast_enough_are_chosen() {
        let (ring, threads) = (ReadMethod::IoUring, ReadMethod::Threads);
        let table = [
            measured(ring, 4, 1000, 100.0),
            measured(ring, 2, 1000, 99.0),
            measured(ring, 1, 1000, 50.0),
            measured(ring, 4, 2000, 200.0),
            measured(ring, 2, 2000, 198.0),
            measured(ring, 1, 2000, 199.0),
            measured(threads, 1, 2000, 300.0),
        ];
        let chosen = choose(&table[..6]).unwrap();
        assert_eq!((chosen.method, chosen.depth), (ring, 2));
        // What was measured at one size alone does not count.
        assert_eq!(choose(&table).map(|choice| choice.method), Some(ring));
        assert_eq!(choose(&[]), None);
        let text = serde_json::to_string(&chosen).unwrap();
        assert_eq!(text, r#"{"method":"io_uring","direct":true,"depth":2}"#);
        assert_eq!(serde_json::from_str::<super::ReadChoice>(&text).unwrap(), chosen);
    }
}
