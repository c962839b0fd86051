//! Routes of the server, and the checks common to all requests.

use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, any, get, post};

use crate::access::{Caller, is_preflight, name_origin, preflight};
use crate::body::check_codings;
use crate::error::ApiError;
use crate::field_path::{FieldPath, IgnoredFields};
use crate::fields::Fields;
use crate::server::{ServedModel, Server};
use crate::usage::random;
use crate::{
    chat, completions, listing, memory, messages, ollama, openapi, page, responses, tokens,
};

/// Known API routes that are not supported, each with a reason where clients may expect it.
const NOT_OFFERED: [(&str, &str); 10] = [
    (
        "/v1/embeddings",
        ": the models that it runs write text, and embeddings need a model that is trained for them",
    ),
    ("/v1/moderations", ""),
    ("/v1/rerank", ""),
    ("/v1/responses/compact", ""),
    ("/v1/responses/input_tokens", "; the usage of a response has its input tokens"),
    ("/v1/responses/{id}/cancel", ""),
    ("/v1/images/generations", ""),
    ("/v1/audio/speech", ""),
    ("/v1/audio/transcriptions", ""),
    ("/v1/audio/translations", ""),
];

/// Returns the routes of a server, to be served by [`crate::Listener`] or mounted elsewhere.
pub fn router(server: &Server) -> Router {
    let mut routes = Router::new()
        .route("/", get(show_page))
        .route("/openapi.json", get(openapi::show))
        .route("/health", get(listing::health))
        .route("/v1/health", get(listing::health))
        .route("/v1/models", get(listing::models))
        .route("/models", get(listing::models))
        .route("/v1/models/{*id}", get(listing::model))
        .route("/status", get(listing::status))
        .route("/plan", get(listing::plan))
        .route("/memory", by_model(memory::set_budget))
        .route("/metrics", get(listing::write_metrics))
        .route("/tokenizer_info", get(listing::tokenizer_info))
        .route("/tokenize", by_model(tokens::tokenize))
        .route("/detokenize", by_model(tokens::detokenize))
        .route("/v1/chat/completions", by_caller(chat::complete))
        .route("/v1/completions", by_caller(completions::complete))
        .route("/v1/responses", by_caller(responses::create))
        .route("/v1/responses/{id}", get(responses::show).delete(responses::delete))
        .route("/v1/responses/{id}/input_items", get(responses::input_items))
        .route("/v1/messages", by_caller(messages::create))
        .route("/v1/messages/count_tokens", by_model(messages::count_tokens))
        .route("/api/{*path}", any(ollama_api));
    for (path, _) in NOT_OFFERED {
        routes = routes.route(path, any(not_offered));
    }
    let routes = routes
        .method_not_allowed_fallback(wrong_method)
        .fallback(no_route)
        .layer(middleware::from_fn_with_state(server.clone(), admit))
        .with_state(server.clone());
    // Outside of the routes, because a layer of theirs runs after one was chosen.
    Router::new().fallback_service(routes).layer(middleware::from_fn(without_slash))
}

/// Runs the checks common to all requests. Errors are formatted for the requested API.
async fn admit(State(server): State<Server>, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let (is_messages, is_ollama) = (messages::owns(path), ollama::owns(path));
    let response = answered(server, request, next).await;
    match (is_messages, is_ollama) {
        (true, _) => messages::in_own_form(response),
        (_, true) => ollama::in_own_form(response),
        _ => response,
    }
}

async fn answered(server: Server, mut request: Request, next: Next) -> Response {
    let (method, headers) = (request.method(), request.headers());
    let origin = match server.access().check_place(request.uri(), headers) {
        Ok(origin) => origin,
        Err(error) => return error.into_response(),
    };
    let is_public = matches!(request.uri().path(), "/" | "/health" | "/v1/health");
    let mut response = if origin.is_some() && is_preflight(method, headers) {
        preflight(headers)
    } else {
        match (server.access().check_key(headers), check_codings(headers)) {
            (Err(error), _) if !is_public => error.into_response(),
            (_, Err(error)) => error.into_response(),
            (caller, Ok(())) => {
                // Default: public routes do not generate, so they need no caller.
                request.extensions_mut().insert(caller.unwrap_or_default());
                next.run(request).await
            }
        }
    };
    if let Some(origin) = origin {
        name_origin(response.headers_mut(), origin);
    }
    // Request id that clients can quote in bug reports.
    if let Ok(id) = HeaderValue::from_str(&format!("{:016x}", random())) {
        response.headers_mut().insert("x-request-id", id);
    }
    response
}

async fn no_route(uri: Uri) -> ApiError {
    ApiError::no_route(uri.path())
}

