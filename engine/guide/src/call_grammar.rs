//! Grammars of tool calls, one for each [`CallForm`] with JSON arguments.

use nestling_runtime::ConstraintContext;
use nestling_text::{CallForm, OutputFormat, TagPair, Tokenizer};
use serde_json::Value;

use crate::error::GuideError;
use crate::grammar::{CheckedGrammar, literal, with_options};
use crate::vocabulary::is_marker;

/// Maximum length of a tool's name in bytes.
const NAME_BYTES_MAX: usize = 256;

/// A tool: its name, and its parameters with the options of the grammar engine.
#[derive(Debug, Clone)]
pub(crate) struct Tool {
    pub name: String,
    parameters: Value,
}

impl Tool {
    pub fn new(name: &str, parameters: &Value) -> Result<Self, GuideError> {
        // Other characters cannot be quoted in markers and headers.
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-.:/".contains(c);
        if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.chars().all(is_plain) {
            let expected = "1 to 256 letters, digits, `_`, `-`, `.`, `:` or `/`";
            let found = name.chars().take(NAME_BYTES_MAX).collect();
            return Err(GuideError::Invalid { what: "a tool's name".into(), expected, found });
        }
        Ok(Self { name: name.to_owned(), parameters: with_options(parameters)?.schema })
    }

    pub fn parameters(&self) -> &Value {
        &self.parameters
    }

    pub fn arguments(&self) -> CheckedGrammar {
        CheckedGrammar::assembled(CallGrammar::arguments_alone(self), "a tool's parameters")
    }
}

/// Syntax of tool calls for one model.
pub(crate) struct CallGrammar<'a> {
    tokenizer: Option<&'a Tokenizer>,
    form: CallSyntax<'a>,
}

enum CallSyntax<'a> {
    Tagged { tags: &'a TagPair, form: CallForm, around: &'a [String] },
    Channels,
}

/// Returns whether all calls are one list between the tags. Calls in Python's syntax may be one of JSON too.
fn is_list(form: CallForm) -> bool {
    matches!(form, CallForm::JsonList | CallForm::Python)
}

impl<'a> CallGrammar<'a> {
    /// # Errors
    /// Fails with [`GuideError::ToolCalls`] if the conversation has no tools or the form's arguments are not
    /// JSON.
    pub fn of(context: &ConstraintContext<'a>) -> Result<Self, GuideError> {
        let fault = |reason: &str| Err(GuideError::ToolCalls { reason: reason.to_owned() });
        let form = match context.format {
            OutputFormat::Channels { .. } => CallSyntax::Channels,
            OutputFormat::Tagged(format) => {
                let Some(tags) = &format.tool_call else {
                    return fault(
                        "the model's template knows none, or the conversation has no tools",
                    );
                };
                let form = format.call_form;
                let is_json = matches!(
                    form,
                    CallForm::Json
                        | CallForm::JsonList
                        | CallForm::Python
                        | CallForm::DeepSeek
                        | CallForm::Kimi
                        | CallForm::Solar
                );
                if !is_json {
                    return fault("the model does not write arguments as JSON");
                }
                CallSyntax::Tagged { tags, form, around: &format.around_calls }
            }
            _ => return fault("the syntax of the model's calls is unknown"),
        };
        Ok(Self { tokenizer: context.tokenizer, form })
    }

    /// Returns the grammar of the arguments of a call.
    pub fn arguments_alone(tool: &Tool) -> String {
        format!("start: %json {}\n", tool.parameters)
    }

    /// Returns the grammar of the text after the opening marker of a call, including the closing marker.
    pub fn behind_marker(&self, tools: &[Tool]) -> String {
        let CallSyntax::Tagged { tags, .. } = &self.form else {
            return self.rules("arguments_0", tools, true);
        };
        self.rules(&format!("inside {}", self.marker(&tags.close)), tools, true)
    }

    /// Returns the grammar of an answer that is one call, or one or more calls if `several` is set. With the
    /// schema `answer` it may also be a value of it.
    pub fn whole_answer(&self, tools: &[Tool], several: bool, answer: Option<&Value>) -> String {
        let rule = answer.map(|schema| format!("answer: %json {schema}\n"));
        // Default: calls are the only answer.
        self.calls_or(tools, several, answer.is_some()) + &rule.unwrap_or_default()
    }

