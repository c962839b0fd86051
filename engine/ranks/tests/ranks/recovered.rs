//! Replacement of lost ranks: the tokens of a model of which no rank was lost.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nestling_core::cancel::CancelToken;
use nestling_core::error::{EngineError, ErrorClass};
use nestling_core::group::{
    ExpertDivision, Failure, Group, GroupCounters, LossCause, RankError, RankShare,
};
use nestling_core::kv_heads::KvDivision;
use nestling_cpu::Cpu;
use nestling_formats::store::Store;
use nestling_ranks::{QueueGroup, RankBackends, RankOptions, open_on_backends};
use nestling_runtime::{
    Engine, Event, GenerateOptions, Input, Model, ModelOptions, ModelSource, Residence,
};
use nestling_testkit::runners::{data, some_tokens};

use crate::harness::{cpu, store, watched};
use crate::opened::engine;

/// Loss of a rank at one of its calls of the group.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Loss {
    /// Panic of its thread.
    Panic,
    /// Errors of this and all later calls, by which its thread returns.
    Return,
    /// Silence for longer than the timeout.
    Stall,
}

const TIMEOUT: Duration = Duration::from_secs(1);

/// A loss of one rank, perhaps followed by another.
#[derive(Debug)]
struct Plan {
    rank: AtomicUsize,
    loss: Loss,
    /// Number of calls before the loss; negative for none.
    left: AtomicI64,
    /// Rank that is lost next, and its number of calls from the first loss on; negative for none.
    next_rank: AtomicUsize,
    next_left: AtomicI64,
    /// Number of calls of the rank.
    calls: AtomicI64,
    /// Duration of a stall.
    stall: Duration,
}

#[derive(Debug)]
struct Faulty {
    group: QueueGroup,
    plan: Arc<Plan>,
    returns: AtomicUsize,
}

fn returned(rank: usize) -> RankError {
    let (expected, found) = ("no fault".into(), "an injected one".into());
    RankError::Mismatch { rank, expected, found }
}

