//! Disk measurement: speed of plane reads by method, depth and size, and the choice of settings.

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

/// Alignment of random reads in bytes.
const PLACE_BYTES: u64 = 4096;

/// Share of the best speed that counts as equal to it. Among equals the lowest depth is best, because urgent
/// reads wait for fewer others.
const EQUAL: f64 = 0.97;

/// Divisor of the store size that bounds the memory kept while its disk is measured.
const KEPT_SHARE: u64 = 16;

/// Number of measurements of each combination.
const ROUNDS: usize = 3;

/// Settings of a measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasureOptions {
    /// Sizes of a read in bytes, measured separately. Sizes that exceed the store are skipped.
    pub block_bytes: Vec<u64>,
    /// Numbers of concurrent reads.
    pub depths: Vec<usize>,
    /// Read methods. Methods that the system refuses are skipped.
    pub methods: Vec<ReadMethod>,
    /// True to bypass the page cache where possible. Otherwise repeated reads come from memory and do not
    /// measure the disk.
    pub direct: bool,
    /// Approximate duration of each combination in seconds, over all rounds.
    pub seconds: f64,
    /// Bytes of planes kept before their memory is reused, at most a small part of the store. A virtual disk
    /// fills memory that is in the CPU's cache faster than memory where planes stay.
    pub kept_bytes: u64,
}

impl MeasureOptions {
    /// Returns settings for all methods at a few depths, with the plane sizes of the store's experts. Depth 1
    /// is excluded: while all cores compute, a second read hides the wake-up time of a thread.
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

/// Speed of one combination.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReadSpeed {
    /// Read method.
    pub method: ReadMethod,
    /// True if the page cache was bypassed.
    pub direct: bool,
    /// Number of concurrent reads.
    pub depth: usize,
    /// Size of a read in bytes.
    pub block_bytes: u64,
    /// Bytes read per second.
    pub bytes_per_second: f64,
}

/// The best read settings found, which may be stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadChoice {
    /// Read method.
    pub method: ReadMethod,
    /// True if the page cache is bypassed.
    pub direct: bool,
    /// Number of concurrent reads.
    pub depth: usize,
}

impl ReadOptions {
    /// Returns the options with the chosen settings applied.
    #[must_use]
    pub fn chosen(self, choice: &ReadChoice) -> Self {
        Self { method: choice.method, direct: choice.direct, depth: choice.depth, ..self }
    }
}

/// Returns the mean plane sizes of a store's experts, ascending, without near duplicates.
pub fn plane_sizes(store: &Store) -> Vec<u64> {
    sizes(store.index(), |group, plane| store.extent(group, plane))
}

/// Works like [`plane_sizes`], for a store of which only the index is available, or planned.
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

/// Measures random reads of a store in each combination of the options, checksums included. For derived
/// stores, reads random experts. Combinations take turns, and each has the median of its rounds, because other
/// programs slow a disk for longer than one measurement takes. Returns an empty list if the platform has no
/// clock.
///
/// # Errors
/// [`EngineError::Thread`]. Also returns an error if a read fails.
pub fn measure(
    store: &Arc<Store>,
    options: &MeasureOptions,
) -> Result<Vec<ReadSpeed>, EngineError> {
    if cfg!(target_family = "wasm") {
        return Ok(Vec::new());
    }
    store.storage().pass_page_cache(options.direct);
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        rounds.extend(measure_once(store, options)?);
    }
    Ok(medians(rounds))
}

/// Measures each combination once.
fn measure_once(
    store: &Arc<Store>,
    options: &MeasureOptions,
) -> Result<Vec<ReadSpeed>, EngineError> {
    let mut measured = Vec::new();
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
                measured.push(ReadSpeed { method, direct, depth, block_bytes, bytes_per_second });
            }
        }
    }
    Ok(measured)
}

