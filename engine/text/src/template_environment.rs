//! minijinja set up as `transformers` sets up jinja2, with bounds.
//!
//! A template comes with a model, so it is somebody else's program. It has no loader, no files and
//! no clock; it may take `FUEL` instructions; what it prints, captures, repeats, replaces and joins
//! stays below `TEXT_BYTES_MAX`. Not bounded, because minijinja offers no hook there, is the
//! memory of a text that a template doubles again and again with `+` or `~`: a service that loads
//! templates of strangers should limit the memory of its process.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::io;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Rest, Serde};
use minijinja::{Environment, Error, ErrorKind, Output, State, Value};

use super::TextError;
use super::template_json::{python_text, to_json};

/// The name under which the template is compiled; an error's line belongs to it.
const TEMPLATE_NAME: &str = "chat_template";

/// Template instructions per rendering; Qwen3's template needs about 150 per message.
const FUEL: u64 = 5_000_000;

/// Depth of macros and blocks.
const RECURSION_MAX: usize = 64;

/// Longest output, and longest text that one of the bounded operations makes.
const TEXT_BYTES_MAX: usize = 32 << 20;

/// Why a template was stopped; travels inside minijinja's error.
#[derive(Debug, thiserror::Error)]
enum Stopped {
    #[error("{0}")]
    Refused(String),
    #[error("too much text")]
    TooMuchText,
}

/// Compiles `source` into an environment of its own.
pub(super) fn build_environment(source: &str) -> Result<Environment<'static>, TextError> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.map_err(translate_error)?);
    environment.set_fuel(Some(FUEL));
    environment.set_recursion_limit(RECURSION_MAX);
    environment.set_formatter(print_value);
    environment.set_unknown_method_callback(call_method);
    // `format` makes texts as wide as it is told; `debug` and `pprint` show our insides.
    environment.remove_filter("format");
    environment.remove_filter("pprint");
    environment.remove_global("debug");
    // To Python, nothing is nothing to go through.
    environment.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
    environment.add_filter("tojson", to_json);
    environment.add_filter("string", |value: &Value| bounded(python_text(value)));
    environment.add_filter("replace", replace);
    environment.add_filter("join", join);
    environment.add_filter("indent", indent);
    environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(stopped(Stopped::Refused(message)))
    });
    environment
        .add_template_owned(TEMPLATE_NAME, without_generation_tags(source).into_owned())
        .map_err(|error| TextError::TemplateSyntax {
            // Default: 0 where the error has no line.
            line: error.line().unwrap_or(0),
            reason: describe(&error),
        })?;
    Ok(environment)
}

/// Renders the template of `environment`.
pub(super) fn render(environment: &Environment<'_>, context: Value) -> Result<String, Error> {
    let template = environment.get_template(TEMPLATE_NAME)?;
    let mut out = BoundedText::default();
    match template.render_captured_to(context, &mut out) {
        Ok(_) => String::from_utf8(out.bytes).map_err(|_| stopped(Stopped::TooMuchText)),
        Err(_) if out.full => Err(stopped(Stopped::TooMuchText)),
        Err(error) => Err(error),
    }
}

/// JSON as a template value.
pub(super) fn to_template_value(value: &serde_json::Value) -> Value {
    Value::from(Serde(value))
}

/// minijinja's error as ours.
pub(super) fn translate_error(error: Error) -> TextError {
    let mut source: Option<&(dyn StdError + 'static)> = Some(&error);
    while let Some(inner) = source {
        match inner.downcast_ref::<Stopped>() {
            Some(Stopped::Refused(message)) => {
                return TextError::TemplateRefused { message: message.clone() };
            }
            Some(Stopped::TooMuchText) => {
                return TextError::TemplateOutput { limit: TEXT_BYTES_MAX };
            }
            None => source = inner.source(),
        }
    }
    if error.kind() == ErrorKind::OutOfFuel {
        return TextError::TemplateFuel { limit: FUEL };
    }
    // Default: 0 where the error has no line.
    TextError::TemplateRender { line: error.line().unwrap_or(0), reason: describe(&error) }
}

fn describe(error: &Error) -> String {
    match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    }
}

fn stopped(why: Stopped) -> Error {
    Error::new(ErrorKind::InvalidOperation, why.to_string()).with_source(why)
}

/// `text`, unless it is too long.
fn bounded<T: AsRef<str>>(text: T) -> Result<T, Error> {
    check_length(Some(text.as_ref().len()))?;
    Ok(text)
}

fn check_length(bytes: Option<usize>) -> Result<(), Error> {
    match bytes {
        Some(bytes) if bytes <= TEXT_BYTES_MAX => Ok(()),
        _ => Err(stopped(Stopped::TooMuchText)),
    }
}

