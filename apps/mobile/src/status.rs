//! Descriptions of open models.

/// Description and current state of a model. Sizes are in bytes.
#[derive(Clone, Debug, PartialEq, Eq, uniffi::Record)]
pub struct Status {
    /// Maximum number of tokens of a session.
    pub context_length: u64,
    /// Maximum number of tokens that the model was trained for.
    pub context_trained: u64,
    /// Number of tokens of the vocabulary.
    pub vocab_size: u64,
    /// Number of elements of a hidden row.
    pub hidden_size: u64,
    /// Name of the compute device.
    pub device: String,
    /// Tokens that end an answer.
    pub end_tokens: Vec<u32>,
    /// Size of the resident weights.
    pub weight_bytes: u64,
    /// Size of the streamed experts in memory, or nothing if experts are not streamed.
    pub expert_bytes: Option<u64>,
    /// Memory budget, or nothing without a limit.
    pub memory_budget: Option<u64>,
    /// Bytes of the budget in use.
    pub memory_used: u64,
    /// Number of running generations.
    pub running: u64,
    /// Number of waiting generations.
    pub waiting: u64,
    /// Number of KV pages.
    pub pages_total: u64,
    /// Number of free KV pages.
    pub pages_free: u64,
    /// True if the model has a tokenizer.
    pub has_text: bool,
    /// True if the model has a chat template.
    pub has_chat: bool,
    /// True if the chat template supports tools.
    pub has_tools: bool,
    /// True if the model writes its reasoning before an answer.
    pub has_reasoning: bool,
}

impl Status {
    pub(crate) fn of(model: &nestling::Model) -> Self {
        let (engine, can) = (model.engine(), model.capabilities());
        let service = engine.status();
        Self {
            context_length: model.context_length() as u64,
            context_trained: can.context_trained as u64,
            vocab_size: model.config().vocab_size as u64,
            hidden_size: model.config().hidden_size as u64,
            device: model.device_name().to_owned(),
            end_tokens: model.end_tokens().to_vec(),
            weight_bytes: model.weight_bytes(),
            expert_bytes: model.expert_bytes(),
            memory_budget: engine.budget().total_bytes(),
            memory_used: engine.budget().used_bytes(),
            running: service.running as u64,
            waiting: (service.waiting + service.parked) as u64,
            pages_total: service.pages.total as u64,
            pages_free: service.pages.free as u64,
            has_text: can.text,
            has_chat: can.chat,
            has_tools: can.tools,
            has_reasoning: can.thinking,
        }
    }
}
