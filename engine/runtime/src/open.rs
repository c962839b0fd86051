//! Open models, and the conversion of messages and text to prompt tokens.

use std::sync::Arc;

use nestling_formats::memory::{OutOfMemory, try_reserve};
use nestling_import::ModelConfig;

use crate::capabilities::Capabilities;
use crate::encode_worker::text_error;
use crate::engine::{Engine, EngineCore};
use crate::input::{Conversation, Input, Prompt};
use crate::memory_plan::MemoryPlan;
use crate::model_core::{ModelCore, ModelParts};
use nestling_core::cancel::CancelToken;
use nestling_core::error::EngineError;
use nestling_core::expert_map::ExpertMap;
use nestling_core::runner::RunnerLimits;
use nestling_experts::expert::RoutingRecorder;
use nestling_levels::allocation::Allocation;
use nestling_levels::dual::DualRouting;
use nestling_text::SamplingParams;
use nestling_text::{
    ChatInput, ChatTemplate, ContentTokens, EncodeOptions, OutputFormat, RenderedChat, SpecialText,
    TextError, Tokenizer, ToolCall, ToolStyle,
};

/// An open model. Clones refer to the same model.
///
/// The memory of a model returns to the budget once its last clone, session and generation is dropped.
#[derive(Clone, Debug)]
pub struct Model {
    pub(crate) core: Arc<ModelCore>,
    pub(crate) engine: Arc<EngineCore>,
}

/// A rendered conversation with the format of the expected output.
struct RenderedPrompt {
    text: RenderedChat,
    format: OutputFormat,
    next_call: usize,
}

/// A conversation shortened to fit the context.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FittedConversation {
    /// The shortened conversation.
    pub conversation: Conversation,
    /// Number of messages dropped, oldest first.
    pub dropped_messages: usize,
    /// Number of prompt tokens after shortening.
    pub prompt_tokens: usize,
}

impl Model {
    /// Creates a model from its components, for other devices and for tests.
    ///
    /// # Errors
    /// Fails with [`EngineError::Limit`] if the pools of the runner are too small for a single session.
    pub fn from_parts(engine: &Engine, parts: ModelParts) -> Result<Self, EngineError> {
        let core = Arc::new(ModelCore::new(parts, engine.core.options.gap_target)?);
        engine.core.add_model(&core);
        Ok(Self { core, engine: Arc::clone(&engine.core) })
    }

    /// Returns the engine of this model.
    pub fn engine(&self) -> Engine {
        Engine { core: Arc::clone(&self.engine) }
    }

    /// Returns the hyper-parameters.
    pub fn config(&self) -> &ModelConfig {
        &self.core.config
    }

    /// Returns the limits of the runner.
    pub fn limits(&self) -> RunnerLimits {
        self.core.limits
    }

    /// Returns the maximum number of tokens per session.
    pub fn context_length(&self) -> usize {
        self.core.context_length()
    }

    /// Returns the capabilities.
    pub fn capabilities(&self) -> Capabilities {
        Capabilities::of(&self.core)
    }

    /// Returns the human-readable name of the device.
    pub fn device_name(&self) -> &str {
        &self.core.device
    }

    /// Returns the bytes of weights held in memory.
    pub fn weight_bytes(&self) -> u64 {
        self.core.weight_bytes()
    }

    /// Returns the division of the memory budget. Returns `None` for a model created from parts without a
    /// plan.
    pub fn memory_plan(&self) -> Option<&MemoryPlan> {
        self.core.plan.as_ref()
    }

    /// Returns the recorder of routing traces. Returns `None` for a model without routers.
    pub fn routing_recorder(&self) -> Option<&Arc<RoutingRecorder>> {
        self.core.routing_recorder.as_ref()
    }

    /// Returns the bytes of experts in memory. Returns `None` if experts are not streamed.
    pub fn expert_bytes(&self) -> Option<u64> {
        self.core.expert_bytes()
    }

