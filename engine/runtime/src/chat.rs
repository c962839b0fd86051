//! Conversations with a transcript.

use std::sync::Arc;

use nestling_core::background::Background;
use nestling_core::cancel::CancelToken;
use nestling_core::error::EngineError;
use nestling_text::{Message, ToolCall};

use crate::event_buffer::EventBuffer;
use crate::generate::Generation;
use crate::input::Conversation;
use crate::options::GenerateOptions;
use crate::session::Session;

/// A conversation in a session, with a transcript of messages, reasoning and tool calls.
///
/// An incomplete answer stays in the transcript, whether it was cancelled, its handle dropped, or an error
/// ended it.
///
/// ```
/// use nestling_runtime::{Chat, Conversation, GenerateOptions};
///
/// # use nestling_runtime::{Engine, Model};
/// # let store = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/nestling-storyteller.nest");
/// # let engine = Engine::new(Default::default())?;
/// # let model = Model::open(&engine, store, &Default::default(), &mut |_| {}, &Default::default())?;
/// let mut chat = Chat::new(model.session(), Conversation::default());
/// let options = GenerateOptions { max_tokens: Some(4), ..GenerateOptions::default() };
/// let answer = chat.send("How deep is the sea?", &options)?.into_text()?;
/// let more = chat.send("And who measured it?", &options)?.into_text()?;
/// assert_eq!(chat.transcript().len(), 4);
/// # Ok::<(), nestling_core::EngineError>(())
/// ```
#[derive(Debug)]
pub struct Chat {
    session: Session,
    conversation: Conversation,
    /// Answer not yet moved to the conversation.
    answer: Option<Arc<EventBuffer>>,
    /// Tokens to keep free for the answer by dropping old turns, if enabled.
    reserve: Option<usize>,
    dropped_messages: usize,
}

/// Input of the next generation: the conversation with the new messages.
struct Prompt {
    conversation: Conversation,
    reserve: Option<usize>,
    options: GenerateOptions,
}

/// A started generation with the number of messages dropped to fit it.
struct StartedGeneration {
    generation: Generation,
    dropped_messages: usize,
}

impl Chat {
    /// Creates a conversation that replaces the history of `session`.
    ///
    /// `conversation` has the instructions, tools and template variables; [`Conversation::default`] has none.
    pub fn new(session: Session, conversation: Conversation) -> Self {
        Self { session, conversation, answer: None, reserve: None, dropped_messages: 0 }
    }

    /// Drops the oldest turns from prompts that leave fewer than `tokens` tokens of context for the answer.
    ///
    /// Turns are dropped as [`crate::Model::fit`] does; the transcript keeps them. Without this setting, a
    /// conversation that does not fit is an error.
    #[must_use]
    pub fn dropping_old_turns(mut self, tokens: usize) -> Self {
        self.reserve = Some(tokens);
        self
    }

    /// Returns the number of messages dropped from the last prompt, oldest first.
    pub fn dropped_messages(&self) -> usize {
        self.dropped_messages
    }

    /// Returns the session.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Returns all messages, including the current answer as far as it has arrived. Never blocks.
    pub fn transcript(&self) -> Vec<Message> {
        let mut messages = self.conversation.messages.clone();
        messages.extend(self.pending_message());
        messages
    }

    /// Returns the conversation for changes to tools, template variables or messages.
    ///
    /// The prefix shared with the old conversation is not recomputed.
    ///
    /// # Errors
    /// Fails with [`EngineError::SessionBusy`] while an answer is being generated.
    pub fn conversation_mut(&mut self) -> Result<&mut Conversation, EngineError> {
        self.settle()?;
        Ok(&mut self.conversation)
    }

    /// Returns the last answer's tool calls that have no reply yet.
    ///
    /// For an answer in progress, the returned calls are complete, but more may follow.
    pub fn open_calls(&self) -> Vec<ToolCall> {
        match self.pending_message() {
            Some(message) => message.tool_calls,
            None => open_calls(&self.conversation.messages).to_vec(),
        }
    }

    /// Sends a message (text is sent as the user) and starts the answer. Blocks for long texts as
    /// [`Session::generate`] does.
    ///
    /// # Errors
    /// Fails as [`Session::generate`] does. The transcript is then unchanged.
    pub fn send(
        &mut self,
        message: impl Into<Message>,
        options: &GenerateOptions,
    ) -> Result<Generation, EngineError> {
        self.settle()?;
        self.continue_with(vec![message.into()], options)
    }

    /// Sends the results of the last answer's tool calls, each a [`Message::tool`], and starts the next
    /// answer.
    ///
    /// # Errors
    /// Fails with [`EngineError::ToolReplies`] unless each call has exactly one reply, and as
    /// [`Session::generate`] does. The transcript is then unchanged.
    pub fn reply_to_tools(
        &mut self,
        replies: Vec<Message>,
        options: &GenerateOptions,
    ) -> Result<Generation, EngineError> {
        self.settle()?;
        check_replies(open_calls(&self.conversation.messages), &replies)?;
        self.continue_with(replies, options)
    }

