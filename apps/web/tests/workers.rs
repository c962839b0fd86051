//! Groups over rings, and a tab that computes with further workers, which are threads here.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use nestling::ErrorClass;
use nestling::engine::group::{Failure, Group, GroupCounters, LossCause, RankError, RankShare};
use nestling_web::answer::{AnswerOptions, Step};
use nestling_web::blocks::{BlockFile, Blocks, MemoryFile};
use nestling_web::error::TabError;
use nestling_web::options::TabOptions;
use nestling_web::ranges::{Head, RangeError, RangeSource, Reply};
use nestling_web::rings::{RingGroup, Rings};
use nestling_web::tab::{Prompt, Tab};
use nestling_web::workers::{Workers, follow};

/// Bytes of a ring: less than most parts.
const RING_BYTES: usize = 1000;

/// Timeout of groups whose ranks are lost on purpose.
const TIMEOUT: Duration = Duration::from_millis(400);

/// Timeout of groups that open a model, without optimization and beside other tests.
const PATIENCE: Duration = Duration::from_secs(60);

struct Memory {
    state: Mutex<MemoryState>,
    changed: Condvar,
}

struct MemoryState {
    rings: Vec<Vec<VecDeque<u8>>>, // [from][to]
    changes: Vec<u32>,
    beats: Vec<u32>,
    ended: Vec<bool>,
    lost: Option<usize>,
}

struct OwnRings {
    memory: Arc<Memory>,
    rank: usize,
}

impl OwnRings {
    fn all(ranks: usize) -> Vec<Box<dyn Rings>> {
        let state = MemoryState {
            rings: vec![vec![VecDeque::new(); ranks]; ranks],
            changes: vec![0; ranks],
            beats: vec![0; ranks],
            ended: vec![false; ranks],
            lost: None,
        };
        let memory = Arc::new(Memory { state: Mutex::new(state), changed: Condvar::new() });
        let own = |rank| Box::new(Self { memory: Arc::clone(&memory), rank }) as Box<dyn Rings>;
        (0..ranks).map(own).collect()
    }

    fn change<T>(&self, ranks: &[usize], change: impl FnOnce(&mut MemoryState) -> T) -> T {
        let mut state = self.memory.state.lock().unwrap();
        let changed = change(&mut state);
        ranks.iter().for_each(|rank| state.changes[*rank] += 1);
        self.memory.changed.notify_all();
        changed
    }
}

impl Rings for OwnRings {
    fn write(&self, to: usize, bytes: &[u8]) -> usize {
        self.change(&[to], |state| {
            let ring = &mut state.rings[self.rank][to];
            let count = bytes.len().min(RING_BYTES - ring.len());
            ring.extend(&bytes[..count]);
            count
        })
    }

    fn read(&self, from: usize, out: &mut [u8]) -> usize {
        self.change(&[from], |state| {
            let ring = &mut state.rings[from][self.rank];
            let count = out.len().min(ring.len());
            out.iter_mut().zip(ring.drain(..count)).for_each(|(out, byte)| *out = byte);
            count
        })
    }

    fn changes(&self) -> u32 {
        self.change(&[], |state| state.changes[self.rank])
    }

    fn wait(&self, seen: u32, timeout: Duration) -> bool {
        let state = self.memory.state.lock().unwrap();
        let same = |state: &mut MemoryState| state.changes[self.rank] == seen;
        !self.memory.changed.wait_timeout_while(state, timeout, same).unwrap().1.timed_out()
    }

    fn beat(&self) {
        self.change(&[], |state| state.beats[self.rank] += 1);
    }

    fn beats(&self, rank: usize) -> u32 {
        self.change(&[], |state| state.beats[rank])
    }

    fn end(&self) {
        self.change(&[0, 1], |state| state.ended[self.rank] = true);
    }

    fn has_ended(&self, rank: usize) -> bool {
        self.change(&[], |state| state.ended[rank])
    }

    fn lose(&self, rank: usize) {
        self.change(&[0, 1], |state| state.lost = state.lost.or(Some(rank)));
    }

    fn lost(&self) -> Option<usize> {
        self.change(&[], |state| state.lost)
    }
}

fn groups(ranks: usize, timeout: Duration) -> Vec<RingGroup> {
    let shares = RankShare { rank: 0, ranks }.all();
    let group = |(share, rings)| RingGroup::new(share, rings, timeout);
    shares.zip(OwnRings::all(ranks)).map(group).collect()
}

