//! Models that are opened on demand.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nestling::{CancelToken, Model};
use nestling_server::{
    ListedModel, ModelSource, OpenModelError, OpenedModel, PoolOptions, Server, ServerOptions,
};
use serde_json::{Value, json};

use crate::failures::{open_streamed, touch};
use crate::models::{open_bundled, open_tools};
use crate::{CHAT, block_on, chat_with, get, post, post_later};

/// A source of four models: the bundled model as `story` and `large`, a random model as `tools`, and one that
/// fails to open.
#[derive(Debug, Default)]
struct FourModels {
    opened: Mutex<Vec<(String, Option<u64>)>>,
    open: Arc<AtomicUsize>,
    /// Set while opening must block until it is cancelled or this is cleared.
    waits: AtomicBool,
    cancelled: AtomicUsize,
}

struct OpenCounter(Arc<AtomicUsize>);

impl Drop for OpenCounter {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

const BYTES: u64 = 4 << 20;

/// Memory use of the model `large`, far above its listed size.
const LARGE_BYTES: u64 = 2 << 30;

fn refused(message: &str) -> OpenModelError {
    OpenModelError { message: message.into(), lacks_memory: false }
}

impl ModelSource for FourModels {
    fn list(&self) -> Vec<ListedModel> {
        let listed = |name: &str| ListedModel {
            name: name.into(),
            bytes: BYTES,
            created: 1_700_000_000,
            format: "nest",
        };
        ["broken", "large", "story", "tools"].map(listed).into()
    }

