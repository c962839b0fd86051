//! Models that fail during generation. Each API reports the failure in its own format and ends the stream.

use std::fs::OpenOptions as FileOptions;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nestling::{
    CancelToken, Device, DeviceOptions, EngineOptions, Model, ModelOptions, OpenOptions, Residence,
    open_with,
};
use nestling_server::{OpenedModel, Server, ServerOptions};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::models::{NAME, at};
use crate::{CHAT, COMPLETIONS, block_on, get, post, post_later};

/// Too small for all experts, so that experts are read every few tokens.
const MEMORY: u64 = 40 << 20;

/// A server whose model streams experts from a file that can be truncated.
struct Fragile {
    server: Server,
    file: PathBuf,
    _folder: TempDir,
}

/// Opens a store with streamed experts.
pub fn open_streamed(file: &Path) -> Model {
    let options = OpenOptions {
        device: DeviceOptions { device: Device::Cpu, ..DeviceOptions::default() },
        engine: EngineOptions {
            memory_budget: Some(MEMORY),
            threads: Some(1),
            ..EngineOptions::default()
        },
        model: ModelOptions { residence: Residence::Streamed, ..ModelOptions::default() },
    };
    open_with(file, &options, &mut |_| {}, &CancelToken::new()).unwrap()
}

/// Changes only the modification time of a file.
pub fn touch(file: &Path) {
    let time = std::fs::metadata(file).unwrap().modified().unwrap();
    let time = time + Duration::from_secs(5);
    FileOptions::new().write(true).open(file).unwrap().set_modified(time).unwrap();
}

