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
use crate::limits::ITEMS_MAX;
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
    method: &'static str,
    path: &'static str,
    what: &'static str,
    /// Schema of the body of a POST; `None` for a GET.
    body: Option<&'static str>,
    gives: ResponseType,
}

const fn get(path: &'static str, what: &'static str, gives: ResponseType) -> Route {
    Route { method: "get", path, what, body: None, gives }
}

const fn delete(path: &'static str, what: &'static str, gives: ResponseType) -> Route {
    Route { method: "delete", path, what, body: None, gives }
}

const fn post(
    path: &'static str,
    what: &'static str,
    body: &'static str,
    gives: ResponseType,
) -> Route {
    Route { method: "post", path, what, body: Some(body), gives }
}

use ResponseType::{Json, JsonOrEvents, JsonOrLines, Text};

const ROUTES: [Route; 28] = [
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
    post("/v1/responses", "OpenAI's responses.", "Response", JsonOrEvents("ResponseAnswer")),
    get("/v1/responses/{id}", "A stored response.", Json("ResponseAnswer")),
    delete("/v1/responses/{id}", "Deletes a stored response.", Json("ResponseDeleted")),
    get(
        "/v1/responses/{id}/input_items",
        "The items that a stored response answers, with those of the responses that it continues.",
        Json("ResponseItems"),
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
        let of_path = paths.entry(route.path).or_insert_with(|| json!({}));
        of_path[route.method] = operation(route);
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
        "summary": route.what, "operationId": id_of(route), "responses": responses(route),
    });
    if let Some(body) = route.body {
        operation["requestBody"] = json!({
            "required": true, "content": { "application/json": { "schema": component(body) } },
        });
    }
    let parameters = parameters(route.path);
    if !parameters.is_empty() {
        operation["parameters"] = parameters.into();
    }
    operation
}

fn parameters(path: &str) -> Vec<Value> {
    let text = json!({ "type": "string", "minLength": 1 });
    let mut all = Vec::new();
    if path.contains("{id}") {
        all.push(json!({ "name": "id", "in": "path", "required": true, "schema": text }));
    }
    let in_query = |name: &str, schema: Value| json!({ "name": name, "in": "query", "required": false, "schema": schema });
    match path {
        "/tokenizer_info" => all.push(in_query("model", text)),
        "/v1/responses/{id}/input_items" => {
            let limit = json!({ "type": "integer", "minimum": 1, "maximum": ITEMS_MAX });
            all.push(in_query("limit", limit));
            all.push(in_query("order", json!({ "enum": ["asc", "desc"] })));
            all.push(in_query("after", text));
        }
        _ => {}
    }
    all
}

fn id_of(route: &Route) -> String {
    let letters = route.path.trim_matches('/').replace(['/', '.'], "_").replace(['{', '}'], "");
    match (letters.is_empty(), route.method) {
        (true, _) => "page".into(),
        (false, "delete") => format!("delete_{letters}"),
        (false, _) => letters,
    }
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
        "404" => "No such route, model or response.",
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
