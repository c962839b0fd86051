//! GGUF files run in place, with unchanged weights.

use std::future::poll_fn;
use std::sync::Arc;

use nestling_convert::in_place::open_in_place;
use nestling_core::driver::block_on;
use nestling_core::error::EngineError;
use nestling_core::weights::ActivationMode;
use nestling_cpu::Cpu;
use nestling_experts::expert::source::ExpertSource;
use nestling_experts::expert::{
    CheckpointSource, HostOptions, Prefetch, StoreSource, StreamOptions,
};
use nestling_experts::reads::{ReadClass, ReadMethod, ReadOptions, ReadRequest, Reads};
use nestling_experts::residency::ExpertTable;
use nestling_formats::nested::{Layout, merge_p3_p4};
use nestling_formats::store::{Digits, Group, PartItem, Store, StoreError};
use nestling_formats::{Level, Plane};
use nestling_import::Checkpoint;
use nestling_runtime::model::RunnerOptions;

use super::{MODELS, NVFP4, PUBLISHED, data, json};
use nestling_testkit::runners::{all_logits, runner, token_list};

fn checkpoint(name: &str) -> Arc<Checkpoint> {
    Arc::new(Checkpoint::open(data(&format!("{name}.gguf"))).unwrap())
}

fn store(name: &str, digits: Digits) -> Arc<Store> {
    Arc::new(open_in_place(checkpoint(name), digits).unwrap())
}

/// Logits with float activations equal a float model's with the decoded weights, bit for bit.
#[test]
fn a_file_in_place_has_the_logits_of_its_weights() {
    let options = RunnerOptions { activations: ActivationMode::Float, ..RunnerOptions::default() };
    for name in MODELS.iter().chain(PUBLISHED).chain([&NVFP4]) {
        let tokens_of = if PUBLISHED.contains(name) || *name == NVFP4 { "qwen3-moe" } else { name };
        let tokens = token_list(&json(&format!("{tokens_of}.json"))["tokens"]);
        let tokens = &tokens[..tokens.len().min(24)];
        let path = data(&format!("{name}.gguf"));
        let floats: Arc<dyn ExpertSource> =
            Arc::new(CheckpointSource::new(Checkpoint::open(path).unwrap()));
        let in_place: Arc<dyn ExpertSource> =
            Arc::new(StoreSource::owned(store(name, Digits::Merged), None).unwrap());
        let logits = |source: &Arc<dyn ExpertSource>| {
            let level = source.level_max().unwrap_or(Level::L8);
            all_logits(&mut runner(Cpu::new(1), source, &options), tokens, level, 512)
        };
        let (expected, found) = (logits(&floats), logits(&in_place));
        assert!(found.iter().all(|logit| logit.is_finite()), "{name}");
        assert!(found == expected, "{name}");
    }
}

/// Parts of an extent equal the same ranges of the whole.
#[test]
fn parts_of_extents_are_those_of_the_whole() {
    for (name, digits) in [
        ("k-quants", Digits::Merged),
        ("k-quants", Digits::Apart),
        ("qwen3-next", Digits::Merged),
        ("gemma4", Digits::Merged),
    ] {
        let store = store(name, digits);
        for group in store.groups() {
            let Some(extent) = store.extent(group, Plane::P2) else { continue };
            let whole = store.read_extent_vec(extent).unwrap();
            // Uneven parts with boundaries that differ between extents.
            let step = (whole.len() / 7 + 1).max(3) | 1;
            for (number, expected) in whole.chunks(step).enumerate() {
                let mut found = vec![0xa5; expected.len()];
                let offset = extent.offset + (number * step) as u64;
                store.storage().read_at(offset, &mut found).unwrap();
                assert!(found == expected, "{name} {} part {number}", group.id);
            }
        }
    }
}

/// Merged digits equal the digits of separate planes, in the same number of bytes.
#[test]
fn merged_digits_are_those_of_planes_apart() {
    let mut merged = 0;
    for name in MODELS {
        let (together, apart) = (store(name, Digits::Merged), store(name, Digits::Apart));
        for group in apart.groups() {
            let Some(extent) = apart.extent(group, Plane::P2) else { continue };
            let expected = apart.read_extent_vec(extent).unwrap();
            let found = together.read_extent_vec(extent).unwrap();
            let planes = apart.parts(group, Plane::P2).unwrap();
            for part in together.parts(group, Plane::P2).unwrap() {
                let PartItem::Merged { matrix } = part.item else {
                    assert!(planes.contains(&part), "{name} {}", group.id);
                    assert!(found[part.range.clone()] == expected[part.range], "{name}");
                    continue;
                };
                let plane = |plane| {
                    let item = PartItem::Plane { matrix, plane };
                    let part = planes.iter().find(|part| part.item == item).unwrap();
                    &expected[part.range.clone()]
                };
                let mut digits = vec![0; part.range.len()];
                merge_p3_p4(Layout::Tile16, plane(Plane::P3), plane(Plane::P4), &mut digits)
                    .unwrap();
                assert!(found[part.range] == digits, "{name} {} matrix {matrix}", group.id);
                merged += 1;
            }
        }
    }
    assert!(merged > 100, "{merged}");
}

