//! The ways in which models mark reasoning and tool calls between tags, as rows of one table. The templates published
//! with the models are the source of every row.

use super::call_form::{
    CallForm, DEEPSEEK_SEPARATOR, GEMMA_QUOTE, KIMI_SEPARATOR, SOLAR_ARGUMENTS, SOLAR_NAME,
};

/// A tag that opens something, and the one that closes it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pair {
    pub open: &'static str,
    pub close: &'static str,
}

const fn pair(open: &'static str, close: &'static str) -> Pair {
    Pair { open, close }
}

/// How the models of one kind write.
#[derive(Debug)]
pub(super) struct Dialect {
    /// What a template of the kind has, all of it.
    pub marks: &'static [&'static str],
    /// Around the reasoning.
    pub reasoning: Pair,
    /// Around the words of the answer.
    pub answer: Option<Pair>,
    /// Around a tool call, or around all of them where the form is one of several calls.
    pub call: Pair,
    /// What stands between the tags of a call.
    pub form: CallForm,
    /// Tags that say nothing more.
    pub silent: &'static [&'static str],
    /// The same, of answers with tools.
    pub around_calls: &'static [&'static str],
    /// Whether a call may come before the reasoning is closed, which then has ended.
    pub calls_in_reasoning: bool,
    /// Tags that end the answer.
    pub ends: &'static [&'static str],
    /// Tags within a call.
    pub within_call: &'static [&'static str],
}

const THINK: Pair = pair("<think>", "</think>");
const TOOL_CALL: Pair = pair("<tool_call>", "</tool_call>");

/// Qwen3's and Hermes', Ling's and Ring's of version 2, and of every template that shows no other.
const HERMES: Dialect = Dialect {
    marks: &[],
    reasoning: THINK,
    answer: None,
    call: TOOL_CALL,
    form: CallForm::Json,
    silent: &[],
    around_calls: &[],
    calls_in_reasoning: false,
    ends: &[],
    within_call: &[],
};

/// The first whose marks a template has is the template's.
const DIALECTS: &[Dialect] = &[
    // Gemma 4. An answer ends where the next turn, or a tool's, would begin.
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
    // Kimi-K2. The tags of calls are tokens of their own, which no reasoning about calls is made of.
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
    // Solar Open: messages of one answer, each with a tag for what it is.
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
    // Hunyuan-A13B. The template shows no tags of answers, which the model writes all the same.
    Dialect {
        marks: &["<tool_calls>", "<|extra_0|>"],
        answer: Some(pair("<answer>", "</answer>")),
        call: pair("<tool_calls>", "</tool_calls>"),
        form: CallForm::JsonList,
        ..HERMES
    },
    // GLM-4.5 to 4.7, and Ling's of version 3.
    Dialect {
        marks: &["<arg_key>"],
        form: CallForm::ArgumentTags,
        within_call: &["<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"],
        ..HERMES
    },
    // Qwen3-Coder and Qwen3.5.
    Dialect { marks: &["<function="], form: CallForm::FunctionTags, ..HERMES },
    // ERNIE-4.5-Thinking.
    Dialect {
        marks: &["<response>", "<tool_call>", "<|im_start|>"],
        answer: Some(pair("<response>", "</response>")),
        ..HERMES
    },
];

impl Dialect {
    /// The one that a template's source shows.
    pub fn of(template: &str) -> &'static Self {
        let shows = |dialect: &&Self| dialect.marks.iter().all(|mark| template.contains(mark));
        DIALECTS.iter().find(shows).unwrap_or(&HERMES)
    }
}
