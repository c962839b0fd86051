//! Models.

use nestling::engine::text::{EncodeOptions, Tokenizer};
use nestling::{ConversationJson, SpecialText};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use serde_json::json;

use crate::call::{Owner, call};
use crate::chat::Chat;
use crate::error::Failure;
use crate::session::Session;

/// An open model. Any number of threads may use it concurrently. Its sessions, chats and generations keep it
/// open.
#[pyclass(frozen, module = "nestling._core")]
pub(crate) struct Model {
    owner: Owner,
    model: std::sync::RwLock<Option<nestling::Model>>,
}

impl Model {
    pub(crate) fn new(model: nestling::Model) -> Self {
        Self { owner: Owner::current(), model: std::sync::RwLock::new(Some(model)) }
    }

    /// Returns a shared handle of the model.
    fn get(&self) -> Result<nestling::Model, Failure> {
        self.owner.check("model")?;
        let model = match self.model.read() {
            Ok(model) => model.clone(),
            Err(poisoned) => poisoned.into_inner().clone(),
        };
        model.ok_or_else(|| Failure::closed("model"))
    }

    fn take(&self) -> Option<nestling::Model> {
        match self.model.write() {
            Ok(mut model) => model.take(),
            Err(poisoned) => poisoned.into_inner().take(),
        }
    }

    fn tokenizer(&self) -> Result<Tokenizer, Failure> {
        let model = self.get()?;
        let tokenizer = model.tokenizer().cloned();
        tokenizer.ok_or_else(|| Failure::from(nestling::EngineError::NoTokenizer))
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        if !self.owner.is_this_process() {
            // Another thread may have held the lock at fork().
            let model = self.model.try_write().ok().and_then(|mut model| model.take());
            std::mem::forget(model);
            return;
        }
        let mut model = self.take();
        // `model` is dropped below if the interpreter has ended.
        let _ = Python::try_attach(|py| py.detach(|| drop(model.take())));
    }
}

#[pymethods]
impl Model {
    fn session(&self, py: Python<'_>) -> PyResult<Session> {
        call(py, || Ok(Session::new(self.get()?.session())))
    }

    /// Creates a chat from a conversation in JSON. Old turns are omitted from prompts to keep `reserve`
    /// tokens of the context free.
    #[pyo3(signature = (conversation, reserve=None))]
    fn chat(&self, py: Python<'_>, conversation: &str, reserve: Option<usize>) -> PyResult<Chat> {
        call(py, || {
            Ok(Chat::new(self.get()?.session(), ConversationJson::parse(conversation)?, reserve))
        })
    }

    fn restore(&self, py: Python<'_>, snapshot: &Bound<'_, PyBytes>) -> PyResult<Session> {
        let snapshot = snapshot.as_bytes();
        call(py, || Ok(Session::new(self.get()?.restore(snapshot)?)))
    }

    /// Sets the memory budget in bytes.
    fn set_memory_budget(&self, py: Python<'_>, bytes: u64) -> PyResult<()> {
        call(py, || Ok(self.get()?.set_memory_budget(bytes)?))
    }

    /// Evicts streamed experts of up to `bytes` bytes.
    fn relieve_pressure(&self, py: Python<'_>, bytes: u64) -> PyResult<()> {
        call(py, || {
            self.get()?.shed_experts(bytes);
            Ok(())
        })
    }

    fn encode(
        &self,
        py: Python<'_>,
        text: &str,
        add_special_tokens: bool,
        parse_special: bool,
    ) -> PyResult<Vec<u32>> {
        let special_text = if parse_special { SpecialText::Parse } else { SpecialText::Plain };
        let options = EncodeOptions { add_special_tokens, special_text };
        call(py, || {
            let tokens = self.tokenizer()?.encode(text, options);
            Ok(tokens.map_err(nestling::EngineError::text)?)
        })
    }

    fn decode(&self, py: Python<'_>, tokens: Vec<u32>, keep_special: bool) -> PyResult<String> {
        call(py, || {
            let text = self.tokenizer()?.decode(&tokens, keep_special);
            Ok(text.map_err(nestling::EngineError::text)?)
        })
    }

    /// Returns the tokens of a conversation's prompt.
    fn conversation_tokens(&self, py: Python<'_>, conversation: &str) -> PyResult<Vec<u32>> {
        call(py, || {
            let conversation = ConversationJson::parse(conversation)?.into();
            Ok(self.get()?.conversation_tokens(&conversation)?)
        })
    }

    /// Returns the description and current status of the model as JSON.
    fn status(&self, py: Python<'_>) -> PyResult<String> {
        call(py, || Ok(status_of(&self.get()?)))
    }

    /// Closes the handle. The model is closed once its sessions, chats and generations are gone.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        call(py, || {
            self.owner.check("model")?;
            drop(self.take());
            Ok(())
        })
    }
}

fn status_of(model: &nestling::Model) -> String {
    let (engine, can) = (model.engine(), model.capabilities());
    let service = engine.status();
    let experts = model.expert_bytes();
    let told = json!({
        "context_length": model.context_length(),
        "context_trained": can.context_trained,
        "vocab_size": model.config().vocab_size,
        "hidden_size": model.config().hidden_size,
        "device": model.device_name(),
        "end_tokens": model.end_tokens(),
        "weight_bytes": model.weight_bytes(),
        "expert_bytes": experts,
        "memory_budget": engine.budget().total_bytes(),
        "memory_used": engine.budget().used_bytes(),
        "running": service.running,
        "waiting": service.waiting + service.parked,
        "pages_total": service.pages.total,
        "pages_free": service.pages.free,
        "is_streamed": experts.is_some(),
        "has_text": can.text,
        "has_chat": can.chat,
        "has_tools": can.tools,
        "has_reasoning": can.thinking,
    });
    told.to_string()
}
