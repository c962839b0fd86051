//! `POST /v1/responses`. Nothing is stored between requests.

mod items;
mod reply;
mod request;
mod stream;
mod tools;

use std::sync::Arc;

use axum::http::StatusCode;
use axum::response::Response;

use crate::access::Caller;
use crate::answers;
use crate::error::{ApiError, json_response};
use crate::events;
use crate::fields::Fields;
use crate::parts::Parts;
use crate::server::ServedModel;
use reply::Reply;
use request::ResponseRequest;

/// # Errors
/// Returns an error if the request is invalid or its generation cannot start.
pub(crate) async fn create(
    served: Arc<ServedModel>,
    fields: Fields,
    caller: Caller,
) -> Result<Response, ApiError> {
    // Schemas are compiled here, which may take long.
    let (request, slot) = served.read(move |served| ResponseRequest::read(fields, served)).await?;
    let ResponseRequest { job, stream, echo, forms, has_logprobs } = request;
    let reply = Reply::new(&served, echo, forms, has_logprobs);
    let mut answers = answers::start(&served, job, slot, &caller).await?;
    if stream {
        let form = stream::ResponseStream::new(served, reply);
        return Ok(events::response(answers, form));
    }
    let (mut parts, mut ids) = (Parts::default(), reply::Ids::default());
    while let Some(said) = answers.next().await {
        parts.take(said?.event, &mut |part, index, _| {
            ids.of(part, index);
        });
    }
    Ok(json_response(StatusCode::OK, &reply.whole(&served.model, &parts, &ids)?))
}
