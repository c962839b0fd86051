//! Experts that the CPU computes from host memory. Results are bit-identical, wherever each expert is
//! computed.

use std::sync::Arc;

use nestling_core::batch::{Batch, LevelPolicy, Row, SequenceRef};
use nestling_core::cancel::CancelToken;
use nestling_core::group::Group;
use nestling_core::kv_cache::PageId;
use nestling_core::runner::{ModelRunner, StepOutput};
use nestling_core::weights::ActivationMode::{self, Float, Int8};
use nestling_cuda::{CudaBackend, in_group};
use nestling_experts::expert::{HostExperts, HostLink, HostSpeeds, StreamStats};
use nestling_formats::Level;
use nestling_levels::dual::{DualPolicy, Threshold};
use nestling_runtime::model::Runner;

use nestling_testkit::models::common::{Parts, converted, parts, step, streaming, try_step_at};
use nestling_testkit::models::ranks::over_ranks;
use nestling_testkit::models::streamed::{PROMPT, expert_bytes, fail_reads};
use nestling_testkit::{Device, ModelsDevice, Test, note, tests};

use super::harness::{Cuda, is_emulated};

/// Speeds at which the CPU computes two experts in three. A layer must have several of equal size in host
/// memory.
const SHARED: HostExperts = HostExperts::By(HostSpeeds {
    link: HostLink { bytes_per_s: 1e9, round_trip_s: 0.0, device_bytes_per_s: 1e12 },
    host_bytes_per_s: 2e9,
});

/// Speeds of a link that is faster than the CPU.
const FAST_LINK: HostExperts = HostExperts::By(HostSpeeds {
    link: HostLink { bytes_per_s: 1e11, round_trip_s: 1e-5, device_bytes_per_s: 1e12 },
    host_bytes_per_s: 1e9,
});

/// Returns a runner with `on_device` bytes for experts on the device and space for all experts in host
/// memory.
fn runner(
    parts: &Parts,
    device: &CudaBackend,
    activations: ActivationMode,
    (on_device, experts): (u64, HostExperts),
) -> Runner<CudaBackend> {
    let (all, _) = expert_bytes(parts);
    let backend = device.with_host_bytes(all).unwrap();
    parts.try_streamed(backend, activations, Some(streaming(on_device, experts))).unwrap()
}

#[derive(Default)]
struct RunResult {
    bits: Vec<u32>,
    stats: StreamStats,
    uses: u64,
    /// Experts promoted to the device, as counted by steps after the first. Earlier promotions that complete
    /// later are included.
    promoted_later: u64,
}

impl RunResult {
    fn add(&mut self, output: &StepOutput) {
        self.bits.extend(output.logits.iter().map(|logit| logit.to_bits()));
        self.stats.add(&output.stats.streaming);
        self.uses += output.stats.expert_uses.iter().sum::<u64>();
    }
}

/// Runs a prompt and the tokens after it, one at a time.
fn run(runner: &mut dyn ModelRunner, tokens: &[u32]) -> RunResult {
    let mut seen = RunResult::default();
    seen.add(&step(runner, (0, &tokens[..PROMPT]), |at| at + 1 == PROMPT));
    let first = seen.stats.promoted_experts;
    for at in PROMPT..tokens.len() {
        seen.add(&step(runner, (at, &tokens[at..=at]), |_| true));
    }
    seen.promoted_later = seen.stats.promoted_experts - first;
    seen
}

