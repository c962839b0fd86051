//! Filters of text.

use super::arguments::{Arguments, int_of, is_on, text_of};
use super::error::Fault;
use super::iterate::items_of;
use super::json::{Style, to_json};
use super::lexer::is_space;
use super::list_filters::attribute_of;
use super::meter::Meter;
use super::print::{escaped, to_text};
use super::sort::sorted_places;
use super::text::{Text, TextBuffer};
use super::text_methods::{Replacement, StripEnds, call_text_method, lines_of, replace, strip};
use super::value::{Items, Value};

/// Maximum indent of JSON in spaces.
const JSON_INDENT_MAX: i64 = 64;

/// Implements `json.dumps(value, ensure_ascii=False)` with the options that `transformers` adds.
pub(crate) fn tojson(
    meter: &Meter<'_>,
    value: &Value,
    arguments: Arguments<'_>,
) -> Result<Value, Fault> {
    let [ensure_ascii, indent, separators, sort_keys] =
        arguments.bind(["ensure_ascii", "indent", "separators", "sort_keys"])?;
    let indent = match indent {
        None | Some(Value::None) => None,
        Some(Value::Text(indent)) => Some(indent.clone()),
        Some(indent) => {
            let width = int_of(indent, "an indent")?;
            if width > JSON_INDENT_MAX {
                return Err(Fault::failed(format!("an indent above {JSON_INDENT_MAX}")));
            }
            // Default: a negative width means no indent.
            let width = usize::try_from(width).unwrap_or(0);
            Some(Text::copy(meter, &" ".repeat(width))?)
        }
    };
    let separators = match separators {
        None | Some(Value::None) => None,
        Some(separators) => Some(items_of(meter, separators)?),
    };
    let (item_separator, key_separator) = match separators.as_ref().map(|s| s.items.as_slice()) {
        Some([item, key]) => (text_of(item, "a separator")?, text_of(key, "a separator")?),
        Some(_) => return Err(Fault::failed("tojson wants two separators")),
        // Python omits the space before a line break.
        None if indent.is_some() => (",", ": "),
        None => (", ", ": "),
    };
    let (ensure_ascii, sort_keys) = (is_on(ensure_ascii), is_on(sort_keys));
    let style = Style { indent, item_separator, key_separator, ensure_ascii, sort_keys };
    let sort = |entries: Vec<(Value, Value)>| {
        let mut keys = Items::with_capacity(meter, entries.len())?;
        for (key, _) in &entries {
            keys.push(meter, key.clone())?;
        }
        let places = sorted_places(meter, keys.as_slice(), false)?;
        Ok(places.into_iter().filter_map(|place| entries.get(place).cloned()).collect())
    };
    to_json(meter, value, &style, sort).map(Value::Text)
}

pub(crate) fn trim(
    meter: &Meter<'_>,
    value: &Value,
    arguments: Arguments<'_>,
) -> Result<Value, Fault> {
    let [characters] = arguments.bind(["chars"])?;
    let text = to_text(meter, value)?;
    strip(meter, &text, characters, StripEnds { start: true, end: true }).map(Value::Text)
}

/// Joins the values as text, or a named attribute of each, with a separator.
pub(crate) fn join(
    meter: &Meter<'_>,
    value: &Value,
    arguments: Arguments<'_>,
) -> Result<Value, Fault> {
    let [separator, path] = arguments.bind(["d", "attribute"])?;
    let separator = match separator {
        Some(separator) => to_text(meter, separator)?,
        None => Text::copy(meter, "")?,
    };
    let mut out = TextBuffer::new(meter)?;
    for (index, item) in items_of(meter, value)?.items.iter().enumerate() {
        if index > 0 {
            out.push(meter, separator.as_str())?;
        }
        match path {
            Some(path) if !matches!(path, Value::None) => {
                let item = attribute_of(meter, item, path)?;
                super::print::print(meter, &item, &mut out)?;
            }
            _ => super::print::print(meter, item, &mut out)?,
        }
    }
    Ok(Value::Text(out.finish()))
}

