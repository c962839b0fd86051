//! Experts in device slots give the same bits as resident experts, for any cache contents and any arrivals.

use std::path::PathBuf;
use std::sync::Arc;

use nestling_core::EngineError;
use nestling_core::backend::{Backend, BackendCounters};
use nestling_core::batch::LevelPolicy;
use nestling_core::runner::ModelRunner;
use nestling_core::weights::ActivationMode::Int8;
use nestling_experts::expert::{CheckpointSource, ExpertSource, StoreSource};
use nestling_experts::residency::ExpertTable;
use nestling_formats::Level;
use nestling_formats::store::Store;
use nestling_levels::dual::{DualPolicy, Threshold};
use nestling_runtime::model::Runner;

use super::common::{Parts, all_logits, family, parts, step, store_path, try_step, try_step_at};
use crate::{ModelsDevice, Test, note, tests};

pub const PROMPT: usize = 9;

/// Returns the bytes of all experts at a level, and the minimum budget of a step.
pub fn expert_bytes(parts: &Parts) -> (u64, u64) {
    let source = Arc::clone(&parts.source).store_source().unwrap();
    let table = ExpertTable::of_store(source.store(), parts.source.level_max().unwrap()).unwrap();
    (table.total_bytes(), table.least_bytes())
}

/// Returns the bits of the logits of a prompt and of each later token, and the device's counters for each
/// token.
pub fn run(
    runner: &mut dyn ModelRunner,
    tokens: &[u32],
    each: &mut dyn FnMut(usize, &mut dyn ModelRunner),
) -> (Vec<u32>, Vec<BackendCounters>) {
    let prompt = step(runner, (0, &tokens[..PROMPT]), |at| at + 1 == PROMPT);
    let mut bits: Vec<u32> = prompt.logits.iter().map(|logit| logit.to_bits()).collect();
    let mut counters = Vec::new();
    for at in PROMPT..tokens.len() {
        each(at - PROMPT, runner);
        let output = step(runner, (at, &tokens[at..=at]), |_| true);
        bits.extend(output.logits.iter().map(|logit| logit.to_bits()));
        counters.push(output.stats.device);
    }
    (bits, counters)
}

fn streamed_gives_the_bits_of_resident_at_every_budget<D: ModelsDevice>() {
    for (level, shares) in [(Level::L3, vec![0, 2, 4]), (Level::L8, vec![0])] {
        let (device, parts) = (D::device(), parts(Some(level)));
        let tokens = &parts.text[..PROMPT + 4];
        let mut resident = parts.runner(D::again(&device), Int8, None);
        let (expected, _) = run(&mut resident, tokens, &mut |_, _| {});
        let (all, least) = expert_bytes(&parts);
        for budget in shares.into_iter().map(|share: u64| (all * share / 4).max(least)) {
            let mut streamed = parts.runner(D::again(&device), Int8, Some(budget));
            let (cold, counters) = run(&mut streamed, tokens, &mut |_, _| {});
            assert!(cold == expected, "level {level}, {budget} bytes, cold");
            let waits: Vec<_> = counters.iter().map(|one| one.waits).collect();
            // One wait for the logits, and at most one per layer with misses.
            assert!(waits.iter().all(|waits| *waits <= 5), "{waits:?}");
            let (warm, counters) = run(&mut streamed, tokens, &mut |_, _| {});
            assert!(warm == expected, "level {level}, {budget} bytes, warm");
            let again: Vec<_> = counters.iter().map(|one| one.waits).collect();
            let bytes: u64 = counters.iter().map(|one| one.upload_bytes).sum();
            note!("level {level}, {budget} of {all}: waits {waits:?}, {again:?}, {bytes} bytes");
            if budget == all {
                // Everything requested is resident: the only wait is for the logits.
                assert!(counters.iter().all(|one| one.waits == 1 && one.upload_bytes == 0));
                assert!(counters.iter().all(|one| one.submissions == 1), "{counters:?}");
            } else if budget == least {
                assert!(again.iter().all(|waits| *waits > 1) && bytes > 0);
            }
        }
    }
}

