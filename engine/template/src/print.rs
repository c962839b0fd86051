//! Formatting of values as by Python's `str` and `repr`.

use super::error::Fault;
use super::limits::ALLOCATION_WORK;
use super::meter::Meter;
use super::numbers::float_text;
use super::text::{Text, TextBuffer, between};
use super::value::{Kind, Map, Sequence, Value};

/// A list or map that is being written, and the number of items written.
enum Open<'v> {
    Sequence(&'v Sequence, usize),
    Map(&'v Map, usize),
}

/// Implements `str(value)`.
pub(crate) fn to_text(meter: &Meter<'_>, value: &Value) -> Result<Text, Fault> {
    if let Value::Text(text) | Value::Markup(text) = value {
        return Ok(text.clone());
    }
    let mut out = TextBuffer::new(meter)?;
    print(meter, value, &mut out)?;
    Ok(out.finish())
}

pub(crate) fn print(meter: &Meter<'_>, value: &Value, out: &mut TextBuffer) -> Result<(), Fault> {
    match value {
        Value::Text(text) | Value::Markup(text) => out.push(meter, text.as_str()),
        Value::Undefined => Ok(()),
        value => represent(meter, value, out),
    }
}

/// Escapes characters with a meaning in HTML, as `markupsafe` does.
pub(crate) fn escaped(meter: &Meter<'_>, text: &Text) -> Result<Text, Fault> {
    meter.walk(text.len())?;
    let mut out = TextBuffer::with_capacity(meter, text.len())?;
    for character in text.as_str().chars() {
        match character {
            '&' => out.push(meter, "&amp;")?,
            '<' => out.push(meter, "&lt;")?,
            '>' => out.push(meter, "&gt;")?,
            '\'' => out.push(meter, "&#39;")?,
            '"' => out.push(meter, "&#34;")?,
            other => out.push_char(meter, other)?,
        }
    }
    Ok(out.finish())
}

fn represent(meter: &Meter<'_>, value: &Value, out: &mut TextBuffer) -> Result<(), Fault> {
    let mut open = vec![];
    begin(meter, value, out, &mut open)?;
    while let Some(top) = open.last_mut() {
        match top {
            Open::Sequence(sequence, next) => {
                let (sequence, index) = (*sequence, *next);
                *next += 1;
                let Some(item) = sequence.items.get(index) else {
                    end_sequence(meter, sequence, out)?;
                    open.pop();
                    continue;
                };
                if index > 0 {
                    out.push(meter, ", ")?;
                }
                begin(meter, item, out, &mut open)?;
            }
            Open::Map(map, next) => {
                let (map, index) = (*map, *next);
                *next += 1;
                let Some((key, item)) = map.entries.get(index) else {
                    out.push(meter, "}")?;
                    open.pop();
                    continue;
                };
                if index > 0 {
                    out.push(meter, ", ")?;
                }
                // Keys contain no open lists or dicts, since tuples are written completely.
                represent_key(meter, key, out)?;
                out.push(meter, ": ")?;
                begin(meter, item, out, &mut open)?;
            }
        }
    }
    Ok(())
}

fn represent_key(meter: &Meter<'_>, key: &Value, out: &mut TextBuffer) -> Result<(), Fault> {
    match begin(meter, key, out, &mut vec![]) {
        Ok(()) if matches!(key, Value::Sequence(_)) => {
            Err(Fault::failed("a dict with tuples as keys cannot be printed"))
        }
        result => result,
    }
}

/// Writes a scalar, or the opening bracket of a list or map, whose items are pushed on `open`.
fn begin<'v>(
    meter: &Meter<'_>,
    value: &'v Value,
    out: &mut TextBuffer,
    open: &mut Vec<Open<'v>>,
) -> Result<(), Fault> {
    meter.work(ALLOCATION_WORK)?;
    match value {
        Value::Undefined => out.push(meter, "Undefined"),
        Value::None => out.push(meter, "None"),
        Value::Bool(true) => out.push(meter, "True"),
        Value::Bool(false) => out.push(meter, "False"),
        Value::Int(number) => out.push(meter, &number.to_string()),
        Value::Unsigned(number) => out.push(meter, &number.to_string()),
        Value::Float(number) => out.push(meter, &float_text(*number)),
        Value::Text(text) | Value::Markup(text) => quote(meter, text.as_str(), out),
        Value::Sequence(sequence) => begin_sequence(meter, sequence, out, open),
        Value::Map(map) => {
            open.push(Open::Map(map, 0));
            out.push(meter, "{")
        }
        other => Err(Fault::failed(format!("{} cannot be printed", other.type_name()))),
    }
}

