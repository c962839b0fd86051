//! Information routes: `/health`, `/v1/models`, `/status`, `/plan`, `/metrics`, `/tokenizer_info`.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use serde_json::{Value, json};

use crate::describe;
use crate::error::{ApiError, json_response, text_response};
use crate::metrics;
use crate::query::{Query, unescaped};
use crate::server::{Models, ServedModel, Server};
use crate::source::ListedModel;
use crate::tokens;

/// `GET /health`.
pub(crate) async fn health(State(server): State<Server>) -> Result<Response, ApiError> {
    if let Models::One(lone) = server.models()? {
        lone.health()?;
    }
    Ok(json_response(StatusCode::OK, &json!({ "status": "ok" })))
}

async fn all(server: &Server) -> Result<Vec<Value>, ApiError> {
    match server.models()? {
        Models::One(lone) => Ok(vec![describe::model(&*lone.current()?)]),
        Models::Pool(pool) => {
            let list = pool.list().await?;
            let open = pool.open();
            let show =
                |listed: &ListedModel| describe::listed(listed, pool.state_of(&listed.name), &open);
            Ok(list.iter().map(show).collect())
        }
    }
}

/// `GET /v1/models`.
pub(crate) async fn models(State(server): State<Server>) -> Result<Response, ApiError> {
    Ok(json_response(StatusCode::OK, &describe::models(all(&server).await?)))
}

/// Handles `GET /v1/models/{id}`. Model names may contain slashes and percent-escapes.
pub(crate) async fn model(State(server): State<Server>, uri: Uri) -> Result<Response, ApiError> {
    // Default: the route guarantees the prefix.
    let id = uri.path().strip_prefix("/v1/models/").unwrap_or_default();
    let wanted = unescaped(id);
    let all = all(&server).await?;
    let is_wanted = |model: &&Value| model["id"].as_str().map(str::as_bytes) == wanted.as_deref();
    match (all.iter().find(is_wanted), server.models()?) {
        (Some(model), _) => Ok(json_response(StatusCode::OK, model)),
        (None, Models::One(lone)) => Err(ApiError::no_model(id, lone.id())),
        (None, Models::Pool(_)) => Err(ApiError::no_listed_model(id)),
    }
}

/// Returns the description of the only model, or a list of descriptions of the open models of a pool.
fn each(server: &Server, tell: impl Fn(&ServedModel) -> Value) -> Result<Value, ApiError> {
    Ok(match server.models()? {
        Models::One(lone) => tell(&*lone.current()?),
        Models::Pool(pool) => {
            let told = pool
                .open()
                .into_iter()
                .map(|open| json!({ "model": open.served.id, "value": tell(&open.served) }));
            json!({ "models": told.collect::<Vec<_>>() })
        }
    })
}

/// `GET /status`.
pub(crate) async fn status(State(server): State<Server>) -> Result<Response, ApiError> {
    Ok(json_response(StatusCode::OK, &each(&server, describe::status)?))
}

/// `GET /plan`.
pub(crate) async fn plan(State(server): State<Server>) -> Result<Response, ApiError> {
    Ok(json_response(StatusCode::OK, &each(&server, describe::plan)?))
}

/// `GET /metrics`.
pub(crate) async fn write_metrics(State(server): State<Server>) -> Result<Response, ApiError> {
    let mut text = match server.models()? {
        Models::One(lone) => {
            let served = lone.current()?;
            metrics::write(&served.metrics, Some((&served.model, served.idle.count())))
        }
        Models::Pool(pool) => {
            let texts = pool.metrics().into_iter().map(|(name, metrics, served)| {
                let open = served.as_ref().map(|served| (&served.model, served.idle.count()));
                (name, metrics::write(&metrics, open))
            });
            let texts: Vec<(String, String)> = texts.collect();
            metrics::joined(&texts, pool.loads())
        }
    };
    let (count, bytes) = server.responses().usage();
    metrics::add_responses(&mut text, count, bytes);
    Ok(text_response(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", text))
}

/// Handles `GET /tokenizer_info?model=NAME`. Without a name, the only open model is used. Never opens a
/// model, because foreign web pages can make browsers send GET requests.
pub(crate) async fn tokenizer_info(
    State(server): State<Server>,
    uri: Uri,
) -> Result<Response, ApiError> {
    let open: Vec<Arc<ServedModel>> = server.open()?;
    let mut query = Query::parse(&uri)?;
    let named = query.one("model")?;
    query.end()?;
    let Some(name) = named else {
        return match open.as_slice() {
            [served] => tokens::info(served),
            _ => {
                let message = format!("{} models are open; `?model=` names one", open.len());
                Err(ApiError::invalid("model", message))
            }
        };
    };
    if let Some(served) = open.iter().find(|served| served.id == name) {
        return tokens::info(served);
    }
    match server.models()? {
        Models::One(lone) => Err(ApiError::no_model(&name, lone.id())),
        Models::Pool(pool) if pool.list().await?.iter().any(|listed| listed.name == name) => {
            let message = format!("the model {name:?} is not open; a request to it opens it");
            let error = ApiError::status(StatusCode::CONFLICT, "model_not_open", message);
            Err(ApiError { param: Some("model".into()), ..error })
        }
        Models::Pool(_) => Err(ApiError::no_listed_model(&name)),
    }
}
