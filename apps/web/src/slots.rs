//! Conversations and sessions, which outlive the model that they were started with.

use nestling::{
    Chat, Conversation, ConversationJson, EngineError, Message, Model, Session, ToolSchema,
};

use crate::error::TabError;

/// A conversation. Its session is created again when the level rises.
pub(crate) struct ChatSlot {
    conversation: Conversation,
    /// All tools of the conversation, of which an answer may choose some.
    pub(crate) tools: Vec<ToolSchema>,
    chat: Option<Chat>,
}

impl ChatSlot {
    /// Reads the JSON form of a conversation.
    pub(crate) fn new(json: &str) -> Result<Self, TabError> {
        let mut parsed = ConversationJson::parse(json).map_err(|error| TabError::Invalid {
            what: "conversation",
            reason: error.to_string(),
        })?;
        let tools = std::mem::take(&mut parsed.tools);
        Ok(Self { conversation: parsed.into(), tools, chat: None })
    }

    /// Returns the conversation on a model.
    pub(crate) fn on(&mut self, model: &Model) -> &mut Chat {
        self.chat.get_or_insert_with(|| Chat::new(model.session(), self.conversation.clone()))
    }

    pub(crate) fn transcript(&self) -> Vec<Message> {
        match &self.chat {
            Some(chat) => chat.transcript(),
            None => self.conversation.messages.clone(),
        }
    }

    /// Ends the session, and keeps the transcript.
    pub(crate) fn close(&mut self) {
        if let Some(chat) = self.chat.take() {
            self.conversation.messages = chat.transcript();
        }
    }
}

/// A session. It is created again when the level rises.
#[derive(Default)]
pub(crate) struct SessionSlot {
    tokens: Vec<u32>,
    session: Option<Session>,
}

impl SessionSlot {
    pub(crate) fn new(session: Session) -> Self {
        Self { tokens: Vec::new(), session: Some(session) }
    }

    /// Returns the session on a model.
    pub(crate) fn on(&mut self, model: &Model) -> Result<&mut Session, EngineError> {
        let session = match self.session.take() {
            Some(session) => session,
            None => {
                let mut session = model.session();
                session.append(&self.tokens)?;
                session
            }
        };
        Ok(self.session.insert(session))
    }

    /// Ends the session, and keeps its tokens.
    pub(crate) fn close(&mut self) -> Result<(), EngineError> {
        if let Some(session) = self.session.take() {
            self.tokens = session.tokens()?;
        }
        Ok(())
    }
}