impl Fragile {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("story.nest");
        std::fs::copy(at("models/nestling-storyteller.nest"), &file).unwrap();
        let model = open_streamed(&file);
        let server = Server::new(ServerOptions::default());
        server.set_model(model, NAME);
        Self { server, file, _folder: folder }
    }

    fn cut(&self) {
        FileOptions::new().write(true).open(&self.file).unwrap().set_len(4096).unwrap();
    }

    /// Waits until nothing runs. A failed generation tells its client before the engine drops it.
    fn await_idle(&self) {
        let is_idle = || {
            let status = get(&self.server, "/status").ok();
            (&status["running"], &status["requests_free"]) == (&json!(0), &json!(256))
        };
        let end = Instant::now() + Duration::from_secs(120);
        while !is_idle() {
            assert!(Instant::now() < end, "a request is still running");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Returns the text of a stream whose model fails after the first output.
    fn failed_stream(&self, path: &str, request: &Value) -> String {
        let text = block_on(async {
            let mut body = post_later(&self.server, path, request).await;
            let mut text = body.next_piece().await.unwrap();
            // The second piece contains output of the model.
            text += &body.next_piece().await.unwrap();
            self.cut();
            text + &body.rest().await
        });
        self.await_idle();
        text
    }
}

fn story() -> Value {
    json!([{ "role": "user", "content": "Tell me a long story about a ship." }])
}

/// Returns the events of a stream as pairs of name (if any) and data.
fn events(text: &str) -> Vec<(Option<&str>, &str)> {
    let frames = text.split_terminator("\n\n").filter(|frame| !frame.starts_with(':'));
    let read = frames.map(|frame| match frame.split_once('\n') {
        Some((name, data)) => {
            (Some(name.strip_prefix("event: ").unwrap()), data.strip_prefix("data: ").unwrap())
        }
        None => (None, frame.strip_prefix("data: ").unwrap()),
    });
    read.collect()
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn chats_and_completions_have_an_error_and_an_end() {
    let more = json!({ "model": NAME, "stream": true, "max_tokens": 900, "ignore_eos": true });
    for (path, name, value) in
        [(CHAT, "messages", story()), (COMPLETIONS, "prompt", json!("The ship left the"))]
    {
        let mut request = more.clone();
        request[name] = value;
        let text = Fragile::new().failed_stream(path, &request);
        let events = events(&text);
        let [.., before, (None, error), (None, "[DONE]")] = events.as_slice() else {
            panic!("{path}: {text}")
        };
        assert!(parsed(before.1)["choices"].is_array(), "{path}");
        let error = parsed(error)["error"].take();
        assert_eq!(error["type"], "server_error", "{path}: {error}");
        assert!(!error["message"].as_str().unwrap().is_empty());
        assert!(!text.contains("\"finish_reason\":\"stop\""), "{path}: it looks whole");
    }
}

#[test]
fn responses_end_as_failed() {
    let request = json!({
        "model": NAME, "stream": true, "max_output_tokens": 900, "store": false, "input": story(),
    });
    let text = Fragile::new().failed_stream("/v1/responses", &request);
    let events = events(&text);
    let (name, last) = events.last().unwrap();
    let last = parsed(last);
    assert_eq!((*name, &last["type"]), (Some("response.failed"), &json!("response.failed")));
    assert_eq!(last["response"]["status"], "failed");
    assert_eq!(last["response"]["error"]["code"], "server_error");
    assert!(!last["response"]["error"]["message"].as_str().unwrap().is_empty());
    let numbers = events.iter().map(|event| parsed(event.1)["sequence_number"].as_u64());
    assert!(numbers.eq((0..events.len() as u64).map(Some)), "{text}");
    assert!(!text.contains("response.completed"), "{text}");
}

#[test]
fn messages_end_with_an_error() {
    let request = json!({ "model": NAME, "stream": true, "max_tokens": 900, "messages": story() });
    let text = Fragile::new().failed_stream("/v1/messages", &request);
    let events = events(&text);
    let (name, last) = events.last().unwrap();
    let last = parsed(last);
    assert_eq!((*name, &last["type"]), (Some("error"), &json!("error")));
    assert_eq!(last["error"]["type"], "api_error");
    assert!(!last["error"]["message"].as_str().unwrap().is_empty());
    assert!(!text.contains("message_stop") && !text.contains("stop_reason\":\"end"), "{text}");
}

#[test]
fn lines_of_ollama_s_api_end_with_an_error() {
    let options = json!({ "num_predict": 900 });
    for (path, name, value) in [
        ("/api/chat", "messages", story()),
        ("/api/generate", "prompt", json!("The ship left the")),
    ] {
        let mut request = json!({ "model": NAME, "options": options });
        request[name] = value;
        let text = Fragile::new().failed_stream(path, &request);
        let lines: Vec<Value> = text.lines().map(parsed).collect();
        let (last, lines) = lines.split_last().unwrap();
        assert!(!lines.is_empty() && lines.iter().all(|line| line["done"] == false), "{text}");
        assert_eq!(last.as_object().unwrap().len(), 1, "{last}");
        assert!(!last["error"].as_str().unwrap().is_empty());
    }
}

#[test]
fn later_requests_are_told_of_it_too() {
    let fragile = Fragile::new();
    let request = json!({
        "model": NAME, "stream": true, "max_tokens": 900, "ignore_eos": true, "messages": story(),
    });
    fragile.failed_stream(CHAT, &request);
    let whole = json!({ "model": NAME, "max_tokens": 64, "messages": story() });
    for (path, request) in [
        (CHAT, whole.clone()),
        ("/v1/messages", whole),
        ("/v1/responses", json!({ "model": NAME, "store": false, "input": story() })),
        ("/api/chat", json!({ "model": NAME, "stream": false, "messages": story() })),
    ] {
        let answer = post(&fragile.server, path, &request);
        assert_eq!(answer.status, 500, "{path}: {}", answer.body);
        let error = answer.json()["error"].take();
        assert!(error.is_string() || error["message"].is_string(), "{path}: {error}");
    }
}

#[test]
fn a_model_whose_file_changed_fails_the_health_check_and_its_errors_name_no_folder() {
    let fragile = Fragile::new();
    get(&fragile.server, "/health").ok();
    touch(&fragile.file);
    let request =
        json!({ "model": NAME, "max_tokens": 400, "ignore_eos": true, "messages": story() });
    let error = post(&fragile.server, CHAT, &request).error(500);
    let message = error["message"].as_str().unwrap();
    assert!(message.starts_with("story.nest: changed while"), "{message}");
    assert_eq!(get(&fragile.server, "/health").error(503)["code"], "model_stale");
}

#[test]
fn a_lone_model_whose_file_changed_is_reopened() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("story.nest");
    std::fs::copy(at("models/nestling-storyteller.nest"), &file).unwrap();
    let server = Server::new(ServerOptions::default());
    let open = move || OpenedModel { model: open_streamed(&file), hold: Box::new(()) };
    let (opened, path) = (open(), folder.path().join("story.nest"));
    server.set_reopenable_model(opened, NAME, std::sync::Arc::new(move |_| Ok(open())));
    let request =
        json!({ "model": NAME, "max_tokens": 400, "ignore_eos": true, "messages": story() });
    for _ in 0..2 {
        let before = post(&server, CHAT, &request).ok();
        touch(&path);
        post(&server, CHAT, &request).error(500);
        get(&server, "/health").ok();
        let after = post(&server, CHAT, &request).ok();
        assert_eq!(before["usage"]["completion_tokens"], after["usage"]["completion_tokens"]);
    }
}
