//! Servers of a model over ranks, of which one is lost during an answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use nestling::engine::cpu::Cpu;
use nestling::engine::cpu::kernels::Kernels;
use nestling::engine::cpu::threads::ThreadPool;
use nestling::engine::group::{Failure, Group, GroupCounters, RankError, RankShare};
use nestling::engine::{Engine, ModelSource as StoredModel};
use nestling::formats::store::Store;
use nestling::ranks::{QueueGroup, RankBackends, RankOptions, open_on_backends};
use nestling::{CancelToken, EngineError, EngineOptions, Model, ModelOptions};
use nestling_server::{
    ListedModel, ModelSource, OpenModelError, OpenedModel, PoolOptions, Server, ServerOptions,
};
use serde_json::json;

use crate::models::{NAME, at, bundled_model};
use crate::{Answer, COMPLETIONS, get, post};

/// Number of calls of rank 1 before its thread panics; negative for no panic.
#[derive(Debug)]
struct Fuse(AtomicI64);

impl Fuse {
    fn new() -> Arc<Self> {
        Arc::new(Self(AtomicI64::new(-1)))
    }
}

#[derive(Debug)]
struct Faulty {
    group: QueueGroup,
    fuse: Arc<Fuse>,
}

impl Faulty {
    fn burn(&self) {
        if self.share().rank == 1 && self.fuse.0.fetch_sub(1, Ordering::SeqCst) == 0 {
            panic!("an injected panic of rank 1");
        }
    }
}

impl Group for Faulty {
    fn share(&self) -> RankShare {
        self.group.share()
    }

    fn exchange(&self, parts: &[Vec<u8>], incoming: &mut Vec<Vec<u8>>) -> Result<(), RankError> {
        self.burn();
        self.group.exchange(parts, incoming)
    }

    fn all_gather(&self, part: &[u8], incoming: &mut Vec<Vec<u8>>) -> Result<(), RankError> {
        self.burn();
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

struct Cpus(Arc<Fuse>);

impl RankBackends<Cpu> for Cpus {
    fn connect(&self, group: QueueGroup) -> Arc<dyn Group> {
        Arc::new(Faulty { group, fuse: Arc::clone(&self.0) })
    }

    fn backend(&self, group: &Arc<dyn Group>) -> Result<Cpu, EngineError> {
        let threads = Arc::new(ThreadPool::new(1));
        Ok(Cpu::with(threads, Kernels::detect()).in_group(Arc::clone(group)))
    }
}

fn open_over_ranks(fuse: &Arc<Fuse>, recoveries_max: usize) -> Model {
    let store = Store::open(at("models/nestling-storyteller.nest")).unwrap();
    let source = StoredModel::Store(Arc::new(store));
    let engine = Engine::new(EngineOptions::default()).unwrap();
    // A busy machine may keep a rank from its core for a while.
    let timeout = Duration::from_secs(60);
    let ranks = RankOptions { ranks: 2, timeout, recoveries_max };
    let (backends, cancel) = (Cpus(Arc::clone(fuse)), CancelToken::new());
    let options = ModelOptions::default();
    open_on_backends(backends, &engine, source, &options, ranks, &mut |_| {}, &cancel).unwrap()
}

fn ask(server: &Server) -> Answer {
    let prompt = "The captain said";
    let request = json!({ "model": NAME, "prompt": prompt, "max_tokens": 24, "temperature": 0 });
    post(server, COMPLETIONS, &request)
}

fn text(answer: &Answer) -> String {
    answer.ok()["choices"][0]["text"].as_str().unwrap().into()
}

/// Returns the text of one rank.
fn expected() -> String {
    let server = Server::new(ServerOptions::default());
    server.set_model(bundled_model().clone(), NAME);
    text(&ask(&server))
}

fn replaced(server: &Server) -> String {
    let metrics = get(server, "/metrics").body;
    let line = metrics.lines().find(|line| line.starts_with("nestling_ranks_replaced_total"));
    line.unwrap().rsplit(' ').next().unwrap().into()
}

#[test]
fn an_answer_continues_on_a_replacement_and_is_counted() {
    let fuse = Fuse::new();
    let server = Server::new(ServerOptions::default());
    server.set_model(open_over_ranks(&fuse, 4), NAME);
    let expected = expected();
    assert_eq!(text(&ask(&server)), expected);
    assert_eq!(replaced(&server), "0");
    for count in ["1", "2"] {
        fuse.0.store(150, Ordering::SeqCst);
        assert_eq!(text(&ask(&server)), expected);
        assert!(fuse.0.load(Ordering::SeqCst) < 0, "no rank was lost");
        assert_eq!(replaced(&server), count);
        assert_eq!(get(&server, "/health").status, 200);
    }
    assert_eq!(get(&server, "/status").ok()["ranks_replaced"], 2);
}

#[derive(Debug)]
struct OverRanks {
    fuse: Arc<Fuse>,
    opened: AtomicUsize,
}

impl ModelSource for OverRanks {
    fn list(&self) -> Vec<ListedModel> {
        vec![ListedModel { name: NAME.into(), bytes: 4 << 20, created: 0, format: "nest" }]
    }

    fn open(
        &self,
        _: &str,
        _: Option<u64>,
        _: &CancelToken,
    ) -> Result<OpenedModel, OpenModelError> {
        self.opened.fetch_add(1, Ordering::SeqCst);
        Ok(OpenedModel { model: open_over_ranks(&self.fuse, 0), hold: Box::new(()) })
    }
}

#[test]
fn a_model_whose_rank_cannot_be_replaced_is_reopened() {
    let (fuse, opened) = (Fuse::new(), AtomicUsize::new(0));
    let source = Arc::new(OverRanks { fuse: Arc::clone(&fuse), opened });
    let server = Server::new(ServerOptions::default());
    let options = PoolOptions { keep_alive: None, memory_bytes: Some(2 << 30) };
    server.set_source(Arc::clone(&source) as Arc<dyn ModelSource>, options);
    let expected = expected();
    assert_eq!(text(&ask(&server)), expected);
    fuse.0.store(150, Ordering::SeqCst);
    let refused = ask(&server);
    assert!(refused.status.is_server_error(), "{}", refused.body);
    assert_eq!(get(&server, "/health").status, 200);
    assert_eq!(text(&ask(&server)), expected);
    assert_eq!(source.opened.load(Ordering::SeqCst), 2);
}
