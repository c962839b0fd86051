//! Chat templates: render messages and tools to the text of a prompt.

use std::sync::Arc;

use nestling_template::{RenderOptions, Template, TemplateError, TemplateErrorKind};
use serde_json::{Map, Value};

use super::call_form::CallForm;
use super::generic_tools::{ToolStyle, ToolsPlace, as_text};
use super::limits::TEMPLATE_BYTES_MAX;
use super::messages::{Message, MessageContent, Role, ToolSchema, protect_value};
use super::output_dialects::Dialect;
use super::python_calls::{as_content, with_tags};
use super::{EncodeOptions, OutputFormat, SpecialText, TemplateTime, TextError, Tokenizer};

/// Treatment of special-token text inside messages.
#[derive(Debug, Clone, Copy, Default)]
pub enum ContentTokens<'a> {
    /// The rendered prompt is tokenized as a whole, as in `transformers`. A message that contains the text of
    /// a special token contains the token.
    #[default]
    Parse,
    /// Messages stay plain text, and only the template itself can write special tokens. Use this when
    /// messages contain untrusted text. Assistant messages keep the tags that templates look for (`<think>`),
    /// which are not special; all other messages lose those too.
    Plain(&'a Tokenizer),
}

/// Input of a chat template.
#[derive(Debug, Clone, Default)]
pub struct ChatInput<'a> {
    /// The conversation.
    pub messages: &'a [Message],
    /// Tools that the model may call.
    pub tools: &'a [ToolSchema],
    /// True to end with the start of an assistant message, so that the model answers.
    pub add_generation_prompt: bool,
    /// True to end within the last message, an assistant's, so that the model continues it. Excludes
    /// [`Self::add_generation_prompt`].
    pub continue_final_message: bool,
    /// Treatment of tools if the template does not read them.
    pub tool_style: ToolStyle,
    /// Further variables of the template, such as `enable_thinking`.
    pub arguments: Map<String, Value>,
    /// Time for templates that print a date. Such templates fail without it.
    pub now: Option<TemplateTime>,
    /// Treatment of special-token text inside messages.
    pub content_tokens: ContentTokens<'a>,
}

/// A rendered conversation, ready for the tokenizer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenderedChat {
    text: String,
    /// Character inserted into special-token text that came from a message.
    marker: Option<char>,
}

impl RenderedChat {
    /// Returns the prompt as text.
    pub fn text(&self) -> String {
        match self.marker {
            None => self.text.clone(),
            Some(marker) => self.text.replace(marker, ""),
        }
    }

    /// Copies the prompt.
    ///
    /// # Errors
    /// [`TextError::OutOfMemory`] if the allocation fails.
    pub fn try_clone(&self) -> Result<Self, TextError> {
        let (mut text, bytes) = (String::new(), self.text.len());
        let reserved = text.try_reserve_exact(bytes);
        reserved.map_err(|_| TextError::OutOfMemory { bytes: bytes as u64 })?;
        text.push_str(&self.text);
        Ok(Self { text, marker: self.marker })
    }

    /// Returns a lower bound on the number of tokens of the prompt; see [`Tokenizer::least_tokens`].
    pub fn least_tokens(&self, tokenizer: &Tokenizer) -> usize {
        let ascii = self.text.bytes().filter(u8::is_ascii).count();
        let marked =
            self.marker.map_or(0, |marker| self.text.matches(marker).count() * marker.len_utf8());
        tokenizer.least_of(ascii, self.text.len() - ascii - marked)
    }

    /// Tokenizes the prompt. No special tokens are added, because the template wrote them itself.
    pub fn tokens(&self, tokenizer: &Tokenizer) -> Result<Vec<u32>, TextError> {
        self.tokens_until(tokenizer, &|| false)
    }

    /// Does the same as [`Self::tokens`], but fails with [`TextError::EncodingCancelled`] once `cancelled`
    /// returns `true`. A pass over the whole text is not interrupted.
    pub fn tokens_until(
        &self,
        tokenizer: &Tokenizer,
        cancelled: &(dyn Fn() -> bool + Sync),
    ) -> Result<Vec<u32>, TextError> {
        match self.marker {
            None => {
                let options =
                    EncodeOptions { add_special_tokens: false, special_text: SpecialText::Parse };
                tokenizer.encode_until(&self.text, options, cancelled)
            }
            Some(marker) => tokenizer.encode_marked(&self.text, marker, cancelled),
        }
    }

    /// Returns the number of bytes to tokenize: the prompt and the markers that break special-token text.
    pub fn text_bytes(&self) -> usize {
        self.text.len()
    }
}

