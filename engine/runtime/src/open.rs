//! Models: opened, shared, and turned from messages and text to tokens.

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
use nestling_core::runner::RunnerLimits;
use nestling_experts::allocation::Allocation;
use nestling_experts::dual::DualRouting;
use nestling_experts::expert::RoutingRecorder;
use nestling_text::SamplingParams;
use nestling_text::{
    ChatInput, ChatTemplate, ContentTokens, EncodeOptions, OutputFormat, RenderedChat, SpecialText,
    TextError, Tokenizer, ToolCall,
};

/// An open model. Clones are the same model; its memory goes back to the budget when the last
/// clone, session and generation is gone.
#[derive(Clone, Debug)]
pub struct Model {
    pub(crate) core: Arc<ModelCore>,
    pub(crate) engine: Arc<EngineCore>,
}

/// A conversation as the text of a prompt, and how the answer to it is read.
struct Rendered {
    text: RenderedChat,
    format: OutputFormat,
    next_call: usize,
}

/// A conversation that fits, and what it cost.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Fitted {
    /// What is left.
    pub conversation: Conversation,
    /// Messages that were left out, oldest first.
    pub dropped_messages: usize,
    /// Tokens of the prompt that is left.
    pub prompt_tokens: usize,
}

impl Model {
    /// A model from parts that were made elsewhere: another device, a test.
    ///
    /// # Errors
    /// [`EngineError::Limit`] where the runner has fewer pages than one session needs.
    pub fn from_parts(engine: &Engine, parts: ModelParts) -> Result<Self, EngineError> {
        let core = Arc::new(ModelCore::new(parts, engine.core.options.gap_target)?);
        engine.core.add_model(&core);
        Ok(Self { core, engine: Arc::clone(&engine.core) })
    }

    /// The engine that it runs on.
    pub fn engine(&self) -> Engine {
        Engine { core: Arc::clone(&self.engine) }
    }

    /// Its hyper-parameters.
    pub fn config(&self) -> &ModelConfig {
        &self.core.config
    }

    /// What its runner can do.
    pub fn limits(&self) -> RunnerLimits {
        self.core.limits
    }

    /// Most tokens of one session.
    pub fn context_length(&self) -> usize {
        self.core.context_length()
    }

    /// What can be asked of it.
    pub fn capabilities(&self) -> Capabilities {
        Capabilities::of(&self.core)
    }

    /// What computes, for people.
    pub fn device_name(&self) -> &str {
        &self.core.device
    }

    /// Bytes of weights that are held.
    pub fn weight_bytes(&self) -> u64 {
        self.core.weight_bytes()
    }

    /// How the memory was divided when the model was opened; none for one made from parts.
    pub fn memory_plan(&self) -> Option<&MemoryPlan> {
        self.core.plan.as_ref()
    }

    /// Records which experts the model's steps use, when it is asked to; none for a model that
    /// routes nothing.
    pub fn routing_recorder(&self) -> Option<&Arc<RoutingRecorder>> {
        self.core.routing_recorder.as_ref()
    }

    /// Bytes of experts that are in memory now; none where they are not streamed.
    pub fn expert_bytes(&self) -> Option<u64> {
        self.core.expert_bytes()
    }

    /// Gives streamed experts another budget, in bytes, taken from the engine's. It waits for the
    /// step under way. In strict mode it changes no result. Without effect where experts are not
    /// streamed.
    ///
    /// # Errors
    /// [`EngineError::Budget`] where the engine's budget has no room for it, and
    /// [`EngineError::ExpertBudget`] where one token's experts of one layer do not fit; nothing has
    /// changed then.
    pub fn set_expert_budget(&self, bytes: u64) -> Result<(), EngineError> {
        self.core.set_expert_budget(bytes)
    }