/// Rows of several levels give the same bits, whether the device or the host chooses levels and looks up
/// experts, and at any budget.
fn levels_by_weight_are_the_same_from_the_device_and_the_host<D: ModelsDevice>() {
    let (device, parts) = (D::device(), parts(None));
    let (all, least) = expert_bytes(&parts);
    let slopes = parts.source.sensitivities().expert(0, 0).unwrap().slopes(Level::L8);
    // Threshold at which a weight of a quarter reaches level 4.
    let policy = DualPolicy::up_to(Level::L8, Threshold::new(slopes[2] / 16.0));
    let tokens = &parts.text[..17];
    let run = |budget, piece| {
        let mut runner = parts.runner(D::again(&device), Int8, budget);
        let (mut logits, mut uses, mut waits) = (Vec::new(), [0; 5], 0);
        for (index, tokens) in tokens.chunks(piece).enumerate() {
            let levels = (LevelPolicy::Dual(policy), |_| true);
            let output = try_step_at(&mut runner, (index * piece, tokens), levels).unwrap();
            logits.extend(output.logits.iter().map(|logit| logit.to_bits()));
            uses.iter_mut().zip(output.stats.expert_uses).for_each(|(sum, uses)| *sum += uses);
            waits = output.stats.device.waits;
        }
        (logits, uses, waits)
    };
    // The host chooses levels if a step has this many rows.
    let (expected, uses, waits) = run(None, 17);
    assert!(waits > 4 && uses.iter().filter(|uses| **uses > 0).count() > 2, "{uses:?}");
    for (budget, piece) in [(None, 4), (Some(all), 5), (Some(least), 10)] {
        let found = run(budget, piece);
        assert!(found.0 == expected, "{budget:?}, {piece} rows");
        assert_eq!(found.1, uses);
        assert!(budget.is_some() || found.2 == 1, "{} waits", found.2);
    }
}

/// Experts with biases, from a checkpoint of floats.
fn biases_of_experts_are_found_by_the_device<D: ModelsDevice>() {
    let device = D::device();
    let checkpoint = family("gpt-oss-bf16");
    let source: Arc<dyn ExpertSource> = Arc::new(CheckpointSource::new(checkpoint));
    let vocabulary = source.config().vocab_size as u32;
    let parts = Parts { source, text: (0..20).map(|at| at * 7919 % vocabulary).collect() };
    let mut runner = parts.runner(device, Int8, None);
    let whole = all_logits(&mut runner, &parts.text, 20);
    for piece in [10, 3] {
        assert!(all_logits(&mut runner, &parts.text, piece) == whole, "{piece} rows");
    }
    assert_eq!(step(&mut runner, (19, &parts.text[19..]), |_| true).stats.device.waits, 1);
}

/// Statistics of experts do not depend on whether the device or the host looks them up.
fn uses_are_counted_as_on_the_processor<D: ModelsDevice>() {
    let (device, parts) = (D::device(), parts(Some(Level::L3)));
    let (all, _) = expert_bytes(&parts);
    let mut streamed = parts.runner(device, Int8, Some(all / 2));
    let mut resident = parts.on_cpu(Int8);
    for runner in [&mut streamed as &mut dyn ModelRunner, &mut resident] {
        step(runner, (0, &parts.text[..PROMPT]), |at| at + 1 == PROMPT);
    }
    for at in PROMPT..PROMPT + 3 {
        let [found, expected] = [&mut streamed as &mut dyn ModelRunner, &mut resident]
            .map(|runner| step(runner, (at, &parts.text[at..=at]), |_| true).stats);
        let uses: u64 = found.expert_uses.iter().sum();
        assert_eq!(uses, expected.expert_uses.iter().sum::<u64>());
        assert_eq!(found.streaming.expert_hits + found.streaming.expert_misses, uses);
        assert_eq!(found.streaming.asked_bits, 3 * uses);
        assert_eq!(found.streaming.served_bits, 3 * uses);
    }
}

