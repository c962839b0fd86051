//! A model over several devices, each of which is a rank, has the bits of one device.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use nestling_core::backend::Backend;
use nestling_core::group::{ExpertDivision, Group, RankShare};
use nestling_core::kv_heads::KvDivision;
use nestling_core::runner::ModelRunner;
use nestling_core::weights::ActivationMode::{self, Float, Int8};
use nestling_experts::expert::{CheckpointSource, HostExperts};
use nestling_formats::Level;
use nestling_ranks::{LeadRunner, QueueGroup, follow};
use nestling_runtime::model::RunnerOptions;

use super::common::{Parts, all_logits, converted, family, parts, step, streaming};
use super::streamed::{PROMPT, expert_bytes, run};
use crate::{ModelsDevice, Test, tests};

/// Timeout of a silent rank. An operation of an emulated device takes seconds on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Tokens of a family's text: more than a page, which an odd number of rows per step crosses.
const TOKENS: usize = 70;
const PIECE: usize = 33;

/// Runs `work` with a model whose ranks each have a device of their own.
fn over_devices<D: ModelsDevice, T>(
    model: &Parts,
    ranks: usize,
    options: &RunnerOptions,
    work: impl FnOnce(&mut dyn ModelRunner) -> T,
) -> T {
    let backend = |rank: &Arc<dyn Group>| D::in_group(D::own_device(), Arc::clone(rank));
    over_ranks(model, ranks, backend, options, work)
}

/// Runs `work` with a model over ranks.
pub fn over_ranks<B: Backend, T>(
    model: &Parts,
    ranks: usize,
    backend: impl Fn(&Arc<dyn Group>) -> B,
    options: &RunnerOptions,
    work: impl FnOnce(&mut dyn ModelRunner) -> T,
) -> T {
    let group = QueueGroup::of_threads(ranks, TIMEOUT).into_iter();
    let mut group: Vec<_> = group.map(|rank| Arc::new(rank) as Arc<dyn Group>).collect();
    let follower = |rank: &Arc<dyn Group>| {
        let (backend, rank) = (backend(rank), Arc::clone(rank));
        let parts = Parts { source: Arc::clone(&model.source), text: Vec::new() };
        let options = options.clone();
        thread::spawn(move || {
            let mut own = parts.try_with(backend, &options).unwrap();
            follow(&mut own, &*rank)
        })
    };
    let followers: Vec<_> = group[1..].iter().map(follower).collect();
    let own = model.try_with(backend(&group[0]), options).unwrap();
    let mut lead = LeadRunner::new(Box::new(own), Arc::clone(&group[0]));
    let result = work(&mut lead);
    group.clear();
    drop(lead);
    followers.into_iter().for_each(|follower| follower.join().unwrap().unwrap());
    result
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|logit| logit.to_bits()).collect()
}

/// Compares prompts in pieces and single rows.
fn is_the_same<D: ModelsDevice>(model: &Parts, ranks: usize, activations: ActivationMode) {
    let logits = |runner: &mut dyn ModelRunner| {
        let (prompt, rest) = model.text.split_at(model.text.len() - 3);
        let mut logits = all_logits(runner, prompt, PIECE);
        for (at, token) in (prompt.len()..).zip(rest) {
            logits.extend(step(runner, (at, &[*token]), |_| true).logits);
        }
        bits(&logits)
    };
    let mut alone = model.runner(D::device(), activations, None);
    let expected = logits(&mut alone);
    let config = model.source.config();
    let by_heads = KvDivision::ByHeads.layers(config, RankShare { rank: 0, ranks }).divided > 0;
    for (expert_division, kv_division, is_possible) in [
        (ExpertDivision::Whole, KvDivision::Replicated, true),
        (ExpertDivision::Sliced, KvDivision::Replicated, config.has_experts()),
        (ExpertDivision::Whole, KvDivision::ByHeads, by_heads),
    ] {
        if !is_possible {
            continue;
        }
        let options = Parts::options(activations, None);
        let options = RunnerOptions { expert_division, kv_division, ..options };
        let found = over_devices::<D, _>(model, ranks, &options, logits);
        assert!(found == expected, "{ranks} ranks, {expert_division:?}, {kv_division:?}");
    }
}

fn is_the_same_for_a_checkpoint<D: ModelsDevice>(name: &str, ranks: usize) {
    let source = Arc::new(CheckpointSource::new(family(name)));
    let vocabulary = family(name).config().vocab_size as u32;
    let text = (0..TOKENS as u32).map(|at| at * 7919 % vocabulary).collect();
    is_the_same::<D>(&Parts { source, text }, ranks, Float);
}

fn is_the_same_for_a_store<D: ModelsDevice>(name: &str, ranks: usize) {
    let folder = tempfile::tempdir().unwrap();
    is_the_same::<D>(&converted(name, folder.path()), ranks, Int8);
}

// Dense parts, shared experts and latent attention; a tied embedding without experts; gated DeltaNet; biases; short
// convolutions.

fn deepseek_v3<D: ModelsDevice>() {
    is_the_same_for_a_checkpoint::<D>("deepseek-v3", 3);
}

fn llama<D: ModelsDevice>() {
    is_the_same_for_a_checkpoint::<D>("llama", 2);
}

fn qwen3_next<D: ModelsDevice>() {
    is_the_same_for_a_checkpoint::<D>("qwen3-next", 2);
}

fn gpt_oss<D: ModelsDevice>() {
    is_the_same_for_a_checkpoint::<D>("gpt-oss", 2);
}

fn lfm2_moe<D: ModelsDevice>() {
    is_the_same_for_a_checkpoint::<D>("lfm2-moe", 2);
}

fn stores_with_int8_activations<D: ModelsDevice>() {
    is_the_same_for_a_store::<D>("qwen3-next", 2);
    is_the_same_for_a_store::<D>("deepseek-v3", 4);
}

/// Each rank streams its own experts into its device's slots, and its host chooses them from the routing.
fn streamed_experts<D: ModelsDevice>() {
    let (device, model) = (D::device(), parts(Some(Level::L3)));
    let tokens = &model.text[..PROMPT + 4];
    let mut resident = model.runner(D::again(&device), Int8, None);
    let (expected, _) = run(&mut resident, tokens, &mut |_, _| {});
    let (all, least) = expert_bytes(&model);
    for budget in [None, Some(least.max(all / 4))] {
        let streaming = budget.map(|budget| streaming(budget, HostExperts::Never));
        let options = Parts::options(Int8, streaming);
        let (found, _) =
            over_devices::<D, _>(&model, 2, &options, |runner| run(runner, tokens, &mut |_, _| {}));
        assert!(found == expected, "{budget:?}");
    }
}

pub fn suite<D: ModelsDevice>() -> Vec<Test> {
    tests![
        deepseek_v3::<D>,
        llama::<D>,
        qwen3_next::<D>,
        gpt_oss::<D>,
        lfm2_moe::<D>,
        stores_with_int8_activations::<D>,
        streamed_experts::<D>,
    ]
}

/// Cases that are slow without a real device.
pub const SLOW: &[&str] = &[
    "ranks::qwen3_next",
    "ranks::gpt_oss",
    "ranks::lfm2_moe",
    "ranks::stores_with_int8_activations",
    "ranks::streamed_experts",
];
