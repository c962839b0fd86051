//! Prompts of requests.

use nestling::{CancelToken, Conversation, EngineError, Input, Model};

#[derive(Clone, Debug)]
pub(crate) enum Prompt {
    Conversation(Box<Conversation>),
    Text(String),
    Tokens(Vec<u32>),
}

impl Prompt {
    /// Renders and tokenizes the prompt. A conversation whose minimum number of tokens exceeds the context is
    /// rejected before it is rendered.
    ///
    /// # Errors
    /// The errors of [`Model::prompt`].
    pub fn prepare(
        &self,
        model: &Model,
        reserve: usize,
        cancel: &CancelToken,
    ) -> Result<nestling::Prompt, EngineError> {
        let input = match self {
            Self::Conversation(conversation) => {
                let (limit, least) = (model.context_length(), least_tokens(model, conversation));
                let wanted = least.saturating_add(reserve);
                if wanted > limit {
                    let (limit, wanted) = (limit as u64, wanted as u64);
                    return Err(EngineError::ContextFull { limit, wanted });
                }
                Input::Messages(conversation.as_ref().clone())
            }
            Self::Text(text) => Input::Text(text.clone()),
            Self::Tokens(tokens) => Input::Tokens(tokens.clone()),
        };
        model.prompt(input, reserve, cancel)
    }
}

/// Returns a lower bound on the number of tokens of a conversation.
fn least_tokens(model: &Model, conversation: &Conversation) -> usize {
    // Default: without a tokenizer, rendering the conversation fails with a clear error.
    let Some(tokenizer) = model.tokenizer() else { return 0 };
    let texts = conversation.messages.iter().filter_map(|message| message.content.as_ref());
    texts.map(|content| tokenizer.least_tokens(&content.text())).sum()
}