/// Experts read on demand or in the background equal resident ones.
#[test]
fn a_file_in_place_is_streamed_within_a_budget() {
    for name in ["qwen3-moe", "k-quants", "gpt-oss"] {
        let store = store(name, Digits::Merged);
        let level = store.level();
        let table = ExpertTable::of_store(&store, level).unwrap();
        let tokens = token_list(&json(&format!("{name}.json"))["tokens"]);
        let tokens = &tokens[..tokens.len().min(24)];
        let logits = |streaming| {
            let source: Arc<dyn ExpertSource> =
                Arc::new(StoreSource::owned(Arc::clone(&store), None).unwrap());
            let options = RunnerOptions { streaming, ..RunnerOptions::default() };
            all_logits(&mut runner(Cpu::new(2), &source, &options), tokens, level, 5)
        };
        let streaming = |budget_bytes, prefetch| StreamOptions {
            budget_bytes,
            reads: ReadOptions::default(),
            prefetch,
            host: HostOptions::default(),
        };
        let resident = logits(None);
        let least = streaming(table.least_bytes(), Prefetch::Always);
        assert!(logits(Some(least)) == resident, "{name}");
        let all = streaming(table.total_bytes(), Prefetch::All);
        assert!(logits(Some(all)) == resident, "{name}");
    }
}

/// Threads that read blocks past the page cache, while others build experts, deliver the bytes of plain reads.
#[test]
fn experts_built_beside_reads_are_those_of_plain_reads() {
    for name in ["qwen3-moe", "k-quants", "gpt-oss"] {
        let store = store(name, Digits::Merged);
        let is_expert = |group: &&Group| group.id.expert().is_some();
        let experts = store.groups().iter().filter(is_expert);
        let extents: Vec<_> =
            experts.map(|group| store.extent(group, Plane::P2).unwrap()).collect();
        let expected: Vec<_> =
            extents.iter().map(|it| store.read_extent_vec(it).unwrap()).collect();
        store.storage().pass_page_cache(true);
        let source = store.storage().source(extents[0].offset, extents[0].length);
        assert_eq!(source.is_some(), store.storage().passes_page_cache(), "{name}");
        assert!(store.storage().source(extents[0].offset, extents[0].length - 1).is_none());
        for (method, depth) in [(ReadMethod::Inline, 1), (ReadMethod::Threads, 3)] {
            let options = ReadOptions { method, depth, ..ReadOptions::default() };
            let reads = Reads::open(Arc::clone(&store), &options).unwrap();
            for (tag, extent) in (0..).zip(&extents) {
                let extent = (*extent).clone();
                reads.submit(ReadRequest { tag, extent, class: ReadClass::Urgent });
            }
            let next = || poll_fn(|context| reads.poll_next(context));
            for _ in &extents {
                let done = block_on(next());
                let found = done.result.unwrap();
                assert!(found.as_ref() == expected[done.tag as usize], "{name} {}", done.tag);
            }
        }
    }
}

/// A file that changes between reads is an error, never wrong weights.
#[test]
fn a_file_that_changed_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::copy(data("k-quants.gguf"), &path).unwrap();
    let checkpoint = Arc::new(Checkpoint::open(&path).unwrap());
    let store = open_in_place(checkpoint, Digits::Merged).unwrap();
    let group = store.groups().iter().find(|group| group.id.expert().is_some()).unwrap();
    let extent = store.extent(group, Plane::P2).unwrap();
    store.read_extent_vec(extent).unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    let last = bytes.len() - 40;
    bytes[last] ^= 0xff;
    std::fs::write(&path, bytes).unwrap();
    let found = store.read_extent_vec(extent);
    assert!(matches!(found, Err(StoreError::Changed { .. })), "{:?}", found.err());
    let request = ReadRequest { tag: 1, extent: extent.clone(), class: ReadClass::Urgent };
    store.storage().pass_page_cache(true);
    let options = ReadOptions { method: ReadMethod::Inline, ..ReadOptions::default() };
    let reads = Reads::open(Arc::new(store), &options).unwrap();
    reads.submit(request);
    let found = reads.try_next().unwrap().result;
    let found = found.err().and_then(|error| match error {
        EngineError::Store(error) => Some(error),
        _ => None,
    });
    assert!(matches!(found, Some(StoreError::Changed { .. })), "{found:?}");
}
