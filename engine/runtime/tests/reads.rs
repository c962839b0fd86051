//! Reads of planes: order, faults, buffers, shutdown.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on should say where")]

mod faults;

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io::ErrorKind;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use faults::{Fault, bundled, faulty_store};
use nestling_core::EngineError;
use nestling_core::driver::block_on;
use nestling_experts::reads::{
    IdleDepth, MeasureOptions, ReadClass, ReadDone, ReadMethod, ReadOptions, ReadRequest, Reads,
    buffer_bytes, choose, measure, plane_sizes,
};
use nestling_formats::Plane;
use nestling_formats::store::{Extent, GroupId, OpenOptions, Store, StoreError};
use nestling_testkit::{Suite, keep_note, run, tests};

const METHODS: [ReadMethod; 3] = [ReadMethod::IoUring, ReadMethod::Threads, ReadMethod::Inline];

/// Methods that work on a storage without files.
const PLAIN_METHODS: [ReadMethod; 2] = [ReadMethod::Threads, ReadMethod::Inline];

fn options(method: ReadMethod) -> ReadOptions {
    ReadOptions { method, ..ReadOptions::default() }
}

fn extents(store: &Store, count: usize) -> Vec<Extent> {
    let experts = store.groups().iter().filter(|g| matches!(g.id, GroupId::Expert { .. }));
    let extents = experts.filter_map(|group| store.extent(group, Plane::P2).cloned());
    extents.take(count).collect()
}

fn submit(reads: &Reads, extents: &[Extent], class: ReadClass) {
    for (tag, extent) in (0..).zip(extents) {
        reads.submit(ReadRequest { tag, extent: extent.clone(), class });
    }
}

fn next(reads: &Reads) -> ReadDone {
    block_on(poll_fn(|context| reads.poll_next(context)))
}

fn collect(reads: &Reads, count: usize) -> BTreeMap<u64, ReadDone> {
    (0..count).map(|_| next(reads)).map(|done| (done.tag, done)).collect()
}

fn store_error(done: &ReadDone) -> &StoreError {
    match &done.result {
        Err(EngineError::Store(error)) => error,
        other => panic!("{other:?}"),
    }
}

fn every_plane_arrives_as_it_was_written() {
    let store = Arc::new(Store::open(bundled()).unwrap());
    let experts = store.groups().iter().filter(|g| matches!(g.id, GroupId::Expert { .. }));
    let all = experts.flat_map(|group| Plane::ALL.map(|plane| store.extent(group, plane).cloned()));
    let all: Vec<_> = all.flatten().collect();
    let ways = METHODS.iter().flat_map(|method| [(*method, true), (*method, false)]);
    for ((method, direct), depth) in ways.zip([2, 1, 3, 8].into_iter().cycle()) {
        let options = ReadOptions { direct, depth, ..options(method) };
        let reads = Reads::open(store.clone(), &options).unwrap();
        submit(&reads, &all, ReadClass::Urgent);
        let done = collect(&reads, all.len());
        for (tag, extent) in (0..).zip(&all) {
            let plane = done[&tag].result.as_ref().unwrap();
            assert_eq!(plane.as_ref(), store.read_extent_vec(extent).unwrap());
            assert!(plane.as_ref().as_ptr().addr().is_multiple_of(64));
            assert!(plane.memory_bytes() <= buffer_bytes(extent.length));
            let timing = done[&tag].timing;
            assert!(timing.queued_ns <= timing.started_ns);
            assert!(timing.started_ns < timing.finished_ns);
        }
        let counters = reads.counters();
        assert_eq!(counters.reads, all.len() as u64);
        assert_eq!(counters.bytes, all.iter().map(|extent| extent.length).sum::<u64>());
        assert_eq!((counters.errors, counters.retries), (0, 0));
        assert!(counters.busy_ns > 0);
        drop(done);
        let (lent, free) = reads.memory_bytes();
        assert!(lent == 0 && free > 0 && free <= ReadOptions::default().pool_bytes);
        assert_eq!(reads.outstanding(), 0);
    }
}

