//! Ollama's API: `/api/chat`, `/api/generate`, `/api/tags`, `/api/show`, `/api/ps`, `/api/version`.
//!
//! Responses are lines of JSON unless `stream` is false. Times are in nanoseconds, and an error is `{"error":
//! "..."}`.

mod lines;
mod messages;
mod models;
mod options;
mod reply;
mod request;
mod time;

use std::time::Instant;

use axum::body::Body;
use axum::http::{Method, StatusCode};
use axum::response::Response;
use serde_json::json;

use crate::access::Caller;
use crate::answers;
use crate::error::{ApiError, json_response};
use crate::fields::Fields;
use crate::sampling::check_name;
use crate::server::{Models, Server};
use reply::{Kind, Writer};
use request::{KeepAlive, Request};

/// Known API routes that are not supported.
const NOT_OFFERED: [&str; 8] =
    ["pull", "push", "create", "delete", "copy", "embed", "embeddings", "blobs"];

/// Caller and arrival time of a request.
pub(crate) struct RequestOrigin {
    pub caller: Caller,
    pub started: Instant,
}

pub(crate) fn owns(path: &str) -> bool {
    path.starts_with("/api/")
}

pub(crate) fn has_body(method: &Method, path: &str) -> bool {
    *method == Method::POST && matches!(path, "/api/chat" | "/api/generate" | "/api/show")
}

/// Returns the methods of a route for the `Allow` header.
pub(crate) fn methods(path: &str) -> Option<&'static str> {
    match path.strip_prefix("/api/")? {
        "version" | "tags" | "ps" => Some("GET,HEAD"),
        "show" | "chat" | "generate" => Some("POST"),
        _ => None,
    }
}

/// Handles a request that arrived at `started`. `fields` is present if [`has_body`] returns true.
///
/// # Errors
/// Returns an error if the request or the path is invalid.
pub(crate) async fn answer(
    server: &Server,
    method: &Method,
    path: &str,
    fields: Option<Fields>,
    asked: RequestOrigin,
) -> Result<Response, ApiError> {
    // Default: an empty name for paths outside this API.
    let name = path.strip_prefix("/api/").unwrap_or_default();
    let is_get = matches!(*method, Method::GET | Method::HEAD);
    match (name, fields) {
        ("version", _) if is_get => Ok(models::version()),
        ("tags", _) if is_get => models::tags(server).await,
        ("ps", _) if is_get => models::ps(server).await,
        ("show", Some(fields)) => models::show(server, fields).await,
        ("chat", Some(fields)) => generate(server, Kind::Chat, fields, asked).await,
        ("generate", Some(fields)) => generate(server, Kind::Generate, fields, asked).await,
        ("version" | "tags" | "ps" | "show" | "chat" | "generate", _) => {
            let message = format!("{method} is not a method of {path:?}");
            let status = StatusCode::METHOD_NOT_ALLOWED;
            Err(ApiError::status(status, "method_not_allowed", message))
        }
        _ if NOT_OFFERED.iter().any(|known| name.split('/').next() == Some(*known)) => {
            let message = format!("{path:?} is not offered by this server");
            Err(ApiError::status(StatusCode::NOT_IMPLEMENTED, "not_implemented", message))
        }
        _ => Err(ApiError::no_route(path)),
    }
}

async fn generate(
    server: &Server,
    kind: Kind,
    mut fields: Fields,
    asked: RequestOrigin,
) -> Result<Response, ApiError> {
    let RequestOrigin { caller, started } = asked;
    let name = request::model_name(&mut fields)?;
    let served = server.served_for(Some(&name)).await?;
    check_name(&name, &served)?;
    let name = served.id.clone();
    let (ignored, keep_place) = (fields.place().ignored().clone(), fields.at("keep_alive"));
    let loaded = started.elapsed();
    // Schemas are compiled here, which may take long.
    let (request, slot) = served.read(move |served| Request::read(kind, fields, served)).await?;
    let Request { job, stream, keep } = request;
    match (server.models()?, keep) {
        (_, None) | (Models::One(_), Some(KeepAlive(None))) => {}
        // The only model stays open.
        (Models::One(_), Some(_)) => keep_place.ignore()?,
        (Models::Pool(pool), Some(KeepAlive(keep))) => pool.keep(&name, keep),
    }
    let writer = Writer::new(kind, name, started, loaded);
    let Some(job) = job else {
        let is_closed = keep.is_some_and(|KeepAlive(time)| time.is_some_and(|time| time.is_zero()));
        let reason = if is_closed { "unload" } else { "load" };
        return Ok(json_response(StatusCode::OK, &writer.without_answer(reason)));
    };
    let answers = answers::start(&served, job, slot, &caller).await?;
    let mut response = match stream {
        true => lines::response(answers, writer),
        false => writer.whole(answers).await?,
    };
    served.report(&ignored, &mut response);
    Ok(response)
}

/// Returns the error message including the name of the invalid field.
fn message_of(error: &ApiError) -> String {
    match &error.param {
        Some(param) if !error.message.contains(param.as_str()) => {
            format!("{param}: {}", error.message)
        }
        _ => error.message.clone(),
    }
}

pub(crate) fn in_own_form(mut response: Response) -> Response {
    if let Some(error) = response.extensions_mut().remove::<ApiError>() {
        *response.body_mut() = Body::from(json!({ "error": message_of(&error) }).to_string());
    }
    response
}
