//! How a model marks reasoning and tool calls in what it writes.

use super::call_form::{CallForm, DEEPSEEK_CALL, DEEPSEEK_CALLS, GEMMA_QUOTE};
use super::channels::{MARKERS, START, TEMPLATE_MARKERS};

/// A tag that opens something, and the one that closes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TagPair {
    /// Opens.
    pub open: String,
    /// Closes.
    pub close: String,
}

impl TagPair {
    fn new(open: &str, close: &str) -> Self {
        Self { open: open.into(), close: close.into() }
    }
}

/// How a model marks reasoning and tool calls.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum OutputFormat {
    /// Tags around parts of one text.
    Tagged(TaggedFormat),
    /// Messages in channels, as gpt-oss writes them: `<|channel|>NAME<|message|>TEXT<|end|>`.
    Channels {
        /// What the prompt already wrote of the message that the answer begins with, after
        /// `<|start|>`.
        opened: String,
    },
}

/// Tags around parts of a text.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TaggedFormat {
    /// Around the reasoning.
    pub reasoning: Option<TagPair>,
    /// Around a tool call.
    pub tool_call: Option<TagPair>,
    /// What stands there.
    pub call_form: CallForm,
    /// Around all tool calls of an answer; says nothing more.
    pub calls: Option<TagPair>,
    /// Tags that end the answer, also where the model's files name no such end.
    pub ends: Vec<String>,
    /// The prompt already opened the reasoning.
    pub starts_in_reasoning: bool,
}

impl OutputFormat {
    /// Everything is text.
    pub fn plain() -> Self {
        Self::Tagged(TaggedFormat::default())
    }

    /// What a template's source says of the format: tags of the Qwen, Hermes and GLM families, of
    /// DeepSeek and Gemma 4, or gpt-oss's channels. `prompt` is the rendered prompt; tags of tool
    /// calls are looked for only `with_tools`, so that a model without tools can write about them.
    pub fn detect(template: &str, prompt: &str, with_tools: bool) -> Self {
        if Self::has_channels(template) {
            let opened = prompt.rsplit_once(START).map_or("", |(_, opened)| opened).into();
            return Self::Channels { opened };
        }
        let is_gemma = template.contains("<|channel>");
        let (think, call, ends) = if is_gemma {
            let think = TagPair::new("<|channel>thought", "<channel|>");
            // An answer ends where the next turn, or a tool's, would begin.
            let ends = vec!["<turn|>".into(), "<|tool_response>".into()];
            (think, TagPair::new("<|tool_call>", "<tool_call|>"), ends)
        } else if template.contains(DEEPSEEK_CALL.0) {
            let call = TagPair::new(DEEPSEEK_CALL.0, DEEPSEEK_CALL.1);
            (TagPair::new("<think>", "</think>"), call, vec![])
        } else {
            let call = TagPair::new("<tool_call>", "</tool_call>");
            (TagPair::new("<think>", "</think>"), call, vec![])
        };
        let calls = TagPair::new(DEEPSEEK_CALLS.0, DEEPSEEK_CALLS.1);
        let starts_in_reasoning = prompt.trim_end().ends_with(&think.open);
        let reasons = template.contains(&think.open) || template.contains(&think.close);
        Self::Tagged(TaggedFormat {
            calls: (with_tools && template.contains(&calls.open)).then_some(calls),
            reasoning: (reasons || starts_in_reasoning).then_some(think),
            tool_call: (with_tools && template.contains(&call.open)).then_some(call),
            call_form: CallForm::detect(template),
            ends,
            starts_in_reasoning,
        })
    }

    /// Whether a template writes messages in channels.
    pub(super) fn has_channels(template: &str) -> bool {
        TEMPLATE_MARKERS.iter().all(|marker| template.contains(marker))
    }

    /// Markers whose tokens must reach the parser, special ones too.
    pub fn marker_texts(&self) -> Vec<&str> {
        let Self::Tagged(format) = self else { return MARKERS.to_vec() };
        let pairs = [&format.reasoning, &format.tool_call, &format.calls].into_iter().flatten();
        let mut texts: Vec<&str> =
            pairs.flat_map(|pair| [pair.open.as_str(), pair.close.as_str()]).collect();
        texts.extend(format.ends.iter().map(String::as_str));
        if format.call_form == CallForm::Gemma {
            texts.push(GEMMA_QUOTE);
        }
        texts
    }
}

impl Default for OutputFormat {
    fn default() -> Self {
        Self::plain()
    }
}