fn a_fault_is_an_error_of_its_read_alone() {
    let (storage, store) = faulty_store();
    let extents = extents(&store, 6);
    for method in PLAIN_METHODS {
        let reads =
            Reads::open(store.clone(), &ReadOptions { depth: 1, ..options(method) }).unwrap();
        storage.plan([
            (0, Fault::Error(ErrorKind::PermissionDenied)),
            (1, Fault::Short),
            (2, Fault::Corrupt),
            (3, Fault::Changed),
            (4, Fault::Panic),
        ]);
        submit(&reads, &extents, ReadClass::Urgent);
        let done = collect(&reads, 6);
        assert!(matches!(store_error(&done[&0]), StoreError::Io { source, .. }
            if source.kind() == ErrorKind::PermissionDenied));
        assert!(matches!(store_error(&done[&1]), StoreError::Io { source, .. }
            if source.kind() == ErrorKind::UnexpectedEof));
        assert!(matches!(store_error(&done[&2]), StoreError::Damaged { .. }));
        assert!(matches!(store_error(&done[&3]), StoreError::Changed { .. }));
        assert!(matches!(done[&4].result, Err(EngineError::Panicked { .. })));
        assert!(done[&5].result.is_ok());
        drop(done);
        submit(&reads, &extents, ReadClass::Urgent);
        assert!(collect(&reads, 6).values().all(|done| done.result.is_ok()));
        assert_eq!(reads.memory_bytes().0, 0, "a failed read keeps its buffer");
        assert_eq!(reads.counters().errors, 5);
    }
}

fn interruptions_are_tried_again_and_not_for_ever() {
    let (storage, store) = faulty_store();
    let extents = extents(&store, 1);
    let interruption = Fault::Error(ErrorKind::Interrupted);
    for method in PLAIN_METHODS {
        let reads = Reads::open(store.clone(), &options(method)).unwrap();
        storage.plan((0..3).map(|number| (number, interruption)));
        submit(&reads, &extents, ReadClass::Urgent);
        assert!(next(&reads).result.is_ok());
        assert_eq!(reads.counters().retries, 3);
        storage.plan((0..1000).map(|number| (number, interruption)));
        submit(&reads, &extents, ReadClass::Urgent);
        assert!(next(&reads).result.is_err());
    }
}

fn a_vanished_disk_fails_every_read_and_comes_back() {
    let (storage, store) = faulty_store();
    let extents = extents(&store, 8);
    for method in PLAIN_METHODS {
        let reads =
            Reads::open(store.clone(), &ReadOptions { depth: 1, ..options(method) }).unwrap();
        storage.vanish_at(3);
        submit(&reads, &extents, ReadClass::Urgent);
        let done = collect(&reads, 8);
        assert!(done.iter().all(|(tag, done)| done.result.is_ok() == (*tag < 3)));
        storage.plan([]);
        submit(&reads, &extents, ReadClass::Urgent);
        assert!(collect(&reads, 8).values().all(|done| done.result.is_ok()));
    }
}

fn idle_reads_never_overtake_urgent_ones() {
    let (storage, store) = faulty_store();
    let extents = extents(&store, 9);
    let depth = 3;
    let threads = ReadOptions { depth, ..options(ReadMethod::Threads) };
    let reads = Reads::open(store, &threads).unwrap();
    storage.hold();
    submit(&reads, &extents[..1], ReadClass::Urgent);
    storage.wait_for_held(1);
    // Tags 1 to 4 are idle, then 5 to 8 urgent. Tag 3 is promoted, tag 2 withdrawn.
    for (tag, extent) in (0..).zip(&extents).skip(1) {
        let class = if tag < 5 { ReadClass::Idle } else { ReadClass::Urgent };
        reads.submit(ReadRequest { tag, extent: extent.clone(), class });
    }
    storage.wait_for_held(depth);
    reads.promote(3);
    assert!(reads.withdraw(2) && !reads.withdraw(2), "it had not started");
    assert!(!reads.withdraw(0), "it had started");
    assert_eq!(storage.offsets().len(), depth);
    storage.release();
    let done = collect(&reads, 8);
    assert!(done.values().all(|done| done.result.is_ok()) && !done.contains_key(&2));
    let started = |tag: u64| done[&tag].timing.started_ns;
    let urgent = [5, 6, 7, 8, 3];
    assert!(urgent.is_sorted_by_key(|tag| started(*tag)), "{:?}", urgent.map(started));
    // Compares starts, not ends: an end includes the checksum, which runs while the disk is free again.
    let last_urgent = urgent.iter().map(|tag| started(*tag)).max().unwrap();
    assert!(started(1) >= last_urgent && started(4) >= last_urgent);
    assert_eq!(reads.outstanding(), 0);
}

fn an_urgent_read_starts_beside_idle_ones() {
    let (storage, store) = faulty_store();
    let extents = extents(&store, 5);
    let reads = Reads::open(store, &options(ReadMethod::Threads)).unwrap();
    storage.hold();
    submit(&reads, &extents[..4], ReadClass::Idle);
    storage.wait_for_held(1);
    reads.submit(ReadRequest { tag: 4, extent: extents[4].clone(), class: ReadClass::Urgent });
    storage.wait_for_held(2);
    assert_eq!(storage.offsets(), [extents[0].offset, extents[4].offset]);
    storage.release();
    assert_eq!(collect(&reads, 5).len(), 5);
}