fn bits_do_not_depend_on_where_an_expert_is_computed() {
    let all_choices = [HostExperts::Never, HostExperts::Always, SHARED, FAST_LINK];
    for (level, choices) in [(Level::L3, &all_choices[..]), (Level::L8, &[SHARED])] {
        let (device, parts) = (Cuda::own_device(), parts(Some(level)));
        let tokens = &parts.text[..PROMPT + 4];
        let expected = run(&mut parts.runner(device.again().unwrap(), Int8, None), tokens);
        let (all, least) = expert_bytes(&parts);
        for experts in choices.iter().copied() {
            let seen = run(&mut runner(&parts, &device, Int8, (least, experts)), tokens);
            assert!(seen.bits == expected.bits, "level {level}, {experts:?}");
            assert_eq!(seen.uses, expected.uses);
            let StreamStats { host_uses, host_bytes, recalled_bytes, .. } = seen.stats;
            note!(
                "level {level}, {least} of {all} on the device, {experts:?}: {host_uses} of {} uses, \
                 {host_bytes} bytes; {recalled_bytes} recalled",
                seen.uses
            );
            match experts {
                HostExperts::Always => assert!(host_uses > 0 && host_bytes > 0),
                SHARED => assert!(host_uses > 0 && recalled_bytes > 0),
                _ => assert!(host_uses == 0 && recalled_bytes > 0),
            }
        }
    }
}

/// Experts computed on the host may be promoted to a slot. With many slots, most experts are in one.
fn experts_that_are_wanted_often_move_to_the_device() {
    let (device, parts) = (Cuda::own_device(), parts(Some(Level::L3)));
    let tokens = &parts.text[..PROMPT + 2];
    let expected = run(&mut parts.runner(device.again().unwrap(), Int8, None), tokens);
    let (all, _) = expert_bytes(&parts);
    let mut runner = runner(&parts, &device, Int8, (all / 2, HostExperts::Always));
    assert!(run(&mut runner, tokens).bits == expected.bits);
    let memory = runner.expert_memory().unwrap();
    // Half of the resident experts are evicted, then the slots are added again.
    memory.set_budget(all / 4);
    runner.change_expert_memory().unwrap();
    memory.set_budget(all / 2);
    runner.change_expert_memory().unwrap();
    let again = run(&mut runner, tokens);
    assert!(again.bits == expected.bits && again.stats.host_uses > 0);
    assert!(again.stats.recalled_bytes > 0, "nothing moved to free slots");
    assert!(again.stats.promoted_experts > 0);
}

/// Returns a model that had slots for half of its experts, then for a quarter, then for `bytes` bytes. Its
/// asynchronous copies complete only after a wait or after `questions` queries.
fn with_free_slots(
    parts: &Parts,
    (questions, bytes): (u64, u64),
    experts: HostExperts,
) -> LateRunner {
    let device = Cuda::own_device();
    device.delay_copies(questions);
    let (all, _) = expert_bytes(parts);
    let mut runner = runner(parts, &device, Int8, (all / 2, experts));
    run(&mut runner, &parts.text[..PROMPT + 2]);
    let memory = runner.expert_memory().unwrap();
    memory.set_budget(all / 4);
    runner.change_expert_memory().unwrap();
    memory.set_budget(bytes);
    runner.change_expert_memory().unwrap();
    LateRunner { is_emulated: is_emulated(&device), runner }
}

struct LateRunner {
    runner: Runner<CudaBackend>,
    is_emulated: bool,
}

