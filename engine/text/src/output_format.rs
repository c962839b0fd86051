//! How a model marks reasoning and tool calls in what it writes.

use super::argument_types::ArgumentTypes;
use super::call_form::CallForm;
use super::channels::{MARKERS, START, TEMPLATE_MARKERS};
use super::messages::ToolSchema;
use super::output_dialects::{Dialect, Pair};

/// A tag that opens something, and the one that closes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TagPair {
    /// Opens.
    pub open: String,
    /// Closes.
    pub close: String,
}

impl TagPair {
    fn new(pair: Pair) -> Self {
        Self { open: pair.open.into(), close: pair.close.into() }
    }
}

/// How a model marks reasoning and tool calls.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum OutputFormat {
    /// Tags around parts of one text.
    Tagged(Box<TaggedFormat>),
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
    /// Around the words of the answer; says nothing more.
    pub answer: Option<TagPair>,
    /// Around a tool call, or around all of them where [`Self::call_form`] is one of several calls.
    pub tool_call: Option<TagPair>,
    /// What stands there.
    pub call_form: CallForm,
    /// Which arguments are text, where a model does not write it.
    pub argument_types: ArgumentTypes,
    /// Tags that say nothing more.
    pub silent: Vec<String>,
    /// Whether a tool call, or a tag around several, ends reasoning that is not closed.
    pub calls_in_reasoning: bool,
    /// Those of them that stand around all tool calls: what opens, and what closes, where there is such.
    pub around_calls: Vec<String>,
    /// Tags that end the answer, also where the model's files name no such end.
    pub ends: Vec<String>,
    /// Further tags, within a tool call.
    pub within_call: Vec<String>,
    /// The prompt already opened the reasoning.
    pub starts_in_reasoning: bool,
}

impl OutputFormat {
    /// Everything is text.
    pub fn plain() -> Self {
        Self::Tagged(Box::default())
    }

    /// What a template's source says of the format: tags of one of the known kinds, or gpt-oss's channels. `prompt`
    /// is the rendered prompt; tags of tool calls are looked for only where there are `tools`, so that a model without
    /// tools can write about them.
    pub fn detect(template: &str, prompt: &str, tools: &[ToolSchema]) -> Self {
        if Self::has_channels(template) {
            let opened = prompt.rsplit_once(START).map_or("", |(_, opened)| opened).into();
            return Self::Channels { opened };
        }
        let dialect = Dialect::of(template);
        let texts = |tags: &[&str]| tags.iter().copied().map(String::from).collect::<Vec<_>>();
        let Pair { open, close } = dialect.reasoning;
        let starts_in_reasoning = prompt.trim_end().ends_with(open);
        let reasons = template.contains(open) || template.contains(close) || starts_in_reasoning;
        let calls = !tools.is_empty() && template.contains(dialect.call.open);
        let only_calls = |tags| if calls { texts(tags) } else { vec![] };
        let mut silent = texts(dialect.silent);
        silent.extend(only_calls(dialect.around_calls));
        Self::Tagged(Box::new(TaggedFormat {
            reasoning: reasons.then(|| TagPair::new(dialect.reasoning)),
            answer: dialect.answer.map(TagPair::new),
            tool_call: calls.then(|| TagPair::new(dialect.call)),
            call_form: dialect.form,
            argument_types: ArgumentTypes::of(tools),
            silent,
            calls_in_reasoning: calls && dialect.calls_in_reasoning,
            around_calls: only_calls(dialect.around_calls),
            ends: texts(dialect.ends),
            within_call: only_calls(dialect.within_call),
            starts_in_reasoning,
        }))
    }

    /// Whether a template writes messages in channels.
    pub(super) fn has_channels(template: &str) -> bool {
        TEMPLATE_MARKERS.iter().all(|marker| template.contains(marker))
    }

    /// Markers whose tokens must reach the parser, special ones too.
    pub fn marker_texts(&self) -> Vec<&str> {
        let Self::Tagged(format) = self else { return MARKERS.to_vec() };
        let pairs = [&format.reasoning, &format.answer, &format.tool_call].into_iter().flatten();
        let mut texts: Vec<&str> =
            pairs.flat_map(|pair| [pair.open.as_str(), pair.close.as_str()]).collect();
        let others = format.silent.iter().chain(&format.ends).chain(&format.within_call);
        texts.extend(others.map(String::as_str));
        texts
    }
}

impl Default for OutputFormat {
    fn default() -> Self {
        Self::plain()
    }
}
