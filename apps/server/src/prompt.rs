//! What a request asks to go on from.

use nestling::{CancelToken, Conversation, EngineError, Input, Model};

/// A prompt before it is tokens.
#[derive(Clone, Debug)]
pub(crate) enum Prompt {
    Conversation(Box<Conversation>),
    Text(String),
    Tokens(Vec<u32>),
}

impl Prompt {
    /// As tokens. What is too long by its bytes alone is neither rendered nor tokenized.
    ///
    /// # Errors
    /// As [`Model::prompt`].
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

/// The fewest tokens that a conversation's texts can have.
fn least_tokens(model: &Model, conversation: &Conversation) -> usize {
    // Default: without a tokenizer there is no conversation, which its rendering says.
    let Some(tokenizer) = model.tokenizer() else { return 0 };
    let texts = conversation.messages.iter().filter_map(|message| message.content.as_ref());
    texts.map(|content| tokenizer.least_tokens(&content.text())).sum()
}
