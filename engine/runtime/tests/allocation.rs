//! A step does not allocate once steps of its size have been computed.
#![expect(unsafe_code, reason = "counts what the allocator is asked for")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use nestling_core::batch::{Batch, LevelPolicy, Row, SequenceRef};
use nestling_core::cancel::CancelToken;
use nestling_core::kv_cache::{KvDtype, PageId};
use nestling_core::runner::ModelRunner;
use nestling_cpu::Cpu;
use nestling_experts::expert::{ExpertSource, StoreSource};
use nestling_formats::Level;
use nestling_formats::store::Store;
use nestling_runtime::model::{Runner, RunnerOptions};

/// The system's allocator with a counter.
struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: all calls are forwarded unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: upheld by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: upheld by the caller.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: upheld by the caller.
        unsafe { System.realloc(memory, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Returns `count` rows from position `first` on for each sequence. The last row of each requests logits.
fn batch(sequences: u32, first: u32, count: u32, level: Level) -> Batch {
    let pages = |sequence: u32| {
        SequenceRef::of_pages((3 * sequence..3 * sequence + 3).map(PageId).collect())
    };
    let rows = (0..sequences).flat_map(|sequence| {
        (first..first + count).map(move |position| Row {
            token: (position * 31 + sequence * 7) % 500,
            position,
            sequence,
            wants_logits: position + 1 == first + count,
            levels: LevelPolicy::Fixed(level),
        })
    });
    Batch::new(rows.collect(), (0..sequences).map(pages).collect())
}

fn allocations(runner: &mut Runner<Cpu>, batch: &Batch) -> usize {
    let cancel = CancelToken::new();
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    let output = runner.step_blocking(batch, &cancel).unwrap();
    runner.recycle(output);
    ALLOCATIONS.load(Ordering::Relaxed) - before
}

#[test]
fn steps_of_known_size_allocate_nothing() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/nestling-storyteller.nest");
    for (kv_dtype, threads) in [(KvDtype::F16, 2), (KvDtype::Int8, 1)] {
        let store = Arc::new(Store::open(&path).unwrap());
        let source: Arc<dyn ExpertSource> =
            Arc::new(StoreSource::owned(store, Some(Level::L4)).unwrap());
        let options = RunnerOptions { kv_dtype, kv_pages: Some(24), ..RunnerOptions::default() };
        let mut runner =
            Runner::load(Cpu::new(threads), source, &options, &CancelToken::new(), &mut |_, _| {})
                .unwrap();
        // A prompt, single tokens, and tokens of eight sessions.
        for (sequences, first, count) in [(1, 0, 100), (1, 100, 1), (8, 100, 1)] {
            if sequences > 1 {
                allocations(&mut runner, &batch(sequences, 0, 12, Level::L4));
            }
            let step = batch(sequences, if sequences > 1 { 12 } else { first }, count, Level::L4);
            // The first repetitions may use experts with other row counts.
            (0..2).for_each(|_| {
                allocations(&mut runner, &step);
            });
            for _ in 0..3 {
                let found = allocations(&mut runner, &step);
                assert_eq!(found, 0, "{sequences} sequences, {count} rows each, {kv_dtype:?}");
            }
        }
    }
}
