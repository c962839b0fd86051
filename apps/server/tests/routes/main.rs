//! The routes, called as a client would, with the bundled model and a tiny model with tool support.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test may fail where it stands")]

mod accepted;
mod access;
mod bad_requests;
mod chat;
mod completions;
mod connections;
mod described;
mod failures;
mod hostile_connections;
mod lost_ranks;
mod messages;
mod models;
mod ollama;
mod openapi;
mod page;
mod responses;
mod several;
mod stored_responses;
mod tools;

use axum::body::Body;
use axum::http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt;
use nestling_server::{Server, router};
use serde_json::{Value, json};
use std::sync::OnceLock;
use tokio::runtime::{Builder, Runtime};
use tower::ServiceExt;

struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    #[track_caller]
    fn ok(&self) -> Value {
        assert_eq!(self.status, StatusCode::OK, "{}", self.body);
        self.json()
    }

    /// Returns the error object after checking that all four fields are present.
    #[track_caller]
    fn error(&self, status: u16) -> Value {
        assert_eq!(self.status.as_u16(), status, "{}", self.body);
        let error = self.json()["error"].take();
        for field in ["message", "type", "param", "code"] {
            assert!(error.get(field).is_some(), "no `{field}` in {error}");
        }
        assert!(error["message"].as_str().is_some_and(|text| !text.is_empty()));
        error
    }

    /// Returns the events of a stream that ended regularly.
    #[track_caller]
    fn events(&self) -> Vec<Value> {
        assert_eq!(self.status, StatusCode::OK, "{}", self.body);
        assert_eq!(self.headers["content-type"], "text/event-stream");
        let frames: Vec<&str> = self.body.split_terminator("\n\n").collect();
        let (last, frames) = frames.split_last().unwrap();
        assert_eq!(*last, "data: [DONE]");
        let data = frames.iter().filter(|frame| !frame.starts_with(':'));
        data.map(|frame| serde_json::from_str(frame.strip_prefix("data: ").unwrap()).unwrap())
            .collect()
    }
}

/// Runs on threads that outlive the request, because cleanup continues after the response.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    let make = || Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
    RUNTIME.get_or_init(make).block_on(future)
}

fn request(server: &Server, request: Request<Body>) -> Answer {
    block_on(async {
        let response = router(server).oneshot(request).await.unwrap();
        let (status, headers) = (response.status(), response.headers().clone());
        let body = response.into_body().collect().await.unwrap().to_bytes();
        Answer { status, headers, body: String::from_utf8(body.to_vec()).unwrap() }
    })
}

fn get(server: &Server, path: &str) -> Answer {
    let asked = Request::get(path).header("host", "localhost:8080");
    request(server, asked.body(Body::empty()).unwrap())
}

fn post_text(server: &Server, path: &str, body: impl Into<Body>) -> Answer {
    let asked = Request::post(path).header("host", "localhost:8080");
    request(server, asked.header("content-type", "application/json").body(body.into()).unwrap())
}

/// A response whose headers were received.
struct Beginning {
    body: Body,
}

impl Beginning {
    async fn next_piece(&mut self) -> Option<String> {
        let frame = self.body.frame().await?.unwrap().into_data().ok()?;
        Some(String::from_utf8(frame.to_vec()).unwrap())
    }

    async fn rest(&mut self) -> String {
        let mut text = String::new();
        while let Some(piece) = self.next_piece().await {
            text.push_str(&piece);
        }
        text
    }
}

/// Sends a request and returns as soon as the response headers arrive.
async fn post_later(server: &Server, path: &str, body: &Value) -> Beginning {
    let asked = Request::post(path).header("host", "localhost:8080");
    let asked = asked.header("content-type", "application/json");
    let request = asked.body(Body::from(body.to_string())).unwrap();
    let response = router(server).oneshot(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    Beginning { body: response.into_body() }
}

fn post(server: &Server, path: &str, body: &Value) -> Answer {
    post_text(server, path, body.to_string())
}

/// Returns a chat request with default fields, extended by `more`.
fn chat_with(more: &Value) -> Value {
    let mut request = json!({
        "model": models::NAME,
        "messages": [{ "role": "user", "content": "Tell me a story." }],
        "max_tokens": 8,
        "temperature": 0,
    });
    join(&mut request, more);
    request
}

fn completion_with(more: &Value) -> Value {
    let mut request = json!({
        "model": models::NAME, "prompt": "The ship left the", "max_tokens": 6, "temperature": 0,
    });
    join(&mut request, more);
    request
}

/// Adds fields to an object. Null values remove fields.
fn join(object: &mut Value, more: &Value) {
    for (name, value) in more.as_object().unwrap() {
        match value {
            Value::Null => drop(object.as_object_mut().unwrap().remove(name)),
            value => object[name] = value.clone(),
        }
    }
}

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
