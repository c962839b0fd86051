//! Sessions: token histories that can be continued.

use nestling::{Conversation, ConversationJson, Input, SnapshotContents, ToolSchema};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::call::{HandleCell, call};
use crate::error::Failure;
use crate::generation::Generation;
use crate::options;
use crate::wait::wait_for;

/// A token history with its KV cache.
#[pyclass(frozen, module = "nestling._core")]
pub(crate) struct Session {
    session: HandleCell<nestling::Session>,
}

impl Session {
    pub(crate) fn new(session: nestling::Session) -> Self {
        Self { session: HandleCell::new("session", session) }
    }

    fn generate(
        &self,
        py: Python<'_>,
        options: &str,
        input: impl FnOnce() -> Result<GenerationInput, Failure> + Send,
    ) -> PyResult<Generation> {
        call(py, || {
            self.session.with(|session| {
                let GenerationInput { mut input, tools } = input()?;
                let asked = options::read(options, &tools)?;
                if let Input::Messages(conversation) = &mut input {
                    conversation.tools = asked.choice.tools(&tools).to_vec();
                }
                let begun = wait_for(session.generate_async(input, &asked.options))??;
                Ok(Generation::new(begun))
            })
        })
    }
}

struct GenerationInput {
    input: Input,
    tools: Vec<ToolSchema>,
}

impl<T: Into<Input>> From<T> for GenerationInput {
    fn from(input: T) -> Self {
        Self { input: input.into(), tools: Vec::new() }
    }
}

#[pymethods]
impl Session {
    fn generate_text(&self, py: Python<'_>, text: &str, options: &str) -> PyResult<Generation> {
        self.generate(py, options, || Ok(text.into()))
    }

    fn generate_tokens(
        &self,
        py: Python<'_>,
        tokens: Vec<u32>,
        options: &str,
    ) -> PyResult<Generation> {
        self.generate(py, options, || Ok(tokens.into()))
    }

    /// Starts a response to a whole conversation, given as JSON.
    fn generate_conversation(
        &self,
        py: Python<'_>,
        conversation: &str,
        options: &str,
    ) -> PyResult<Generation> {
        self.generate(py, options, || {
            let mut asked = ConversationJson::parse(conversation)?;
            let tools = std::mem::take(&mut asked.tools);
            Ok(GenerationInput { input: Conversation::from(asked).into(), tools })
        })
    }

    fn fork(&self, py: Python<'_>) -> PyResult<Self> {
        call(py, || self.session.with(|session| Ok(Self::new(session.fork()?))))
    }

    fn tokens(&self, py: Python<'_>) -> PyResult<Vec<u32>> {
        call(py, || self.session.with(|session| Ok(session.tokens()?)))
    }

    /// Appends tokens, to be computed by the next generation.
    fn append(&self, py: Python<'_>, tokens: Vec<u32>) -> PyResult<()> {
        call(py, || self.session.with(|session| Ok(session.append(&tokens)?)))
    }

    fn truncate(&self, py: Python<'_>, length: usize) -> PyResult<()> {
        call(py, || self.session.with(|session| Ok(session.truncate(length)?)))
    }

    fn snapshot<'py>(&self, py: Python<'py>, pages: bool) -> PyResult<Bound<'py, PyBytes>> {
        let contents = match pages {
            true => SnapshotContents::TokensAndPages,
            false => SnapshotContents::Tokens,
        };
        let bytes = call(py, || self.session.with(|session| Ok(session.snapshot(contents)?)))?;
        Ok(PyBytes::new(py, &bytes))
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        call(py, || self.session.close())
    }
}
