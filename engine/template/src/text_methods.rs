//! Python's methods of text.

use super::arguments::{Arguments, int_of, is_on, text_of};
use super::error::Fault;
use super::iterate::{items_of, reversed};
use super::lexer::is_space;
use super::meter::Meter;
use super::text::{Text, TextBuffer, between};
use super::value::{Items, Kind, Sequence, Value};

pub(crate) const TEXT_METHODS: [&str; 40] = [
    "capitalize",
    "casefold",
    "center",
    "count",
    "endswith",
    "find",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "islower",
    "isnumeric",
    "isspace",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "upper",
    "zfill",
    "expandtabs",
    "format",
];

/// Calls one of [`TEXT_METHODS`].
pub(crate) fn call_text_method(
    meter: &Meter<'_>,
    text: &Text,
    name: &str,
    arguments: Arguments<'_>,
) -> Result<Value, Fault> {
    match name {
        "strip" | "lstrip" | "rstrip" => {
            let [characters] = arguments.bind(["chars"])?;
            let (start, end) = (name != "rstrip", name != "lstrip");
            strip(meter, text, characters, StripEnds { start, end }).map(Value::Text)
        }
        "split" | "rsplit" => split(meter, text, arguments, name == "rsplit"),
        "splitlines" => {
            let [keep] = arguments.bind(["keepends"])?;
            split_lines(meter, text, is_on(keep))
        }
        "partition" | "rpartition" => partition(meter, text, arguments, name == "rpartition"),
        "startswith" | "endswith" => starts_or_ends(meter, text, arguments, name == "startswith"),
        "removeprefix" | "removesuffix" => {
            let [part] = arguments.bind(["part"])?;
            let part = text_of(part.unwrap_or(&Value::Undefined), "the part to remove")?; // Default: fails below.
            meter.scan(part.len())?;
            let rest = match name {
                "removeprefix" => text.as_str().strip_prefix(part),
                _ => text.as_str().strip_suffix(part),
            };
            Ok(Value::Text(rest.map_or(text.clone(), |rest| text.part_of(rest))))
        }
        "replace" => {
            let [old, new, count] = arguments.bind(["old", "new", "count"])?;
            let (Some(old), Some(new)) = (old, new) else {
                return Err(Fault::failed("`replace` wants two texts"));
            };
            let count = count.map_or(Ok(-1), |count| int_of(count, "a count"))?;
            let (old, new) = (text_of(old, "what is replaced")?, text_of(new, "a replacement")?);
            replace(meter, text, Replacement { old, new, count })
        }
        "find" | "rfind" | "index" | "rindex" => find(meter, text, arguments, name),
        "count" => {
            let [part] = arguments.bind(["sub"])?;
            let part = text_of(part.unwrap_or(&Value::Undefined), "the part to count")?; // Default: fails below.
            meter.walk(text.len())?;
            Ok(Value::Int(text.as_str().matches(part).count() as i64))
        }
        "join" => {
            let [values] = arguments.bind(["iterable"])?;
            let values = values.ok_or(Fault::failed("`join` wants a list"))?;
            join(meter, text, values)
        }
        "center" | "ljust" | "rjust" | "zfill" => pad(meter, text, arguments, name),
        "format" => format(meter, text, arguments),
        "expandtabs" => Err(Fault::failed("the method `expandtabs` of text is not supported")),
        _ => {
            arguments.none()?;
            match name.starts_with("is") {
                true => is_made_of(meter, text, name),
                false => change_case(meter, text.as_str(), name).map(Value::Text),
            }
        }
    }
}

pub(crate) struct StripEnds {
    pub(crate) start: bool,
    pub(crate) end: bool,
}

/// Strips white space, or the given characters, from the ends.
pub(crate) fn strip(
    meter: &Meter<'_>,
    text: &Text,
    characters: Option<&Value>,
    ends: StripEnds,
) -> Result<Text, Fault> {
    let set = match characters {
        None | Some(Value::None) => None,
        Some(characters) => Some(text_of(characters, "characters to strip")?),
    };
    meter.scan(text.len())?;
    match set {
        // Short sets are searched as fast as white space.
        Some(set) if set.len() > 8 => {
            meter.work((text.len() as u64).saturating_mul(set.len() as u64 / 4))?;
        }
        _ => {}
    }
    let is_stripped = |character: char| match set {
        None => is_space(character),
        Some(set) => set.contains(character),
    };
    let mut rest = text.as_str();
    if ends.start {
        rest = rest.trim_start_matches(is_stripped);
    }
    if ends.end {
        rest = rest.trim_end_matches(is_stripped);
    }
    // Stripped characters are inspected one by one.
    meter.walk(text.len() - rest.len())?;
    Ok(text.part_of(rest))
}

