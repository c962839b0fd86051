//! Arbitrary bodies at any route. The response must not be a server error, and errors must be JSON.
#![no_main]

use std::path::Path;
use std::sync::OnceLock;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use http_body_util::BodyExt;
use libfuzzer_sys::fuzz_target;
use nestling::{
    CancelToken, Device, DeviceOptions, EngineOptions, ModelOptions, OpenOptions, open_with,
};
use nestling_server::{Server, ServerOptions, router};
use tokio::runtime::{Builder, Runtime};
use tower::ServiceExt;

/// Routes, selected by the first byte of the input.
const ROUTES: [&str; 12] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/tokenize",
    "/detokenize",
    "/memory",
    "/v1/models/x",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/responses",
    "/api/chat",
    "/api/generate",
    "/api/show",
];

/// Context length in tokens, short so that generations end soon.
const CONTEXT: usize = 96;

struct TestServer {
    runtime: Runtime,
    routes: Router,
}

fn tested() -> &'static TestServer {
    static TESTED: OnceLock<TestServer> = OnceLock::new();
    TESTED.get_or_init(|| {
        let folder =
            concat!(env!("CARGO_MANIFEST_DIR"), "/../engine/runtime/tests/data/tiny-qwen3-moe");
        let options = OpenOptions {
            device: DeviceOptions { device: Device::Cpu, ..DeviceOptions::default() },
            engine: EngineOptions {
                memory_budget: Some(256 << 20),
                threads: Some(1),
                ..EngineOptions::default()
            },
            model: ModelOptions { context_length: Some(CONTEXT), ..ModelOptions::default() },
        };
        let model =
            open_with(Path::new(folder), &options, &mut |_| {}, &CancelToken::new()).unwrap();
        let server = Server::new(ServerOptions::default());
        server.set_model(model, "m");
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap();
        TestServer { runtime, routes: router(&server) }
    })
}

fuzz_target!(|input: &[u8]| {
    let Some((route, body)) = input.split_first() else { return };
    let TestServer { runtime, routes } = tested();
    let path = ROUTES[usize::from(*route) % ROUTES.len()];
    let request = Request::post(path)
        .header("host", "localhost")
        .header("content-type", "application/json")
        .body(Body::from(body.to_vec()))
        .unwrap();
    runtime.block_on(async {
        let response = routes.clone().oneshot(request).await.unwrap();
        let status = response.status();
        let answer = response.into_body().collect().await.unwrap().to_bytes();
        let text = String::from_utf8_lossy(&answer);
        assert_ne!(status, StatusCode::INTERNAL_SERVER_ERROR, "{text}");
        if !status.is_success() {
            let error: serde_json::Value = serde_json::from_slice(&answer).unwrap();
            // Ollama's errors are strings.
            let is_told = error["error"]["message"].is_string() || error["error"].is_string();
            assert!(is_told, "{text}");
        }
    });
});