impl Faulty {
    fn meet(&self) -> Result<(), RankError> {
        let (plan, rank) = (&self.plan, self.group.share().rank);
        if self.returns.load(Ordering::Relaxed) > 0 {
            return Err(returned(rank));
        }
        if rank != plan.rank.load(Ordering::Relaxed) {
            return Ok(());
        }
        plan.calls.fetch_add(1, Ordering::Relaxed);
        if plan.left.fetch_sub(1, Ordering::Relaxed) != 0 {
            return Ok(());
        }
        plan.rank.store(plan.next_rank.load(Ordering::Relaxed), Ordering::Relaxed);
        plan.left.store(plan.next_left.swap(-1, Ordering::Relaxed), Ordering::Relaxed);
        match plan.loss {
            Loss::Panic => panic!("an injected panic of rank {rank}"),
            Loss::Return => {
                self.returns.store(1, Ordering::Relaxed);
                Err(returned(rank))
            }
            Loss::Stall => {
                thread::sleep(plan.stall);
                Ok(())
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
        // A rank at rest is lost when the next order comes.
        let bytes = self.group.broadcast(bytes)?;
        self.meet()?;
        Ok(bytes)
    }

    fn fail(&self, failure: &Failure) -> Result<(), RankError> {
        self.meet()?;
        self.group.fail(failure)
    }

    fn beat(&self) {
        self.group.beat();
    }

    fn counters(&self) -> GroupCounters {
        self.group.counters()
    }
}

/// Backends of ranks of which one is lost.
struct Cpus {
    plan: Arc<Plan>,
}

impl RankBackends<Cpu> for Cpus {
    fn connect(&self, group: QueueGroup) -> Arc<dyn Group> {
        Arc::new(Faulty { group, plan: Arc::clone(&self.plan), returns: AtomicUsize::new(0) })
    }

    fn backend(&self, group: &Arc<dyn Group>) -> Result<Cpu, EngineError> {
        Ok(cpu(group))
    }
}

/// A model, and the tokens that it generates.
struct Case {
    store: Arc<Store>,
    options: ModelOptions,
    prompt: Vec<u32>,
    tokens: usize,
}

impl Case {
    fn new(store: Arc<Store>, residence: Residence, tokens: usize) -> Self {
        let prompt = some_tokens(5, 96, 3);
        let context_length = Some(128);
        let options = ModelOptions { context_length, residence, ..ModelOptions::default() };
        Self { store, options, prompt, tokens }
    }

    fn source(&self) -> ModelSource {
        ModelSource::Store(Arc::clone(&self.store))
    }

    fn alone(&self) -> Model {
        let cancel = CancelToken::new();
        Model::open_source(&engine(None), self.source(), &self.options, &mut |_| {}, &cancel)
            .unwrap()
    }

    /// Opens the model over ranks, of which none is lost yet.
    fn open(&self, engine: &Engine, plan: &Arc<Plan>, ranks: usize, most: usize) -> Model {
        // A busy machine may keep a rank from its core for a while.
        let timeout = if plan.loss == Loss::Stall { TIMEOUT } else { Duration::from_secs(60) };
        let recoveries_max = most;
        let ranks = RankOptions { ranks, timeout, recoveries_max };
        let (options, cancel) = (&self.options, CancelToken::new());
        loop {
            let (source, backends) = (self.source(), Cpus { plan: Arc::clone(plan) });
            match open_on_backends(backends, engine, source, options, ranks, &mut |_| {}, &cancel) {
                Ok(model) => return model,
                // Openings do not recover.
                Err(EngineError::Rank(RankError::Lost { .. })) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn tokens(&self, model: &Model) -> Result<Vec<u32>, EngineError> {
        let options = GenerateOptions {
            max_tokens: Some(self.tokens),
            ignore_end: true,
            token_events: true,
            ..GenerateOptions::greedy()
        };
        let mut session = model.session();
        let mut tokens = Vec::new();
        for event in session.generate(Input::Tokens(self.prompt.clone()), &options)? {
            if let Event::Token(token) = event? {
                tokens.push(token.token);
            }
        }
        Ok(tokens)
    }
}

fn plan(rank: usize, loss: Loss) -> Arc<Plan> {
    Arc::new(Plan {
        rank: AtomicUsize::new(rank),
        loss,
        left: AtomicI64::new(-1),
        next_rank: AtomicUsize::new(rank),
        next_left: AtomicI64::new(-1),
        calls: AtomicI64::new(0),
        stall: 3 * TIMEOUT,
    })
}

/// Returns the number of calls that a rank makes in a generation.
fn calls_of_a_generation(case: &Case, rank: usize, ranks: usize) -> i64 {
    let engine = engine(None);
    let plan = plan(rank, Loss::Panic);
    let model = case.open(&engine, &plan, ranks, 0);
    let before = plan.calls.load(Ordering::Relaxed);
    case.tokens(&model).unwrap();
    plan.calls.load(Ordering::Relaxed) - before
}

/// Loses a rank at each `step`-th call of a generation, and compares the tokens.
fn lose_at_calls(case: &Case, ranks: usize, loss: Loss, calls: Range<i64>, step: usize) {
    let expected = case.tokens(&case.alone()).unwrap();
    assert_eq!(expected.len(), case.tokens);
    let engine = engine(None);
    let plan = plan(ranks - 1, loss);
    let model = case.open(&engine, &plan, ranks, usize::MAX);
    for call in calls.step_by(step) {
        plan.left.store(call, Ordering::Relaxed);
        let tokens = case.tokens(&model);
        let tokens = tokens.unwrap_or_else(|error| panic!("{loss:?} at call {call}: {error}"));
        assert_eq!(tokens, expected, "{loss:?} at call {call}, {ranks} ranks");
        assert!(plan.left.load(Ordering::Relaxed) < 0, "no loss at call {call}");
    }
    assert_eq!(case.tokens(&model).unwrap(), expected);
}

/// Loses a rank at each `step`-th call, in as many models at once as `parts`.
fn lose_on_threads(case: &Case, loss: Loss, step: usize, parts: usize) {
    for ranks in [2, 3] {
        let calls = calls_of_a_generation(case, ranks - 1, ranks);
        println!("{ranks} ranks, {loss:?}: {calls} calls");
        thread::scope(|scope| {
            (0..parts).for_each(|part| {
                scope.spawn(move || {
                    let first = (part * step) as i64;
                    lose_at_calls(case, ranks, loss, first..calls, parts * step);
                });
            });
        });
    }
}

fn tiny(folder: &Path, name: &str, residence: Residence, tokens: usize) -> Case {
    Case::new(store(&data(name), folder), residence, tokens)
}

/// A model with attention, and one with recurrent states.
const MODELS: [&str; 2] = ["tiny-qwen3-moe", "families/qwen3-next"];

/// Steps that meet each kind of exchange, since they share no divisor with the number of exchanges of a layer.
const SHORT_STEPS: [usize; 2] = [13, 17];

#[test]
fn a_rank_that_ends_is_replaced() {
    ends(SHORT_STEPS[0]);
}

#[test]
#[ignore = "takes minutes"]
fn a_rank_that_ends_at_any_exchange_is_replaced() {
    ends(1);
}

fn ends(step: usize) {
    for name in MODELS {
        for (residence, loss) in
            [(Residence::Owned, Loss::Panic), (Residence::Streamed, Loss::Return)]
        {
            watched(move || {
                let folder = tempfile::tempdir().unwrap();
                lose_on_threads(&tiny(folder.path(), name, residence, 8), loss, step, 1);
            });
        }
    }
}

#[test]
fn a_rank_that_holds_keys_and_values_of_its_heads_is_not_replaced() {
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        let mut case = tiny(folder.path(), "families/gpt-oss", Residence::Owned, 8);
        let expected = case.tokens(&case.alone()).unwrap();
        case.options.kv_division = KvDivision::ByHeads;
        for loss in [Loss::Panic, Loss::Return] {
            let (engine, plan) = (engine(None), plan(1, loss));
            let model = case.open(&engine, &plan, 2, 4);
            assert_eq!(case.tokens(&model).unwrap(), expected);
            plan.left.store(29, Ordering::Relaxed);
            for _ in 0..2 {
                let error = case.tokens(&model).unwrap_err();
                let EngineError::Rank(RankError::NotReplaced { rank: 1, failure, .. }) = &error
                else {
                    panic!("{error}")
                };
                assert!(failure.reason.contains("by heads"), "{error}");
                assert!(error.needs_reopening());
            }
        }
    });
}

#[test]
fn a_rank_that_stalls_is_replaced() {
    stalls(SHORT_STEPS[1]);
}

#[test]
#[ignore = "takes minutes"]
fn a_rank_that_stalls_at_any_exchange_is_replaced() {
    stalls(1);
}

fn stalls(step: usize) {
    for (name, residence) in MODELS.into_iter().zip([Residence::Streamed, Residence::Owned]) {
        watched(move || {
            let folder = tempfile::tempdir().unwrap();
            lose_on_threads(&tiny(folder.path(), name, residence, 3), Loss::Stall, step, 4);
        });
    }
}

#[test]
fn a_rank_that_is_lost_during_a_recovery_is_replaced() {
    watched(|| {
        for name in MODELS {
            let folder = tempfile::tempdir().unwrap();
            let case = tiny(folder.path(), name, Residence::Owned, 3);
            let expected = case.tokens(&case.alone()).unwrap();
            let (engine, lost) = (engine(None), plan(1, Loss::Panic));
            let model = case.open(&engine, &lost, 3, usize::MAX);
            // The replacement itself, and a rank that is left.
            for next in [1, 2] {
                for call in 0..16 {
                    lost.rank.store(1, Ordering::Relaxed);
                    lost.next_rank.store(next, Ordering::Relaxed);
                    lost.next_left.store(call, Ordering::Relaxed);
                    // After the step of the prompt, so that there are pages and states.
                    lost.left.store(34, Ordering::Relaxed);
                    assert_eq!(case.tokens(&model).unwrap(), expected, "{name}, {next}, {call}");
                    assert_eq!(lost.next_left.load(Ordering::Relaxed), -1);
                    assert!(lost.left.load(Ordering::Relaxed) < 0);
                }
            }
        }
    });
}

#[test]
fn a_rank_that_held_slices_is_replaced() {
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        let mut case = tiny(folder.path(), MODELS[0], Residence::Owned, 5);
        case.options.expert_division = ExpertDivision::Sliced;
        lose_on_threads(&case, Loss::Panic, SHORT_STEPS[1], 1);
    });
}

#[test]
fn a_rank_that_is_lost_while_replicas_move_is_replaced() {
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        let mut case = tiny(folder.path(), MODELS[0], Residence::Owned, 63);
        case.options.expert_replicas = 1;
        // The store has no frequencies, so the first replicas arrive before the next step.
        let (ranks, calls) = (3, calls_of_a_generation(&case, 2, 3));
        case.tokens = 68;
        for call in calls - 2..calls + 6 {
            lose_at_calls(&case, ranks, Loss::Panic, call..call + 1, 1);
        }
        // Replicas that have moved are restored.
        lose_at_calls(&case, ranks, Loss::Return, 0..calls, calls as usize / 4);
    });
}