/// Returns each combination once, in the order of its first measurement, with its median speed.
fn medians(rounds: Vec<ReadSpeed>) -> Vec<ReadSpeed> {
    let mut combinations: Vec<(ReadSpeed, Vec<f64>)> = Vec::new();
    for one in rounds {
        let is_same = |known: &ReadSpeed| {
            let known = (known.method, known.direct, known.depth, known.block_bytes);
            known == (one.method, one.direct, one.depth, one.block_bytes)
        };
        let speed = one.bytes_per_second;
        match combinations.iter_mut().find(|(known, _)| is_same(known)) {
            Some((_, speeds)) => speeds.push(speed),
            None => combinations.push((one, vec![speed])),
        }
    }
    let median = |(one, mut speeds): (ReadSpeed, Vec<f64>)| {
        speeds.sort_by(f64::total_cmp);
        ReadSpeed { bytes_per_second: speeds[speeds.len() / 2], ..one }
    };
    combinations.into_iter().map(median).collect()
}

/// Chooses the best settings over all sizes: among nearly equal speeds, those with the lowest depth. Returns
/// `None` for an empty list.
pub fn choose(measured: &[ReadSpeed]) -> Option<ReadChoice> {
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
    // Settings that were not measured at all sizes are excluded.
    let sizes = scores.iter().map(|(.., count)| *count).max()?;
    scores.retain(|(.., count)| *count == sizes);
    let best = scores.iter().map(|(_, sum, _)| *sum).fold(0.0, f64::max);
    scores.retain(|(_, sum, _)| *sum >= best * EQUAL);
    scores.into_iter().map(|(choice, ..)| choice).min_by_key(|choice| choice.depth)
}

/// Returns the number of bytes present, from the start of the store.
fn present_bytes(store: &Store) -> u64 {
    let sections = store.index().sections().get(..store.sections_present());
    sections.and_then(|sections| sections.last()).map_or(0, |last| last.end)
}

enum ReadPattern<'a> {
    /// Any range of bytes.
    Anywhere { count: u64, block_bytes: u64 },
    /// Extents of experts, because a derived store builds each as a whole.
    Experts(Vec<&'a Extent>),
}

impl<'a> ReadPattern<'a> {
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

/// Returns the bytes per second of random reads.
fn speed(
    store: &Store,
    reads: &Reads,
    block_bytes: u64,
    depth: usize,
    options: &MeasureOptions,
) -> Result<f64, EngineError> {
    let places = ReadPattern::new(store, block_bytes);
    let mut random = SplitMix64::seed_from_u64(block_bytes ^ depth as u64);
    let mut submit = |tag: u64| {
        let extent = places.extent(random.next_u64());
        reads.submit(ReadRequest { tag, extent, class: ReadClass::Urgent });
    };
    let ahead = 2 * depth as u64;
    (0..ahead).for_each(&mut submit);
    let mut tag = ahead;
    // Buffers are allocated and the disk is busy before the clock starts.
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
        if count >= ahead && took >= options.seconds / ROUNDS as f64 {
            return Ok(bytes as f64 / took.max(1e-9));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{ReadMethod, ReadSpeed, choose, medians};

    fn measured(method: ReadMethod, depth: usize, block_bytes: u64, speed: f64) -> ReadSpeed {
        ReadSpeed { method, direct: true, depth, block_bytes, bytes_per_second: speed }
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
        // Settings measured at only one size do not count.
        assert_eq!(choose(&table).map(|choice| choice.method), Some(ring));
        assert_eq!(choose(&[]), None);
        let text = serde_json::to_string(&chosen).unwrap();
        assert_eq!(text, r#"{"method":"io_uring","direct":true,"depth":2}"#);
        assert_eq!(serde_json::from_str::<super::ReadChoice>(&text).unwrap(), chosen);
    }

    #[test]
    fn a_disk_that_is_slow_for_a_while_does_not_change_the_choice() {
        let (ring, threads) = (ReadMethod::IoUring, ReadMethod::Threads);
        let mut rounds = Vec::new();
        // The ring is 1.3 times as fast. Once, each of them meets another program's reads.
        for (ring_speed, threads_speed) in [(130.0, 100.0), (40.0, 101.0), (131.0, 30.0)] {
            rounds.push(measured(ring, 2, 1000, ring_speed));
            rounds.push(measured(threads, 2, 1000, threads_speed));
        }
        let medians = medians(rounds);
        let speeds: Vec<_> = medians.iter().map(|one| (one.method, one.bytes_per_second)).collect();
        assert_eq!(speeds, [(ring, 130.0), (threads, 100.0)]);
        assert_eq!(choose(&medians).unwrap().method, ring);
    }
}
