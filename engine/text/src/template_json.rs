//! Values as Python prints them: `json.dumps` for the `tojson` filter, `str` for output.

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, Value};

/// Deepest nesting that is printed.
const DEPTH_MAX: usize = 64;

/// How `json.dumps` is asked to write.
struct Style {
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    ensure_ascii: bool,
    sort_keys: bool,
}

/// `json.dumps(value, ensure_ascii=False)`, with the options that `transformers` offers.
pub(super) fn to_json(value: &Value, options: Kwargs) -> Result<String, Error> {
    let indent = match options.get::<Option<Value>>("indent")? {
        None => None,
        Some(indent) if indent.is_none() => None,
        Some(indent) => Some(indent_text(&indent)?),
    };
    let separators = options.get::<Option<Vec<String>>>("separators")?;
    let (item_separator, key_separator) = match separators.as_deref() {
        Some([item, key]) => (item.clone(), key.clone()),
        Some(_) => return Err(refused("tojson wants two separators")),
        // Python leaves the space out where a line break follows.
        None if indent.is_some() => (",".into(), ": ".into()),
        None => (", ".into(), ": ".into()),
    };
    let ensure_ascii = options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    let sort_keys = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    options.assert_all_used()?;
    let style = Style { indent, item_separator, key_separator, ensure_ascii, sort_keys };
    let mut out = String::new();
    style.write(value, 0, &mut out)?;
    Ok(out)
}

fn indent_text(indent: &Value) -> Result<String, Error> {
    if let Some(text) = indent.as_str() {
        return Ok(text.to_owned());
    }
    match indent.as_usize() {
        Some(width) if width <= 64 => Ok(" ".repeat(width)),
        _ => Err(refused("tojson wants an indent of at most 64")),
    }
}

fn refused(why: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, why)
}

impl Style {
    fn write(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        if depth > DEPTH_MAX {
            return Err(refused("too deeply nested for tojson"));
        }
        if let Some(text) = value.as_str() {
            write_json_text(text, self.ensure_ascii, out);
            return Ok(());
        }
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push_str(&number_text(value)),
            ValueKind::Map => self.write_map(value, depth, out)?,
            ValueKind::Seq | ValueKind::Iterable => self.write_list(value, depth, out)?,
            _ => return Err(refused("tojson cannot write this value")),
        }
        Ok(())
    }

    fn write_list(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        out.push('[');
        let mut empty = true;
        for item in value.try_iter()? {
            self.separate(&mut empty, depth, out);
            self.write(&item, depth + 1, out)?;
        }
        self.close(empty, depth, ']', out);
        Ok(())
    }

    fn write_map(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        let mut keys: Vec<Value> = value.try_iter()?.collect();
        if self.sort_keys {
            keys.sort();
        }
        out.push('{');
        let mut empty = true;
        for key in keys {
            self.separate(&mut empty, depth, out);
            let name = match key.kind() {
                ValueKind::None => "null".into(),
                ValueKind::Bool => key.is_true().to_string(),
                _ => python_text(&key),
            };
            write_json_text(&name, self.ensure_ascii, out);
            out.push_str(&self.key_separator);
            self.write(&value.get_item(&key)?, depth + 1, out)?;
        }
        self.close(empty, depth, '}', out);
        Ok(())
    }

    fn separate(&self, empty: &mut bool, depth: usize, out: &mut String) {
        if !*empty {
            out.push_str(&self.item_separator);
        }
        *empty = false;
        self.new_line(depth + 1, out);
    }

    fn close(&self, empty: bool, depth: usize, bracket: char, out: &mut String) {
        if !empty {
            self.new_line(depth, out);
        }
        out.push(bracket);
    }

    fn new_line(&self, depth: usize, out: &mut String) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            out.push_str(&indent.repeat(depth));
        }
    }
}

fn write_json_text(text: &str, ensure_ascii: bool, out: &mut String) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            character if (character as u32) < 0x20 || (ensure_ascii && !character.is_ascii()) => {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
            // Python escapes DEL only where everything beyond ASCII is escaped.
            character => out.push(character),
        }
    }
    out.push('"');
}

/// A number as Python's `repr` writes it.
fn number_text(value: &Value) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    f64::try_from(value.clone()).map_or_else(|_| value.to_string(), float_text)
}

/// Shortest digits that read back as the same number; an exponent below 1e-4 and from 1e16.
fn float_text(number: f64) -> String {
    if number.is_nan() {
        return "NaN".into();
    }
    if number.is_infinite() {
        return if number > 0.0 { "Infinity".into() } else { "-Infinity".into() };
    }
    let scientific = format!("{number:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else { return scientific };
    let Ok(exponent) = exponent.parse::<i32>() else { return scientific };
    if (-4..16).contains(&exponent) {
        let plain = number.to_string();
        return if plain.contains('.') { plain } else { plain + ".0" };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
}

/// A value as Python's `str` writes it: text as it is, `None`, `True`, lists and maps as `repr`.
pub(super) fn python_text(value: &Value) -> String {
    if let Some(text) = value.as_str() {
        return text.to_owned();
    }
    let mut out = String::new();
    write_python(value, 0, &mut out);
    out
}

fn write_python(value: &Value, depth: usize, out: &mut String) {
    match value.kind() {
        ValueKind::Undefined => {}
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => out.push_str(&number_text(value)),
        ValueKind::String => match value.as_str() {
            Some(text) => write_python_quoted(text, out),
            None => out.push_str(&value.to_string()),
        },
        _ if is_container(value) && depth < DEPTH_MAX => write_python_items(value, depth, out),
        _ => out.push_str(&value.to_string()),
    }
}

fn write_python_items(value: &Value, depth: usize, out: &mut String) {
    let is_map = value.kind() == ValueKind::Map;
    out.push(if is_map { '{' } else { '[' });
    let items = value.try_iter().into_iter().flatten();
    for (index, item) in items.enumerate() {
        if index > 0 {
            out.push_str(", ");
        }
        write_python(&item, depth + 1, out);
        if is_map {
            out.push_str(": ");
            // Default: a value that cannot be got is undefined.
            write_python(&value.get_item(&item).unwrap_or_default(), depth + 1, out);
        }
    }
    out.push(if is_map { '}' } else { ']' });
}

/// Single quotes, unless only they occur inside.
fn write_python_quoted(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for character in text.chars() {
        match character {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if (c as u32) < 0x20 || c as u32 == 0x7f => {
                out.push_str(&format!("\\x{:02x}", c as u32));
            }
            c => out.push(c),
        }
    }
    out.push(quote);
}

/// Whether a value is a map, a sequence or another thing to walk through.
pub(super) fn is_container(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Map | ValueKind::Seq | ValueKind::Iterable)
}