/// The thorough form of the tests above: each call of a generation of 64 tokens.
#[test]
#[ignore = "takes minutes"]
fn a_rank_that_ends_at_any_exchange_of_a_long_run_is_replaced() {
    for (name, residence) in MODELS.into_iter().zip([Residence::Streamed, Residence::Owned]) {
        let folder = tempfile::tempdir().unwrap();
        for loss in [Loss::Panic, Loss::Stall] {
            lose_on_threads(&tiny(folder.path(), name, residence, 64), loss, 1, 4);
        }
    }
}

/// Returns the error of a generation in which a rank is lost.
fn error_of(case: &Case, model: &Model, plan: &Plan, call: i64) -> EngineError {
    plan.left.store(call, Ordering::Relaxed);
    case.tokens(model).unwrap_err()
}

#[test]
fn a_rank_whose_memory_is_still_held_is_replaced_only_if_its_replacement_fits() {
    watched(|| {
        for residence in [Residence::Owned, Residence::Streamed] {
            let folder = tempfile::tempdir().unwrap();
            let case = tiny(folder.path(), MODELS[0], residence, 6);
            let expected = case.tokens(&case.alone()).unwrap();
            // Leaves too little for the memory of one more rank.
            let tight = |plan: &Arc<Plan>| {
                let engine = engine(Some(64 << 20));
                let model = case.open(&engine, plan, 2, 1);
                let used = engine.budget().used_bytes();
                engine.budget().set_total_bytes(Some(used + used / 8));
                (model, used)
            };
            // The memory that a rank has released is enough for its replacement.
            let ended = plan(1, Loss::Panic);
            let (model, used) = tight(&ended);
            ended.left.store(20, Ordering::Relaxed);
            assert_eq!(case.tokens(&model).unwrap(), expected);
            assert_eq!(model.engine().budget().used_bytes(), used);
            drop(model);
            let stalled = plan(1, Loss::Stall);
            let (model, _) = tight(&stalled);
            let begun = Instant::now();
            let error = error_of(&case, &model, &stalled, 20);
            let took = begun.elapsed();
            assert!(took < 2 * TIMEOUT, "{took:?}");
            let EngineError::Rank(RankError::NotReplaced { rank: 1, cause, failure }) = &error
            else {
                panic!("{error:?}")
            };
            assert!(matches!(cause, LossCause::Silent(_)), "{cause:?}");
            assert_eq!(failure.class, ErrorClass::NoRoom, "{error}");
            assert!(error.needs_reopening() && error.class() == ErrorClass::NoRoom, "{error}");
            let text = error.to_string();
            assert!(text.contains("budget") && text.contains("holds its memory"), "{text}");
            // All later generations fail in the same way, at once.
            let begun = Instant::now();
            assert_eq!(case.tokens(&model).unwrap_err().to_string(), text);
            assert!(begun.elapsed() < TIMEOUT);
        }
    });
}

