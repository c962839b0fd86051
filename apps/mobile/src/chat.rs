//! Conversations that manage their own transcript.

use std::sync::Arc;

use nestling::{ConversationJson, Message, ToolSchema};
use serde_json::{Map, Value, json};

use crate::error::NestlingError;
use crate::exclusive::Exclusive;
use crate::generation::Generation;
use crate::options::{GenerateOptions, count};
use crate::session::Session;

/// Options of a chat.
#[derive(Clone, Debug, Default, uniffi::Record)]
pub struct ChatOptions {
    /// Instructions for the model, before all other messages.
    #[uniffi(default)]
    pub system: Option<String>,
    /// Earlier messages: a JSON array of messages of the OpenAI API, as `Chat.transcript` returns it.
    #[uniffi(default)]
    pub messages: Option<String>,
    /// Tools: a JSON array of tools of the OpenAI API.
    #[uniffi(default)]
    pub tools: Option<String>,
    /// Additional variables of the chat template: a JSON object.
    #[uniffi(default)]
    pub template_arguments: Option<String>,
    /// Time for templates that print a date, in seconds since 1970.
    #[uniffi(default)]
    pub now: Option<i64>,
    /// Number of tokens of the context that prompts leave free. Old turns are omitted for it. Without it, a
    /// conversation that does not fit is an error.
    #[uniffi(default)]
    pub reserve: Option<u32>,
}

impl ChatOptions {
    fn conversation(&self) -> Result<ConversationJson, NestlingError> {
        let mut messages = match parsed("messages", self.messages.as_deref())? {
            None => Vec::new(),
            Some(Value::Array(messages)) => messages,
            Some(_) => return Err(NestlingError::Caller("messages: expected an array".into())),
        };
        if let Some(system) = &self.system {
            messages.insert(0, json!({ "role": "system", "content": system }));
        }
        let mut fields = Map::new();
        fields.insert("messages".into(), messages.into());
        for (name, json) in
            [("tools", &self.tools), ("chat_template_kwargs", &self.template_arguments)]
        {
            if let Some(value) = parsed(name, json.as_deref())? {
                fields.insert(name.into(), value);
            }
        }
        fields.insert("now".into(), self.now.into());
        Ok(ConversationJson::parse(&Value::Object(fields).to_string())?)
    }
}

fn parsed(name: &str, json: Option<&str>) -> Result<Option<Value>, NestlingError> {
    let value = json.map(serde_json::from_str).transpose();
    value.map_err(|error| NestlingError::Caller(format!("{name}: {error}")))
}

/// A conversation with a transcript. One call at a time may use it.
#[derive(Debug, uniffi::Object)]
pub struct Chat {
    state: Exclusive<ChatState>,
}

struct ChatState {
    chat: nestling::Chat,
    tools: Vec<ToolSchema>,
}

impl ChatState {
    fn options(
        &mut self,
        options: Option<GenerateOptions>,
    ) -> Result<nestling::GenerateOptions, NestlingError> {
        // Default: the options of the model.
        let (options, choice) = options.unwrap_or_default().read(&self.tools)?;
        self.chat.conversation_mut()?.tools = choice.tools(&self.tools).to_vec();
        Ok(options)
    }
}

impl Chat {
    pub(crate) fn new(
        session: nestling::Session,
        options: ChatOptions,
    ) -> Result<Arc<Self>, NestlingError> {
        let mut asked = options.conversation()?;
        let tools = std::mem::take(&mut asked.tools);
        let chat = nestling::Chat::new(session, asked.into());
        let chat = match options.reserve {
            Some(tokens) => chat.dropping_old_turns(count(tokens)),
            None => chat,
        };
        Ok(Arc::new(Self { state: Exclusive::new("chat", ChatState { chat, tools }) }))
    }
}

#[uniffi::export]
impl Chat {
    /// Sends a message of the user and starts the answer.
    ///
    /// # Errors
    /// Fails with `Caller` for invalid options or a conversation that does not fit the context. The transcript
    /// is then unchanged.
    #[uniffi::method(default(options = None))]
    pub async fn send(
        &self,
        message: String,
        options: Option<GenerateOptions>,
    ) -> Result<Arc<Generation>, NestlingError> {
        let mut state = self.state.take()?;
        let state = state.get()?;
        let options = state.options(options)?;
        let begun = state.chat.send_async(Message::user(message), &options).await?;
        Ok(Generation::new(begun))
    }

    /// Adds the results of the last answer's tool calls, in order, and starts the next answer.
    ///
    /// # Errors
    /// Fails with `Caller` unless there is one result for each call, and as `send` does.
    #[uniffi::method(default(options = None))]
    pub async fn reply_to_tools(
        &self,
        results: Vec<String>,
        options: Option<GenerateOptions>,
    ) -> Result<Arc<Generation>, NestlingError> {
        let mut state = self.state.take()?;
        let state = state.get()?;
        let calls = state.chat.open_calls();
        if calls.len() != results.len() {
            let (calls, results) = (calls.len(), results.len());
            let text = format!("results: {results} of them for {calls} tool calls");
            return Err(NestlingError::Caller(text));
        }
        let both = calls.into_iter().zip(results);
        let replies = both.map(|(call, result)| Message::tool(call.id, result)).collect();
        let options = state.options(options)?;
        let begun = state.chat.reply_to_tools_async(replies, &options).await?;
        Ok(Generation::new(begun))
    }

    /// Returns all messages as a JSON array of the OpenAI API, including the current answer as far as it has
    /// arrived.
    ///
    /// # Errors
    /// Fails with `Busy` while another call uses the chat.
    pub fn transcript(&self) -> Result<String, NestlingError> {
        self.state.with(|state| {
            let written = serde_json::to_string(&state.chat.transcript());
            written.map_err(|error| NestlingError::Caller(format!("messages: {error}")))
        })
    }

    /// Returns the number of messages omitted from the last prompt.
    ///
    /// # Errors
    /// Fails with `Busy` while another call uses the chat.
    pub fn dropped_messages(&self) -> Result<u64, NestlingError> {
        self.state.with(|state| Ok(state.chat.dropped_messages() as u64))
    }

    /// Returns a fork of the chat's session.
    ///
    /// # Errors
    /// Fails with `Busy` while another call uses the chat.
    pub fn session(&self) -> Result<Arc<Session>, NestlingError> {
        self.state.with(|state| Ok(Session::new(state.chat.session().fork()?)))
    }
}
