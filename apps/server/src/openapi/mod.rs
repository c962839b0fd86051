//! `GET /openapi.json`: the API description in OpenAPI 3.1. Its bounds are taken from [`crate::limits`].

mod answers;
mod bodies;
mod foreign;
mod parts;
mod schema;

use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Map, Value, json};

use crate::error::json_response;
use schema::component;

/// API that defines the error format of a route.
#[derive(Clone, Copy)]
enum Errors {
    OpenAi,
    Anthropic,
    Ollama,
}

impl Errors {
    fn schema(self) -> &'static str {
        match self {
            Self::OpenAi => "Error",
            Self::Anthropic => "AnthropicError",
            Self::Ollama => "OllamaError",
        }
    }

    /// Returns the HTTP status of an overloaded server. Anthropic's API has a separate one.
    fn busy(self) -> &'static str {
        match self {
            Self::Anthropic => "529",
            _ => "503",
        }
    }
}

#[derive(Clone, Copy)]
enum ResponseType {
    /// A JSON object, described by a schema.
    Json(&'static str),
    /// A JSON object, or events for a streaming request.
    JsonOrEvents(&'static str),
    /// A JSON object, or lines of JSON for a streaming request.
    JsonOrLines(&'static str),
    /// Text of this media type.
    Text(&'static str),
}

struct Route {
    path: &'static str,
    what: &'static str,
    /// Schema of the body of a POST; `None` for a GET.
    body: Option<&'static str>,
    gives: ResponseType,
}

const fn get(path: &'static str, what: &'static str, gives: ResponseType) -> Route {
    Route { path, what, body: None, gives }
}

const fn post(
    path: &'static str,
    what: &'static str,
    body: &'static str,
    gives: ResponseType,
) -> Route {
    Route { path, what, body: Some(body), gives }
}

use ResponseType::{Json, JsonOrEvents, JsonOrLines, Text};

const ROUTES: [Route; 25] = [
    get("/", "A page for chats.", Text("text/html")),
    get("/health", "Whether the server is ready.", Json("Health")),
    get("/v1/health", "Whether the server is ready.", Json("Health")),
    get("/openapi.json", "This description.", Json("Any")),
    get("/v1/models", "The models that are served.", Json("Models")),
    get("/models", "The models that are served.", Json("Models")),
    get("/v1/models/{id}", "One model. Its name may have slashes.", Json("Model")),
    get("/status", "What runs, waits and is held.", Json("Any")),
    get("/plan", "How the memory is divided.", Json("Any")),
    get("/metrics", "Counters, for Prometheus.", Text("text/plain")),
    get("/tokenizer_info", "The tokenizer of an open model.", Json("TokenizerInfo")),
    post("/memory", "Sets the memory budget of the one model.", "Memory", Json("Any")),
    post("/tokenize", "Text to tokens.", "Tokenize", Json("Tokens")),
    post("/detokenize", "Tokens to text.", "Detokenize", Json("Detokenized")),
    post("/v1/chat/completions", "OpenAI's chats.", "Chat", JsonOrEvents("ChatAnswer")),
    post(
        "/v1/completions",
        "OpenAI's completions.",
        "Completion",
        JsonOrEvents("CompletionAnswer"),
    ),
    post(
        "/v1/responses",
        "OpenAI's responses, stateless.",
        "Response",
        JsonOrEvents("ResponseAnswer"),
    ),
    post("/v1/messages", "Anthropic's messages.", "Messages", JsonOrEvents("MessageAnswer")),
    post("/v1/messages/count_tokens", "How long a prompt is.", "CountTokens", Json("TokenCount")),
    get("/api/version", "Ollama's version.", Json("OllamaVersion")),
    get("/api/tags", "Ollama's list of models.", Json("OllamaModels")),
    get("/api/ps", "Ollama's list of open models.", Json("OllamaModels")),
    post("/api/show", "Ollama's description of a model.", "OllamaShow", Json("Any")),
    post("/api/chat", "Ollama's chats.", "OllamaChat", JsonOrLines("OllamaAnswer")),
    post("/api/generate", "Ollama's completions.", "OllamaGenerate", JsonOrLines("OllamaAnswer")),
];

const EVENTS: &str = "text/event-stream";

/// Handles `GET /openapi.json`.
pub(crate) async fn show() -> Response {
    json_response(StatusCode::OK, &document())
}

fn document() -> Value {
    let mut paths = Map::new();
    for route in &ROUTES {
        let method = if route.body.is_some() { "post" } else { "get" };
        paths.insert(route.path.into(), json!({ method: operation(route) }));
    }
    let mut schemas = Map::new();
    for more in [parts::all(), bodies::all(), foreign::all(), answers::all()] {
        if let Value::Object(more) = more {
            schemas.extend(more);
        }
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Nestling",
            "version": env!("CARGO_PKG_VERSION"),
            "summary": "Mixture-of-Experts language models over HTTP",
            "license": { "name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0" },
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "responses": error_responses(),
            "securitySchemes": {
                "bearer": { "type": "http", "scheme": "bearer" },
                "key": { "type": "apiKey", "in": "header", "name": "X-Api-Key" },
            },
        },
        // The empty entry allows servers without keys.
        "security": [{}, { "bearer": [] }, { "key": [] }],
    })
}

fn operation(route: &Route) -> Value {
    let mut operation = json!({
        "summary": route.what, "operationId": id_of(route.path), "responses": responses(route),
    });
    if let Some(body) = route.body {
        operation["requestBody"] = json!({
            "required": true, "content": { "application/json": { "schema": component(body) } },
        });
    }
    let parameter = match route.path {
        "/v1/models/{id}" => Some(("id", "path", true)),
        "/tokenizer_info" => Some(("model", "query", false)),
        _ => None,
    };
    if let Some((name, place, is_required)) = parameter {
        operation["parameters"] = json!([{
            "name": name, "in": place, "required": is_required, "schema": { "type": "string", "minLength": 1 },
        }]);
    }
    operation
}

fn id_of(path: &str) -> String {
    let letters = path.trim_matches('/').replace(['/', '.'], "_").replace(['{', '}'], "");
    if letters.is_empty() { "page".into() } else { letters }
}

fn errors_of(path: &str) -> Errors {
    match path {
        _ if path.starts_with("/api/") => Errors::Ollama,
        _ if path.starts_with("/v1/messages") => Errors::Anthropic,
        _ => Errors::OpenAi,
    }
}

fn responses(route: &Route) -> Value {
    let (schema, more) = match route.gives {
        Text(kind) => (None, Some(kind)),
        Json(schema) => (Some(schema), None),
        JsonOrEvents(schema) => (Some(schema), Some(EVENTS)),
        JsonOrLines(schema) => (Some(schema), Some("application/x-ndjson")),
    };
    let mut content = Map::new();
    if let Some(schema) = schema {
        content.insert("application/json".into(), json!({ "schema": component(schema) }));
    }
    if let Some(kind) = more {
        // Event streams have no schema; clients parse each event.
        let schema = if kind == EVENTS { json!({}) } else { json!({ "type": "string" }) };
        content.insert(kind.into(), json!({ "schema": schema }));
    }
    let mut responses = json!({ "200": { "description": "Success.", "content": content } });
    let errors = errors_of(route.path);
    let with_body = ["408", "413", "415", "501"].into_iter().filter(|_| route.body.is_some());
    for status in ALWAYS.into_iter().chain([errors.busy()]).chain(with_body) {
        let response = format!("#/components/responses/{}{status}", errors.schema());
        responses[status] = json!({ "$ref": response });
    }
    responses
}

/// Statuses that any route may return.
const ALWAYS: [&str; 8] = ["400", "401", "403", "404", "405", "409", "431", "500"];

/// Returns the responses of all errors, in the format of each API.
fn error_responses() -> Value {
    let mut all = Map::new();
    for errors in [Errors::OpenAi, Errors::Anthropic, Errors::Ollama] {
        let more = [errors.busy(), "408", "413", "415", "501"];
        for status in ALWAYS.into_iter().chain(more) {
            all.insert(
                format!("{}{status}", errors.schema()),
                json!({
                    "description": words_of(status),
                    "content": { "application/json": { "schema": component(errors.schema()) } },
                }),
            );
        }
    }
    all.into()
}

fn words_of(status: &str) -> &'static str {
    match status {
        "400" => "Malformed, or a field that is missing, unknown, not supported or out of range.",
        "401" => "A key is needed.",
        "403" => "Unknown host or origin.",
        "404" => "No such route or model.",
        "405" => "No method of this route.",
        "408" => "The body came too slowly.",
        "409" => "The model is not open.",
        "413" => "The body is too long.",
        "415" => "The body is not JSON.",
        "431" => "The head is too long.",
        "500" => "The server's own fault.",
        "501" => "The API has it, this server does not.",
        _ => "Temporarily unavailable: retry after `Retry-After` seconds.",
    }
}
