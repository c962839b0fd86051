//! Sessions: token histories that can be continued.

use std::sync::Arc;

use nestling::{Conversation, ConversationJson, Input, ToolSchema};

use crate::error::NestlingError;
use crate::exclusive::Exclusive;
use crate::generation::Generation;
use crate::options::GenerateOptions;

/// Contents of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, uniffi::Enum)]
pub enum SnapshotContents {
    /// Tokens alone. The restored session computes them again.
    Tokens,
    /// Tokens and their KV pages. The restored session continues at once.
    TokensAndPages,
}

/// A token history with its KV cache. One call at a time may use it.
#[derive(Debug, uniffi::Object)]
pub struct Session {
    session: Exclusive<nestling::Session>,
}

impl Session {
    pub(crate) fn new(session: nestling::Session) -> Arc<Self> {
        Arc::new(Self { session: Exclusive::new("session", session) })
    }

    async fn start(
        &self,
        mut input: Input,
        tools: Vec<ToolSchema>,
        options: Option<GenerateOptions>,
    ) -> Result<Arc<Generation>, NestlingError> {
        // Default: the options of the model.
        let (options, choice) = options.unwrap_or_default().read(&tools)?;
        if let Input::Messages(conversation) = &mut input {
            conversation.tools = choice.tools(&tools).to_vec();
        }
        let mut session = self.session.take()?;
        let begun = session.get()?.generate_async(input, &options).await?;
        Ok(Generation::new(begun))
    }
}

#[uniffi::export]
impl Session {
    /// Appends text to the history and starts an answer.
    ///
    /// # Errors
    /// Fails with `Caller` for invalid options or a text that is too long, and with `Busy` while an answer of
    /// this session runs.
    #[uniffi::method(default(options = None))]
    pub async fn generate(
        &self,
        text: String,
        options: Option<GenerateOptions>,
    ) -> Result<Arc<Generation>, NestlingError> {
        self.start(text.into(), Vec::new(), options).await
    }

    /// Appends tokens to the history and starts an answer. Without tokens, the history continues.
    ///
    /// # Errors
    /// Fails as `generate` does.
    #[uniffi::method(default(options = None))]
    pub async fn generate_tokens(
        &self,
        tokens: Vec<u32>,
        options: Option<GenerateOptions>,
    ) -> Result<Arc<Generation>, NestlingError> {
        self.start(tokens.into(), Vec::new(), options).await
    }

    /// Starts an answer to a whole conversation: JSON with `messages`, `tools`, `chat_template_kwargs` and `now`.
    /// Messages and tools are those of the OpenAI API.
    ///
    /// # Errors
    /// Fails as `generate` does.
    #[uniffi::method(default(options = None))]
    pub async fn generate_conversation(
        &self,
        conversation: String,
        options: Option<GenerateOptions>,
    ) -> Result<Arc<Generation>, NestlingError> {
        let mut asked = ConversationJson::parse(&conversation)?;
        let tools = std::mem::take(&mut asked.tools);
        self.start(Conversation::from(asked).into(), tools, options).await
    }

    /// Returns a second session with the same history. Both share its pages.
    ///
    /// # Errors
    /// Fails with `Busy` while another call uses the session.
    pub fn fork(&self) -> Result<Arc<Self>, NestlingError> {
        self.session.with(|session| Ok(Self::new(session.fork()?)))
    }

    /// Returns the tokens of the history.
    ///
    /// # Errors
    /// Fails with `Busy` while another call uses the session.
    pub fn tokens(&self) -> Result<Vec<u32>, NestlingError> {
        self.session.with(|session| Ok(session.tokens()?))
    }

    /// Appends tokens to the history. The next generation computes them.
    ///
    /// # Errors
    /// Fails with `Caller` for tokens that do not exist, and with `Busy` while an answer runs.
    pub fn append(&self, tokens: Vec<u32>) -> Result<(), NestlingError> {
        self.session.with(|session| Ok(session.append(&tokens)?))
    }

    /// Removes all tokens of the history after the first `length`.
    ///
    /// # Errors
    /// Fails with `Busy` while an answer runs.
    pub fn truncate(&self, length: u64) -> Result<(), NestlingError> {
        // Default: a length beyond the address space removes nothing.
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        self.session.with(|session| Ok(session.truncate(length)?))
    }

    /// Returns the session as bytes, for `Model.restore`. Call it from a thread that may block.
    ///
    /// # Errors
    /// Fails with `Busy` while an answer runs.
    pub fn snapshot(&self, contents: SnapshotContents) -> Result<Vec<u8>, NestlingError> {
        let contents = match contents {
            SnapshotContents::Tokens => nestling::SnapshotContents::Tokens,
            SnapshotContents::TokensAndPages => nestling::SnapshotContents::TokensAndPages,
        };
        self.session.with(|session| Ok(session.snapshot(contents)?))
    }
}
