//! Seeded simulation of sessions, snapshots and the step loop on one thread, with a runner that fails at
//! random.
//!
//! Each output is a prefix of the expected one, each failure is reported once, and all pages and states are
//! released.

use std::panic::{AssertUnwindSafe, catch_unwind};

use nestling_core::batch::Batch;
use nestling_core::kv_cache::PageId;
use nestling_core::recurrent::StateId;
use nestling_core::runner::{RunnerLimits, StepFuture};
use nestling_core::{CancelToken, EngineError, ModelRunner};
use nestling_import::ModelConfig;
use nestling_runtime::{
    Event, FinishReason, GenerateOptions, Generation, Input, Model, Session, SnapshotContents,
};

use crate::fake::{FakeRunner, caller_engine, expected, greedy, model_on, prompt};

const CONTEXT: usize = 256;
const PAGES: usize = 7;
const SESSIONS: usize = 3;
const ACTS: usize = 14;

/// xorshift64*, the same on all machines.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % limit
    }
}

/// A runner in which one operation in `one_in` fails, before or after it has taken effect.
struct Faulty {
    inner: FakeRunner,
    random: Random,
    one_in: usize,
}

impl Faulty {
    fn fault(&mut self) -> Result<(), EngineError> {
        match self.random.below(self.one_in) {
            0 => Err(EngineError::mismatch("a device", "one that works", "one that does not")),
            _ => Ok(()),
        }
    }

    fn with<T>(
        &mut self,
        operation: impl FnOnce(&mut FakeRunner) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        self.fault()?;
        let done = operation(&mut self.inner)?;
        self.fault()?;
        Ok(done)
    }
}

impl ModelRunner for Faulty {
    fn config(&self) -> &ModelConfig {
        self.inner.config()
    }

    fn limits(&self) -> RunnerLimits {
        self.inner.limits
    }

    fn step<'a>(&'a mut self, batch: &'a Batch, cancel: &'a CancelToken) -> StepFuture<'a> {
        Box::pin(async move {
            self.fault()?;
            let output = self.inner.step(batch, cancel).await?;
            self.fault()?;
            Ok(output)
        })
    }

    fn copy_page(&mut self, source: PageId, destination: PageId) -> Result<(), EngineError> {
        self.with(|inner| inner.copy_page(source, destination))
    }

    fn read_page(&mut self, page: PageId) -> Result<Vec<u8>, EngineError> {
        self.with(|inner| inner.read_page(page))
    }

    fn write_page(&mut self, page: PageId, bytes: &[u8]) -> Result<(), EngineError> {
        self.with(|inner| inner.write_page(page, bytes))
    }

    fn read_state(&mut self, state: StateId) -> Result<Vec<u8>, EngineError> {
        self.with(|inner| inner.read_state(state))
    }

    fn write_state(&mut self, state: StateId, bytes: &[u8]) -> Result<(), EngineError> {
        self.with(|inner| inner.write_state(state, bytes))
    }
}

/// Returns true for injected errors, and for pools too small for all sessions.
fn is_expected(error: &EngineError) -> bool {
    matches!(
        error,
        EngineError::Mismatch { .. }
            | EngineError::OutOfPages { .. }
            | EngineError::OutOfStates { .. }
    )
}

/// A session with its running generation and the remaining possible output.
struct Player {
    session: Session,
    running: Option<(Generation, Vec<u32>)>,
}

