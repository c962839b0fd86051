//! Models.

use std::sync::Arc;

use nestling::engine::text::{EncodeOptions, Tokenizer};
use nestling::{ConversationJson, EngineError, SpecialText};

use crate::chat::{Chat, ChatOptions};
use crate::engine::Engine;
use crate::error::NestlingError;
use crate::opening::{self, OpenListener, OpenOptions};
use crate::session::Session;
use crate::status::Status;

/// An open model. Any number of threads may use it concurrently. Its sessions, chats and generations keep it
/// open.
#[derive(Debug, uniffi::Object)]
pub struct Model {
    model: nestling::Model,
}

impl Model {
    fn tokenizer(&self) -> Result<&Tokenizer, NestlingError> {
        self.model.tokenizer().ok_or_else(|| EngineError::NoTokenizer.into())
    }
}

#[uniffi::export]
impl Model {
    /// Opens a model: a `.nest` store, a GGUF file in place, or the folder of a Hugging Face checkpoint. A
    /// cancelled call stops the opening between two layers.
    ///
    /// # Errors
    /// Fails with `MissingFile`, `Source` for a file that is damaged, `NoRoom` for a budget that is too small,
    /// and `Caller` for invalid options.
    #[uniffi::constructor(default(options = None, engine = None, listener = None))]
    pub async fn open(
        path: String,
        options: Option<OpenOptions>,
        engine: Option<Arc<Engine>>,
        listener: Option<Box<dyn OpenListener>>,
    ) -> Result<Arc<Self>, NestlingError> {
        // Default: the options of the library.
        let options = options.unwrap_or_default();
        let model = opening::open(path, options, engine, listener).await?;
        Ok(Arc::new(Self { model }))
    }

    /// Creates a session with an empty history.
    #[must_use]
    pub fn session(&self) -> Arc<Session> {
        Session::new(self.model.session())
    }

    /// Creates a chat.
    ///
    /// # Errors
    /// Fails with `Caller` for invalid JSON.
    #[uniffi::method(default(options = None))]
    pub fn chat(&self, options: Option<ChatOptions>) -> Result<Arc<Chat>, NestlingError> {
        // Default: no instructions and no tools.
        Chat::new(self.model.session(), options.unwrap_or_default())
    }

    /// Restores a session from a snapshot. Call it from a thread that may block.
    ///
    /// # Errors
    /// Fails with `Caller` for a damaged snapshot, or one of another model.
    pub fn restore(&self, snapshot: Vec<u8>) -> Result<Arc<Session>, NestlingError> {
        Ok(Session::new(self.model.restore(&snapshot)?))
    }

    /// Changes the memory budget, in bytes. Streamed experts that exceed it are evicted.
    ///
    /// # Errors
    /// Fails with `NoRoom` if memory that cannot be evicted exceeds the budget. Nothing changes then.
    pub fn set_memory_budget(&self, bytes: u64) -> Result<(), NestlingError> {
        Ok(self.model.set_memory_budget(bytes)?)
    }

    /// Evicts streamed experts of up to `bytes` bytes, no later than before the next layer. The budget stays as
    /// it is, and they are read again on use.
    pub fn relieve_pressure(&self, bytes: u64) {
        self.model.shed_experts(bytes);
    }

    /// Converts text to tokens.
    ///
    /// # Errors
    /// Fails with `Caller` if the model has no tokenizer or the text is too long.
    #[uniffi::method(default(add_special_tokens = false, parse_special = false))]
    pub fn encode(
        &self,
        text: &str,
        add_special_tokens: bool,
        parse_special: bool,
    ) -> Result<Vec<u32>, NestlingError> {
        let special_text = if parse_special { SpecialText::Parse } else { SpecialText::Plain };
        let tokens =
            self.tokenizer()?.encode(text, EncodeOptions { add_special_tokens, special_text });
        Ok(tokens.map_err(EngineError::text)?)
    }

    /// Converts tokens to text.
    ///
    /// # Errors
    /// Fails with `Caller` if the model has no tokenizer or a token does not exist.
    #[uniffi::method(default(keep_special = false))]
    pub fn decode(&self, tokens: Vec<u32>, keep_special: bool) -> Result<String, NestlingError> {
        let text = self.tokenizer()?.decode(&tokens, keep_special);
        Ok(text.map_err(EngineError::text)?)
    }

    /// Returns the tokens of a conversation's prompt. The conversation is JSON, as in
    /// `Session.generate_conversation`.
    ///
    /// # Errors
    /// Fails with `Caller` for invalid JSON, or a model without a chat template.
    pub fn conversation_tokens(&self, conversation: &str) -> Result<Vec<u32>, NestlingError> {
        let conversation = ConversationJson::parse(conversation)?.into();
        Ok(self.model.conversation_tokens(&conversation)?)
    }

    /// Returns the description and current state of the model.
    #[must_use]
    pub fn status(&self) -> Status {
        Status::of(&self.model)
    }
}
