//! What a request asks to go on from.

use nestling::engine::text::{EncodeOptions, SpecialText};
use nestling::{CancelToken, Conversation, EngineError, Input, Model, Session};

/// A prompt before it is tokens.
#[derive(Clone, Debug)]
pub(crate) enum Prompt {
    Conversation(Box<Conversation>),
    Text(String),
    Tokens(Vec<u32>),
}

impl Prompt {
    /// Its tokens. What is too long by its bytes alone is not tokenized.
    ///
    /// # Errors
    /// [`EngineError::ContextFull`] where there is no room for `reserve` more tokens; as [`Session::generate`].
    pub fn tokens(
        &self,
        model: &Model,
        reserve: usize,
        cancel: &CancelToken,
    ) -> Result<Vec<u32>, EngineError> {
        let check = |tokens: usize| {
            let (limit, wanted) = (model.context_length() as u64, (tokens + reserve) as u64);
            if wanted > limit { Err(EngineError::ContextFull { limit, wanted }) } else { Ok(()) }
        };
        let tokens = match self {
            Self::Conversation(conversation) => {
                check(least_tokens(model, conversation))?;
                model.conversation_tokens_with_cancel(conversation, cancel)?
            }
            Self::Text(text) => {
                let tokenizer = model.tokenizer().ok_or(EngineError::NoTokenizer)?;
                check(tokenizer.least_tokens(text))?;
                let special_text = SpecialText::Parse;
                let options = EncodeOptions { add_special_tokens: true, special_text };
                let encode = tokenizer.encode_until(text, options, &|| cancel.is_cancelled());
                encode.map_err(EngineError::text)?
            }
            Self::Tokens(tokens) => {
                check(tokens.len())?;
                tokens.clone()
            }
        };
        check(tokens.len())?;
        Ok(tokens)
    }

    /// Gives the session the prompt's tokens, unless the engine reads them out of the conversation; then what to go on
    /// from.
    ///
    /// # Errors
    /// As [`Session::replace`].
    pub fn input(&self, session: &mut Session, tokens: &[u32]) -> Result<Input, EngineError> {
        match self {
            // The engine must see the conversation to know how its answer is read.
            Self::Conversation(conversation) => Ok(Input::Messages(conversation.as_ref().clone())),
            _ => {
                session.replace(tokens.to_vec())?;
                Ok(Input::History)
            }
        }
    }
}

/// The fewest tokens that a conversation's texts can have.
fn least_tokens(model: &Model, conversation: &Conversation) -> usize {
    // Default: without a tokenizer there is no conversation, which its rendering says.
    let Some(tokenizer) = model.tokenizer() else { return 0 };
    let texts = conversation.messages.iter().filter_map(|message| message.content.as_ref());
    texts.map(|content| tokenizer.least_tokens(&content.text())).sum()
}
