//! Measurements for docs/perf/024: `cargo test --release -p nestling-formats --test store -- --ignored speed
//! --nocapture`.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use nestling_formats::store::{GroupId, MemoryStorage, Store, StorePlan, StoreWriter};
use nestling_formats::{DType, FloatKind, MatrixKind};

use crate::support::{Random, codec, damage, nested, tensor};

/// Returns a plan with the layers and experts of Qwen3-30B-A3B, with matrices of another size.
fn wide_plan(layers: u32, experts: u32, hidden: usize, intermediate: usize) -> StorePlan {
    let mut plan = StorePlan::new(b"speed", "{}");
    let norm = tensor(FloatKind::FinalNorm, DType::F32, &[hidden]);
    plan.add_group(GroupId::Floats { layer: None }, vec![], vec![norm]);
    for layer in 0..layers {
        let codec = plan.add_codec(16);
        for expert in 0..experts {
            let matrices = vec![
                nested(MatrixKind::Gate, intermediate, hidden, codec, 0),
                nested(MatrixKind::Up, intermediate, hidden, codec, 0),
                nested(MatrixKind::Down, hidden, intermediate, codec, 0),
            ];
            plan.add_group(GroupId::expert_of(layer, expert), matrices, vec![]);
        }
    }
    plan
}

/// Returns the CPU time of this thread in seconds, independent of other load; the wall-clock time on other
/// systems.
fn seconds(start: Instant) -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanoseconds = text.split(' ').next().and_then(|first| first.parse::<f64>().ok());
    nanoseconds.map_or(start.elapsed().as_secs_f64(), |nanoseconds| nanoseconds / 1e9)
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn write_random(path: &std::path::Path, plan: &StorePlan) -> f64 {
    let start = Instant::now();
    let writer = StoreWriter::create(path, plan).unwrap();
    for number in 0..writer.index().codecs().len() {
        writer.set_codec(number as u32, &codec(16)).unwrap();
    }
    let index = writer.index().clone();
    let longest = index.extents().iter().map(|extent| extent.length).max().unwrap();
    let bytes = Random(9).bytes(longest as usize);
    for extent in index.extents() {
        let id = &index.group_of(extent).unwrap().id;
        writer.write_extent(id, extent.plane, &bytes[..extent.length as usize]).unwrap();
    }
    writer.finish().unwrap();
    start.elapsed().as_secs_f64()
}

#[test]
#[ignore = "measures"]
fn speed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.nest");

    let plan = wide_plan(4, 32, 512, 512);
    let wall = write_random(&path, &plan);
    let store = Store::open(&path).unwrap();
    let bytes = store.lengths().0 as f64;
    println!("write: {:.0} MB in {wall:.2} s with fsync", bytes / 1e6);
    let start = Instant::now();
    let verify = |store: &Store| {
        let times = (0..7).map(|_| {
            let before = seconds(start);
            assert!(damage(store).is_empty());
            seconds(start) - before
        });
        bytes / 1e9 / median(times.collect())
    };
    let cached = verify(&store);
    let memory = MemoryStorage::new("memory", std::fs::read(&path).unwrap());
    let memory = verify(&Store::from_storage(Arc::new(memory), false).unwrap());
    println!("verify, one thread: {cached:.2} GB/s page cache, {memory:.2} GB/s memory");

    let plan = wide_plan(48, 128, 64, 32);
    write_random(&path, &plan);
    let times = (0..15).map(|_| {
        let before = seconds(start);
        black_box(Store::open(&path).unwrap());
        seconds(start) - before
    });
    let store = Store::open(&path).unwrap();
    println!(
        "open: {:.1} ms for {} groups, {} extents, index of {} bytes",
        median(times.collect()) * 1e3,
        store.groups().len(),
        store.index().extents().len(),
        store.index().extents()[0].offset,
    );
}
