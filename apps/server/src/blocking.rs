//! Work on threads that may block.

use crate::error::ApiError;

/// Runs work that would delay other requests, such as tokenizing or compiling a schema, on a thread that may
/// block.
///
/// # Errors
/// Returns an internal error if `work` panics.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ApiError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| ApiError::internal(format!("a part of the server failed: {error}")))
}