/// Returns the limit that `maxsplit` sets.
fn limit_of(count: Option<&Value>) -> Result<usize, Fault> {
    let count = count.map_or(Ok(-1), |count| int_of(count, "maxsplit"))?;
    // Default: a negative value means no limit.
    Ok(usize::try_from(count).unwrap_or(usize::MAX))
}

fn split(
    meter: &Meter<'_>,
    text: &Text,
    arguments: Arguments<'_>,
    backwards: bool,
) -> Result<Value, Fault> {
    let [separator, count] = arguments.bind(["sep", "maxsplit"])?;
    let limit = limit_of(count)?;
    let mut items = Items::new(meter)?;
    let mut push = |part: &str| items.push(meter, Value::Text(text.part_of(part)));
    match separator {
        None | Some(Value::None) => {
            meter.walk(text.len())?;
            split_at_spaces(text.as_str(), limit, backwards, &mut push)?;
        }
        Some(separator) => {
            let separator = text_of(separator, "a separator")?;
            if separator.is_empty() {
                return Err(Fault::failed("a separator cannot be empty"));
            }
            meter.search(text.len())?;
            let most = limit.saturating_add(1);
            match backwards {
                false => text.as_str().splitn(most, separator).try_for_each(&mut push)?,
                true => text.as_str().rsplitn(most, separator).try_for_each(&mut push)?,
            }
        }
    }
    if backwards {
        return reversed(meter, items.as_slice(), Kind::List);
    }
    items.into_value(Kind::List)
}

fn split_at_spaces(
    text: &str,
    limit: usize,
    backwards: bool,
    push: &mut impl FnMut(&str) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let mut rest =
        if backwards { text.trim_end_matches(is_space) } else { text.trim_start_matches(is_space) };
    let mut count = 0;
    while !rest.is_empty() {
        if count == limit {
            return push(if backwards {
                rest.trim_end_matches(is_space)
            } else {
                rest.trim_start_matches(is_space)
            });
        }
        count += 1;
        if backwards {
            let at = rest.char_indices().rev().find(|(_, c)| is_space(*c));
            let start = at.map_or(0, |(at, space)| at + space.len_utf8());
            let (before, word) = rest.split_at(start);
            push(word)?;
            rest = before.trim_end_matches(is_space);
        } else {
            let end = rest.find(is_space).unwrap_or(rest.len());
            let (word, after) = rest.split_at(end);
            push(word)?;
            rest = after.trim_start_matches(is_space);
        }
    }
    Ok(())
}

fn is_line_break(character: char) -> bool {
    matches!(character, '\n'..='\r' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

/// Splits a text into lines, like Python's `splitlines`.
pub(crate) fn lines_of(text: &str, keep_ends: bool) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let end = rest.find(is_line_break);
        let at = end.unwrap_or(rest.len());
        let (line, after) = rest.split_at_checked(at)?;
        let length = match after.strip_prefix("\r\n") {
            Some(_) => 2,
            None => after.chars().next().map_or(0, char::len_utf8),
        };
        let whole = rest.get(..at + length)?;
        rest = rest.get(at + length..)?;
        Some(if keep_ends { whole } else { line })
    })
}

fn split_lines(meter: &Meter<'_>, text: &Text, keep_ends: bool) -> Result<Value, Fault> {
    meter.walk(text.len())?;
    let mut items = Items::new(meter)?;
    for line in lines_of(text.as_str(), keep_ends) {
        items.push(meter, Value::Text(text.part_of(line)))?;
    }
    items.into_value(Kind::List)
}

fn partition(
    meter: &Meter<'_>,
    text: &Text,
    arguments: Arguments<'_>,
    backwards: bool,
) -> Result<Value, Fault> {
    let [separator] = arguments.bind(["sep"])?;
    let separator = text_of(separator.unwrap_or(&Value::Undefined), "a separator")?; // Default: fails below.
    if separator.is_empty() {
        return Err(Fault::failed("a separator cannot be empty"));
    }
    meter.search(text.len())?;
    let at = match backwards {
        false => text.as_str().find(separator),
        true => text.as_str().rfind(separator),
    };
    let parts = match (at, backwards) {
        (Some(at), _) => [
            text.part(0, at),
            text.part(at, at + separator.len()),
            text.part(at + separator.len(), text.len()),
        ],
        (None, false) => [text.clone(), text.part(0, 0), text.part(0, 0)],
        (None, true) => [text.part(0, 0), text.part(0, 0), text.clone()],
    };
    Sequence::of(meter, Kind::Tuple, parts.map(Value::Text)).map(Value::Sequence)
}

