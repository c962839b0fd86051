//! Ranks whose devices exchange columns themselves have the bits of one device, and of ranks that exchange them through
//! the host.

use std::sync::Arc;
use std::time::Duration;

use nestling_core::group::{Group, GroupCounters};
use nestling_core::runner::ModelRunner;
use nestling_core::weights::ActivationMode::Float;
use nestling_cuda::{PeerFault, PeerHub, in_group, with_peers};
use nestling_experts::expert::CheckpointSource;

use nestling_testkit::models::common::{Parts, all_logits, family, step, try_step};
use nestling_testkit::models::ranks::over_ranks;
use nestling_testkit::{ModelsDevice, Test, tests};

use super::harness::Cuda;

/// Time after which a part that does not arrive is a failure.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Rows of a step: more than one, and not a power of two.
const PIECE: usize = 5;
const TOKENS: usize = 11;

fn model(name: &str) -> Parts {
    let source = Arc::new(CheckpointSource::new(family(name)));
    let vocabulary = family(name).config().vocab_size as u32;
    Parts { source, text: (0..TOKENS as u32).map(|at| at * 7919 % vocabulary).collect() }
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|logit| logit.to_bits()).collect()
}

/// Bits of steps of several rows and of one row.
fn logits(parts: &Parts, runner: &mut dyn ModelRunner) -> Vec<u32> {
    let (prompt, rest) = parts.text.split_at(TOKENS - 1);
    let mut logits = all_logits(runner, prompt, PIECE);
    logits.extend(step(runner, (prompt.len(), rest), |_| true).logits);
    bits(&logits)
}

fn of_one_device(parts: &Parts) -> Vec<u32> {
    logits(parts, &mut parts.runner(Cuda::own_device(), Float, None))
}

struct PeerRun<T> {
    result: T,
    /// Transfers between devices.
    transfers: u64,
    /// Messages of rank 0 through the host.
    host: GroupCounters,
}

/// Runs `work` with a model whose devices meet at a hub.
fn over_peers<T>(
    parts: &Parts,
    ranks: usize,
    fault: Option<PeerFault>,
    work: impl FnOnce(&mut dyn ModelRunner) -> T,
) -> PeerRun<T> {
    let hub = PeerHub::new(ranks, TIMEOUT, fault);
    let first = std::sync::Mutex::new(None);
    let backend = |rank: &Arc<dyn Group>| {
        if rank.share().rank == 0 {
            *first.lock().unwrap() = Some(Arc::clone(rank));
        }
        let backend = in_group(Cuda::own_device(), Arc::clone(rank));
        let link = hub.link(&backend).unwrap();
        with_peers(backend, Box::new(link))
    };
    let mut host = GroupCounters::default();
    let result = over_ranks(parts, ranks, backend, &Parts::options(Float, None), |runner| {
        let result = work(runner);
        host = first.lock().unwrap().take().unwrap().counters();
        result
    });
    PeerRun { result, transfers: hub.transfers(), host }
}

/// Three ranks do not divide the columns equally, and a fault that flips a bit is seen in the logits.
fn devices_exchange_columns_with_the_bits_of_one() {
    let parts = model("deepseek-v3");
    let expected = of_one_device(&parts);
    let of_ranks = |fault| over_peers(&parts, 3, fault, |runner| logits(&parts, runner));
    let direct = of_ranks(None);
    assert!(direct.result == expected);
    let through_host = of_ranks(Some(PeerFault::Unconnected));
    assert!(through_host.result == expected);
    assert!(direct.transfers > 0 && through_host.transfers == 0);
    let (less, more) = (direct.host.sent_bytes, through_host.host.sent_bytes);
    assert!(less < more, "{less} bytes through the host beside transfers, {more} without");
    let broken = of_ranks(Some(PeerFault::Bit));
    assert!(broken.result != expected, "a flipped bit has changed no logit");
}

/// A transfer that fails on one rank ends the step on all, and later steps go through the host.
fn a_transfer_that_fails_ends_the_step_on_all_ranks() {
    let parts = model("llama");
    let expected = of_one_device(&parts);
    let missing = Some(PeerFault::Missing(2));
    let ran = over_peers(&parts, 2, missing, |runner| {
        let error = try_step(runner, (0, &parts.text[..2]), |_| true).unwrap_err();
        assert!(error.to_string().contains("part"), "{error}");
        assert!(!error.needs_reopening(), "{error:?}");
        logits(&parts, runner)
    });
    assert!(ran.result == expected);
    assert_eq!(ran.transfers, 2);
}

pub fn suite() -> Vec<Test> {
    tests![
        devices_exchange_columns_with_the_bits_of_one,
        a_transfer_that_fails_ends_the_step_on_all_ranks,
    ]
}