/// An expert being promoted is computed on the host until it arrives, and no step waits for it.
fn what_moves_to_the_device_is_there_later() {
    let (device, parts) = (Cuda::own_device(), parts(Some(Level::L3)));
    let tokens = &parts.text[..PROMPT + 2];
    let expected = run(&mut parts.runner(device, Int8, None), tokens);
    let (all, least) = expert_bytes(&parts);
    let mut found = Vec::new();
    // The slots fit all experts, or promotions require evictions.
    for (questions, bytes) in [(0, 2 * all), (u64::MAX, 2 * all), (3, all / 2)] {
        let late = with_free_slots(&parts, (questions, bytes), HostExperts::Always);
        let LateRunner { mut runner, is_emulated } = late;
        let seen = run(&mut runner, tokens);
        assert!(seen.bits == expected.bits && seen.uses == expected.uses, "{questions} {bytes}");
        let StreamStats { host_uses, recalled_bytes, promoted_experts, .. } = seen.stats;
        let later = seen.promoted_later;
        note!(
            "{questions}: {host_uses} uses on the host, {promoted_experts} experts moved, {later} later"
        );
        assert_eq!(recalled_bytes > 0, promoted_experts > 0);
        if !is_emulated || bytes < all {
            continue;
        }
        // Queries never report completion, so promoted experts are still computed on the host.
        assert_eq!(later == 0, questions == u64::MAX);
        found.push(host_uses);
        if questions == u64::MAX {
            // The number of slots shrinks while copies are pending, and the system reclaims memory.
            let memory = runner.expert_memory().unwrap();
            memory.set_budget(all / 4);
            let moved = run(&mut runner, tokens);
            assert!(moved.bits == expected.bits && moved.stats.promoted_experts > 0);
            memory.set_budget(bytes);
            assert!(run(&mut runner, tokens).bits == expected.bits);
            memory.shed(2 * all);
            let shed = run(&mut runner, tokens);
            assert!(shed.bits == expected.bits && shed.stats.read_total() > 0);
            memory.set_budget(least);
            assert!(run(&mut runner, tokens).bits == expected.bits);
        }
    }
    // The longer copies take, the more experts are computed on the host.
    assert!(found.is_sorted() && (found.is_empty() || found.first() < found.last()), "{found:?}");
}

/// The device waits for an expert that it must compute while the expert is being promoted.
fn what_is_wanted_on_its_way_to_the_device_is_waited_for() {
    let (device, parts) = (Cuda::own_device(), parts(Some(Level::L3)));
    let tokens = &parts.text[..PROMPT + 2];
    let expected = run(&mut parts.runner(device, Int8, None), tokens);
    let (all, _) = expert_bytes(&parts);
    let late = with_free_slots(&parts, (u64::MAX, 2 * all), SHARED);
    let mut runner = late.runner;
    let seen = run(&mut runner, tokens);
    assert!(seen.bits == expected.bits && seen.stats.host_uses > 0);
    assert!(seen.stats.promoted_experts > 0, "{:?}", seen.stats);
}

/// A step that reads a damaged store fails, and the next one succeeds.
fn reads_that_fail_beside_experts_on_the_host_are_errors_of_that_step() {
    let device = Cuda::own_device();
    device.delay_copies(3);
    fail_reads(|parts, least| {
        // Space for some experts, so that others are read.
        let (all, _) = expert_bytes(parts);
        let backend = device.with_host_bytes(all / 8).unwrap();
        let options = streaming(least, HostExperts::Always);
        parts.try_streamed(backend, Int8, Some(options)).unwrap()
    });
}

/// Rows of several levels, and of several sequences in one step.
fn levels_by_weight_and_rows_of_several_sequences_are_the_same_on_the_host() {
    let (device, parts) = (Cuda::device(), parts(None));
    let (all, _) = expert_bytes(&parts);
    let slopes = parts.source.sensitivities().expert(0, 0).unwrap().slopes(Level::L8);
    let policy = DualPolicy::up_to(Level::L8, Threshold::new(slopes[2] / 16.0));
    let both = |runner: &mut dyn ModelRunner| {
        let mut seen = RunResult::default();
        for (index, tokens) in parts.text[..8].chunks(4).enumerate() {
            let levels = (LevelPolicy::Dual(policy), |_| true);
            seen.add(&try_step_at(runner, (index * 4, tokens), levels).unwrap());
        }
        for position in 0..2 {
            seen.add(&together(runner, &parts.text, position));
        }
        seen
    };
    let expected = both(&mut parts.runner(device.again().unwrap(), Int8, None));
    for experts in [HostExperts::Always, SHARED] {
        let mut runner = runner(&parts, &device, Int8, (all / 4, experts));
        let found = both(&mut runner);
        assert!(found.bits == expected.bits, "{experts:?}");
        assert_eq!(found.uses, expected.uses);
        assert!(found.stats.host_uses > 0);
    }
}