fn idle_reads_take_the_whole_depth_where_they_may() {
    let (storage, store) = faulty_store();
    let extents = extents(&store, 3);
    let reads = Reads::open(store, &options(ReadMethod::Threads)).unwrap();
    storage.hold();
    submit(&reads, &extents, ReadClass::Idle);
    storage.wait_for_held(1);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(storage.offsets(), [extents[0].offset]);
    reads.set_idle_depth(IdleDepth::Full);
    storage.wait_for_held(2);
    assert_eq!(storage.offsets(), [extents[0].offset, extents[1].offset]);
    storage.release();
    assert!(collect(&reads, 3).values().all(|done| done.result.is_ok()));
}

/// Requires permission to pin memory. The system may also refuse io_uring.
fn planes_that_land_in_registered_memory_are_brought_where_they_stay() {
    let store = Arc::new(Store::open(bundled()).unwrap());
    let extents = extents(&store, 40);
    let reads = Reads::open(store.clone(), &options(ReadMethod::IoUring)).unwrap();
    submit(&reads, &extents, ReadClass::Urgent);
    let done = collect(&reads, extents.len());
    for (tag, extent) in (0..).zip(&extents) {
        let plane = done[&tag].result.as_ref().unwrap();
        assert_eq!(plane.as_ref(), store.read_extent_vec(extent).unwrap());
        assert!(plane.memory_bytes() <= buffer_bytes(extent.length));
    }
    let counters = reads.counters();
    assert!([0, counters.reads].contains(&counters.staged), "{counters:?}");
    if counters.staged == 0 {
        keep_note("no memory could be registered with a ring: nothing was brought from there");
    }
}

fn a_stalled_read_is_given_up_and_others_go_on() {
    let (storage, store) = faulty_store();
    let extents = extents(&store, 4);
    let timeout = Some(Duration::from_millis(40));
    let options = ReadOptions { depth: 1, timeout, ..options(ReadMethod::Threads) };
    let reads = Reads::open(store, &options).unwrap();
    let stalled = Fault::Delay(Duration::from_millis(600));
    storage.plan([(0, stalled)]);
    submit(&reads, &extents, ReadClass::Urgent);
    let done = collect(&reads, 4);
    assert!(matches!(done[&0].result, Err(EngineError::ReadStalled { .. })), "{:?}", done[&0]);
    assert!((1..4).all(|tag| done[&tag].result.is_ok()));
    assert!(done[&3].timing.finished_ns < 500_000_000, "waited for the stalled read");
    drop(done);
    // Even if all threads hang, no caller waits forever.
    storage.plan((0..100).map(|number| (number, stalled)));
    submit(&reads, &extents, ReadClass::Urgent);
    let done = collect(&reads, 4);
    assert!(done.values().all(|d| matches!(d.result, Err(EngineError::ReadStalled { .. }))));
    storage.plan([]);
    std::thread::sleep(Duration::from_millis(700));
    submit(&reads, &extents, ReadClass::Urgent);
    assert!(collect(&reads, 4).values().all(|done| done.result.is_ok()));
    assert_eq!(reads.memory_bytes().0, 0, "a late result keeps its buffer");
}

fn dropping_waits_for_reads_but_not_for_ever() {
    let (storage, store) = faulty_store();
    let extents = extents(&store, 8);
    for _ in 0..20 {
        let reads = Reads::open(store.clone(), &options(ReadMethod::Threads)).unwrap();
        submit(&reads, &extents, ReadClass::Urgent);
        drop(reads);
    }
    let reads = Reads::open(store.clone(), &options(ReadMethod::Threads)).unwrap();
    storage.hold();
    submit(&reads, &extents, ReadClass::Urgent);
    storage.wait_for_held(2);
    let started = Instant::now();
    drop(reads);
    assert!(started.elapsed() < Duration::from_secs(10));
    storage.release();
}

fn planes_outlive_the_reads() {
    let store = Arc::new(Store::open(bundled()).unwrap());
    let extents = extents(&store, 1);
    let reads = Reads::open(store.clone(), &ReadOptions::default()).unwrap();
    submit(&reads, &extents, ReadClass::Idle);
    let plane = next(&reads).result.unwrap();
    drop(reads);
    assert_eq!(plane.as_ref(), store.read_extent_vec(&extents[0]).unwrap());
}

