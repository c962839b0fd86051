//! Messages as JSON.

use nestling::Message;

use crate::error::Failure;

/// Returns messages as JSON in the format of the OpenAI API.
pub(crate) fn written(messages: &[Message]) -> Result<String, Failure> {
    serde_json::to_string(messages).map_err(|error| Failure::caller(format!("messages: {error}")))
}