/// Runs a function on each rank, and returns the results.
fn on_all<T: Send>(groups: Vec<RingGroup>, run: impl Fn(RingGroup) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let run = &run;
        let ranks: Vec<_> = groups.into_iter().map(|rank| scope.spawn(move || run(rank))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn failure() -> Failure {
    Failure { reason: "as planted".into(), class: ErrorClass::Source, needs_reopening: false }
}

#[test]
fn parts_of_all_lengths_arrive() {
    let counters = on_all(groups(3, PATIENCE), |group| {
        let RankShare { rank, ranks } = group.share();
        let mut incoming = Vec::new();
        for length in [0, 1, 987, 988, 989, 5000, 70_000] {
            let part = |from: usize, to: usize| vec![(7 * from + to) as u8; length + from];
            let parts: Vec<_> = (0..ranks).map(|to| part(rank, to)).collect();
            group.exchange(&parts, &mut incoming).unwrap();
            assert!((0..ranks).all(|from| incoming[from] == part(from, rank)));
            group.all_gather(&parts[0], &mut incoming).unwrap();
            assert!((0..ranks).all(|from| incoming[from] == part(from, 0)));
            let said = vec![length as u8; length];
            let sent = if rank == 0 { &said[..] } else { &[] };
            assert_eq!(group.broadcast(sent).unwrap(), said);
        }
        group.counters()
    });
    assert!(counters.iter().all(|rank| rank.exchanges == 14), "{counters:?}");
    let sum = |of: fn(&GroupCounters) -> u64| counters.iter().map(of).sum::<u64>();
    let broadcast = 2 * (1 + 987 + 988 + 989 + 5000 + 70_000);
    assert_eq!(sum(|rank| rank.sent_bytes), sum(|rank| rank.received_bytes) + broadcast);
}

#[test]
fn a_failure_reaches_all_ranks_and_leaves_the_group_usable() {
    on_all(groups(3, PATIENCE), |group| {
        let mut incoming = Vec::new();
        for failing in [2, 0] {
            if group.share().rank == failing {
                group.fail(&failure()).unwrap();
            } else {
                let error = group.all_gather(&[1; 3000], &mut incoming).unwrap_err();
                assert_eq!(error, RankError::Failed { rank: failing, failure: failure() });
            }
        }
        group.all_gather(b"still", &mut incoming).unwrap();
        assert!(incoming.iter().all(|part| part == b"still"));
    });
}

#[test]
fn a_rank_that_ends_or_is_silent_is_lost_for_all() {
    for ends in [true, false] {
        let found = on_all(groups(3, TIMEOUT), |group| {
            let start = Instant::now();
            if group.share().rank == 1 {
                if !ends {
                    thread::sleep(20 * TIMEOUT);
                }
                return None;
            }
            let error = group.all_gather(&[1], &mut Vec::new()).unwrap_err();
            assert!(start.elapsed() < 15 * TIMEOUT, "{error} after {:?}", start.elapsed());
            assert_eq!(group.broadcast(&[]).unwrap_err(), error, "the group stays broken");
            Some(error)
        });
        let mut causes = Vec::new();
        for error in found.into_iter().flatten() {
            let RankError::Lost { rank: 1, cause } = error else { panic!("{error}") };
            causes.push(cause);
        }
        assert_eq!(causes.len(), 2);
        let expected = |cause: &LossCause| match cause {
            LossCause::Ended => ends,
            LossCause::Silent(_) => !ends,
            _ => true,
        };
        assert!(causes.iter().all(expected), "{causes:?}");
    }
}

#[test]
fn messages_of_another_exchange_are_refused() {
    let found = on_all(groups(2, TIMEOUT), |group| {
        if group.share().rank == 0 {
            group.broadcast(&[1]).unwrap();
        }
        group.all_gather(&[2], &mut Vec::new())
    });
    let is_refused = |found: &Result<(), _>| matches!(found, Err(RankError::Mismatch { .. }));
    assert!(found.iter().any(is_refused), "{found:?}");
}

fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../models/nestling-storyteller.nest")
}

/// The bundled model, as a server has it.
struct Server(Arc<Vec<u8>>);

impl RangeSource for Server {
    fn url(&self) -> String {
        "test:model".into()
    }

    fn fetch(&mut self, range: &std::ops::Range<u64>) -> Result<Reply, RangeError> {
        let (total, end) = (self.0.len() as u64, range.end.min(self.0.len() as u64));
        Ok(Reply {
            status: 206,
            content_range: Some(format!("bytes {}-{}/{total}", range.start, end - 1)),
            etag: Some("\"1\"".into()),
            body: self.0[range.start as usize..end as usize].to_vec(),
        })
    }

    fn head(&mut self) -> Result<Head, RangeError> {
        Ok(Head { status: 200, length: Some(self.0.len() as u64), etag: Some("\"1\"".into()) })
    }
}

/// Workers that are threads. Each has its own file with the whole store.
struct Threads {
    count: usize,
    store: Arc<Vec<u8>>,
    /// Groups of rank 0, and the results of the other ranks.
    groups: Arc<Mutex<Vec<Arc<RingGroup>>>>,
    ends: Arc<Mutex<Vec<Result<(), TabError>>>>,
    /// Number of groups whose last worker ends at once.
    faulty: usize,
}

impl Threads {
    fn new(count: usize, store: &Arc<Vec<u8>>) -> Self {
        let store = Arc::clone(store);
        Self { count, store, groups: Arc::default(), ends: Arc::default(), faulty: 0 }
    }
}

impl Workers for Threads {
    fn count(&self) -> usize {
        self.count
    }

    fn start(&mut self, bytes: u64) -> Result<Arc<dyn Group>, TabError> {
        let mut groups = groups(self.count, PATIENCE).into_iter().map(Arc::new);
        let first = groups.next().unwrap();
        for group in groups {
            if self.faulty > 0 && group.share().rank + 1 == self.count {
                self.faulty -= 1;
                continue;
            }
            let (store, ends) = (Arc::clone(&self.store), Arc::clone(&self.ends));
            thread::spawn(move || {
                let mut file = Box::new(MemoryFile::default());
                file.write_at(0, &store).unwrap();
                let end = follow(file, "test:model".into(), bytes, &TabOptions::default(), group);
                ends.lock().unwrap().push(end);
            });
        }
        self.groups.lock().unwrap().push(Arc::clone(&first));
        Ok(first)
    }
}

fn open(store: &Arc<Vec<u8>>, options: TabOptions) -> Tab {
    let file = || Box::new(MemoryFile::default());
    let blocks = Blocks::open(file(), file()).unwrap();
    Tab::open(Box::new(Server(Arc::clone(store))), blocks, options).unwrap()
}

fn fetch(tab: &mut Tab, level: u8) {
    while tab.status().level < level {
        tab.fetch_more().unwrap();
    }
}

fn completion(tab: &mut Tab, tokens: usize) -> String {
    let mut text = String::new();
    let options = AnswerOptions {
        max_tokens: Some(tokens),
        temperature: Some(0.0),
        ..AnswerOptions::default()
    };
    let session = tab.new_session();
    tab.generate(session, Prompt::Text("Once upon a time".into()), options).unwrap();
    loop {
        match tab.step().unwrap() {
            Step::Text { text: more } => text.push_str(&more),
            Step::Finished { .. } => return text,
            _ => {}
        }
    }
}

fn wait_for_ends(ends: &Mutex<Vec<Result<(), TabError>>>, count: usize) {
    let start = Instant::now();
    while ends.lock().unwrap().len() < count {
        assert!(start.elapsed() < PATIENCE, "a worker did not end");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn workers_compute_the_text_of_one() {
    let store = Arc::new(std::fs::read(path()).unwrap());
    let mut alone = open(&store, TabOptions::default());
    let mut divided = open(&store, TabOptions::default());
    let workers = Threads::new(3, &store);
    let (groups, ends) = (Arc::clone(&workers.groups), Arc::clone(&workers.ends));
    divided.divide(Box::new(workers));
    for (level, opened) in [(2, 1), (8, 2)] {
        fetch(&mut alone, level);
        fetch(&mut divided, level);
        assert_eq!(completion(&mut divided, 8), completion(&mut alone, 8), "level {level}");
        assert_eq!(divided.status().threads, 3);
        assert!(divided.status().memory_bytes > alone.status().memory_bytes);
        assert_eq!(groups.lock().unwrap().len(), opened);
        wait_for_ends(&ends, 2 * (opened - 1));
    }
    let counters = groups.lock().unwrap()[1].counters();
    assert!(counters.exchanges > 8 && counters.received_bytes > 0, "{counters:?}");
    drop(divided);
    drop(groups);
    wait_for_ends(&ends, 4);
    assert!(ends.lock().unwrap().iter().all(Result::is_ok), "{ends:?}");
}

#[test]
fn a_budget_is_that_of_all_workers() {
    let store = Arc::new(std::fs::read(path()).unwrap());
    let mut alone = open(&store, TabOptions::default());
    let budget = 40_000_000;
    let options = TabOptions {
        memory_budget: Some(budget),
        context_length: Some(256),
        ..TabOptions::default()
    };
    let mut divided = open(&store, options);
    divided.divide(Box::new(Threads::new(2, &store)));
    fetch(&mut alone, 8);
    fetch(&mut divided, 8);
    assert_eq!(completion(&mut divided, 8), completion(&mut alone, 8));
    let status = divided.status();
    assert!(status.memory_bytes <= budget && status.threads == 2, "{status:?}");
}

#[test]
fn a_model_whose_workers_cannot_open_it_is_opened_by_one() {
    let store = Arc::new(std::fs::read(path()).unwrap());
    let mut tab = open(&store, TabOptions::default());
    let workers = Threads { faulty: 1, ..Threads::new(2, &store) };
    tab.divide(Box::new(workers));
    fetch(&mut tab, 2);
    assert!(!completion(&mut tab, 4).is_empty());
    assert_eq!(tab.status().threads, 1);
}