    /// Works as [`Chat::send`] without blocking: rendering and tokenization run on a thread of the engine.
    ///
    /// # Errors
    /// Fails as [`Chat::send`] does, or with [`EngineError::Thread`].
    pub async fn send_async(
        &mut self,
        message: impl Into<Message>,
        options: &GenerateOptions,
    ) -> Result<Generation, EngineError> {
        let message = message.into();
        self.settle_async().await?;
        self.go_on_async(vec![message], options).await
    }

    /// Works as [`Chat::reply_to_tools`] without blocking.
    ///
    /// # Errors
    /// Fails as [`Chat::reply_to_tools`] does, or with [`EngineError::Thread`].
    pub async fn reply_to_tools_async(
        &mut self,
        replies: Vec<Message>,
        options: &GenerateOptions,
    ) -> Result<Generation, EngineError> {
        self.settle_async().await?;
        check_replies(open_calls(&self.conversation.messages), &replies)?;
        self.go_on_async(replies, options).await
    }

    /// Returns the pending answer as a message. Returns `None` if there is no pending answer or it is still
    /// empty.
    fn pending_message(&self) -> Option<Message> {
        let answer = self.answer.as_ref()?;
        let ended = answer.has_ended();
        let message = answer.message();
        let is_empty = message.reasoning.is_none()
            && message.tool_calls.is_empty()
            && message.content.as_ref().is_none_or(|content| content.text().is_empty());
        (ended || !is_empty).then_some(message)
    }

    /// Moves the last answer to the conversation, waiting for a cancelled one to end.
    fn settle(&mut self) -> Result<(), EngineError> {
        if let Some(answer) = &self.answer {
            end(&self.session, answer)?;
        }
        self.note_answer();
        Ok(())
    }

    async fn settle_async(&mut self) -> Result<(), EngineError> {
        if let Some(answer) = self.answer.as_ref().filter(|answer| !answer.has_ended()) {
            let (session, answer) = (self.session.handle(), Arc::clone(answer));
            Background::start("the end of an answer", move || end(&session, &answer))?.await??;
        }
        self.note_answer();
        Ok(())
    }

    fn note_answer(&mut self) {
        let said = self.pending_message();
        self.conversation.messages.extend(said);
        self.answer = None;
    }

    fn prompt(&self, messages: &[Message], options: &GenerateOptions) -> Prompt {
        let mut conversation = self.conversation.clone();
        conversation.messages.extend_from_slice(messages);
        Prompt { conversation, reserve: self.reserve, options: options.clone() }
    }

    fn continue_with(
        &mut self,
        messages: Vec<Message>,
        options: &GenerateOptions,
    ) -> Result<Generation, EngineError> {
        let prompt = self.prompt(&messages, options);
        let begun = prompt.begin(&mut self.session, &CancelToken::new())?;
        Ok(self.note_begun(messages, begun))
    }

    async fn go_on_async(
        &mut self,
        messages: Vec<Message>,
        options: &GenerateOptions,
    ) -> Result<Generation, EngineError> {
        let prompt = self.prompt(&messages, options);
        let begun =
            self.session.begin_elsewhere(move |session, cancel| prompt.begin(session, cancel));
        let begun = begun.await?;
        Ok(self.note_begun(messages, begun))
    }

    fn note_begun(&mut self, messages: Vec<Message>, begun: StartedGeneration) -> Generation {
        self.conversation.messages.extend(messages);
        self.answer = Some(Arc::clone(&begun.generation.buffer));
        self.dropped_messages = begun.dropped_messages;
        begun.generation
    }
}

impl Prompt {
    fn begin(
        self,
        session: &mut Session,
        cancel: &CancelToken,
    ) -> Result<StartedGeneration, EngineError> {
        let Self { mut conversation, reserve, options } = self;
        let mut dropped_messages = 0;
        if let Some(reserve) = reserve {
            let fitted = session.model().fit_with_cancel(&conversation, reserve, cancel)?;
            (conversation, dropped_messages) = (fitted.conversation, fitted.dropped_messages);
        }
        let generation = session.generate_with_cancel(conversation, &options, cancel)?;
        Ok(StartedGeneration { generation, dropped_messages })
    }
}

/// Waits for the end of an answer that was cancelled, or that ended without its last event having been sent.
fn end(session: &Session, answer: &EventBuffer) -> Result<(), EngineError> {
    if !answer.has_ended() {
        session.with(|_| ())?;
        answer.wait_end();
    }
    Ok(())
}

/// Returns the tool calls of the last message. Any later message counts as a reply to them.
fn open_calls(messages: &[Message]) -> &[ToolCall] {
    match messages.last() {
        Some(message) => &message.tool_calls,
        None => &[],
    }
}

fn check_replies(calls: &[ToolCall], replies: &[Message]) -> Result<(), EngineError> {
    let mut expected: Vec<&str> = calls.iter().map(|call| call.id.as_str()).collect();
    // Default: a reply without an id matches no call.
    let ids = replies.iter().map(|reply| reply.tool_call_id.as_deref().unwrap_or_default());
    let mut found: Vec<&str> = ids.collect();
    expected.sort_unstable();
    found.sort_unstable();
    if expected == found && !expected.is_empty() {
        return Ok(());
    }
    let list = |ids: Vec<&str>| if ids.is_empty() { "none".into() } else { ids.join(", ") };
    Err(EngineError::ToolReplies { expected: list(expected), found: list(found) })
}