/// A compiled chat template.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    program: Arc<Template>,
    source: String,
    /// True for templates that write messages in channels, such as that of gpt-oss.
    in_channels: bool,
    /// True if the template handles the role `developer`.
    knows_developers: bool,
    /// `bos_token` and similar variables.
    special_tokens: Map<String, Value>,
}

impl ChatTemplate {
    /// Compiles a template.
    ///
    /// ```
    /// use nestling_text::{ChatInput, ChatTemplate, Message};
    ///
    /// let template = ChatTemplate::new("{% for m in messages %}[{{ m.role }}] {{ m.content }};{% endfor %}")?;
    /// let messages = [Message::system("Be brief."), Message::user("Hello")];
    /// let chat = template.render(&ChatInput { messages: &messages, ..ChatInput::default() })?;
    /// assert_eq!(chat.text(), "[system] Be brief.;[user] Hello;");
    /// # Ok::<(), nestling_text::TextError>(())
    /// ```
    pub fn new(source: &str) -> Result<Self, TextError> {
        if source.len() > TEMPLATE_BYTES_MAX {
            return Err(TextError::TooLarge {
                what: "chat template",
                found: source.len(),
                limit: TEMPLATE_BYTES_MAX,
            });
        }
        let program = Arc::new(Template::parse(source).map_err(translate_error)?);
        let in_channels = OutputFormat::has_channels(source);
        let knows_developers = source.contains(Role::Developer.as_str());
        let (source, special_tokens) = (source.to_owned(), Map::new());
        Ok(Self { program, source, in_channels, knows_developers, special_tokens })
    }

    /// Reads the template of a model's files: `chat_template.jinja` if it exists, else the one inside
    /// `tokenizer_config.json`. Returns `None` if the model has no template. The special tokens named in
    /// `tokenizer_config.json` become variables.
    pub fn from_files(
        tokenizer_config: Option<&[u8]>,
        chat_template: Option<&[u8]>,
    ) -> Result<Option<Self>, TextError> {
        let config = match tokenizer_config {
            Some(bytes) => parse_config(bytes)?,
            None => Map::new(),
        };
        let source = match chat_template {
            Some(bytes) => Some(template_text(bytes)?),
            None => configured_template(&config)?,
        };
        let Some(source) = source else { return Ok(None) };
        let mut template = Self::new(&source)?;
        template.special_tokens = special_tokens(&config);
        Ok(Some(template))
    }

    /// Returns the source text of the template.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Returns whether the template mentions a variable, such as `tools` or `enable_thinking`. The model
    /// never sees a variable that the template does not mention.
    pub fn names(&self, variable: &str) -> bool {
        self.program.names(variable)
    }

    /// Renders a conversation.
    pub fn render(&self, input: &ChatInput<'_>) -> Result<RenderedChat, TextError> {
        self.render_until(input, &|| false)
    }

    /// Renders a conversation, but fails with [`TextError::TemplateCancelled`] once `cancelled` returns
    /// `true`. `cancelled` is called about once per millisecond.
    ///
    /// # Errors
    /// The errors of the template, and an error if the last message cannot be continued.
    pub fn render_until(
        &self,
        input: &ChatInput<'_>,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<RenderedChat, TextError> {
        let has_calls =
            |message: &Message| message.role == Role::Tool || !message.tool_calls.is_empty();
        // Calls of earlier turns are lost in a template that reads none, also without tools in this turn.
        let loses_calls =
            !self.source.contains("tool_calls") && input.messages.iter().any(has_calls);
        if loses_calls && Dialect::of(&self.source).form == CallForm::Python {
            let mark = unused_character(input)?;
            let messages = as_content(input.messages, mark);
            let input = ChatInput { messages: &messages, ..input.clone() };
            let mut chat = self.render_whole(&input, cancelled)?;
            chat.text = with_tags(&chat.text, mark);
            return Ok(chat);
        }
        let writes_calls = loses_calls && input.tool_style == ToolStyle::Generic;
        if !writes_calls && !self.describes_tools(input.tools, input.tool_style) {
            return self.render_whole(input, cancelled);
        }
        let with = |place| as_text(input.messages, input.tools, place);
        let in_system = with(ToolsPlace::System);
        let input = ChatInput { tools: &[], ..input.clone() };
        let text =
            self.render_whole(&ChatInput { messages: &in_system, ..input.clone() }, cancelled);
        match text {
            Err(TextError::TemplateRefused { .. }) => {
                let in_user = with(ToolsPlace::User);
                self.render_whole(&ChatInput { messages: &in_user, ..input }, cancelled)
            }
            text => text,
        }
    }

