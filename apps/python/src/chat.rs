//! Conversations that manage their own transcript.

use nestling::{ConversationJson, GenerateOptions, Message, ToolSchema};
use pyo3::prelude::*;

use crate::call::{HandleCell, call};
use crate::conversation;
use crate::error::Failure;
use crate::generation::Generation;
use crate::options;
use crate::wait::wait_for;

#[pyclass(frozen, module = "nestling._core")]
pub(crate) struct Chat {
    state: HandleCell<ChatState>,
}

struct ChatState {
    chat: nestling::Chat,
    tools: Vec<ToolSchema>,
}

impl ChatState {
    fn options(&mut self, json: &str) -> Result<GenerateOptions, Failure> {
        let asked = options::read(json, &self.tools)?;
        self.chat.conversation_mut()?.tools = asked.choice.tools(&self.tools).to_vec();
        Ok(asked.options)
    }
}

impl Chat {
    pub(crate) fn new(
        session: nestling::Session,
        mut asked: ConversationJson,
        reserve: Option<usize>,
    ) -> Self {
        let tools = std::mem::take(&mut asked.tools);
        let chat = nestling::Chat::new(session, asked.into());
        let chat = match reserve {
            Some(tokens) => chat.dropping_old_turns(tokens),
            None => chat,
        };
        Self { state: HandleCell::new("chat", ChatState { chat, tools }) }
    }
}

#[pymethods]
impl Chat {
    fn send(&self, py: Python<'_>, message: &str, options: &str) -> PyResult<Generation> {
        call(py, || {
            self.state.with(|state| {
                let options = state.options(options)?;
                let begun = wait_for(state.chat.send_async(Message::user(message), &options))??;
                Ok(Generation::new(begun))
            })
        })
    }

    /// Adds the results of the last response's tool calls, in order, and starts the next response.
    fn reply_to_tools(
        &self,
        py: Python<'_>,
        results: Vec<String>,
        options: &str,
    ) -> PyResult<Generation> {
        call(py, || {
            self.state.with(|state| {
                let calls = state.chat.open_calls();
                if calls.len() != results.len() {
                    let (calls, results) = (calls.len(), results.len());
                    let text = format!("results: {results} of them for {calls} tool calls");
                    return Err(Failure::caller(text));
                }
                let both = calls.into_iter().zip(results);
                let replies = both.map(|(call, result)| Message::tool(call.id, result)).collect();
                let options = state.options(options)?;
                let begun = wait_for(state.chat.reply_to_tools_async(replies, &options))??;
                Ok(Generation::new(begun))
            })
        })
    }

    fn transcript(&self, py: Python<'_>) -> PyResult<String> {
        call(py, || self.state.with(|state| conversation::written(&state.chat.transcript())))
    }

    /// Returns the number of messages omitted from the last prompt.
    fn dropped_messages(&self, py: Python<'_>) -> PyResult<usize> {
        call(py, || self.state.with(|state| Ok(state.chat.dropped_messages())))
    }

    /// Returns a fork of the conversation's session.
    fn session(&self, py: Python<'_>) -> PyResult<crate::session::Session> {
        let forked = call(py, || self.state.with(|state| Ok(state.chat.session().fork()?)));
        forked.map(crate::session::Session::new)
    }

    /// Closes the handle. A running generation continues.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        call(py, || self.state.close())
    }
}