    /// Returns the grammar of one or several calls, or of the rule `answer` if `has_answer` is set.
    fn calls_or(&self, tools: &[Tool], several: bool, has_answer: bool) -> String {
        let or = |answer: &str| if has_answer { format!(" | {answer}") } else { String::new() };
        let more = if several { format!(" ({} call)*", literal("\n")) } else { String::new() };
        match &self.form {
            CallSyntax::Tagged { tags, around, form } => {
                // A list of calls is located between a single pair of tags.
                let more = if is_list(*form) { "" } else { more.as_str() };
                let around =
                    |at: usize| around.get(at).map_or(String::new(), |tag| self.marker(tag));
                let start = format!("{} call{more} {}{}", around(0), around(1), or("answer"));
                let (open, close) = (self.marker(&tags.open), self.marker(&tags.close));
                self.rules(&start, tools, several) + &format!("call: {open} inside {close}\n")
            }
            CallSyntax::Channels => {
                let [start, channel, message, end, constrain] =
                    ["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|constrain|>"]
                        .map(|marker| self.marker(marker));
                // The prompt ends with `<|start|>assistant`. Reasoning may precede the call.
                let assistant = literal("assistant");
                let analysis = literal("analysis");
                let last = or(&format!("{channel} {} {message} answer", literal("final")));
                let first = format!(
                    "({channel} {analysis} {message} TEXT {end} {start} {assistant})? (call{last})"
                );
                let calls = tools.iter().enumerate().map(|(index, tool)| {
                    let to = literal(&format!(" to=functions.{}", tool.name));
                    let commentary = literal("commentary ");
                    let json = literal("json");
                    format!(
                        "{to} {channel} {commentary} {constrain} {json} {message} arguments_{index}"
                    )
                });
                let calls: Vec<String> = calls.collect();
                let call = format!("call: {}\nTEXT: /(?s:.*)/\n", calls.join(" | "));
                self.rules(&first, tools, several) + &call
            }
        }
    }

    /// Returns the grammar: `start`, the rules of a call and the arguments of each tool.
    fn rules(&self, start: &str, tools: &[Tool], several: bool) -> String {
        let mut text = format!("start: {start}\n");
        if let CallSyntax::Tagged { form, .. } = &self.form {
            let one: Vec<String> = tools
                .iter()
                .enumerate()
                .map(|(index, tool)| self.call(*form, index, tool))
                .collect();
            let one = one.join(" | ");
            text += &match form {
                _ if is_list(*form) => {
                    let [open, comma, close] = ["[", ", ", "]"].map(literal);
                    let more = if several { format!("({comma} one)*") } else { String::new() };
                    format!("inside: {open} one {more} {close}\none: {one}\n")
                }
                _ => format!("inside: {one}\n"),
            };
            text += "WHITE: /[ \\n]{0,2}/\nNUMBER: /[0-9]{1,4}/\nID: /[A-Za-z0-9_-]{1,32}/\n";
        }
        for (index, tool) in tools.iter().enumerate() {
            text += &format!("arguments_{index}: %json {}\n", tool.parameters);
        }
        text
    }

    /// Returns the rule of one call of a tool, without the tags around it.
    fn call(&self, form: CallForm, index: usize, tool: &Tool) -> String {
        let name = &tool.name;
        let arguments = format!("arguments_{index}");
        match form {
            CallForm::DeepSeek => {
                let separator = self.marker("<｜tool▁sep｜>");
                let (kind, block) = (literal("function"), literal(&format!("{name}\n```json\n")));
                let (name, close) = (literal(name), literal("\n```"));
                format!(
                    "{kind} {separator} {block} {arguments} {close} | {name} {separator} {arguments}"
                )
            }
            CallForm::Kimi => {
                let begin = self.marker("<|tool_call_argument_begin|>");
                format!("{} NUMBER {begin} {arguments}", literal(&format!("functions.{name}:")))
            }
            CallForm::Solar => {
                let [name_tag, arguments_tag] =
                    ["<|tool_call:name|>", "<|tool_call:args|>"].map(|tag| self.marker(tag));
                format!("ID {name_tag} {} {arguments_tag} {arguments}", literal(name))
            }
            _ => {
                // The name as a JSON string.
                let begin = format!("{{\"name\": {}, \"arguments\": ", Value::from(name.as_str()));
                let white = if is_list(form) { "" } else { "WHITE" };
                format!("{white} {} {arguments} {} {white}", literal(&begin), literal("}"))
            }
        }
    }

    /// Returns the token of a marker, or its text if it is not a token.
    fn marker(&self, text: &str) -> String {
        let id = self.tokenizer.and_then(|tokenizer| {
            tokenizer.token_to_id(text).filter(|id| is_marker(tokenizer, *id))
        });
        id.map_or_else(|| literal(text), |id| format!("<[{id}]>"))
    }
}