#[test]
fn the_memory_of_a_stalled_rank_counts_until_it_ends() {
    watched(|| {
        for residence in [Residence::Owned, Residence::Streamed] {
            let folder = tempfile::tempdir().unwrap();
            let case = tiny(folder.path(), MODELS[0], residence, 6);
            let (engine, stalled) = (engine(None), plan(1, Loss::Stall));
            let model = case.open(&engine, &stalled, 2, 1);
            let used = engine.budget().used_bytes();
            let expected = case.tokens(&model).unwrap();
            stalled.left.store(20, Ordering::Relaxed);
            assert_eq!(case.tokens(&model).unwrap(), expected);
            let both = engine.budget().used_bytes();
            assert!(both > used && both < 2 * used, "{both}, {used}");
            let begun = Instant::now();
            while engine.budget().used_bytes() > used {
                assert!(begun.elapsed() < 10 * TIMEOUT, "a stalled rank keeps its memory");
                thread::sleep(Duration::from_millis(10));
            }
            assert_eq!(case.tokens(&model).unwrap(), expected);
            assert_eq!(engine.budget().used_bytes(), used);
            drop(model);
            engine.shutdown();
            assert_eq!(engine.budget().used_bytes(), 0);
        }
    });
}

#[test]
fn ranks_that_are_lost_again_and_again_end_the_model() {
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        let case = tiny(folder.path(), MODELS[0], Residence::Owned, 6);
        let (engine, ended) = (engine(None), plan(1, Loss::Panic));
        let model = case.open(&engine, &ended, 3, 2);
        let expected = case.tokens(&model).unwrap();
        for _ in 0..2 {
            ended.left.store(7, Ordering::Relaxed);
            assert_eq!(case.tokens(&model).unwrap(), expected);
        }
        let error = error_of(&case, &model, &ended, 7);
        let is_limit = matches!(error, EngineError::Rank(RankError::NotReplaced { rank: 1, .. }));
        assert!(is_limit && error.to_string().contains("ten minutes"), "{error}");
        assert_eq!(error.class(), ErrorClass::Broken);
        // Without recoveries, the first loss ends the model.
        let ended = plan(1, Loss::Panic);
        let model = case.open(&engine, &ended, 2, 0);
        let error = error_of(&case, &model, &ended, 0);
        assert!(matches!(error, EngineError::Rank(RankError::NotReplaced { .. })), "{error}");
    });
}