/// Returns a copy of the bundled store that a test may damage.
fn copied() -> (tempfile::TempDir, std::path::PathBuf, Arc<Store>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("copy.nest");
    std::fs::copy(bundled(), &path).unwrap();
    let store = Arc::new(Store::open(&path).unwrap());
    (folder, path, store)
}

fn a_file_that_changes_or_is_cut_is_noticed() {
    for (method, direct) in METHODS.iter().flat_map(|method| [(*method, true), (*method, false)]) {
        let (_folder, path, store) = copied();
        let extents = extents(&store, 12);
        let reads = Reads::open(store, &ReadOptions { direct, ..options(method) }).unwrap();
        submit(&reads, &extents, ReadClass::Urgent);
        assert!(collect(&reads, 12).values().all(|done| done.result.is_ok()));
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(extents[6].offset + 100).unwrap();
        submit(&reads, &extents, ReadClass::Urgent);
        let done = collect(&reads, 12);
        assert!(done.values().all(|d| matches!(store_error(d), StoreError::Changed { .. })));
        drop(done);
        assert_eq!((reads.memory_bytes().0, reads.outstanding()), (0, 0));
    }
}

fn a_file_without_a_name_is_still_read() {
    for method in METHODS {
        let (_folder, path, store) = copied();
        let extents = extents(&store, 3);
        std::fs::remove_file(&path).unwrap();
        let reads = Reads::open(store, &options(method)).unwrap();
        submit(&reads, &extents, ReadClass::Idle);
        assert!(collect(&reads, 3).values().all(|done| done.result.is_ok()));
    }
}

fn damage_is_found_on_arrival() {
    for method in METHODS {
        let (_folder, path, store) = copied();
        let extents = extents(&store, 3);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[usize::try_from(extents[1].offset).unwrap() + 5] ^= 1;
        drop(store);
        std::fs::write(&path, bytes).unwrap();
        let reads = Reads::open(Arc::new(Store::open(&path).unwrap()), &options(method)).unwrap();
        submit(&reads, &extents, ReadClass::Urgent);
        let done = collect(&reads, 3);
        assert!(matches!(store_error(&done[&1]), StoreError::Damaged { .. }));
        assert!(done[&0].result.is_ok() && done[&2].result.is_ok());
    }
}