    /// Returns whether tools, calls and results of a conversation become text.
    fn describes_tools(&self, tools: &[ToolSchema], style: ToolStyle) -> bool {
        style == ToolStyle::Generic && !tools.is_empty() && !self.names("tools")
    }

    /// Returns the format of the model's output after a rendered prompt.
    pub fn output_format(
        &self,
        prompt: &str,
        tools: &[ToolSchema],
        style: ToolStyle,
    ) -> OutputFormat {
        match self.describes_tools(tools, style) {
            true => OutputFormat::detect(&self.source, prompt, &[]).with_generic_calls(tools),
            false => OutputFormat::detect(&self.source, prompt, tools),
        }
    }

    /// Renders a conversation up to its end, or up to the end of the content of the message to continue.
    fn render_whole(
        &self,
        input: &ChatInput<'_>,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<RenderedChat, TextError> {
        if !input.continue_final_message {
            return self.render_messages(input, cancelled);
        }
        let (messages, mark) = marked_at_end(input)?;
        let input =
            ChatInput { messages: &messages, add_generation_prompt: false, ..input.clone() };
        let mut chat = self.render_messages(&input, cancelled)?;
        let end =
            chat.text.rfind(mark).ok_or_else(|| cannot_continue("a template that drops it"))?;
        chat.text.truncate(end);
        chat.text.retain(|c| c != mark);
        Ok(chat)
    }

    fn render_messages(
        &self,
        input: &ChatInput<'_>,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<RenderedChat, TextError> {
        let guard = ContentGuard::new(input)?;
        let everything = |text: &str| guard.protect(text, false);
        let messages: Vec<Value> = input
            .messages
            .iter()
            .map(|message| {
                let special_only = message.role == Role::Assistant;
                let in_channels = self.in_channels.then(|| message.reasoned_before_calls());
                let message = in_channels.as_ref().unwrap_or(message);
                let role = match &message.role {
                    Role::Developer if !self.knows_developers => &Role::System,
                    role => role,
                };
                message.template_value(role, &|text: &str| guard.protect(text, special_only))
            })
            .collect();
        let tools = match input.tools {
            [] => Value::Null,
            tools => tools.iter().map(|tool| protect_value(&tool.0, &everything)).collect(),
        };

        let mut context = self.special_tokens.clone();
        for (name, value) in &input.arguments {
            context.insert(name.clone(), protect_value(value, &everything));
        }
        context.insert("messages".into(), messages.into());
        context.insert("tools".into(), tools);
        context.insert("documents".into(), Value::Null);
        context.insert("add_generation_prompt".into(), input.add_generation_prompt.into());

        let date = |format: &str| match input.now {
            Some(now) => now.format(format),
            None => Err("the template asks for the date, but none was given".into()),
        };
        let options = RenderOptions { cancelled, strftime_now: Some(&date), ..Default::default() };
        let text = self.program.render(&context, &options).map_err(translate_error)?;
        Ok(RenderedChat { text, marker: guard.marker })
    }
}

fn translate_error(error: TemplateError) -> TextError {
    let line = error.line;
    match error.kind {
        TemplateErrorKind::Syntax(reason) => TextError::TemplateSyntax { line, reason },
        TemplateErrorKind::Refused(message) => TextError::TemplateRefused { message },
        TemplateErrorKind::Work { limit } => TextError::TemplateFuel { limit },
        TemplateErrorKind::Memory { limit } => TextError::TemplateMemory { limit },
        TemplateErrorKind::Text { limit } => TextError::TemplateOutput { limit },
        TemplateErrorKind::Deadline { limit } => TextError::TemplateDeadline { limit },
        TemplateErrorKind::Cancelled => TextError::TemplateCancelled,
        TemplateErrorKind::Failed(reason) => TextError::TemplateRender { line, reason },
        other => TextError::TemplateRender { line, reason: other.to_string() },
    }
}

/// Breaks special-token text inside messages with a character that does not occur in the input.
struct ContentGuard<'a> {
    marker: Option<char>,
    special: Vec<&'a str>,
    added: Vec<&'a str>,
}

impl<'a> ContentGuard<'a> {
    fn new(input: &ChatInput<'a>) -> Result<Self, TextError> {
        let ContentTokens::Plain(tokenizer) = input.content_tokens else {
            return Ok(Self { marker: None, special: vec![], added: vec![] });
        };
        let marker = unused_character(input)?;
        let special = tokenizer.added_texts().filter(|(_, special)| *special);
        let special = special.map(|(text, _)| text).collect();
        let added = tokenizer.added_texts().map(|(text, _)| text).collect();
        Ok(Self { marker: Some(marker), special, added })
    }