fn starts_or_ends(
    meter: &Meter<'_>,
    text: &Text,
    arguments: Arguments<'_>,
    at_start: bool,
) -> Result<Value, Fault> {
    let [parts, start] = arguments.bind(["prefix", "start"])?;
    if start.is_some() {
        return Err(Fault::failed("`startswith` and `endswith` take no bounds here"));
    }
    let matches = |part: &Value| -> Result<bool, Fault> {
        let part = text_of(part, "a beginning or end")?;
        meter.scan(part.len().min(text.len()))?;
        Ok(match at_start {
            true => text.as_str().starts_with(part),
            false => text.as_str().ends_with(part),
        })
    };
    match parts {
        Some(Value::Sequence(parts)) if parts.kind == Kind::Tuple => {
            for part in &parts.items {
                if matches(part)? {
                    return Ok(Value::Bool(true));
                }
            }
            Ok(Value::Bool(false))
        }
        Some(part) => Ok(Value::Bool(matches(part)?)),
        None => Err(Fault::failed("a beginning or end is missing")),
    }
}

/// A replacement. A negative count means no limit.
pub(crate) struct Replacement<'t> {
    pub(crate) old: &'t str,
    pub(crate) new: &'t str,
    pub(crate) count: i64,
}

pub(crate) fn replace(
    meter: &Meter<'_>,
    text: &Text,
    replacement: Replacement<'_>,
) -> Result<Value, Fault> {
    let Replacement { old, new, count } = replacement;
    // Default: a negative count means no limit.
    let mut left = usize::try_from(count).unwrap_or(usize::MAX);
    meter.search(text.len())?;
    let source = text.as_str();
    let mut out: Option<TextBuffer> = None;
    let mut written = 0;
    for (at, _) in source.match_indices(old) {
        if left == 0 {
            break;
        }
        left -= 1;
        meter.work(20)?;
        let out = match &mut out {
            Some(out) => out,
            None => out.insert(TextBuffer::with_capacity(meter, source.len())?),
        };
        out.push(meter, between(source, written..at)?)?;
        out.push(meter, new)?;
        written = at + old.len();
    }
    let Some(mut out) = out else { return Ok(Value::Text(text.clone())) };
    out.push(meter, between(source, written..source.len())?)?;
    Ok(Value::Text(out.finish()))
}

fn find(
    meter: &Meter<'_>,
    text: &Text,
    arguments: Arguments<'_>,
    name: &str,
) -> Result<Value, Fault> {
    let [part, start] = arguments.bind(["sub", "start"])?;
    let part = text_of(part.unwrap_or(&Value::Undefined), "what is looked for")?; // Default: fails below.
    meter.walk(text.len())?;
    let source = text.as_str();
    let skipped = match start {
        None | Some(Value::None) => 0,
        Some(start) => {
            let start = usize::try_from(int_of(start, "the start")?);
            let start = start.map_err(|_| Fault::failed("a start below 0 is not supported"))?;
            source.char_indices().nth(start).map_or(source.len(), |(at, _)| at)
        }
    };
    let rest = between(source, skipped..source.len())?;
    let at = if name.starts_with('r') { rest.rfind(part) } else { rest.find(part) };
    match at.and_then(|at| source.get(..skipped + at)) {
        Some(before) => Ok(Value::Int(before.chars().count() as i64)),
        None if name.ends_with("find") => Ok(Value::Int(-1)),
        None => Err(Fault::failed("the part is not in the text")),
    }
}

fn join(meter: &Meter<'_>, separator: &Text, values: &Value) -> Result<Value, Fault> {
    let mut out = TextBuffer::new(meter)?;
    for (index, item) in items_of(meter, values)?.items.iter().enumerate() {
        if index > 0 {
            out.push(meter, separator.as_str())?;
        }
        out.push(meter, text_of(item, "what is joined")?)?;
    }
    Ok(Value::Text(out.finish()))
}