fn a_budget_that_changes_while_running_changes_no_bit<D: ModelsDevice>() {
    let (device, parts) = (D::device(), parts(Some(Level::L3)));
    let tokens = &parts.text[..PROMPT + 8];
    let (expected, _) =
        run(&mut parts.runner(D::again(&device), Int8, None), tokens, &mut |_, _| {});
    let (all, least) = expert_bytes(&parts);
    let mut streamed = parts.runner(device, Int8, Some(all / 2));
    let memory = streamed.expert_memory().unwrap();
    let budgets = [all / 2, least, all, all / 3, all];
    let (found, _) = run(&mut streamed, tokens, &mut |number, runner| {
        let budget = budgets[number % budgets.len()];
        memory.set_budget(budget);
        if number % 4 == 3 {
            memory.shed(all / 4);
        }
        if number % 2 == 0 {
            runner.change_expert_memory().unwrap();
            assert!(memory.used_bytes() <= budget, "{} of {budget}", memory.used_bytes());
        }
    });
    assert!(found == expected);
}

/// A device with less memory than the expert budget allocates fewer slots.
fn a_device_without_memory_for_all_slots_gives_fewer<D: ModelsDevice>() {
    let (device, parts) = (D::device(), parts(Some(Level::L3)));
    let tokens = &parts.text[..PROMPT + 3];
    let (expected, _) = run(&mut parts.runner(device, Int8, None), tokens, &mut |_, _| {});
    let (all, _) = expert_bytes(&parts);
    // Dense weights at 6 bits, activations, and some experts.
    let limited = D::limited_device(all / 2 + D::WORK_BYTES);
    let mut streamed = parts.runner(limited, Int8, Some(2 * all));
    let (found, _) = run(&mut streamed, tokens, &mut |_, _| {});
    assert!(found == expected);
    let memory = streamed.expert_memory().unwrap();
    assert!(memory.used_bytes() < all, "{} of {all}", memory.used_bytes());
    // Later requests are refused as well, and change nothing.
    memory.set_budget(4 * all);
    streamed.change_expert_memory().unwrap();
    let (found, _) = run(&mut streamed, tokens, &mut |_, _| {});
    assert!(found == expected);
}

/// A step returns an error if its store is damaged or truncated while it is read, and the next step
/// continues.
fn reads_that_fail_while_a_step_waits_are_errors_of_that_step<D: ModelsDevice>() {
    let device = D::device();
    fail_reads(|parts, budget| parts.runner(device, Int8, Some(budget)));
}

/// Makes reads fail in a runner created with the minimum budget for experts.
pub fn fail_reads<B: Backend>(make: impl FnOnce(&Parts, u64) -> Runner<B>) {
    let directory = tempfile::tempdir().unwrap();
    let path: PathBuf = directory.path().join("model.nest");
    std::fs::copy(store_path(), &path).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let store = Arc::new(Store::open(&path).unwrap());
    let source = StoreSource::owned(store, Some(Level::L3)).unwrap();
    let text = parts(Some(Level::L3)).text;
    let parts = Parts { source: Arc::new(source), text };
    let (_, least) = expert_bytes(&parts);
    let tokens = &parts.text[..PROMPT + 2];
    let mut runner = make(&parts, least);
    let (expected, _) = run(&mut runner, tokens, &mut |_, _| {});
    let modified = std::fs::metadata(&path).unwrap().modified().unwrap();
    let write = |bytes: &[u8]| {
        let mut file = std::fs::File::create(&path).unwrap();
        std::io::Write::write_all(&mut file, bytes).unwrap();
        file.set_modified(modified).unwrap();
    };
    let zeros = vec![0; bytes.len()];
    for damaged in [&bytes[..bytes.len() / 8], &zeros] {
        write(damaged);
        let failed = try_step(&mut runner, (PROMPT, &tokens[PROMPT..=PROMPT]), |_| true);
        let error = failed.err();
        note!("{error:?}");
        assert!(matches!(error, Some(EngineError::Store(_))));
        write(&bytes);
        let (found, _) = run(&mut runner, tokens, &mut |_, _| {});
        assert!(found == expected);
    }
}

pub fn suite<D: ModelsDevice>() -> Vec<Test> {
    tests![
        streamed_gives_the_bits_of_resident_at_every_budget::<D>,
        levels_by_weight_are_the_same_from_the_device_and_the_host::<D>,
        biases_of_experts_are_found_by_the_device::<D>,
        uses_are_counted_as_on_the_processor::<D>,
        a_budget_that_changes_while_running_changes_no_bit::<D>,
        a_device_without_memory_for_all_slots_gives_fewer::<D>,
        reads_that_fail_while_a_step_waits_are_errors_of_that_step::<D>,
    ]
}