fn begin_sequence<'v>(
    meter: &Meter<'_>,
    sequence: &'v Sequence,
    out: &mut TextBuffer,
    open: &mut Vec<Open<'v>>,
) -> Result<(), Fault> {
    match sequence.kind {
        Kind::List => out.push(meter, "[")?,
        Kind::Tuple => out.push(meter, "(")?,
        Kind::Keys => out.push(meter, "dict_keys([")?,
        Kind::Values => out.push(meter, "dict_values([")?,
        Kind::Items => out.push(meter, "dict_items([")?,
        Kind::Generator => return Err(Fault::failed("a generator cannot be printed")),
        Kind::Range => return print_range(meter, sequence, out),
    }
    open.push(Open::Sequence(sequence, 0));
    Ok(())
}

fn end_sequence(meter: &Meter<'_>, sequence: &Sequence, out: &mut TextBuffer) -> Result<(), Fault> {
    out.push(
        meter,
        match sequence.kind {
            Kind::Tuple if sequence.items.len() == 1 => ",)",
            Kind::Tuple => ")",
            Kind::Keys | Kind::Values | Kind::Items => "])",
            _ => "]",
        },
    )
}

/// Prints a range without a step by its bounds. Other ranges cannot be reconstructed from their numbers.
fn print_range(meter: &Meter<'_>, range: &Sequence, out: &mut TextBuffer) -> Result<(), Fault> {
    let numbers: Vec<i64> = range.items.iter().take(2).filter_map(Value::as_int).collect();
    match (numbers.as_slice(), range.items.last().and_then(Value::as_int)) {
        ([first], _) => out.push(meter, &format!("range({first}, {})", first + 1)),
        ([first, second], Some(last)) if *second == first + 1 => {
            out.push(meter, &format!("range({first}, {})", last + 1))
        }
        _ => Err(Fault::failed("this range cannot be printed")),
    }
}

/// Writes a quoted text. Double quotes are used only if the text contains single quotes and no double quotes.
fn quote(meter: &Meter<'_>, text: &str, out: &mut TextBuffer) -> Result<(), Fault> {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    meter.walk(text.len())?;
    out.push_char(meter, quote)?;
    // Text without escapes is written in one call.
    let mut written = 0;
    for (at, character) in text.char_indices() {
        if character == quote || character == '\\' || !is_printable(character) {
            out.push(meter, between(text, written..at)?)?;
            written = at + character.len_utf8();
            push_escape(meter, character, out)?;
        }
    }
    out.push(meter, between(text, written..text.len())?)?;
    out.push_char(meter, quote)
}

fn push_escape(meter: &Meter<'_>, character: char, out: &mut TextBuffer) -> Result<(), Fault> {
    let code = character as u32;
    match character {
        '\n' => out.push(meter, "\\n"),
        '\r' => out.push(meter, "\\r"),
        '\t' => out.push(meter, "\\t"),
        '\\' | '\'' | '"' => {
            out.push(meter, "\\")?;
            out.push_char(meter, character)
        }
        _ if code < 0x100 => out.push(meter, &format!("\\x{code:02x}")),
        _ if code < 0x10000 => out.push(meter, &format!("\\u{code:04x}")),
        _ => out.push(meter, &format!("\\U{code:08x}")),
    }
}

/// Returns whether Python prints a character unescaped: no control characters, separators or unassigned code
/// points.
fn is_printable(character: char) -> bool {
    if character.is_ascii() {
        return (' '..='~').contains(&character);
    }
    // A combining mark is not escaped after another character.
    let pair = ['a', character];
    let text: String = pair.iter().collect();
    !text.escape_debug().skip(1).collect::<String>().starts_with('\\')
}