fn pad(
    meter: &Meter<'_>,
    text: &Text,
    arguments: Arguments<'_>,
    name: &str,
) -> Result<Value, Fault> {
    let [width, fill] = arguments.bind(["width", "fillchar"])?;
    let width = int_of(width.unwrap_or(&Value::None), "a width")?; // Default: rejected by `int_of`.
    let fill = match (fill, name) {
        (_, "zfill") => "0",
        (None, _) => " ",
        (Some(fill), _) => text_of(fill, "a fill character")?,
    };
    if fill.chars().count() != 1 {
        return Err(Fault::failed("a fill character is one character"));
    }
    // Default: a negative width adds no padding.
    let width = usize::try_from(width).unwrap_or(0);
    let count = text.count(meter)?;
    let missing = width.saturating_sub(count);
    let (sign, rest) = match text.as_str().strip_prefix(['-', '+']) {
        Some(rest) if name == "zfill" => text.as_str().split_at(text.len() - rest.len()),
        _ => ("", text.as_str()),
    };
    // Odd padding goes left if the width is odd, as in Python.
    let left = match name {
        "ljust" => 0,
        "center" => missing / 2 + (missing & width & 1),
        _ => missing,
    };
    let mut out = TextBuffer::new(meter)?;
    out.push(meter, sign)?;
    out.repeat(meter, fill, left)?;
    out.push(meter, rest)?;
    out.repeat(meter, fill, missing - left)?;
    Ok(Value::Text(out.finish()))
}

/// Implements `format` with plain fields: `{}`, `{0}`, `{name}`. Format specifications and attribute access
/// are rejected.
fn format(meter: &Meter<'_>, text: &Text, arguments: Arguments<'_>) -> Result<Value, Fault> {
    meter.walk(text.len())?;
    let mut out = TextBuffer::new(meter)?;
    let mut rest = text.as_str();
    let mut next = 0;
    while let Some(at) = rest.find(['{', '}']) {
        let (before, after) = rest.split_at(at);
        out.push(meter, before)?;
        let doubled = after.strip_prefix("{{").or(after.strip_prefix("}}"));
        if let Some(after_both) = doubled {
            out.push(meter, between(after, 0..1)?)?;
            rest = after_both;
            continue;
        }
        let field = after.strip_prefix('{').and_then(|inside| inside.split_once('}'));
        let (field, after) = field.ok_or(Fault::failed("a lone bracket in a format"))?;
        let value = if field.is_empty() {
            next += 1;
            arguments.positional.get(next - 1)
        } else if let Ok(number) = field.parse::<usize>() {
            arguments.positional.get(number)
        } else {
            let place = arguments.names.iter().position(|name| *name == field);
            place.and_then(|place| arguments.named.get(place))
        };
        let value = value.ok_or_else(|| {
            let shown: String = field.chars().take(40).collect();
            Fault::failed(std::format!("a format has no value for `{{{shown}}}`"))
        })?;
        super::print::print(meter, value, &mut out)?;
        rest = after;
    }
    out.push(meter, rest)?;
    Ok(Value::Text(out.finish()))
}

fn is_made_of(meter: &Meter<'_>, text: &Text, name: &str) -> Result<Value, Fault> {
    meter.walk(text.len())?;
    let text = text.as_str();
    let all = |test: fn(char) -> bool| !text.is_empty() && text.chars().all(test);
    Ok(Value::Bool(match name {
        "isalnum" => all(char::is_alphanumeric),
        "isalpha" => all(char::is_alphabetic),
        "isascii" => text.is_ascii(),
        "isspace" => all(is_space),
        "islower" => text.chars().any(char::is_lowercase) && !text.chars().any(char::is_uppercase),
        "isupper" => text.chars().any(char::is_uppercase) && !text.chars().any(char::is_lowercase),
        _ => all(char::is_numeric),
    }))
}

/// Changes the case of a text: `lower`, `upper` and variants.
pub(crate) fn change_case(meter: &Meter<'_>, text: &str, name: &str) -> Result<Text, Fault> {
    meter.walk(2 * text.len())?;
    let mut out = TextBuffer::with_capacity(meter, text.len())?;
    if matches!(name, "lower" | "casefold") {
        // The result has at most three times the length, which is charged while it exists.
        let _lower = meter.charge(text.len().saturating_mul(3))?;
        out.push(meter, &text.to_lowercase())?;
        return Ok(out.finish());
    }
    let mut in_word = false;
    for (index, character) in text.chars().enumerate() {
        let upper = match name {
            "upper" => true,
            "capitalize" => index == 0,
            "swapcase" => character.is_lowercase(),
            _ => !in_word,
        };
        in_word = character.is_alphabetic();
        if upper {
            character.to_uppercase().try_for_each(|c| out.push_char(meter, c))?;
        } else {
            character.to_lowercase().try_for_each(|c| out.push_char(meter, c))?;
        }
    }
    Ok(out.finish())
}