    /// Inserts the marker after the first character of each special token's text.
    fn protect(&self, text: &str, special_only: bool) -> String {
        let Some(marker) = self.marker else { return text.to_owned() };
        let words = if special_only { &self.special } else { &self.added };
        let mut out = String::with_capacity(text.len());
        for (start, character) in text.char_indices() {
            out.push(character);
            let rest = &text[start..];
            if words.iter().any(|word| rest.starts_with(word)) {
                out.push(marker);
            }
        }
        out
    }
}

/// Returns a character that does not occur in the input.
fn unused_character(input: &ChatInput<'_>) -> Result<char, TextError> {
    let unused = ('\u{fdd0}'..='\u{fdef}').find(|candidate| !occurs(*candidate, input));
    // Text that contains all 32 noncharacters of that block is not valid text.
    unused.ok_or(TextError::InvalidOption {
        what: "messages with plain content",
        expected: "text",
        found: "every noncharacter from U+FDD0 to U+FDEF".into(),
    })
}

fn cannot_continue(found: &str) -> TextError {
    let what = "the last message, which is to be continued";
    TextError::InvalidOption { what, expected: "a text of the assistant", found: found.into() }
}

/// Returns the messages with a character at the end of the last one that occurs nowhere else.
fn marked_at_end(input: &ChatInput<'_>) -> Result<(Vec<Message>, char), TextError> {
    let mark = unused_character(input)?;
    let mut messages = input.messages.to_vec();
    match messages.last_mut() {
        Some(last) if last.role == Role::Assistant && last.tool_calls.is_empty() => {
            // Default: an answer without text so far.
            let said = last.content.as_ref().map(MessageContent::text).unwrap_or_default();
            last.content = Some(MessageContent::Text(format!("{said}{mark}")));
        }
        Some(last) => return Err(cannot_continue(last.role.as_str())),
        None => return Err(cannot_continue("no message")),
    }
    Ok((messages, mark))
}

/// Returns whether `wanted` occurs anywhere in the input.
fn occurs(wanted: char, input: &ChatInput<'_>) -> bool {
    let found = std::cell::Cell::new(false);
    let look = |text: &str| {
        found.set(found.get() || text.contains(wanted));
        String::new()
    };
    for message in input.messages {
        message.template_value(&message.role, &look);
    }
    for tool in input.tools {
        protect_value(&tool.0, &look);
    }
    for value in input.arguments.values() {
        protect_value(value, &look);
    }
    found.get()
}

fn invalid(what: &str, expected: &str, found: impl Into<String>) -> TextError {
    TextError::Invalid {
        file: "tokenizer_config.json".into(),
        what: what.into(),
        expected: expected.into(),
        found: found.into(),
    }
}

fn parse_config(bytes: &[u8]) -> Result<Map<String, Value>, TextError> {
    let limit = 16 << 20;
    if bytes.len() > limit {
        let what = "tokenizer_config.json";
        return Err(TextError::TooLarge { what, found: bytes.len(), limit });
    }
    serde_json::from_slice(bytes)
        .map_err(|error| invalid("content", "a JSON object", error.to_string()))
}

fn template_text(bytes: &[u8]) -> Result<String, TextError> {
    let text = std::str::from_utf8(bytes).map_err(|error| TextError::Invalid {
        file: "chat_template.jinja".into(),
        what: "content".into(),
        expected: "UTF-8".into(),
        found: error.to_string(),
    })?;
    Ok(text.to_owned())
}

/// Reads `chat_template`: one text, or a list of named templates of which `default` is used.
fn configured_template(config: &Map<String, Value>) -> Result<Option<String>, TextError> {
    match config.get("chat_template") {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(source)) => Ok(Some(source.clone())),
        Some(Value::Array(named)) => {
            let name = |entry: &Value| entry.get("name").and_then(Value::as_str).map(String::from);
            let default = named.iter().find(|entry| name(entry).as_deref() == Some("default"));
            match default.or(named.first()).and_then(|entry| entry.get("template")) {
                Some(Value::String(source)) => Ok(Some(source.clone())),
                _ => Err(invalid("chat_template", "a named template", "a list without one")),
            }
        }
        Some(_) => Err(invalid("chat_template", "text or a list", "something else")),
    }
}

fn special_tokens(config: &Map<String, Value>) -> Map<String, Value> {
    let names = [
        "bos_token",
        "eos_token",
        "unk_token",
        "sep_token",
        "pad_token",
        "cls_token",
        "mask_token",
    ];
    let mut out = Map::new();
    for name in names {
        let token = match config.get(name) {
            Some(Value::Object(token)) => token.get("content"),
            token => token,
        };
        if let Some(Value::String(text)) = token {
            out.insert(name.into(), text.as_str().into());
        }
    }
    out
}
