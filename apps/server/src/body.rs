//! Reading of request bodies, within limits per body and a byte budget for all bodies.

use axum::body::Body;
use axum::http::{HeaderMap, StatusCode, header};
use http_body_util::BodyExt;
use hyper::body::Body as _;
use serde_json::Value;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

use crate::error::ApiError;
use crate::json;
use crate::limits::{BODY_BYTES_MAX, ConnectionLimits};

/// Byte budget for all bodies that are being read or parsed.
#[derive(Debug)]
pub(crate) struct BodyBudget {
    free: Semaphore,
}

/// A body with its share of the byte budget. Both are released together.
struct WholeBody<'a> {
    bytes: Vec<u8>,
    share: Option<SemaphorePermit<'a>>,
}

impl BodyBudget {
    pub fn new(bytes: usize) -> Self {
        Self { free: Semaphore::new(bytes.min(Semaphore::MAX_PERMITS)) }
    }

    /// Reads a JSON body. Its bytes are released once it is parsed.
    ///
    /// # Errors
    /// 408 if it takes too long, 413 if it is too long, 503 if the budget or the memory is exhausted, 400 if
    /// it is not JSON.
    pub async fn read(&self, body: Body, limits: &ConnectionLimits) -> Result<Value, ApiError> {
        let time = limits.body_time;
        let late = |_| {
            let message = format!("the body was not there within {} s", time.as_secs_f64());
            ApiError::status(StatusCode::REQUEST_TIMEOUT, "request_timeout", message)
        };
        let whole = timeout(time, self.whole(body)).await.map_err(late)??;
        json::read(&whole.bytes)
    }

    async fn whole(&self, mut body: Body) -> Result<WholeBody<'_>, ApiError> {
        let mut whole = WholeBody { bytes: Vec::new(), share: None };
        let length = body.size_hint().exact();
        // Default: a chunked body declares no length. A declared length reserves nothing: only bytes that
        // arrived count.
        let length = usize::try_from(length.unwrap_or(0)).unwrap_or(usize::MAX);
        if length > BODY_BYTES_MAX {
            return Err(too_long());
        }
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| {
                ApiError::malformed(format!("the body did not arrive: {error}"))
            })?;
            // Trailers are ignored.
            let Ok(data) = frame.into_data() else { continue };
            if data.len() > BODY_BYTES_MAX - whole.bytes.len() {
                return Err(too_long());
            }
            self.charge(&mut whole, data.len())?;
            whole.append(&data, length)?;
        }
        Ok(whole)
    }

    fn charge<'a>(&'a self, whole: &mut WholeBody<'a>, bytes: usize) -> Result<(), ApiError> {
        let full = || ApiError::busy("the bodies of other requests take all the memory for bodies");
        let bytes = u32::try_from(bytes).map_err(|_| too_long())?;
        let more = self.free.try_acquire_many(bytes).map_err(|_| full())?;
        match &mut whole.share {
            Some(share) => share.merge(more),
            None => whole.share = Some(more),
        }
        Ok(())
    }
}

impl WholeBody<'_> {
    /// Appends bytes of a body whose declared length is `length`, 0 if it has none.
    fn append(&mut self, data: &[u8], length: usize) -> Result<(), ApiError> {
        let needed = self.bytes.len() + data.len();
        if needed > self.bytes.capacity() {
            let doubled = self.bytes.capacity().saturating_mul(2);
            let capacity = if length > 0 { doubled.min(length) } else { doubled }.max(needed);
            let more = capacity - self.bytes.len();
            let reserved = self.bytes.try_reserve_exact(more);
            reserved.map_err(|_| ApiError::busy("not enough memory for the request body"))?;
        }
        self.bytes.extend_from_slice(data);
        Ok(())
    }
}

fn too_long() -> ApiError {
    let message = format!("a body of at most {BODY_BYTES_MAX} bytes was expected");
    ApiError::status(StatusCode::PAYLOAD_TOO_LARGE, "request_too_large", message)
}

/// Rejects transfer and content codings that are not supported.
///
/// # Errors
/// 501 for a transfer coding other than `chunked`, 415 for a content coding.
pub(crate) fn check_codings(headers: &HeaderMap) -> Result<(), ApiError> {
    let is = |name: header::HeaderName, known: &str| {
        headers
            .get_all(name)
            .iter()
            .all(|value| value.as_bytes().trim_ascii().eq_ignore_ascii_case(known.as_bytes()))
    };
    if !is(header::TRANSFER_ENCODING, "chunked") {
        let message = "`Transfer-Encoding` other than `chunked` is not supported";
        return Err(ApiError::status(StatusCode::NOT_IMPLEMENTED, "not_implemented", message));
    }
    if !is(header::CONTENT_ENCODING, "identity") {
        let message = "a body without `Content-Encoding` was expected";
        let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        return Err(ApiError::status(status, "unsupported_media_type", message));
    }
    Ok(())
}
