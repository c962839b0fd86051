//! Table of dialects: how models mark reasoning and tool calls with tags. The source of each row is the chat
//! template published with the model.

use super::call_form::{
    CallForm, DEEPSEEK_SEPARATOR, GEMMA_QUOTE, KIMI_SEPARATOR, SOLAR_ARGUMENTS, SOLAR_NAME,
};
use super::python_calls::{CALLS_CLOSE, CALLS_OPEN};

#[derive(Debug, Clone, Copy)]
pub(super) struct Pair {
    pub open: &'static str,
    pub close: &'static str,
}

const fn pair(open: &'static str, close: &'static str) -> Pair {
    Pair { open, close }
}

/// Output syntax of one kind of models.
#[derive(Debug)]
pub(super) struct Dialect {
    /// Substrings that identify a template of the kind; a template must contain all of them.
    pub marks: &'static [&'static str],
    /// Tags around the reasoning.
    pub reasoning: Pair,
    /// Tags around the text of the response.
    pub answer: Option<Pair>,
    /// Tags around a tool call, or around all calls if the form holds several calls.
    pub call: Pair,
    /// Syntax between the tags of a call.
    pub form: CallForm,
    /// Tags without content, which are dropped.
    pub silent: &'static [&'static str],
    /// Tags around all tool calls, which are dropped when tools are present.
    pub around_calls: &'static [&'static str],
    /// True if a call may come before the reasoning is closed; the call then ends the reasoning.
    pub calls_in_reasoning: bool,
    /// True if templates do not show the tags of a call, although the model writes them.
    pub hides_calls: bool,
    /// Tags that end the response.
    pub ends: &'static [&'static str],
    /// Tags within a call.
    pub within_call: &'static [&'static str],
}

const THINK: Pair = pair("<think>", "</think>");
pub(super) const TOOL_CALL: Pair = pair("<tool_call>", "</tool_call>");

/// Dialect of Qwen3, Hermes, Ling 2 and Ring 2, and the fallback for unrecognized templates.
const HERMES: Dialect = Dialect {
    marks: &[],
    reasoning: THINK,
    answer: None,
    call: TOOL_CALL,
    form: CallForm::Json,
    silent: &[],
    around_calls: &[],
    calls_in_reasoning: false,
    hides_calls: false,
    ends: &[],
    within_call: &[],
};

/// Dialect of LFM2 and LFM2.5, of whose templates few show a call.
const LFM2: Dialect = Dialect {
    marks: &["<|tool_list_start|>"],
    call: pair(CALLS_OPEN, CALLS_CLOSE),
    form: CallForm::Python,
    hides_calls: true,
    ..HERMES
};

/// All dialects. The first one whose marks are all in the template is used.
const DIALECTS: &[Dialect] = &[
    // Gemma 4. A response ends where the next turn or a tool's turn would start.
    Dialect {
        marks: &["<|channel>"],
        reasoning: pair("<|channel>thought", "<channel|>"),
        call: pair("<|tool_call>", "<tool_call|>"),
        form: CallForm::Gemma,
        ends: &["<turn|>", "<|tool_response>"],
        within_call: &[GEMMA_QUOTE],
        ..HERMES
    },
    // DeepSeek-V2.5, V3, R1 and V3.1.
    Dialect {
        marks: &["<｜tool▁call▁begin｜>"],
        call: pair("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"),
        form: CallForm::DeepSeek,
        around_calls: &["<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"],
        within_call: &[DEEPSEEK_SEPARATOR],
        ..HERMES
    },
    // Kimi-K2. The tags of calls are special tokens, which cannot occur in reasoning about calls.
    Dialect {
        marks: &["<|tool_call_begin|>", KIMI_SEPARATOR],
        call: pair("<|tool_call_begin|>", "<|tool_call_end|>"),
        form: CallForm::Kimi,
        around_calls: &["<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"],
        calls_in_reasoning: true,
        within_call: &[KIMI_SEPARATOR],
        ..HERMES
    },
    // MiniMax-M2.
    Dialect {
        marks: &["<minimax:tool_call>"],
        call: pair("<minimax:tool_call>", "</minimax:tool_call>"),
        form: CallForm::Invoke,
        ..HERMES
    },
    // Solar Open: a response consists of several messages, each with a tag for its kind.
    Dialect {
        marks: &["<|tool_call:begin|>", "<|think|>"],
        reasoning: pair("<|think|>", "<|end|>"),
        call: pair("<|tool_call:begin|>", "<|tool_call:end|>"),
        form: CallForm::Solar,
        silent: &["<|begin|>assistant", "<|content|>"],
        around_calls: &["<|tool_calls|>"],
        ends: &["<|end|>", "<|calls|>"],
        within_call: &[SOLAR_NAME, SOLAR_ARGUMENTS],
        ..HERMES
    },
    // Hunyuan-A13B. The template has no tags around responses, but the model writes them.
    Dialect {
        marks: &["<tool_calls>", "<|extra_0|>"],
        answer: Some(pair("<answer>", "</answer>")),
        call: pair("<tool_calls>", "</tool_calls>"),
        form: CallForm::JsonList,
        ..HERMES
    },
    // GLM-4.5 to 4.7, and Ling 3.
    Dialect {
        marks: &["<arg_key>"],
        form: CallForm::ArgumentTags,
        within_call: &["<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"],
        ..HERMES
    },
    // Qwen3-Coder, Qwen3.5 and Nemotron-3.
    Dialect { marks: &["<function="], form: CallForm::FunctionTags, ..HERMES },
    LFM2,
    Dialect { marks: &[CALLS_OPEN], ..LFM2 },
    Dialect { marks: &["List of tools: [", "keep_past_thinking"], ..LFM2 },
    // ERNIE-4.5-Thinking.
    Dialect {
        marks: &["<response>", "<tool_call>", "<|im_start|>"],
        answer: Some(pair("<response>", "</response>")),
        ..HERMES
    },
];

impl Dialect {
    /// Returns the dialect of a template's source.
    pub fn of(template: &str) -> &'static Self {
        let shows = |dialect: &&Self| dialect.marks.iter().all(|mark| template.contains(mark));
        DIALECTS.iter().find(shows).unwrap_or(&HERMES)
    }
}