#[derive(Default)]
struct BoundedText {
    bytes: Vec<u8>,
    full: bool,
}

impl io::Write for BoundedText {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        if self.bytes.len().saturating_add(buffer.len()) > TEXT_BYTES_MAX {
            self.full = true;
            return Err(io::Error::other("too much text"));
        }
        self.bytes.extend_from_slice(buffer);
        Ok(buffer.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Prints a value as Python's `str` does, so that `None` and `True` read as jinja2 writes them.
fn print_value(out: &mut Output, _state: &mut State, value: &Value) -> Result<(), Error> {
    match value.as_str() {
        Some(text) => out.write_str(bounded(text)?)?,
        None => out.write_str(&bounded(python_text(value))?)?,
    }
    Ok(())
}

/// Python's methods on text, lists and maps, with the ones that can make long texts bounded.
fn call_method(
    state: &mut State,
    value: &Value,
    method: &str,
    arguments: &[Value],
) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        match (method, arguments) {
            ("replace", [old, new]) => return replace(value, old, new, None).map(Value::from),
            ("replace", [old, new, count]) => {
                return replace(value, old, new, usize::try_from(count.clone()).ok())
                    .map(Value::from);
            }
            ("join", [values]) => return join(values, Some(value), Rest(vec![])).map(Value::from),
            ("removeprefix", [prefix]) => {
                // Default: what is no text is no prefix.
                let prefix = prefix.as_str().unwrap_or_default();
                return Ok(Value::from(text.strip_prefix(prefix).unwrap_or(text)));
            }
            ("removesuffix", [suffix]) => {
                // Default: what is no text is no suffix.
                let suffix = suffix.as_str().unwrap_or_default();
                return Ok(Value::from(text.strip_suffix(suffix).unwrap_or(text)));
            }
            ("format", _) => return Err(Error::from(ErrorKind::UnknownMethod)),
            _ => {}
        }
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, method, arguments)
}

/// `text.replace(old, new)`, at most `count` times.
fn replace(value: &Value, old: &Value, new: &Value, count: Option<usize>) -> Result<String, Error> {
    let (text, old, new) = (python_text(value), python_text(old), python_text(new));
    let count = count.unwrap_or(usize::MAX).min(text.matches(old.as_str()).count());
    let added = count.checked_mul(new.len());
    check_length(added.and_then(|added| added.checked_add(text.len())))?;
    Ok(text.replacen(old.as_str(), &new, count))
}

/// The values as text, with `separator` between them; `attribute` of each if named.
fn join(
    values: &Value,
    separator: Option<&Value>,
    attribute: Rest<String>,
) -> Result<String, Error> {
    // Default: as in Jinja, nothing separates.
    let separator = separator.map(python_text).unwrap_or_default();
    let mut out = String::new();
    for (index, item) in values.try_iter()?.enumerate() {
        if index > 0 {
            out.push_str(&separator);
        }
        let item = match attribute.first() {
            Some(name) => item.get_attr(name)?,
            None => item,
        };
        out.push_str(&bounded(python_text(&item))?);
        check_length(Some(out.len()))?;
    }
    Ok(out)
}

/// Every line but the first (and the empty ones) moved right by `width` spaces.
fn indent(value: &Value, width: Option<usize>, first: Option<bool>) -> Result<String, Error> {
    let text = python_text(value);
    let width = width.unwrap_or(4);
    let lines = text.split('\n').count();
    check_length(lines.checked_mul(width).and_then(|added| added.checked_add(text.len())))?;
    let mut out = String::new();
    for (index, line) in text.split('\n').enumerate() {
        if index > 0 {
            out.push('\n');
        }
        if !line.is_empty() && (index > 0 || first == Some(true)) {
            out.push_str(&" ".repeat(width));
        }
        out.push_str(line);
    }
    Ok(out)
}

/// `{% generation %}` marks assistant text for training; it becomes an `if` that is always taken,
/// which keeps its white-space signs working.
fn without_generation_tags(source: &str) -> Cow<'_, str> {
    if !source.contains("generation") {
        return Cow::Borrowed(source);
    }
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some((before, tag)) = rest.split_once("{%") {
        out.push_str(before);
        out.push_str("{%");
        let Some((inside, after)) = tag.split_once("%}") else {
            rest = tag;
            break;
        };
        let word = inside.trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+');
        match word {
            "generation" => out.push_str(&inside.replacen(word, "if true", 1)),
            "endgeneration" => out.push_str(&inside.replacen(word, "endif", 1)),
            _ => out.push_str(inside),
        }
        out.push_str("%}");
        rest = after;
    }
    out.push_str(rest);
    Cow::Owned(out)
}
