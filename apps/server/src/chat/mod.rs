//! `POST /v1/chat/completions`.

mod messages;
mod reply;
mod request;
mod stream;
pub(crate) mod tools;

use std::sync::Arc;

use axum::response::Response;

use crate::access::Caller;
use crate::answers;
use crate::error::ApiError;
use crate::events;
use crate::fields::Fields;
use crate::server::ServedModel;
use request::ChatRequest;

/// # Errors
/// Returns an error if the request is invalid or its generation cannot start.
pub(crate) async fn complete(
    served: Arc<ServedModel>,
    fields: Fields,
    caller: Caller,
) -> Result<Response, ApiError> {
    // Schemas are compiled here, which may take long.
    let (request, slot) = served.read(move |served| ChatRequest::read(fields, served)).await?;
    let ChatRequest { job, stream, include_usage, has_logprobs } = request;
    let answers = answers::start(&served, job, slot, &caller).await?;
    if stream {
        let form = stream::ChatStream::new(served, &answers, include_usage, has_logprobs);
        return Ok(events::response(answers, form));
    }
    reply::whole(&served, answers, has_logprobs).await
}
