//! Errors in the format of the OpenAI API.

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use nestling::{EngineError, ErrorClass};
use serde_json::{Value, json};

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ApiError {
    pub status: StatusCode,
    /// Error type as named by the API.
    pub kind: &'static str,
    pub message: String,
    /// Path of the invalid field, such as `messages[2].content`.
    pub param: Option<String>,
    pub code: Option<&'static str>,
    /// Value of the `Retry-After` header in seconds.
    pub retry_after: Option<u32>,
    pub overflow: Option<Overflow>,
}

/// A prompt that does not fit into the context, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Overflow {
    pub wanted: u64,
    pub limit: u64,
}

const INVALID: &str = "invalid_request_error";
const UNAVAILABLE: &str = "unavailable_error";

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        let (message, param, code) = (message.into(), None, None);
        Self { status, kind, message, param, code, retry_after: None, overflow: None }
    }

    /// Creates an error for a field with an invalid value.
    pub fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        let param = Some(param.into());
        Self { param, ..Self::new(StatusCode::BAD_REQUEST, INVALID, message) }
    }

    /// Creates an error for a field without effect.
    pub fn unknown(param: impl Into<String>) -> Self {
        let param = param.into();
        let message = format!("`{param}` has no effect on this server, which refuses such fields");
        Self { code: Some("unknown_parameter"), ..Self::invalid(param, message) }
    }

    /// Creates an error for a field or value of the API that this server does not support.
    pub fn unsupported(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self { code: Some("unsupported_parameter"), ..Self::invalid(param, message) }
    }

    /// Creates an error for a request that cannot be parsed.
    pub fn malformed(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, INVALID, message)
    }

    pub fn status(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { code: Some(code), ..Self::new(status, INVALID, message) }
    }

    /// Creates a 404 error for an unknown path, with the route that was probably meant.
    pub fn no_route(path: &str) -> Self {
        let hint = similar(path).map(|route| format!("; did you mean {route:?}?"));
        // Default: no hint.
        let message = format!("there is no route {path:?}{}", hint.unwrap_or_default());
        Self::status(StatusCode::NOT_FOUND, "unknown_url", message)
    }

    /// Creates a 404 error for a response that is not stored, or not for this caller.
    pub fn no_response(which: &str) -> Self {
        let message =
            format!("the response {which} is not stored; the ones used longest ago leave first");
        Self::status(StatusCode::NOT_FOUND, "response_not_found", message)
    }

    pub fn no_model(id: &str, served: &str) -> Self {
        let message = format!("the model {id:?} is not served here; {served:?} is");
        let error = Self::status(StatusCode::NOT_FOUND, "model_not_found", message);
        Self { param: Some("model".into()), ..error }
    }

    /// Creates a 404 error for an unknown model of a server with several models.
    pub fn no_listed_model(id: &str) -> Self {
        let message =
            format!("the model {id:?} is not served here; `/v1/models` lists those that are");
        let error = Self::status(StatusCode::NOT_FOUND, "model_not_found", message);
        Self { param: Some("model".into()), ..error }
    }

    /// Creates an error for a listed model that failed to open.
    pub fn not_opened(id: &str, why: &str) -> Self {
        let message = format!("the model {id:?} cannot be opened: {why}");
        let error = Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message);
        Self { param: Some("model".into()), code: Some("model_not_opened"), ..error }
    }

    pub fn unauthorized() -> Self {
        let message = "a key is needed: `Authorization: Bearer KEY` or `X-Api-Key: KEY`";
        let error = Self::new(StatusCode::UNAUTHORIZED, "authentication_error", message);
        Self { code: Some("invalid_api_key"), ..error }
    }

    pub fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "permission_error", message)
    }

    /// Creates an error for requests that arrive before the model is open.
    pub fn loading() -> Self {
        let error = Self::new(StatusCode::SERVICE_UNAVAILABLE, UNAVAILABLE, "Loading model");
        Self { retry_after: Some(1), ..error }
    }

    /// Creates a 503 error; the client may retry.
    pub fn busy(message: impl Into<String>) -> Self {
        let error = Self::new(StatusCode::SERVICE_UNAVAILABLE, UNAVAILABLE, message);
        Self { code: Some("busy"), retry_after: Some(1), ..error }
    }

    /// Creates an error for answers that the end of the server cuts off.
    pub fn shut_down() -> Self {
        let message = "the server shut down before the end of the answer";
        let error = Self::new(StatusCode::SERVICE_UNAVAILABLE, UNAVAILABLE, message);
        Self { code: Some("shut_down"), ..error }
    }

    /// Creates an error for a stale model that cannot be reopened without a restart.
    pub fn stale(id: &str) -> Self {
        let message = format!("the model {id:?} must be opened again; restart the server");
        let error = Self::new(StatusCode::SERVICE_UNAVAILABLE, UNAVAILABLE, message);
        Self { code: Some("model_stale"), ..error }
    }

    /// Creates an internal server error.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    /// Converts an engine error. `param` is named as the cause if the caller is at fault.
    pub fn engine(error: EngineError, param: &'static str) -> Self {
        // Clients may see file names, but not the server's folders.
        let error = error.without_folders();
        let message = error.to_string();
        if let EngineError::ContextFull { limit, wanted } = error {
            return Self::too_long(param, Overflow { wanted, limit });
        }
        match error.class() {
            // Output constraints come from fields other than `param`.
            _ if matches!(error, EngineError::Constraint(_)) => {
                Self { code: Some("constraint"), ..Self::malformed(message) }
            }
            ErrorClass::Caller => Self::invalid(param, message),
            ErrorClass::Busy | ErrorClass::NoRoom => Self::busy(message),
            ErrorClass::Stopped => Self { code: Some("stopped"), ..Self::busy(message) },
            _ => Self::internal(message),
        }
    }

    /// Creates an error for a prompt that does not fit. Clients recognize the first sentence and the code, and
    /// shorten the conversation.
    fn too_long(param: &str, overflow: Overflow) -> Self {
        let Overflow { wanted, limit } = overflow;
        let message = format!(
            "This model's maximum context length is {limit} tokens. However, the prompt needs {wanted} tokens."
        );
        let (code, overflow) = (Some("context_length_exceeded"), Some(overflow));
        Self { code, overflow, ..Self::invalid(param, message) }
    }

    /// Returns the JSON object of an error body or error event.
    pub fn to_json(&self) -> Value {
        let code = match (self.code, self.status) {
            (Some(code), _) => code.into(),
            // Clients of llama.cpp's server expect the number 503 here.
            (None, StatusCode::SERVICE_UNAVAILABLE) => 503.into(),
            (None, _) => Value::Null,
        };
        json!({ "error": {
            "message": self.message, "type": self.kind, "param": self.param, "code": code,
        }})
    }
}

/// Returns the route that a wrong base URL was meant to reach: without a repeated `/v1`, or with a missing one.
fn similar(path: &str) -> Option<String> {
    const BELOW_V1: [&str; 4] = ["/chat/completions", "/completions", "/responses", "/messages"];
    let rest = path.trim_start_matches("/api").trim_start_matches("/v1");
    BELOW_V1.contains(&rest).then(|| format!("/v1{rest}"))
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = json_response(self.status, &self.to_json());
        // Read by APIs that convert errors to their own format.
        response.extensions_mut().insert(self.clone());
        let headers = response.headers_mut();
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

pub(crate) fn json_response(status: StatusCode, value: &Value) -> Response {
    text_response(status, "application/json", value.to_string())
}

pub(crate) fn text_response(status: StatusCode, kind: &'static str, text: String) -> Response {
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
