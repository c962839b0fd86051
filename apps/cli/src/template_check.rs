//! What `verify` and `inspect` say of a store's chat template.

use crate::explain::explain_store;
use crate::failure::Result;
use nestling::Message;
use nestling::engine::text::{ChatInput, ChatTemplate, TemplateTime, TextError};
use nestling::formats::store::Store;

/// Why the chat template of a store cannot be used: it does not parse, or it breaks a bound over
/// the shortest conversation. `None` where it can, or there is none.
pub fn template_fault(store: &Store) -> Result<Option<String>> {
    let asset = |name| store.asset(name).map_err(|error| explain_store(&error));
    let (config, file) = (asset("tokenizer_config.json")?, asset("chat_template.jinja")?);
    let template = match ChatTemplate::from_files(config.as_deref(), file.as_deref()) {
        Ok(Some(template)) => template,
        Ok(None) => return Ok(None),
        Err(error) => return Ok(Some(error.to_string())),
    };
    let messages = [Message::user("Hello")];
    let input = ChatInput {
        messages: &messages,
        add_generation_prompt: true,
        now: Some(TemplateTime::from_unix_seconds(0)),
        ..ChatInput::default()
    };
    Ok(match template.render(&input) {
        // A template may refuse a conversation, and want what this one lacks.
        Ok(_) | Err(TextError::TemplateRefused { .. } | TextError::TemplateRender { .. }) => None,
        Err(error) => Some(error.to_string()),
    })
}
