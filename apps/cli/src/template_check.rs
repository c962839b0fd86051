//! Check of a store's chat template for `verify` and `inspect`.

use crate::explain::explain_store;
use crate::failure::Result;
use nestling::Message;
use nestling::engine::text::{ChatInput, ChatTemplate, TemplateTime, TextError};
use nestling::formats::store::Store;

/// Returns the reason why a store's chat template cannot be used: a syntax error, or a limit exceeded by the
/// shortest conversation. Returns `None` if the template works or is missing.
pub fn template_fault(store: &Store) -> Result<Option<String>> {
    let asset = |name| store.asset(name).map_err(|error| explain_store(&error));
    let (config, file) = (asset("tokenizer_config.json")?, asset("chat_template.jinja")?);
    Ok(fault_of(config.as_deref(), file.as_deref()))
}

fn fault_of(config: Option<&[u8]>, file: Option<&[u8]>) -> Option<String> {
    let template = match ChatTemplate::from_files(config, file) {
        Ok(template) => template?,
        Err(error) => return Some(error.to_string()),
    };
    let messages = [Message::user("Hello")];
    let input = ChatInput {
        messages: &messages,
        add_generation_prompt: true,
        now: Some(TemplateTime::from_unix_seconds(0)),
        ..ChatInput::default()
    };
    match template.render(&input) {
        // A template may refuse this conversation, or require values that it does not contain.
        Ok(_) | Err(TextError::TemplateRefused { .. } | TextError::TemplateRender { .. }) => None,
        Err(error) => Some(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::fault_of;

    #[test]
    fn templates_that_cannot_be_used_are_named() {
        let fault = |template: &str| fault_of(None, Some(template.as_bytes()));
        assert_eq!(fault_of(None, None), None);
        assert_eq!(fault("{{ messages[0].content }}"), None);
        assert_eq!(fault("{{ raise_exception('no') }}"), None);
        let broken = fault("a\n{% if %}").unwrap();
        assert!(broken.contains("line 2"), "{broken}");
        let doubling = "{% set n = namespace(s='x') %}{% for i in range(999) %}\
                        {% set n.s = n.s ~ n.s %}{% endfor %}";
        let bound = fault(doubling).unwrap();
        assert!(bound.contains("bytes"), "{bound}");
        let endless =
            "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}";
        let bound = fault(endless).unwrap();
        assert!(bound.contains("work"), "{bound}");
    }
}
