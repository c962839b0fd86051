//! Failures, stalls and losses at every exchange of a step.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::thread;
use std::time::Duration;

use nestling_core::batch::Batch;
use nestling_core::cancel::CancelToken;
use nestling_core::error::EngineError;
use nestling_core::group::{Failure, Group, GroupCounters, RankError, RankShare};
use nestling_core::kv_cache::PageAllocator;
use nestling_core::runner::{ModelRunner, StepOutput};
use nestling_cpu::Cpu;
use nestling_experts::expert::ExpertSource;
use nestling_formats::Level;
use nestling_ranks::QueueGroup;
use nestling_runtime::model::RunnerOptions;
use nestling_testkit::runners::{Sequence, checkpoint, data, runner, some_tokens};

use crate::harness::{Ranks, watched};

/// Fault of a rank before one of its exchanges.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// Failure of its own work.
    Error,
    /// Silence for longer than the timeout.
    Stall,
}

/// Timeout of the groups that stall. A busy machine may keep a rank from its core for a while.
const TIMEOUT: Duration = Duration::from_secs(3);

/// A rank with a fault before its `left`-th exchange from now; negative for none.
#[derive(Debug)]
struct Faulty {
    group: QueueGroup,
    fault: Fault,
    left: AtomicI64,
}

impl Faulty {
    fn meet(&self) -> Result<(), RankError> {
        if self.left.fetch_sub(1, Ordering::Relaxed) != 0 {
            return Ok(());
        }
        match self.fault {
            Fault::Stall => {
                thread::sleep(3 * TIMEOUT);
                Ok(())
            }
            Fault::Error => {
                let (expected, found) = ("no fault".into(), "an injected one".into());
                Err(RankError::Mismatch { rank: self.share().rank, expected, found })
            }
        }
    }
}

impl Group for Faulty {
    fn share(&self) -> RankShare {
        self.group.share()
    }

    fn exchange(&self, parts: &[Vec<u8>], incoming: &mut Vec<Vec<u8>>) -> Result<(), RankError> {
        self.meet()?;
        self.group.exchange(parts, incoming)
    }

    fn all_gather(&self, part: &[u8], incoming: &mut Vec<Vec<u8>>) -> Result<(), RankError> {
        self.meet()?;
        self.group.all_gather(part, incoming)
    }

    fn broadcast(&self, bytes: &[u8]) -> Result<Vec<u8>, RankError> {
        self.group.broadcast(bytes)
    }

    fn fail(&self, failure: &Failure) -> Result<(), RankError> {
        self.group.fail(failure)
    }

    fn beat(&self) {
        self.group.beat();
    }

    fn counters(&self) -> GroupCounters {
        self.group.counters()
    }
}

/// Computes the logits of the last of some tokens in one step.
fn last_logits(runner: &mut dyn ModelRunner) -> Result<StepOutput, EngineError> {
    step(runner, &CancelToken::new())
}

fn step(runner: &mut dyn ModelRunner, cancel: &CancelToken) -> Result<StepOutput, EngineError> {
    let mut allocator = PageAllocator::new(runner.limits().pages as u32);
    let (mut sequence, mut batch) = (Sequence::new(Level::L8), Batch::default());
    let tokens = some_tokens(9, runner.limits().vocab_size, 7);
    sequence.push(&tokens, |at| at == tokens.len() - 1, &mut batch, &mut allocator);
    runner.step_blocking(&batch, cancel)
}

fn exchanges_of_a_step(ranks: &mut Ranks) -> i64 {
    let count = |ranks: &Ranks| ranks.groups[0].counters().exchanges as i64;
    let before = count(ranks);
    last_logits(ranks.lead()).unwrap();
    count(ranks) - before
}

/// Opens a model over three ranks of which one has a fault that is not armed.
fn with_fault(source: &Arc<dyn ExpertSource>, rank: usize, fault: Fault) -> (Ranks, Arc<Faulty>) {
    let timeout = if fault == Fault::Stall { TIMEOUT } else { Duration::from_secs(60) };
    let group = QueueGroup::of_threads(3, timeout).into_iter();
    let group = group.map(|group| Arc::new(Faulty { group, fault, left: AtomicI64::new(-1) }));
    let group: Vec<Arc<Faulty>> = group.collect();
    let faulty = Arc::clone(&group[rank]);
    let group = group.into_iter().map(|rank| rank as Arc<dyn Group>).collect();
    (Ranks::on(group, source, &RunnerOptions::default()), faulty)
}

#[test]
fn a_failure_at_any_exchange_fails_the_step_on_all_ranks_and_no_later_one() {
    watched(|| {
        let source = checkpoint(&data("tiny-qwen3-moe"));
        let mut alone = runner(Cpu::new(1), &source, &RunnerOptions::default());
        let expected = last_logits(&mut alone).unwrap().logits;
        for rank in [0, 2] {
            let (mut ranks, faulty) = with_fault(&source, rank, Fault::Error);
            // The last exchange is the report, which no work precedes.
            for exchange in 0..exchanges_of_a_step(&mut ranks) - 1 {
                faulty.left.store(exchange, Ordering::Relaxed);
                let error = last_logits(ranks.lead()).unwrap_err();
                assert!(error.to_string().contains("an injected one"), "{exchange}: {error}");
                assert_eq!(last_logits(ranks.lead()).unwrap().logits, expected);
            }
            assert!(ranks.close().iter().all(Result::is_ok));
        }
    });
}

#[test]
fn a_cancelled_step_ends_on_all_ranks() {
    watched(|| {
        let source = checkpoint(&data("tiny-qwen3-moe"));
        let mut ranks = Ranks::new(&source, &RunnerOptions::default(), 3);
        let expected = last_logits(ranks.lead()).unwrap().logits;
        let cancel = CancelToken::new();
        cancel.cancel();
        let error = step(ranks.lead(), &cancel).unwrap_err();
        assert!(matches!(error, EngineError::Cancelled), "{error}");
        assert_eq!(last_logits(ranks.lead()).unwrap().logits, expected);
        assert!(ranks.close().iter().all(Result::is_ok));
    });
}

#[test]
fn a_stalled_rank_is_lost_at_any_exchange_and_no_rank_waits_for_ever() {
    watched(|| {
        let source = checkpoint(&data("tiny-qwen3-moe"));
        let mut ranks = Ranks::new(&source, &RunnerOptions::default(), 3);
        let exchanges = exchanges_of_a_step(&mut ranks);
        assert!(exchanges > 8 && ranks.close().iter().all(Result::is_ok));
        let stalled = |exchange: i64| {
            let (mut ranks, faulty) = with_fault(&source, 1, Fault::Stall);
            faulty.left.store(exchange, Ordering::Relaxed);
            let error = last_logits(ranks.lead()).unwrap_err();
            let is_lost = matches!(error, EngineError::Rank(RankError::Lost { rank: 1, .. }));
            assert!(is_lost && error.needs_reopening(), "{error}");
            let again = last_logits(ranks.lead()).unwrap_err();
            assert!(matches!(again, EngineError::Rank(RankError::Lost { rank: 1, .. })), "{again}");
            drop(faulty);
            assert!(ranks.close().iter().all(Result::is_err));
        };
        thread::scope(|scope| {
            (0..exchanges).for_each(|exchange| {
                scope.spawn(move || stalled(exchange));
            });
        });
    });
}
