//! Errors as Anthropic's API writes them.

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::usage::random;

/// The API's own status for a server that has too much to do.
const OVERLOADED: u16 = 529;

/// Where clients look for the name of their request.
const ID_HEADER: &str = "request-id";

/// The API's word for an error.
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

/// The object of a body or of an event. The API has no place for a field's name but the message.
pub(super) fn to_json(error: &ApiError, request_id: Option<&str>) -> Value {
    let message = match &error.param {
        Some(param) => format!("{param}: {}", error.message),
        None => error.message.clone(),
    };
    let inner = json!({ "type": kind(error.status), "message": message });
    json!({ "type": "error", "error": inner, "request_id": request_id })
}

/// A response of one of this API's routes, with its errors in this form and its name in the header of the API.
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