    /// Gives the engine another memory budget, in bytes, and streamed experts of this model what it
    /// leaves: it may be called at any time, and waits for the step under way. In strict mode it
    /// changes no result. Experts that are not streamed give nothing back.
    ///
    /// # Errors
    /// [`EngineError::MemoryHeld`] for less than what the engine's models hold without the streamed
    /// experts of this one, and one token's of one layer where it has such; nothing has changed then.
    pub fn set_memory_budget(&self, bytes: u64) -> Result<(), EngineError> {
        let budget = &self.engine.budget;
        let before = budget.total_bytes();
        // First of all, so that nobody takes what is to be given back.
        budget.set_total_bytes(Some(bytes));
        let experts = self.core.expert_reservation();
        // Default: resident experts are held as all else is.
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

    /// For a system short of memory: lets go of `bytes` of streamed experts, those that are missed
    /// least, at the latest before the next layer is computed. They come back as they are used.
    pub fn shed_experts(&self, bytes: u64) {
        self.core.shed_experts(bytes);
    }

    /// Levels of single matrices, where the model was opened with a budget for weights.
    pub fn allocation(&self) -> Option<&Allocation> {
        self.core.allocation.as_deref()
    }

    /// Dual routing, where the model was opened with it.
    pub fn dual(&self) -> Option<&DualRouting> {
        self.core.dual.as_ref()
    }

    /// Pages of keys and values that nobody holds.
    pub fn free_pages(&self) -> usize {
        self.core.pool.free_pages()
    }

    /// Recurrent states that nobody holds; 0 for a model without recurrent layers.
    pub fn free_states(&self) -> usize {
        self.core.pool.free_states()
    }

    /// Its tokenizer, if it has one.
    pub fn tokenizer(&self) -> Option<&Tokenizer> {
        self.core.tokenizer.as_ref()
    }

    /// Its chat template, if it has one.
    pub fn chat_template(&self) -> Option<&ChatTemplate> {
        self.core.chat_template.as_ref()
    }

    /// How tokens are chosen unless a generation says otherwise.
    pub fn default_sampling(&self) -> &SamplingParams {
        &self.core.sampling
    }

    /// Tokens that end an answer.
    pub fn end_tokens(&self) -> &[u32] {
        &self.core.end_tokens
    }

    /// The tokens of a conversation's prompt.
    ///
    /// # Errors
    /// A model without tokenizer or chat template; messages that the template refuses.
    pub fn conversation_tokens(
        &self,
        conversation: &Conversation,
    ) -> Result<Vec<u32>, EngineError> {
        self.conversation_tokens_with_cancel(conversation, &CancelToken::new())
    }

    /// [`Model::conversation_tokens`], stopped by `cancel`.
    ///
    /// # Errors
    /// As [`Model::conversation_tokens`]; [`EngineError::Cancelled`].
    pub fn conversation_tokens_with_cancel(
        &self,
        conversation: &Conversation,
        cancel: &CancelToken,
    ) -> Result<Vec<u32>, EngineError> {
        let rendered = self.render(conversation, cancel)?;
        self.encode_chat(&rendered.text, cancel)
    }

    /// Leaves out the oldest messages, whole turns of them, until the prompt leaves room for
    /// `reserve` more tokens. System messages stay, and so does the last turn.
    ///
    /// # Errors
    /// [`EngineError::ContextFull`] where the last turn alone is too long; as
    /// [`Model::conversation_tokens`].
    pub fn fit(&self, conversation: &Conversation, reserve: usize) -> Result<Fitted, EngineError> {
        self.fit_with_cancel(conversation, reserve, &CancelToken::new())
    }

    /// [`Model::fit`], stopped by `cancel`.
    ///
    /// # Errors
    /// As [`Model::fit`]; [`EngineError::Cancelled`].
    pub fn fit_with_cancel(
        &self,
        conversation: &Conversation,
        reserve: usize,
        cancel: &CancelToken,
    ) -> Result<Fitted, EngineError> {
        let mut conversation = conversation.clone();
        let before = conversation.messages.len();
        loop {
            let rendered = self.render(&conversation, cancel)?;
            match self.rendered_tokens(&rendered, reserve, cancel).map(|tokens| tokens.len()) {
                Ok(prompt_tokens) => {
                    let dropped_messages = before - conversation.messages.len();
                    return Ok(Fitted { conversation, dropped_messages, prompt_tokens });
                }
                Err(EngineError::ContextFull { .. }) if drop_oldest_turn(&mut conversation) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Messages, text or tokens as the prompt of a session without history, with room for `reserve` more tokens: for
    /// whoever wants to see its tokens before they are computed, or computes them more than once. What is too long by
    /// its bytes alone is not tokenized.
    ///
    /// # Errors
    /// [`EngineError::ContextFull`]; [`EngineError::Cancelled`]; as [`crate::Session::generate`].
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

    /// The history after `input`, given that before it, with room for `reserve` more tokens. What is
    /// too long by its bytes alone is not tokenized.
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
                let Rendered { format, next_call, .. } = rendered;
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
                // Begin tokens and the like belong to the start of a history only.
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
    /// [`EngineError::ContextFull`] for a prompt without room for `reserve` more tokens.
    fn check_room(&self, tokens: usize, reserve: usize) -> Result<(), EngineError> {
        self.core.check_length(tokens.saturating_add(reserve))
    }

    fn rendered_tokens(
        &self,
        rendered: &Rendered,
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
    ) -> Result<Rendered, EngineError> {
        let tokenizer = self.require_tokenizer()?;
        let no_template = TextError::NoTemplate;
        let template =
            self.core.chat_template.as_ref().ok_or(no_template).map_err(EngineError::text)?;
        let tools = conversation.tools.len();
        if tools > 0 && !template.names("tools") {
            return Err(EngineError::text(TextError::ToolsUnknown { tools }));
        }
        let input = ChatInput {
            messages: &conversation.messages,
            tools: &conversation.tools,
            add_generation_prompt: conversation.add_generation_prompt,
            arguments: conversation.template_arguments.clone(),
            now: conversation.now,
            content_tokens: match conversation.special_text {
                SpecialText::Parse => ContentTokens::Parse,
                SpecialText::Plain => ContentTokens::Plain(tokenizer),
            },
        };
        let text = template.render_until(&input, &|| cancel.is_cancelled());
        let text = text.map_err(text_error)?;
        let format = OutputFormat::detect(template.source(), &text.text(), &conversation.tools);
        let next_call = ToolCall::next_number(&conversation.messages);
        Ok(Rendered { text, format, next_call })
    }
}

fn append(tokens: &mut Vec<u32>, more: &[u32]) -> Result<(), OutOfMemory> {
    try_reserve(tokens, "tokens of a prompt", more.len())?;
    tokens.extend_from_slice(more);
    Ok(())
}

/// Leaves out the oldest user message and the answers to it; false if only one turn is left.
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
