//! Anthropic's API: `POST /v1/messages` and `POST /v1/messages/count_tokens`.

mod blocks;
mod error;
mod history;
mod reply;
mod request;
mod stream;
mod tools;

use std::sync::Arc;

use axum::http::StatusCode;
use axum::response::Response;
use nestling::EngineError;
use serde_json::json;

use crate::access::Caller;
use crate::answers;
use crate::error::{ApiError, json_response};
use crate::events;
use crate::fields::Fields;
use crate::parts;
use crate::server::ServedModel;
use reply::Head;
use request::{MessageRequest, MessagesPrompt};

pub(crate) use error::in_own_form;

pub(crate) fn owns(path: &str) -> bool {
    let rest = path.strip_prefix("/v1/messages");
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// # Errors
/// Returns an error if the request is invalid or its generation cannot start.
pub(crate) async fn create(
    served: Arc<ServedModel>,
    fields: Fields,
    caller: Caller,
) -> Result<Response, ApiError> {
    // Schemas are compiled here, which may take long.
    let (request, slot) = served.read(move |served| MessageRequest::read(fields, served)).await?;
    let MessageRequest { job, stream } = request;
    let head = Head::new(&served, job.options.stop.clone());
    let answers = answers::start(&served, job, slot, &caller).await?;
    if stream {
        let form = stream::MessageStream::new(head, &answers);
        return Ok(events::response(answers, form));
    }
    let parts = parts::whole(answers).await?;
    Ok(json_response(StatusCode::OK, &head.message(&parts)?))
}

/// Counts the tokens of a conversation.
///
/// # Errors
/// Returns an error if the request is invalid.
pub(crate) async fn count_tokens(
    served: Arc<ServedModel>,
    mut fields: Fields,
) -> Result<Response, ApiError> {
    let count = move |served: &ServedModel| {
        let talk = MessagesPrompt::take(&mut fields, served)?;
        fields.end()?;
        let refused = |error: EngineError| served.refused(error, "messages");
        let tokens = served.model.conversation_tokens(&talk.conversation).map_err(refused)?;
        Ok(json_response(StatusCode::OK, &json!({ "input_tokens": tokens.len() })))
    };
    Ok(served.read(count).await?.0)
}