/// Implements `title`: words start after white space, hyphens and opening brackets.
pub(crate) fn title(
    meter: &Meter<'_>,
    value: &Value,
    arguments: Arguments<'_>,
) -> Result<Value, Fault> {
    arguments.none()?;
    let text = to_text(meter, value)?;
    meter.walk(2 * text.len())?;
    let mut out = TextBuffer::with_capacity(meter, text.len())?;
    let mut begins = true;
    for character in text.as_str().chars() {
        if begins {
            character.to_uppercase().try_for_each(|c| out.push_char(meter, c))?;
        } else {
            character.to_lowercase().try_for_each(|c| out.push_char(meter, c))?;
        }
        begins = is_space(character) || matches!(character, '-' | '(' | '{' | '[' | '<');
    }
    Ok(Value::Text(out.finish()))
}

pub(crate) fn escape(
    meter: &Meter<'_>,
    value: &Value,
    arguments: Arguments<'_>,
) -> Result<Value, Fault> {
    arguments.none()?;
    Ok(Value::Markup(escaped(meter, &to_text(meter, value)?)?))
}

pub(crate) fn replace_filter(
    meter: &Meter<'_>,
    value: &Value,
    arguments: Arguments<'_>,
) -> Result<Value, Fault> {
    let [old, new, count] = arguments.bind(["old", "new", "count"])?;
    let (Some(old), Some(new)) = (old, new) else {
        return Err(Fault::failed("`replace` wants two texts"));
    };
    let count = match count {
        None | Some(Value::None) => -1,
        Some(count) => int_of(count, "a count")?,
    };
    let (text, old, new) = (to_text(meter, value)?, to_text(meter, old)?, to_text(meter, new)?);
    replace(meter, &text, Replacement { old: old.as_str(), new: new.as_str(), count })
}

/// Indents all lines except the first and empty ones.
pub(crate) fn indent(
    meter: &Meter<'_>,
    value: &Value,
    arguments: Arguments<'_>,
) -> Result<Value, Fault> {
    let [width, first, blank] = arguments.bind(["width", "first", "blank"])?;
    let (first, blank) = (is_on(first), is_on(blank));
    let source = text_of(value, "what is indented")?;
    let (unit, count) = match width {
        None => (" ", 4),
        Some(Value::Text(width)) => (width.as_str(), 1),
        // Default: a negative width means no indent.
        Some(width) => (" ", usize::try_from(int_of(width, "a width")?).unwrap_or(0)),
    };
    meter.walk(3 * source.len())?;
    let mut out = TextBuffer::new(meter)?;
    // A line break at the end creates an empty line, since jinja2 appends a line break.
    let ends = source.is_empty() || lines_of(source, true).last() != lines_of(source, false).last();
    let lines = lines_of(source, false).chain(ends.then_some(""));
    for (index, line) in lines.enumerate() {
        if index > 0 {
            out.push(meter, "\n")?;
        }
        if if index > 0 { blank || !line.is_empty() } else { first } {
            out.repeat(meter, unit, count)?;
        }
        out.push(meter, line)?;
    }
    Ok(Value::Text(out.finish()))
}

pub(crate) fn word_count(
    meter: &Meter<'_>,
    value: &Value,
    arguments: Arguments<'_>,
) -> Result<Value, Fault> {
    arguments.none()?;
    let text = to_text(meter, value)?;
    meter.walk(text.len())?;
    let words = text.as_str().split(|c: char| c != '_' && !c.is_alphanumeric());
    Ok(Value::Int(words.filter(|word| !word.is_empty()).count() as i64))
}

pub(crate) fn center(
    meter: &Meter<'_>,
    value: &Value,
    arguments: Arguments<'_>,
) -> Result<Value, Fault> {
    let [width] = arguments.bind(["width"])?;
    let width = [width.cloned().unwrap_or(Value::Int(80))]; // Default: 80, as in jinja2.
    call_text_method(meter, &to_text(meter, value)?, "center", Arguments::positional(&width))
}
