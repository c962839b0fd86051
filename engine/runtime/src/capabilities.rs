//! What can be asked of a model.

use crate::model_core::ModelCore;
use nestling_text::OutputFormat;

/// What can be asked of a model, by its files and by how it was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// It has a tokenizer: texts are prompts.
    pub text: bool,
    /// It has a chat template, too: messages are prompts.
    pub chat: bool,
    /// Its chat template has a place for tools. Where it has none, tools are an error.
    pub tools: bool,
    /// What it writes has reasoning before the answer, or may have.
    pub thinking: bool,
    /// Its chat template can be told whether to reason (`enable_thinking`).
    pub thinking_is_chosen: bool,
    /// It sees images. No model does yet.
    pub vision: bool,
    /// Positions that it was trained for.
    pub context_trained: usize,
    /// Most tokens of one session, as it was opened.
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