/// Removes a trailing slash from the path.
async fn without_slash(mut request: Request, next: Next) -> Response {
    let path = request.uri().path();
    if path.len() > 1 && path.ends_with('/') {
        let path = path.trim_end_matches('/');
        let query = request.uri().query().map(|query| format!("?{query}"));
        // Default: no query.
        let place = format!("{path}{}", query.unwrap_or_default());
        let mut parts = request.uri().clone().into_parts();
        parts.path_and_query = place.parse().ok();
        if let Ok(uri) = Uri::from_parts(parts) {
            *request.uri_mut() = uri;
        }
    }
    next.run(request).await
}

async fn wrong_method(method: Method, uri: Uri) -> Response {
    if method == Method::OPTIONS {
        // The header `Allow` has the answer.
        return StatusCode::NO_CONTENT.into_response();
    }
    let message = format!("{method} is not a method of {:?}", uri.path());
    ApiError::status(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message).into_response()
}

async fn not_offered(uri: Uri) -> ApiError {
    // Default: routes with a parameter have no reason.
    let why = NOT_OFFERED.iter().find(|(path, _)| *path == uri.path()).map_or("", |(_, why)| why);
    let message = format!("{:?} is not offered by this server{why}", uri.path());
    ApiError::status(StatusCode::NOT_IMPLEMENTED, "not_implemented", message)
}

async fn show_page() -> Response {
    page::page()
}

/// Returns a POST route with a JSON body that uses the model named in the body.
fn by_model<Answered>(answer: fn(Arc<ServedModel>, Fields) -> Answered) -> MethodRouter<Server>
where
    Answered: Future<Output = Result<Response, ApiError>> + Send + 'static,
{
    post(async move |State(server): State<Server>, request: Request| {
        let (served, fields) = read(&server, request).await?;
        let ignored = fields.place().ignored().clone();
        reported(&served.clone(), ignored, answer(served, fields)).await
    })
}

/// Returns a POST route like [`by_model`] for a handler that also needs the caller.
fn by_caller<Answered>(
    answer: fn(Arc<ServedModel>, Fields, Caller) -> Answered,
) -> MethodRouter<Server>
where
    Answered: Future<Output = Result<Response, ApiError>> + Send + 'static,
{
    post(async move |State(server): State<Server>, request: Request| {
        let caller = caller_of(&request)?;
        let (served, fields) = read(&server, request).await?;
        let ignored = fields.place().ignored().clone();
        reported(&served.clone(), ignored, answer(served, fields, caller)).await
    })
}

/// Reports the fields without effect with the answer to their request.
async fn reported(
    served: &ServedModel,
    ignored: IgnoredFields,
    answer: impl Future<Output = Result<Response, ApiError>>,
) -> Result<Response, ApiError> {
    let mut response = answer.await?;
    served.report(&ignored, &mut response);
    Ok(response)
}

fn caller_of(request: &Request) -> Result<Caller, ApiError> {
    let caller = request.extensions().get::<Caller>().cloned();
    caller.ok_or_else(|| ApiError::internal("the caller was not identified"))
}

async fn ollama_api(State(server): State<Server>, request: Request) -> Result<Response, ApiError> {
    let caller = caller_of(&request)?;
    let (started, method, uri) = (Instant::now(), request.method().clone(), request.uri().clone());
    let fields = match ollama::has_body(&method, uri.path()) {
        true => Some(fields_of(&server, request).await?),
        false => None,
    };
    let asked = ollama::RequestOrigin { caller, started };
    let answer = ollama::answer(&server, &method, uri.path(), fields, asked).await;
    match (answer, ollama::methods(uri.path())) {
        // The `Allow` header, which axum adds only to routes with separate method handlers.
        (Err(error), Some(methods)) if error.status == StatusCode::METHOD_NOT_ALLOWED => {
            let mut response = error.into_response();
            response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(methods));
            Ok(response)
        }
        (answer, _) => answer,
    }
}

/// Reads a JSON body and returns the model that it names, opened if necessary, and its fields.
async fn read(server: &Server, request: Request) -> Result<(Arc<ServedModel>, Fields), ApiError> {
    server.models()?;
    let fields = fields_of(server, request).await?;
    let served = server.served_for(fields.peek_text("model")).await?;
    Ok((served, fields))
}

async fn fields_of(server: &Server, request: Request) -> Result<Fields, ApiError> {
    let (head, body) = request.into_parts();
    // A request with an origin may come from a web page. Ollama's documentation uses curl without a type.
    if !ollama::owns(head.uri.path()) || head.headers.contains_key(header::ORIGIN) {
        check_kind(&head.headers)?;
    }
    let place = FieldPath::request(server.ignored_fields());
    Fields::new(place, server.bodies().read(body, server.connection_limits()).await?)
}

/// Requires `application/json`. Browsers send other content types cross-origin without a preflight request.
fn check_kind(headers: &HeaderMap) -> Result<(), ApiError> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    // Default: a missing content type is rejected as well.
    let kind = kind.and_then(|kind| kind.split(';').next()).unwrap_or_default().trim();
    if kind.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    let message = "a body with `Content-Type: application/json` was expected";
    Err(ApiError::status(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", message))
}