fn a_store_within_a_file_is_read_wherever_it_begins() {
    let bytes = std::fs::read(bundled()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    for (place, method) in [0u64, 512, 64, 7].iter().zip(METHODS.iter().cycle()) {
        let path = folder.path().join(format!("bundle-{place}"));
        let mut bundle = vec![0xee; usize::try_from(*place).unwrap()];
        bundle.extend_from_slice(&bytes);
        std::fs::write(&path, bundle).unwrap();
        let within = OpenOptions { offset: *place, ..OpenOptions::default() };
        let store = Arc::new(Store::open_with(&path, &within).unwrap());
        let extents = extents(&store, 5);
        let reads = Reads::open(store, &options(*method)).unwrap();
        submit(&reads, &extents, ReadClass::Urgent);
        for done in collect(&reads, 5).values() {
            let plane = done.result.as_ref().unwrap();
            assert!(plane.as_ref().as_ptr().addr().is_multiple_of(64));
        }
    }
}

fn submitting_while_reading_loses_nothing() {
    let store = Arc::new(Store::open(bundled()).unwrap());
    let extents = extents(&store, 16);
    for method in METHODS {
        let reads = Reads::open(store.clone(), &options(method)).unwrap();
        let (mut withdrawn, mut promoted) = (0, 0);
        let mut ended = 0;
        for tag in 0..600u64 {
            let extent = extents[usize::try_from(tag % 16).unwrap()].clone();
            let class = if tag % 3 == 0 { ReadClass::Urgent } else { ReadClass::Idle };
            reads.submit(ReadRequest { tag, extent, class });
            if tag % 5 == 4 {
                reads.promote(tag - 3);
                promoted += 1;
            }
            if tag % 7 == 6 {
                withdrawn += u64::from(reads.withdraw(tag - 5));
            }
            while tag % 11 == 10 && reads.outstanding() > 4 {
                assert!(next(&reads).result.is_ok());
                ended += 1;
            }
        }
        while reads.outstanding() > 0 {
            assert!(next(&reads).result.is_ok());
            ended += 1;
        }
        assert_eq!(
            (ended + withdrawn, reads.counters().reads),
            (600, ended),
            "{promoted} promoted"
        );
        assert_eq!(reads.memory_bytes().0, 0);
    }
}

fn dropping_a_ring_with_reads_under_way_is_safe() {
    let store = Arc::new(Store::open(bundled()).unwrap());
    let extents = extents(&store, 64);
    for round in 0..60 {
        let options = ReadOptions { depth: 8, ..options(ReadMethod::IoUring) };
        let reads = Reads::open(store.clone(), &options).unwrap();
        submit(&reads, &extents, ReadClass::Urgent);
        for _ in 0..round % 4 {
            assert!(next(&reads).result.is_ok());
        }
    }
}

fn a_disk_has_a_speed_at_the_sizes_of_planes() {
    let store = Arc::new(Store::open(bundled()).unwrap());
    let options = MeasureOptions { seconds: 0.005, ..MeasureOptions::of_store(&store) };
    let sizes = plane_sizes(&store);
    assert!(sizes.is_sorted() && !sizes.is_empty());
    let measured = measure(&store, &options).unwrap();
    let at_least = sizes.len() * options.depths.len();
    assert!(measured.len() >= at_least && measured.len() <= 2 * at_least);
    assert!(measured.iter().all(|one| one.bytes_per_second > 1e5), "{measured:?}");
    let choice = choose(&measured).unwrap();
    let reads = Reads::open(store, &ReadOptions::default().chosen(&choice)).unwrap();
    assert_eq!(reads.method(), choice.method);
}

/// Storage that claims its bytes are in this process's memory, at unmapped addresses.
#[cfg(target_os = "linux")]
struct Unreadable {
    bytes: nestling_formats::store::FileStorage,
    memory: std::fs::File,
}

#[cfg(target_os = "linux")]
impl nestling_formats::store::Storage for Unreadable {
    fn name(&self) -> String {
        "unreadable.nest".into()
    }

    fn len(&self) -> u64 {
        self.bytes.len()
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> std::io::Result<()> {
        self.bytes.read_at(offset, out)
    }

    fn files(&self) -> Vec<nestling_formats::store::FilePart<'_>> {
        let length = self.bytes.len();
        vec![nestling_formats::store::FilePart { file: &self.memory, offset: 0, length }]
    }
}

#[cfg(target_os = "linux")]
fn a_completion_with_an_error_is_an_error_of_its_read() {
    let storage = Unreadable {
        bytes: nestling_formats::store::FileStorage::open(&bundled(), 0, None).unwrap(),
        memory: std::fs::File::open("/proc/self/mem").unwrap(),
    };
    let store = Arc::new(Store::from_storage(Arc::new(storage), false).unwrap());
    let extents = extents(&store, 5);
    let reads = Reads::open(store, &options(ReadMethod::IoUring)).unwrap();
    assert_eq!(reads.method(), ReadMethod::IoUring);
    for _ in 0..2 {
        submit(&reads, &extents, ReadClass::Urgent);
        for done in collect(&reads, 5).values() {
            assert!(
                matches!(store_error(done), StoreError::Io { source, .. }
                if source.raw_os_error() == Some(5)),
                "{done:?}"
            );
        }
    }
    assert_eq!((reads.counters().errors, reads.outstanding()), (10, 0));
}

/// Returns the reason why io_uring cannot be tested here.
fn lacks_rings() -> Option<String> {
    let store = Arc::new(Store::open(bundled()).unwrap());
    let reads = Reads::open(store, &options(ReadMethod::IoUring)).unwrap();
    (reads.method() != ReadMethod::IoUring).then(|| "this system gives no io_uring".to_owned())
}

fn main() -> ExitCode {
    let every_method = tests![
        every_plane_arrives_as_it_was_written,
        a_fault_is_an_error_of_its_read_alone,
        interruptions_are_tried_again_and_not_for_ever,
        a_vanished_disk_fails_every_read_and_comes_back,
        idle_reads_never_overtake_urgent_ones,
        an_urgent_read_starts_beside_idle_ones,
        idle_reads_take_the_whole_depth_where_they_may,
        a_stalled_read_is_given_up_and_others_go_on,
        dropping_waits_for_reads_but_not_for_ever,
        planes_outlive_the_reads,
        a_file_that_changes_or_is_cut_is_noticed,
        a_file_without_a_name_is_still_read,
        damage_is_found_on_arrival,
        a_store_within_a_file_is_read_wherever_it_begins,
        submitting_while_reading_loses_nothing,
        a_disk_has_a_speed_at_the_sizes_of_planes,
    ];
    let rings = tests![
        dropping_a_ring_with_reads_under_way_is_safe,
        planes_that_land_in_registered_memory_are_brought_where_they_stay,
    ];
    #[cfg(target_os = "linux")]
    let rings = [rings, tests![a_completion_with_an_error_is_an_error_of_its_read]].concat();
    run(&[Suite::new(every_method), Suite::new(rings).unless(lacks_rings)])
}
