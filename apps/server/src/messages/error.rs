//! Errors in the format of Anthropic's API.

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use serde_json::{Value, json};

use crate::error::{ApiError, Overflow};
use crate::usage::random;

/// HTTP status of an overloaded server in this API.
const OVERLOADED: u16 = 529;

const ID_HEADER: &str = "request-id";

fn kind(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::FORBIDDEN => "permission_error",
        StatusCode::NOT_FOUND => "not_found_error",
        StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
        StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
        status if status.is_client_error() => "invalid_request_error",
        _ => "api_error",
    }
}

/// Returns the JSON object of an error body or error event. The API has no field for the name of a parameter,
/// so the message includes it.
pub(super) fn to_json(error: &ApiError, request_id: Option<&str>) -> Value {
    let message = match (&error.param, error.overflow) {
        // Clients recognize these words and shorten the conversation.
        (_, Some(Overflow { wanted, limit })) => {
            format!("prompt is too long: {wanted} tokens > {limit} maximum")
        }
        (Some(param), None) if !error.message.starts_with(&format!("`{param}`")) => {
            format!("{param}: {}", error.message)
        }
        _ => error.message.clone(),
    };
    let inner = json!({ "type": kind(error.status), "message": message });
    json!({ "type": "error", "error": inner, "request_id": request_id })
}

/// Converts an error response to this API's format and sets the request id header.
pub(crate) fn in_own_form(mut response: Response) -> Response {
    let id = format!("req_{:016x}", random());
    if let Some(error) = response.extensions_mut().remove::<ApiError>() {
        *response.body_mut() = Body::from(to_json(&error, Some(&id)).to_string());
        if error.status == StatusCode::SERVICE_UNAVAILABLE
            && let Ok(status) = StatusCode::from_u16(OVERLOADED)
        {
            *response.status_mut() = status;
        }
    }
    if let Ok(id) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(ID_HEADER, id);
    }
    response
}