#[test]
fn a_changed_budget_of_experts_is_that_of_a_replacement() {
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        let case = tiny(folder.path(), MODELS[0], Residence::Streamed, 6);
        for loss in [Loss::Panic, Loss::Stall] {
            let (engine, lost) = (engine(None), plan(1, loss));
            let model = case.open(&engine, &lost, 2, 9);
            let expected = case.tokens(&model).unwrap();
            let less = model.memory_plan().unwrap().expert_bytes * 4 / 5;
            model.set_expert_budget(less).unwrap();
            lost.left.store(20, Ordering::Relaxed);
            assert_eq!(case.tokens(&model).unwrap(), expected);
            let held = model.expert_bytes().unwrap();
            assert!(held > 0 && held <= less, "{held} of {less}");
            // The order of a change is repeated after a loss.
            lost.left.store(0, Ordering::Relaxed);
            model.set_expert_budget(less * 9 / 10).unwrap();
            assert!(lost.left.load(Ordering::Relaxed) < 0);
            assert_eq!(case.tokens(&model).unwrap(), expected);
            assert!(model.expert_bytes().unwrap() <= less * 9 / 10);
        }
    });
}

#[test]
fn other_sessions_continue_after_a_loss() {
    watched(|| {
        for name in MODELS {
            let folder = tempfile::tempdir().unwrap();
            let case = tiny(folder.path(), name, Residence::Owned, 6);
            let (engine, lost) = (engine(None), plan(2, Loss::Panic));
            let model = case.open(&engine, &lost, 3, usize::MAX);
            let options = GenerateOptions {
                max_tokens: Some(5),
                ignore_end: true,
                ..GenerateOptions::greedy()
            };
            let next = |model: &Model, losses: bool| {
                let mut sessions: Vec<_> = (0..3).map(|_| model.session()).collect();
                for turn in 0..3 {
                    if losses {
                        lost.left.store(30 + 7 * turn, Ordering::Relaxed);
                    }
                    let started: Vec<_> = (0..)
                        .zip(&mut sessions)
                        .map(|(seed, session)| {
                            let more = some_tokens(9 + seed, 500, 10 * turn as u64 + seed as u64);
                            session.generate(Input::Tokens(more), &options).unwrap()
                        })
                        .collect();
                    for generation in started {
                        for event in generation {
                            event.unwrap();
                        }
                    }
                }
                sessions.iter().map(|session| session.tokens().unwrap()).collect::<Vec<_>>()
            };
            let expected = next(&case.alone(), false);
            assert_eq!(next(&model, true), expected);
            assert!(lost.left.load(Ordering::Relaxed) < 0);
        }
    });
}