impl Player {
    /// Reads up to `events` events.
    fn read(&mut self, events: usize) {
        let Some((generation, left)) = &mut self.running else { return };
        for _ in 0..events {
            match generation.next() {
                None => return self.running = None,
                Some(Ok(Event::Token(token))) => assert_eq!(token.token, left.remove(0)),
                Some(Ok(Event::Finished(finished))) => {
                    let said = [FinishReason::Length, FinishReason::ContextFull];
                    let whole = left.is_empty() && said.contains(&finished.reason);
                    assert!(whole || finished.reason == FinishReason::Cancelled, "{finished:?}");
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => assert!(is_expected(&error), "{error}"),
            }
        }
    }

    fn finish(&mut self) {
        self.read(usize::MAX);
    }
}

fn act(random: &mut Random, model: &Model, players: &mut [Player]) {
    let (from, to) = (random.below(SESSIONS), random.below(SESSIONS));
    let choice = random.below(12);
    if choice > 7 {
        players[from].finish();
    }
    match choice {
        0..=3 => {
            let player = &mut players[from];
            player.finish();
            let mut history = player.session.tokens().unwrap();
            let more = prompt(random.below(50) as u32, random.below(90));
            history.extend(&more);
            let tokens = random.below(30);
            let events_max = 1 + random.below(9);
            let options = GenerateOptions { events_max, ..greedy(tokens) };
            let started = player.session.generate(Input::Tokens(more), &options);
            if let Ok(generation) = started {
                let said = tokens.min(CONTEXT - history.len());
                player.running = Some((generation, expected(&history, said)));
            } else {
                let too_long = history.len() + usize::from(tokens > 0) > CONTEXT;
                assert!(too_long || history.is_empty(), "{:?}", started.err());
            }
        }
        4 | 5 => players[from].read(random.below(20)),
        6 => players[from].running = None,
        7 => {
            if let Some((generation, _)) = &players[from].running {
                generation.cancel();
            }
        }
        8 => players[from].session.truncate(random.below(200)).unwrap(),
        9 => {
            let (keep, discard) = (random.below(80), random.below(80));
            players[from].session.shift(keep, discard).unwrap();
        }
        10 => {
            let session = players[from].session.fork().unwrap();
            players[to] = Player { session, running: None };
        }
        _ => restore(random, model, players, (from, to)),
    }
}

/// Restores a session from its snapshot, which may be damaged.
fn restore(random: &mut Random, model: &Model, players: &mut [Player], (from, to): (usize, usize)) {
    let contents = match random.below(2) {
        0 => SnapshotContents::Tokens,
        _ => SnapshotContents::TokensAndPages,
    };
    let mut bytes = match players[from].session.snapshot(contents) {
        Ok(bytes) => bytes,
        Err(error) => return assert!(is_expected(&error), "{error}"),
    };
    let is_damaged = random.below(4) == 0;
    if is_damaged {
        let at = random.below(bytes.len());
        bytes[at] ^= 1 << random.below(8);
    }
    match model.restore(&bytes) {
        Ok(session) => {
            assert!(!is_damaged, "a damaged snapshot was restored");
            assert_eq!(session.tokens().unwrap(), players[from].session.tokens().unwrap());
            players[to] = Player { session, running: None };
        }
        Err(EngineError::Snapshot { .. }) => assert!(is_damaged),
        Err(error) => assert!(is_expected(&error), "{error}"),
    }
}

fn simulate(seed: u64) {
    let mut random = Random::new(seed);
    let states = if random.below(2) == 0 { 0 } else { 4 + random.below(12) };
    let inner = match states {
        0 => FakeRunner::new(CONTEXT, 24, PAGES),
        _ => FakeRunner::recurrent(CONTEXT, 24, PAGES, states),
    };
    let limits = inner.limits;
    let one_in = [7, 40, 300, usize::MAX][random.below(4)];
    let engine = caller_engine();
    let runner = Faulty { inner, random: Random::new(!seed), one_in };
    let model = model_on(&engine, limits, Box::new(runner));
    let new = |_| Player { session: model.session(), running: None };
    let mut players: Vec<Player> = (0..SESSIONS).map(new).collect();
    for _ in 0..ACTS {
        act(&mut random, &model, &mut players);
    }
    players.iter_mut().for_each(Player::finish);
    drop(players);
    // Dropped generations end at the loop's next turn.
    let mut last = model.session();
    let ended = last.generate(vec![1], &greedy(1)).map(|generation| generation.for_each(drop));
    assert!(ended.is_ok());
    drop(last);
    assert_eq!((model.free_pages(), model.free_states()), (PAGES, states));
}

/// Seeds that once failed: a failed page copy of a fork was taken for done.
const FAILED_ONCE: [u64; 1] = [255];

/// Runs `NESTLING_SEEDS` seeds starting at `NESTLING_FIRST_SEED`.
#[test]
fn histories_with_faults_hold_by_seed() {
    let number = |name: &str| std::env::var(name).ok().map(|value| value.parse::<u64>().unwrap());
    let first = number("NESTLING_FIRST_SEED").unwrap_or(0);
    let seeds = first..first + number("NESTLING_SEEDS").unwrap_or(300);
    for seed in FAILED_ONCE.into_iter().chain(seeds) {
        let run = catch_unwind(AssertUnwindSafe(|| simulate(seed)));
        assert!(run.is_ok(), "seed {seed}");
    }
}