/// Runs the next token of three sequences with different texts, each at a different level.
fn together(runner: &mut dyn ModelRunner, text: &[u32], position: usize) -> StepOutput {
    let levels = [Level::L2, Level::L4, Level::L8];
    let rows = (0u32..).zip(levels).map(|(sequence, level)| Row {
        token: text[sequence as usize * 20 + position],
        position: position as u32,
        sequence,
        wants_logits: true,
        levels: LevelPolicy::Fixed(level),
    });
    let rows = rows.collect();
    let sequences = (0..3).map(|page| SequenceRef::of_pages(vec![PageId(page)])).collect();
    let mut batch = Batch { rows, sequences, ..Batch::default() };
    batch.own_states();
    runner.step_blocking(&batch, &CancelToken::new()).unwrap()
}

/// Covers biases with a clamped activation, planes up to level 4 and beyond, GELU, and a shared expert.
fn families_have_the_same_bits_on_the_host() {
    let device = Cuda::device();
    for name in ["gpt-oss", "gpt-oss-bf16", "gemma4", "qwen2-moe"] {
        let folder = tempfile::tempdir().unwrap();
        let parts = converted(name, folder.path());
        let (_, least) = expert_bytes(&parts);
        let tokens = &parts.text[..PROMPT + 3];
        let expected = run(&mut parts.runner(device.again().unwrap(), Int8, None), tokens);
        for experts in [HostExperts::Always, SHARED] {
            let mut runner = runner(&parts, &device, Int8, (least, experts));
            assert!(run(&mut runner, tokens).bits == expected.bits, "{name}, {experts:?}");
            let seen = run(&mut runner, tokens);
            assert!(seen.bits == expected.bits && seen.stats.host_uses > 0, "{name}, {experts:?}");
        }
    }
}

/// Products with float activations are not bit-identical on the CPU, so such experts are uploaded to the
/// device.
fn floats_are_never_computed_on_the_host() {
    let device = Cuda::device();
    let folder = tempfile::tempdir().unwrap();
    let parts = converted("olmoe", folder.path());
    let tokens = &parts.text[..PROMPT + 3];
    let expected = run(&mut parts.runner(device.again().unwrap(), Float, None), tokens);
    let (_, least) = expert_bytes(&parts);
    let mut runner = runner(&parts, &device, Float, (least, HostExperts::Always));
    for _ in 0..2 {
        let seen = run(&mut runner, tokens);
        assert!(seen.bits == expected.bits && seen.stats.host_uses == 0);
        assert!(seen.stats.recalled_bytes > 0);
    }
}

/// Each rank's host computes experts of its own.
fn ranks_compute_experts_on_the_host() {
    let (device, parts) = (Cuda::own_device(), parts(Some(Level::L3)));
    let tokens = &parts.text[..PROMPT + 4];
    let (all, least) = expert_bytes(&parts);
    let expected = run(&mut parts.runner(device, Int8, None), tokens).bits;
    let backend = |rank: &Arc<dyn Group>| {
        in_group(Cuda::own_device().with_host_bytes(all).unwrap(), Arc::clone(rank))
    };
    let options = Some(streaming(least, HostExperts::Always));
    over_ranks(&parts, 2, backend, &Parts::options(Int8, options), |runner| {
        for pass in ["cold", "warm"] {
            let found = run(runner, tokens);
            assert!(found.bits == expected, "{pass}");
            assert!(found.stats.host_uses > 0, "{pass}: {:?}", found.stats);
        }
    });
}

pub fn suite() -> Vec<Test> {
    tests![
        bits_do_not_depend_on_where_an_expert_is_computed,
        experts_that_are_wanted_often_move_to_the_device,
        what_moves_to_the_device_is_there_later,
        what_is_wanted_on_its_way_to_the_device_is_waited_for,
        reads_that_fail_beside_experts_on_the_host_are_errors_of_that_step,
        levels_by_weight_and_rows_of_several_sequences_are_the_same_on_the_host,
        families_have_the_same_bits_on_the_host,
        floats_are_never_computed_on_the_host,
        ranks_compute_experts_on_the_host,
    ]
}
