//! Capabilities of an opened model.

use crate::model_core::ModelCore;
use nestling_text::OutputFormat;

/// Capabilities of a model, determined by its files and by its open options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// True if the model has a tokenizer, so that it accepts text prompts.
    pub text: bool,
    /// True if the model also has a chat template, so that it accepts messages.
    pub chat: bool,
    /// True if the chat template supports tools. Otherwise passing tools is an error.
    pub tools: bool,
    /// True if the output may contain reasoning before the answer.
    pub thinking: bool,
    /// True if the chat template has a switch for reasoning (`enable_thinking`).
    pub thinking_is_chosen: bool,
    /// True if the model accepts images. No model is supported with images yet.
    pub vision: bool,
    /// Context length that the model was trained for, in tokens.
    pub context_trained: usize,
    /// Maximum number of tokens per session, as set when the model was opened.
    pub context_length: usize,
}

impl Capabilities {
    pub(crate) fn of(core: &ModelCore) -> Self {
        let text = core.tokenizer.is_some();
        let template = core.chat_template.as_ref().filter(|_| text);
        let names = |variable| template.is_some_and(|template| template.names(variable));
        let thinking = template.is_some_and(|template| {
            match OutputFormat::detect(template.source(), "", &[]) {
                OutputFormat::Tagged(tags) => tags.reasoning.is_some(),
                _ => true,
            }
        });
        Self {
            text,
            chat: template.is_some(),
            tools: names("tools"),
            thinking,
            thinking_is_chosen: names("enable_thinking"),
            vision: false,
            context_trained: core.config.max_position_embeddings,
            context_length: core.context_length(),
        }
    }
}
