//! `GET` and `DELETE /v1/responses/{id}`, and `GET /v1/responses/{id}/input_items`.

use std::sync::Arc;

use axum::extract::{Extension, Path, State};
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use serde_json::{Value, json};

use super::history;
use crate::access::{Caller, Owner};
use crate::error::{ApiError, json_response};
use crate::limits::ITEMS_MAX;
use crate::query::Query;
use crate::response_store::StoredResponse;
use crate::server::Server;

/// Number of items in a list if the request names none.
const ITEMS_USUAL: usize = 20;

fn find(server: &Server, owner: Owner, id: &str) -> Result<Arc<StoredResponse>, ApiError> {
    server.responses().get(owner, id).ok_or_else(|| ApiError::no_response(&format!("{id:?}")))
}

/// `GET /v1/responses/{id}`.
pub(crate) async fn show(
    State(server): State<Server>,
    Path(id): Path<String>,
    Extension(caller): Extension<Caller>,
    uri: Uri,
) -> Result<Response, ApiError> {
    let mut query = Query::parse(&uri)?;
    if query.one("stream")?.is_some_and(|value| value != "false") {
        let message = "a stored response is returned as a whole";
        return Err(ApiError::unsupported("stream", message));
    }
    let stored = find(&server, caller.owner(), &id)?;
    Ok(json_response(StatusCode::OK, &stored.to_json()?))
}

/// `DELETE /v1/responses/{id}`.
pub(crate) async fn delete(
    State(server): State<Server>,
    Path(id): Path<String>,
    Extension(caller): Extension<Caller>,
) -> Result<Response, ApiError> {
    if !server.responses().remove(caller.owner(), &id) {
        return Err(ApiError::no_response(&format!("{id:?}")));
    }
    let answer = json!({ "id": id, "object": "response", "deleted": true });
    Ok(json_response(StatusCode::OK, &answer))
}

/// `GET /v1/responses/{id}/input_items`.
pub(crate) async fn input_items(
    State(server): State<Server>,
    Path(id): Path<String>,
    Extension(caller): Extension<Caller>,
    uri: Uri,
) -> Result<Response, ApiError> {
    let mut query = Query::parse(&uri)?;
    let limit = match query.one("limit")? {
        None => ITEMS_USUAL,
        Some(text) => {
            let limit = text.parse().ok().filter(|limit| (1..=ITEMS_MAX).contains(limit));
            let message = || format!("a whole number from 1 to {ITEMS_MAX} was expected");
            limit.ok_or_else(|| ApiError::invalid("limit", message()))?
        }
    };
    let is_ascending = match query.one("order")?.as_deref() {
        None | Some("desc") => false,
        Some("asc") => true,
        Some(_) => return Err(ApiError::invalid("order", "asc or desc was expected")),
    };
    let after = query.one("after")?;
    let stored = find(&server, caller.owner(), &id)?;
    let mut items = history::input_items(server.responses(), caller.owner(), &stored)?;
    if !is_ascending {
        items.reverse();
    }
    let page = page(&items, after.as_deref(), limit)?;
    Ok(json_response(StatusCode::OK, &page))
}

/// Returns the `limit` items that follow the item `after`, or the first ones.
fn page(items: &[Value], after: Option<&str>, limit: usize) -> Result<Value, ApiError> {
    let start = match after {
        None => 0,
        Some(id) => {
            let found = items.iter().position(|item| item["id"] == id);
            1 + found.ok_or_else(|| ApiError::invalid("after", "no item has this id"))?
        }
    };
    let rest = items.get(start..).unwrap_or(&[]);
    let data = rest.get(..limit).unwrap_or(rest);
    let id_of = |item: Option<&Value>| item.map_or(Value::Null, |item| item["id"].clone());
    Ok(json!({
        "object": "list", "data": data, "first_id": id_of(data.first()), "last_id": id_of(data.last()),
        "has_more": rest.len() > data.len(),
    }))
}