    /// Returns the planes of all streamed experts that are resident or being read, and when they were last used.
    ///
    /// Never waits for a running step, so a user interface may call it for each frame. Returns `None` if
    /// experts are not streamed, or are divided among ranks.
    ///
    /// ```
    /// use nestling_runtime::{Engine, Model, ModelOptions, Residence};
    ///
    /// # let store = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/nestling-storyteller.nest");
    /// # let engine = Engine::new(Default::default())?;
    /// let options = ModelOptions { residence: Residence::Streamed, ..ModelOptions::default() };
    /// let model = Model::open(&engine, store, &options, &mut |_| {}, &Default::default())?;
    /// model.session().generate("The captain", &nestling_runtime::GenerateOptions::greedy())?.into_text()?;
    /// let map = model.expert_map().ok_or("experts are streamed")?;
    /// let used = map.layers.iter().flatten().filter(|expert| expert.last_used == map.step);
    /// assert!(used.clone().count() > 0 && used.clone().all(|expert| expert.resident > 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn expert_map(&self) -> Option<ExpertMap> {
        self.core.expert_map()
    }

    /// Sets the budget of streamed experts in bytes, taken from the engine's budget.
    ///
    /// Waits for the running step. Never changes a result in strict mode. Has no effect if experts are not
    /// streamed.
    ///
    /// # Errors
    /// Fails with [`EngineError::Budget`] if the engine's budget is exceeded, or with
    /// [`EngineError::ExpertBudget`] if the experts of one token and layer do not fit. The budget is then
    /// unchanged.
    pub fn set_expert_budget(&self, bytes: u64) -> Result<(), EngineError> {
        self.core.set_expert_budget(bytes)
    }

    /// Sets the engine's memory budget in bytes, and gives the streamed experts of this model the remainder.
    ///
    /// May be called at any time and waits for the running step. Never changes a result in strict mode.
    /// Experts that are not streamed release no memory.
    ///
    /// # Errors
    /// Fails with [`EngineError::MemoryHeld`] if `bytes` is less than the memory held without this model's
    /// streamed experts, plus the minimum for them. The budget is then unchanged.
    pub fn set_memory_budget(&self, bytes: u64) -> Result<(), EngineError> {
        let budget = &self.engine.budget;
        let before = budget.total_bytes();
        // Set first, so that no other reservation takes the bytes to be released.
        budget.set_total_bytes(Some(bytes));
        let experts = self.core.expert_reservation();
        // Default: resident experts are held like other weights.
        let others = budget.used_bytes().saturating_sub(experts.unwrap_or(0));
        let changed = match experts {
            None if others > bytes => Err(EngineError::MemoryHeld { asked: bytes, held: others }),
            None => Ok(()),
            Some(_) => {
                let whole = self.core.plan.map_or(u64::MAX, |plan| plan.expert_bytes_total);
                let rest = bytes.saturating_sub(others).min(whole);
                self.core.set_expert_budget(rest).map_err(|error| match error {
                    EngineError::ExpertBudget { least, .. } => {
                        EngineError::MemoryHeld { asked: bytes, held: others.saturating_add(least) }
                    }
                    error => error,
                })
            }
        };
        if changed.is_err() {
            budget.set_total_bytes(before);
        }
        changed
    }

    /// Evicts `bytes` of streamed experts, for a system short of memory.
    ///
    /// The experts with the lowest retention scores are evicted, no later than before the next layer. They
    /// are read again on use.
    pub fn shed_experts(&self, bytes: u64) {
        self.core.shed_experts(bytes);
    }

    /// Returns the levels of single matrices, if the model was opened with a weight budget.
    pub fn allocation(&self) -> Option<&Allocation> {
        self.core.allocation.as_deref()
    }

    /// Returns the dual routing, if the model was opened with it.
    pub fn dual(&self) -> Option<&DualRouting> {
        self.core.dual.as_ref()
    }

    /// Returns the number of free KV pages.
    pub fn free_pages(&self) -> usize {
        self.core.pool.free_pages()
    }

    /// Returns the number of free recurrent states. 0 for a model without recurrent layers.
    pub fn free_states(&self) -> usize {
        self.core.pool.free_states()
    }

    /// Returns the tokenizer, if the model has one.
    pub fn tokenizer(&self) -> Option<&Tokenizer> {
        self.core.tokenizer.as_ref()
    }

    /// Returns the chat template, if the model has one.
    pub fn chat_template(&self) -> Option<&ChatTemplate> {
        self.core.chat_template.as_ref()
    }

    /// Returns the default sampling parameters.
    pub fn default_sampling(&self) -> &SamplingParams {
        &self.core.sampling
    }

    /// Returns the token ids that end the output.
    pub fn end_tokens(&self) -> &[u32] {
        &self.core.end_tokens
    }

    /// Returns the prompt tokens of a conversation.
    ///
    /// # Errors
    /// Returns an error if the model has no tokenizer or chat template, or if the template rejects the
    /// messages.
    pub fn conversation_tokens(
        &self,
        conversation: &Conversation,
    ) -> Result<Vec<u32>, EngineError> {
        self.conversation_tokens_with_cancel(conversation, &CancelToken::new())
    }

    /// Works as [`Model::conversation_tokens`], and stops if `cancel` is triggered.
    ///
    /// # Errors
    /// Fails as [`Model::conversation_tokens`] does, or with [`EngineError::Cancelled`].
    pub fn conversation_tokens_with_cancel(
        &self,
        conversation: &Conversation,
        cancel: &CancelToken,
    ) -> Result<Vec<u32>, EngineError> {
        let rendered = self.render(conversation, cancel)?;
        self.encode_chat(&rendered.text, cancel)
    }

    /// Drops the oldest turns until the prompt leaves `reserve` tokens of context. System messages and the
    /// last turn remain.
    ///
    /// # Errors
    /// Fails with [`EngineError::ContextFull`] if the last turn alone is too long, and as
    /// [`Model::conversation_tokens`] does.
    pub fn fit(
        &self,
        conversation: &Conversation,
        reserve: usize,
    ) -> Result<FittedConversation, EngineError> {
        self.fit_with_cancel(conversation, reserve, &CancelToken::new())
    }

    /// Works as [`Model::fit`], and stops if `cancel` is triggered.
    ///
    /// # Errors
    /// Fails as [`Model::fit`] does, or with [`EngineError::Cancelled`].
    pub fn fit_with_cancel(
        &self,
        conversation: &Conversation,
        reserve: usize,
        cancel: &CancelToken,
    ) -> Result<FittedConversation, EngineError> {
        let mut conversation = conversation.clone();
        let before = conversation.messages.len();
        loop {
            let rendered = self.render(&conversation, cancel)?;
            match self.rendered_tokens(&rendered, reserve, cancel).map(|tokens| tokens.len()) {
                Ok(prompt_tokens) => {
                    let dropped_messages = before - conversation.messages.len();
                    return Ok(FittedConversation {
                        conversation,
                        dropped_messages,
                        prompt_tokens,
                    });
                }
                Err(EngineError::ContextFull { .. }) if drop_oldest_turn(&mut conversation) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Converts messages, text or tokens to the prompt of a new session, leaving `reserve` tokens of context.
    ///
    /// Useful to inspect the tokens before they are computed, or to compute them several times. Input that is
    /// too long by its byte length alone is rejected without tokenization.
    ///
    /// # Errors
    /// Fails with [`EngineError::ContextFull`] or [`EngineError::Cancelled`], and as
    /// [`crate::Session::generate`] does.
    pub fn prompt(
        &self,
        input: impl Into<Input>,
        reserve: usize,
        cancel: &CancelToken,
    ) -> Result<Prompt, EngineError> {
        self.prompt_tokens(input.into(), Vec::new(), reserve, cancel)
    }

    fn require_tokenizer(&self) -> Result<&Tokenizer, EngineError> {
        self.core.tokenizer.as_ref().ok_or(EngineError::NoTokenizer)
    }

    /// Returns the history after `input`, starting from `history`, leaving `reserve` tokens of context.
    ///
    /// Input that is too long by its byte length alone is rejected without tokenization.
    pub(crate) fn prompt_tokens(
        &self,
        input: Input,
        history: Vec<u32>,
        reserve: usize,
        cancel: &CancelToken,
    ) -> Result<Prompt, EngineError> {
        let mut tokens = history;
        match input {
            Input::Messages(conversation) => {
                let rendered = self.render(&conversation, cancel)?;
                let tokens = self.rendered_tokens(&rendered, reserve, cancel)?;
                let RenderedPrompt { format, next_call, .. } = rendered;
                return Ok(Prompt { tokens, format, next_call });
            }
            Input::Prompt(prompt) => {
                self.check_room(prompt.tokens.len(), reserve)?;
                return Ok(prompt);
            }
            Input::History => {}
            Input::Tokens(more) => append(&mut tokens, &more)?,
            Input::Text(text) => {
                let tokenizer = self.require_tokenizer()?;
                self.check_room(tokens.len() + tokenizer.least_tokens(&text), reserve)?;
                tracing::debug!(bytes = text.len(), "tokenizes a prompt");
                // Special tokens such as BOS are added only at the start of a history.
                let add_special_tokens = tokens.is_empty();
                let options =
                    EncodeOptions { add_special_tokens, special_text: SpecialText::Parse };
                let more = self.engine.encoder.encode(tokenizer, &text, options, cancel)?;
                append(&mut tokens, &more)?;
            }
        }
        self.check_room(tokens.len(), reserve)?;
        Ok(Prompt { tokens, format: OutputFormat::plain(), next_call: 0 })
    }

    /// # Errors
    /// Fails with [`EngineError::ContextFull`] unless the prompt leaves `reserve` tokens of context.
    fn check_room(&self, tokens: usize, reserve: usize) -> Result<(), EngineError> {
        self.core.check_length(tokens.saturating_add(reserve))
    }

    fn rendered_tokens(
        &self,
        rendered: &RenderedPrompt,
        reserve: usize,
        cancel: &CancelToken,
    ) -> Result<Vec<u32>, EngineError> {
        let tokenizer = self.require_tokenizer()?;
        self.check_room(rendered.text.least_tokens(tokenizer), reserve)?;
        tracing::debug!("tokenizes a conversation");
        let tokens = self.encode_chat(&rendered.text, cancel)?;
        self.check_room(tokens.len(), reserve)?;
        Ok(tokens)
    }

    fn encode_chat(
        &self,
        chat: &RenderedChat,
        cancel: &CancelToken,
    ) -> Result<Vec<u32>, EngineError> {
        let (tokenizer, encoder) = (self.require_tokenizer()?, &self.engine.encoder);
        encoder.encode_chat(tokenizer, chat, cancel)
    }

    fn render(
        &self,
        conversation: &Conversation,
        cancel: &CancelToken,
    ) -> Result<RenderedPrompt, EngineError> {
        let tokenizer = self.require_tokenizer()?;
        let no_template = TextError::NoTemplate;
        let template =
            self.core.chat_template.as_ref().ok_or(no_template).map_err(EngineError::text)?;
        let (tools, style) = (&conversation.tools, conversation.tool_style);
        if !tools.is_empty() && style == ToolStyle::Native && !template.names("tools") {
            return Err(EngineError::text(TextError::ToolsUnknown { tools: tools.len() }));
        }
        let input = ChatInput {
            messages: &conversation.messages,
            tools: &conversation.tools,
            add_generation_prompt: conversation.add_generation_prompt,
            continue_final_message: conversation.continue_final_message,
            tool_style: conversation.tool_style,
            arguments: conversation.template_arguments.clone(),
            now: conversation.now,
            content_tokens: match conversation.special_text {
                SpecialText::Parse => ContentTokens::Parse,
                SpecialText::Plain => ContentTokens::Plain(tokenizer),
            },
        };
        let text = template.render_until(&input, &|| cancel.is_cancelled());
        let text = text.map_err(text_error)?;
        let format = template.output_format(&text.text(), tools, style);
        let next_call = ToolCall::next_number(&conversation.messages);
        Ok(RenderedPrompt { text, format, next_call })
    }
}

fn append(tokens: &mut Vec<u32>, more: &[u32]) -> Result<(), OutOfMemory> {
    try_reserve(tokens, "tokens of a prompt", more.len())?;
    tokens.extend_from_slice(more);
    Ok(())
}

/// Drops the oldest user message with its answers. Returns false if only one turn is left.
fn drop_oldest_turn(conversation: &mut Conversation) -> bool {
    use nestling_text::Role;
    let messages = &mut conversation.messages;
    let is_user = |role: &Role| matches!(role, Role::User);
    let turns: Vec<usize> =
        (0..messages.len()).filter(|&index| is_user(&messages[index].role)).collect();
    // Default: the last turn stays.
    let [first, second, ..] = turns[..] else { return false };
    let mut index = 0;
    let instructs = |role: &Role| matches!(role, Role::System | Role::Developer);
    messages.retain(|message| {
        let old = (first..second).contains(&index) && !instructs(&message.role);
        index += 1;
        !old
    });
    true
}