    fn open(
        &self,
        name: &str,
        room: Option<u64>,
        cancel: &CancelToken,
    ) -> Result<OpenedModel, OpenModelError> {
        self.opened.lock().unwrap().push((name.into(), room));
        while self.waits.load(Ordering::SeqCst) {
            if cancel.is_cancelled() {
                self.cancelled.fetch_add(1, Ordering::SeqCst);
                return Err(refused("cancelled"));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let budget = room.unwrap_or(1 << 30).min(1 << 30);
        let model: Model = match name {
            "story" => open_bundled(budget),
            "tools" => open_tools(budget),
            "large" if room.is_some_and(|room| room < LARGE_BYTES) => {
                let message = "it takes more memory".into();
                return Err(OpenModelError { message, lacks_memory: true });
            }
            "large" => open_bundled(budget),
            _ => return Err(refused("its file is damaged")),
        };
        self.open.fetch_add(1, Ordering::SeqCst);
        Ok(OpenedModel { model, hold: Box::new(OpenCounter(Arc::clone(&self.open))) })
    }
}

fn serve(options: PoolOptions) -> (Server, Arc<FourModels>) {
    let (server, source) = (Server::new(ServerOptions::default()), Arc::new(FourModels::default()));
    server.set_source(Arc::clone(&source) as Arc<dyn ModelSource>, options);
    (server, source)
}

fn short() -> PoolOptions {
    PoolOptions { keep_alive: Some(Duration::from_millis(80)), memory_bytes: Some(2 << 30) }
}

fn ask(server: &Server, model: &str) -> crate::Answer {
    post(server, CHAT, &chat_with(&json!({ "model": model, "max_tokens": 2 })))
}

fn states(server: &Server) -> Vec<(String, String)> {
    let list = get(server, "/v1/models").ok();
    let state = |model: &Value| {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        (text(&model["id"]), text(&model["status"]["value"]))
    };
    list["data"].as_array().unwrap().iter().map(state).collect()
}

fn state(server: &Server, name: &str) -> String {
    states(server).into_iter().find(|(id, _)| id == name).unwrap().1
}

fn wait_for(what: &str, done: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < end, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn models_are_opened_by_name_and_closed_when_nobody_asks() {
    let (server, source) = serve(short());
    get(&server, "/health").ok();
    assert!(states(&server).iter().all(|(_, state)| state == "unloaded"));
    assert!(source.opened.lock().unwrap().is_empty());
    let reply = ask(&server, "story").ok();
    assert_eq!(
        (&reply["model"], &reply["usage"]["completion_tokens"]),
        (&json!("story"), &json!(2))
    );
    let listed = get(&server, "/v1/models/tools").ok();
    assert_eq!((&listed["status"]["value"], &listed["bytes"]), (&json!("unloaded"), &json!(BYTES)));
    wait_for("closing", || source.open.load(Ordering::SeqCst) == 0);
    assert_eq!(state(&server, "story"), "unloaded");
    // Counters are kept after the model is closed, labelled with its name.
    let metrics = get(&server, "/metrics").body;
    assert!(metrics.contains("nestling_generation_tokens_total{model=\"story\"} 2"), "{metrics}");
    assert!(
        metrics.contains("completions_total{model=\"story\",reason=\"length\"} 1"),
        "{metrics}"
    );
    assert!(metrics.contains("nestling_model_loads_total 1"), "{metrics}");
    assert_eq!(metrics.matches("# TYPE nestling_generation_tokens_total").count(), 1);
    ask(&server, "story").ok();
    assert_eq!(source.opened.lock().unwrap().len(), 2);
}

#[test]
fn two_that_fit_are_open_together_and_share_the_memory() {
    let (server, source) = serve(PoolOptions { keep_alive: None, memory_bytes: Some(2 << 30) });
    ask(&server, "story").ok();
    ask(&server, "tools").ok();
    assert_eq!(source.open.load(Ordering::SeqCst), 2);
    let opened = source.opened.lock().unwrap().clone();
    assert_eq!(opened[0], ("story".into(), Some(2 << 30)));
    let status = get(&server, "/status").ok();
    let models = status["models"].as_array().unwrap();
    assert_eq!(models.len(), 2, "{status}");
    let used = models.iter().find(|model| model["model"] == "story").unwrap();
    let used = used["value"]["memory"]["used_bytes"].as_u64().unwrap();
    // The second model got the memory that the first one left.
    assert_eq!(opened[1].1, Some((2 << 30) - used));
    assert_eq!(get(&server, "/plan").ok()["models"].as_array().unwrap().len(), 2);
    let metrics = get(&server, "/metrics").body;
    for name in ["story", "tools"] {
        assert!(metrics.contains(&format!("nestling_idle_sessions{{model=\"{name}\"}} 1")));
    }
}

#[test]
fn one_makes_room_for_another_but_not_while_it_answers() {
    // A pool without a memory budget keeps one model open at a time.
    let (server, source) = serve(PoolOptions { keep_alive: None, memory_bytes: None });
    let long = json!({
        "model": "story", "max_tokens": 400, "stream": true, "logit_bias": { "2": -100 },
    });
    let mut body = block_on(post_later(&server, CHAT, &chat_with(&long)));
    // The first generation is running, so its model stays open and the second model waits.
    block_on(body.next_piece()).unwrap();
    let (other, started) = (server.clone(), Instant::now());
    let second = std::thread::spawn(move || ask(&other, "tools").ok());
    std::thread::sleep(Duration::from_millis(150));
    assert_eq!(state(&server, "story"), "loaded");
    assert_eq!(source.opened.lock().unwrap().len(), 1);
    let rest = block_on(body.rest());
    // A response writer holds its model until it is dropped.
    drop(body);
    assert!(rest.ends_with("data: [DONE]\n\n") && !rest.contains("\"error\""), "{rest}");
    assert_eq!(second.join().unwrap()["model"], "tools");
    assert!(started.elapsed() >= Duration::from_millis(150));
    assert_eq!(source.open.load(Ordering::SeqCst), 1);
    assert_eq!(
        (state(&server, "story"), state(&server, "tools")),
        ("unloaded".into(), "loaded".into())
    );
}

#[test]
fn requests_for_one_model_share_its_opening() {
    let (server, source) = serve(PoolOptions::default());
    source.waits.store(true, Ordering::SeqCst);
    let ask_one = || {
        let server = server.clone();
        std::thread::spawn(move || ask(&server, "story").ok())
    };
    let asking = [ask_one(), ask_one(), ask_one()];
    wait_for("opening", || !source.opened.lock().unwrap().is_empty());
    assert_eq!(state(&server, "story"), "loading");
    source.waits.store(false, Ordering::SeqCst);
    for asking in asking {
        asking.join().unwrap();
    }
    assert_eq!(source.opened.lock().unwrap().len(), 1);
}

#[test]
fn what_cannot_be_opened_is_an_error_of_its_request() {
    let (server, _source) = serve(PoolOptions::default());
    let error = ask(&server, "broken").error(500);
    assert_eq!((&error["code"], &error["param"]), (&json!("model_not_opened"), &json!("model")));
    assert!(error["message"].as_str().unwrap().contains("its file is damaged"), "{error}");
    for name in ["other", "../story", "/etc/passwd", ""] {
        let error = ask(&server, name).error(404);
        assert_eq!(error["code"], "model_not_found", "{name}");
    }
    let error = post(&server, CHAT, &chat_with(&json!({ "model": null }))).error(400);
    assert_eq!(error["param"], "model");
    ask(&server, "story").ok();
    assert!(get(&server, "/metrics").body.contains("nestling_model_load_failures_total 1"));
}

#[test]
fn an_opening_that_nobody_waits_for_is_cancelled() {
    let (server, source) = serve(PoolOptions::default());
    source.waits.store(true, Ordering::SeqCst);
    let request = chat_with(&json!({ "model": "story", "max_tokens": 2 }));
    block_on(async {
        let asked = post_later(&server, CHAT, &request);
        tokio::time::timeout(Duration::from_millis(100), asked).await.map(|_| ()).unwrap_err();
    });
    wait_for("cancelling", || source.cancelled.load(Ordering::SeqCst) == 1);
    source.waits.store(false, Ordering::SeqCst);
    // The next request reopens the model.
    ask(&server, "story").ok();
    assert_eq!(source.opened.lock().unwrap().len(), 2);
}

#[test]
fn a_request_of_ollama_s_api_says_how_long_its_model_stays() {
    let (server, source) = serve(PoolOptions { keep_alive: None, memory_bytes: Some(2 << 30) });
    let tags = get(&server, "/api/tags").ok();
    assert_eq!(tags["models"].as_array().unwrap().len(), 4);
    assert!(get(&server, "/api/ps").ok()["models"].as_array().unwrap().is_empty());
    let load = |keep: Value| json!({ "model": "story", "prompt": "", "keep_alive": keep });
    let loaded = post(&server, "/api/generate", &load(json!("1h"))).ok();
    assert_eq!(loaded["done_reason"], "load");
    assert!(loaded["model"] == "story" && source.open.load(Ordering::SeqCst) == 1);
    let ps = get(&server, "/api/ps").ok();
    assert!(ps["models"][0]["size"].as_u64().unwrap() > 1 << 20, "{ps}");
    assert!(ps["models"][0]["expires_at"].as_str().unwrap().starts_with("20"), "{ps}");
    let unloaded = post(&server, "/api/generate", &load(json!(0))).ok();
    assert_eq!(unloaded["done_reason"], "unload");
    wait_for("closing", || source.open.load(Ordering::SeqCst) == 0);
    // A closed model is described from its listing alone.
    let show = post(&server, "/api/show", &json!({ "model": "tools" })).ok();
    assert_eq!(show["details"]["format"], "nest");
    assert!(source.opened.lock().unwrap().iter().all(|(name, _)| name == "story"));
}

#[test]
fn a_model_that_takes_more_than_its_files_tell_has_idle_ones_closed() {
    let options = || PoolOptions { keep_alive: None, memory_bytes: Some(LARGE_BYTES) };
    let (server, source) = serve(options());
    ask(&server, "tools").ok();
    assert_eq!(ask(&server, "large").ok()["model"], "large");
    assert_eq!(state(&server, "tools"), "unloaded");
    let rooms: Vec<_> = source.opened.lock().unwrap().iter().map(|opened| opened.1).collect();
    assert_eq!((rooms.len(), rooms[2]), (3, Some(LARGE_BYTES)));
    assert!(rooms[1] < Some(LARGE_BYTES), "{rooms:?}");
    assert!(get(&server, "/metrics").body.contains("nestling_model_load_failures_total 0"));
    // Busy models are not closed: the client gets a retryable error.
    let (server, source) = serve(options());
    let long = json!({
        "model": "story", "max_tokens": 400, "stream": true, "logit_bias": { "2": -100 },
    });
    let mut body = block_on(post_later(&server, CHAT, &chat_with(&long)));
    block_on(body.next_piece()).unwrap();
    let answer = ask(&server, "large");
    assert_eq!(answer.error(503)["code"], "busy");
    assert_eq!(answer.headers["retry-after"], "1");
    drop(body);
    wait_for("the answer's end", || {
        get(&server, "/status").ok()["models"][0]["value"]["requests_free"] == 256
    });
    wait_for("room", || ask(&server, "large").status == 200);
    assert_eq!(source.open.load(Ordering::SeqCst), 1);
}

#[test]
fn one_that_lacks_memory_alone_is_not_opened() {
    let (server, source) = serve(PoolOptions { keep_alive: None, memory_bytes: Some(1 << 30) });
    let error = ask(&server, "large").error(500);
    assert_eq!(error["code"], "model_not_opened");
    assert!(error["message"].as_str().unwrap().contains("it takes more memory"), "{error}");
    assert_eq!(source.opened.lock().unwrap().len(), 1);
    ask(&server, "story").ok();
}

#[test]
fn tokenizers_are_told_of_by_the_name_of_an_open_model() {
    let (server, source) = serve(PoolOptions { keep_alive: None, memory_bytes: Some(2 << 30) });
    let info = |query: &str| get(&server, &format!("/tokenizer_info{query}"));
    assert_eq!(info("").error(400)["param"], "model");
    ask(&server, "story").ok();
    let story = info("").ok();
    ask(&server, "tools").ok();
    info("").error(400);
    assert_eq!(info("?model=story").ok(), story);
    assert_eq!(info("?model=%73tory").ok(), story);
    assert_ne!(info("?model=tools").ok(), story);
    assert_eq!(info("?model=large").error(409)["code"], "model_not_open");
    assert_eq!(info("?model=other").error(404)["code"], "model_not_found");
    for wrong in ["?name=story", "?model=story&model=tools", "?model=%7"] {
        info(wrong).error(400);
    }
    // Closed models were not opened.
    assert_eq!(source.opened.lock().unwrap().len(), 2);
}

/// A streamed model whose file changes.
#[derive(Debug)]
struct ChangingModel {
    file: std::path::PathBuf,
    opened: AtomicUsize,
}

impl ModelSource for ChangingModel {
    fn list(&self) -> Vec<ListedModel> {
        let name = "story".into();
        vec![ListedModel { name, bytes: BYTES, created: 1_700_000_000, format: "nest" }]
    }

    fn open(
        &self,
        _: &str,
        _: Option<u64>,
        _: &CancelToken,
    ) -> Result<OpenedModel, OpenModelError> {
        self.opened.fetch_add(1, Ordering::SeqCst);
        Ok(OpenedModel { model: open_streamed(&self.file), hold: Box::new(()) })
    }
}

#[test]
fn a_model_whose_file_changed_is_closed_and_reopened() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("story.nest");
    std::fs::copy(crate::models::at("models/nestling-storyteller.nest"), &file).unwrap();
    let source = Arc::new(ChangingModel { file: file.clone(), opened: AtomicUsize::new(0) });
    let server = Server::new(ServerOptions::default());
    let options = PoolOptions { keep_alive: None, memory_bytes: Some(2 << 30) };
    server.set_source(Arc::clone(&source) as Arc<dyn ModelSource>, options);
    // Each answer wanders elsewhere, so that it needs experts that the one before has not read.
    let ask = |seed: u64| {
        let wild = json!({ "model": "story", "temperature": 2.0, "seed": seed, "max_tokens": 400, "ignore_eos": true });
        post(&server, CHAT, &chat_with(&wild))
    };
    ask(1).ok();
    touch(&file);
    let error = ask(2).error(500);
    assert!(error["message"].as_str().unwrap().contains("changed while it was open"), "{error}");
    ask(3).ok();
    assert_eq!(source.opened.load(Ordering::SeqCst), 2);
    // A replaced file of the same name also counts as changed.
    let new = folder.path().join("new.nest");
    std::fs::copy(&file, &new).unwrap();
    std::fs::rename(&new, &file).unwrap();
    touch(&file);
    let answers = [ask(4).status, ask(5).status];
    assert_eq!(answers[1], 200, "{answers:?}");
}
