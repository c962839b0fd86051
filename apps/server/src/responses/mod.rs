//! `/v1/responses`: OpenAI's Responses API, with the last responses kept in memory.

mod history;
mod items;
mod reply;
mod request;
mod sealed;
mod stored;
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
pub(crate) use stored::{delete, input_items, show};

/// # Errors
/// Returns an error if the request is invalid or its generation cannot start.
pub(crate) async fn create(
    served: Arc<ServedModel>,
    fields: Fields,
    caller: Caller,
) -> Result<Response, ApiError> {
    // Schemas are compiled here, which may take long.
    let owner = caller.owner();
    let read = move |served: &ServedModel| ResponseRequest::read(fields, served, owner);
    let (request, slot) = served.read(read).await?;
    let ResponseRequest { job, stream, echo, forms, included, storage } = request;
    let reply = Reply::new(&served, echo, forms, included, storage);
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
    Ok(json_response(StatusCode::OK, &reply.finish(&served, &parts, &ids)?))
}
