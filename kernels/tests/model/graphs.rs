//! Repeated steps run as one graph, and losing the device within a step is an error of that step.

use std::sync::Arc;

use nestling_core::EngineError;
use nestling_core::backend::BackendCounters;
use nestling_core::batch::StepOutputKind;
use nestling_core::runner::ModelRunner;
use nestling_core::weights::ActivationMode::Int8;
use nestling_cuda::{CudaBackend, GraphCounts};
use nestling_experts::residency::ExpertTable;
use nestling_formats::Level;

use nestling_testkit::models::common::{Parts, parts, step, step_for, try_step};
use nestling_testkit::{ModelsDevice, Test, note, tests};

use super::harness::Cuda;

const PROMPT: usize = 4;

/// Returns the bits of the logits of tokens after a prompt, and the device counters of each token.
fn decode(runner: &mut dyn ModelRunner, tokens: &[u32]) -> (Vec<u32>, Vec<BackendCounters>) {
    let mut bits = Vec::new();
    let mut counters = Vec::new();
    step(runner, (0, &tokens[..PROMPT]), |_| false);
    for at in PROMPT..tokens.len() {
        let output = step(runner, (at, &tokens[at..=at]), |_| true);
        bits.extend(output.logits.iter().map(|logit| logit.to_bits()));
        counters.push(output.stats.device);
    }
    (bits, counters)
}

/// Returns the numbers of graphs captured and launched since.
fn since(device: &CudaBackend, before: GraphCounts) -> (u64, u64) {
    let now = device.graph_counts();
    (now.captured - before.captured, now.started - before.started)
}

fn all_bytes(parts: &Parts) -> u64 {
    let source = Arc::clone(&parts.source).store_source().unwrap();
    ExpertTable::of_store(source.store(), parts.source.level_max().unwrap()).unwrap().total_bytes()
}

fn decode_steps_are_one_graph_from_the_second_on() {
    let (device, parts) = (Cuda::own_device(), parts(Some(Level::L3)));
    let tokens = &parts.text[..PROMPT + 5];
    let mut runner = parts.runner(device.again().unwrap(), Int8, None);
    let before = device.graph_counts();
    let (expected, counters) = decode(&mut runner, tokens);
    // The first step is recorded; the second is captured as a graph.
    assert_eq!(since(&device, before), (1, 4));
    assert!(counters.iter().all(|one| (one.submissions, one.waits) == (1, 1)), "{counters:?}");
    note!("{:?}", counters.last());
    let before = device.graph_counts();
    assert!(decode(&mut runner, tokens).0 == expected);
    let (captured, started) = since(&device, before);
    assert!(captured == 0 && started >= 5, "{captured}, {started}");
}

fn steps_that_want_tokens_are_one_graph_too() {
    let (device, parts) = (Cuda::own_device(), parts(Some(Level::L3)));
    let tokens = &parts.text[..PROMPT + 5];
    let mut runner = parts.runner(device.again().unwrap(), Int8, None);
    let among = runner.limits().vocab_size;
    let mut best =
        |rows| step_for(&mut runner, rows, (StepOutputKind::Argmax(among), |_| true)).unwrap();
    best((0, &tokens[..PROMPT]));
    let before = device.graph_counts();
    for at in PROMPT..tokens.len() {
        let counters = best((at, &tokens[at..=at])).stats.device;
        assert_eq!((counters.submissions, counters.waits), (1, 1));
    }
    assert_eq!(since(&device, before), (1, 4));
}

fn streamed_steps_that_lack_nothing_are_graphs_too() {
    let (device, parts) = (Cuda::own_device(), parts(Some(Level::L3)));
    let tokens = &parts.text[..PROMPT + 5];
    let mut resident = parts.runner(device.again().unwrap(), Int8, None);
    let (expected, _) = decode(&mut resident, tokens);
    let mut runner = parts.runner(device.again().unwrap(), Int8, Some(all_bytes(&parts)));
    assert!(decode(&mut runner, tokens).0 == expected);
    let before = device.graph_counts();
    let (found, counters) = decode(&mut runner, tokens);
    assert!(found == expected);
    assert!(counters.iter().all(|one| (one.submissions, one.waits) == (1, 1)), "{counters:?}");
    let (_, started) = since(&device, before);
    assert!(started >= 4, "{started}");
}

fn a_device_that_is_lost_within_a_step_is_an_error_of_it_and_no_other_device_is() {
    let (other, parts) = (Cuda::own_device(), parts(Some(Level::L3)));
    let tokens = &parts.text[..PROMPT + 4];
    let mut lasting = parts.runner(other, Int8, None);
    let (expected, _) = decode(&mut lasting, tokens);
    for (kernels, budget) in [(0, None), (17, None), (40, Some(all_bytes(&parts) / 2))] {
        let device = Cuda::own_device();
        let handle = device.again().unwrap();
        let mut runner = parts.runner(device, Int8, budget);
        assert!(decode(&mut runner, tokens).0 == expected);
        handle.lose_after(kernels);
        for _ in 0..2 {
            let lost = try_step(&mut runner, (tokens.len(), &parts.text[..1]), |_| true);
            assert!(matches!(lost, Err(EngineError::DeviceLost(_))), "{:?}", lost.err());
        }
        drop(runner);
        assert!(handle.again().is_err());
        assert!(decode(&mut lasting, tokens).0 == expected);
    }
}

pub fn suite() -> Vec<Test> {
    tests![
        decode_steps_are_one_graph_from_the_second_on,
        steps_that_want_tokens_are_one_graph_too,
        streamed_steps_that_lack_nothing_are_graphs_too,
    ]
}

/// Returns the tests of this file that require a device whose loss within a step can be simulated.
pub fn suite_of_losses() -> Vec<Test> {
    tests![a_device_that_is_lost_within_a_step_is_an_error_of_it_and_no_other_device_is]
}
