//! Output format of a model: how it marks reasoning and tool calls.

use super::argument_types::ArgumentTypes;
use super::call_form::CallForm;
use super::channels::{MARKERS, START, TEMPLATE_MARKERS};
use super::messages::ToolSchema;
use super::output_dialects::{Dialect, Pair, TOOL_CALL};

/// An opening tag and its closing tag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TagPair {
    /// Opening tag.
    pub open: String,
    /// Closing tag.
    pub close: String,
}

impl TagPair {
    fn new(pair: Pair) -> Self {
        Self { open: pair.open.into(), close: pair.close.into() }
    }
}

/// Output format of a model: how it marks reasoning and tool calls.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum OutputFormat {
    /// One text with tags around its parts.
    Tagged(Box<TaggedFormat>),
    /// Messages in channels, as gpt-oss writes them: `<|channel|>NAME<|message|>TEXT<|end|>`.
    Channels {
        /// Start of the response's first message that the prompt already contains, after `<|start|>`.
        opened: String,
    },
}

/// Output format with tags around parts of a text.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TaggedFormat {
    /// Tags around the reasoning.
    pub reasoning: Option<TagPair>,
    /// Tags around the text of the response. They are dropped.
    pub answer: Option<TagPair>,
    /// Tags around a tool call, or around all calls if [`Self::call_form`] holds several calls.
    pub tool_call: Option<TagPair>,
    /// Syntax between the tags of a tool call.
    pub call_form: CallForm,
    /// Arguments that are text, for models that write arguments without types.
    pub argument_types: ArgumentTypes,
    /// Tags without content, which are dropped.
    pub silent: Vec<String>,
    /// True if a tool call, or a tag around several, ends reasoning that is not closed.
    pub calls_in_reasoning: bool,
    /// Tags of [`Self::silent`] around all tool calls: the opening and the closing one, if the format has
    /// them.
    pub around_calls: Vec<String>,
    /// Tags that end the response, even if the model's files do not list them as stop tokens.
    pub ends: Vec<String>,
    /// Further tags, which occur within a tool call.
    pub within_call: Vec<String>,
    /// True if the prompt already opened the reasoning.
    pub starts_in_reasoning: bool,
}

impl OutputFormat {
    /// Returns the format in which all output is text.
    pub fn plain() -> Self {
        Self::Tagged(Box::default())
    }

    /// Detects the format from a template's source: tags of a known dialect, or gpt-oss's channels. `prompt`
    /// is the rendered prompt. Tags of tool calls are only active if there are `tools`, so that a model
    /// without tools can write about them.
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
        let shows_calls = dialect.hides_calls || template.contains(dialect.call.open);
        let calls = !tools.is_empty() && shows_calls;
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

    /// Adds the tags of tool calls that [`crate::ToolStyle::Generic`] describes to the model. A format in channels
    /// has its own.
    pub(super) fn with_generic_calls(mut self, tools: &[ToolSchema]) -> Self {
        if let Self::Tagged(format) = &mut self {
            format.tool_call = Some(TagPair::new(TOOL_CALL));
            format.call_form = CallForm::Json;
            format.argument_types = ArgumentTypes::of(tools);
        }
        self
    }

    /// Returns whether a template writes messages in channels.
    pub(super) fn has_channels(template: &str) -> bool {
        TEMPLATE_MARKERS.iter().all(|marker| template.contains(marker))
    }

    /// Returns the markers whose tokens must reach the parser, including special ones.
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
