//! Conversion from JSON to values, and output as by `json.dumps`.

use serde_json::{Number, Value as Json};

use super::error::Fault;
use super::limits::{ALLOCATION_WORK, ITEM_WORK, VALUE_DEPTH_MAX};
use super::meter::Meter;
use super::numbers::float_text;
use super::print::to_text;
use super::text::{Text, TextBuffer, between};
use super::value::{Entries, Items, Kind, Sequence, Value};

/// A list or object under construction; for an object, with the current key.
enum OpenContainer<'j> {
    List(std::slice::Iter<'j, Json>, Items),
    Map(serde_json::map::Iter<'j>, Value, Entries),
}

/// Converts `json` to a value. `known` returns shared texts, which keys often match.
pub(crate) fn from_json(
    meter: &Meter<'_>,
    json: &Json,
    known: &dyn Fn(&str) -> Option<Text>,
) -> Result<Value, Fault> {
    let mut making: Vec<OpenContainer<'_>> = vec![];
    let mut next = Some(json);
    loop {
        let mut done = match next.take() {
            Some(json) => begin(meter, json, &mut making)?,
            None => None,
        };
        if making.len() > usize::from(VALUE_DEPTH_MAX) {
            return Err(Fault::failed("the input is nested too deeply"));
        }
        // `done` holds the completed value, which is added to its container before the next item starts.
        loop {
            let Some(top) = making.last_mut() else {
                return done.ok_or(Fault::failed("no input"));
            };
            match top {
                OpenContainer::List(rest, items) => {
                    if let Some(value) = done.take() {
                        items.push(meter, value)?;
                    }
                    next = rest.next();
                }
                OpenContainer::Map(rest, key, entries) => {
                    if let Some(value) = done.take() {
                        entries.push(std::mem::replace(key, Value::None), value);
                    }
                    if let Some((name, json)) = rest.next() {
                        *key = match known(name) {
                            Some(name) => Value::Text(name),
                            None => Value::text(meter, name)?,
                        };
                        next = Some(json);
                    }
                }
            }
            if next.is_some() {
                break;
            }
            done = match making.pop() {
                Some(OpenContainer::List(_, items)) => Some(items.into_value(Kind::List)?),
                Some(OpenContainer::Map(_, _, entries)) => Some(Value::Map(entries.finish()?)),
                None => None,
            };
        }
    }
}

/// Converts a scalar. A list or object is pushed on `making` instead.
fn begin<'j>(
    meter: &Meter<'_>,
    json: &'j Json,
    making: &mut Vec<OpenContainer<'j>>,
) -> Result<Option<Value>, Fault> {
    meter.work(ITEM_WORK)?;
    Ok(Some(match json {
        Json::Null => Value::None,
        Json::Bool(truth) => Value::Bool(*truth),
        Json::Number(number) => from_number(number),
        Json::String(text) => Value::text(meter, text)?,
        Json::Array(list) => {
            let items = Items::with_capacity(meter, list.len())?;
            making.push(OpenContainer::List(list.iter(), items));
            return Ok(None);
        }
        Json::Object(map) => {
            let entries = Entries::with_capacity(meter, map.len())?;
            making.push(OpenContainer::Map(map.iter(), Value::None, entries));
            return Ok(None);
        }
    }))
}

fn from_number(number: &Number) -> Value {
    match (number.as_i64(), number.as_u64(), number.as_f64()) {
        (Some(number), ..) => Value::Int(number),
        (_, Some(number), _) => Value::Unsigned(number),
        (_, _, number) => number.map_or(Value::None, Value::Float),
    }
}

/// Options of `json.dumps`.
pub(crate) struct Style<'s> {
    pub(crate) indent: Option<Text>,
    pub(crate) item_separator: &'s str,
    pub(crate) key_separator: &'s str,
    pub(crate) ensure_ascii: bool,
    pub(crate) sort_keys: bool,
}

/// A list or map that is being written, and the number of items written.
enum Open {
    List(std::rc::Rc<Sequence>, usize),
    Map(Vec<(Value, Value)>, usize),
}

/// Implements `json.dumps(value)`.
pub(crate) fn to_json(
    meter: &Meter<'_>,
    value: &Value,
    style: &Style<'_>,
    sort: impl Fn(Vec<(Value, Value)>) -> Result<Vec<(Value, Value)>, Fault>,
) -> Result<Text, Fault> {
    let mut writer = Writer { meter, style, out: TextBuffer::new(meter)?, open: vec![] };
    writer.begin(value, &sort)?;
    loop {
        let depth = writer.open.len();
        meter.work(ITEM_WORK)?;
        let item = match writer.open.last_mut() {
            None => return Ok(writer.out.finish()),
            Some(Open::List(sequence, next)) => {
                *next += 1;
                sequence.items.get(*next - 1).map(|item| (*next, None, item.clone()))
            }
            Some(Open::Map(entries, next)) => {
                *next += 1;
                let entry = entries.get(*next - 1).cloned();
                entry.map(|(key, item)| (*next, Some(key), item))
            }
        };
        let Some((number, key, item)) = item else {
            writer.end()?;
            continue;
        };
        if number > 1 {
            writer.out.push(meter, style.item_separator)?;
        }
        writer.new_line(depth)?;
        if let Some(key) = key {
            writer.key(&key)?;
            writer.out.push(meter, style.key_separator)?;
        }
        writer.begin(&item, &sort)?;
    }
}

struct Writer<'m, 'h> {
    meter: &'m Meter<'h>,
    style: &'m Style<'m>,
    out: TextBuffer,
    open: Vec<Open>,
}

impl Writer<'_, '_> {
    fn begin(
        &mut self,
        value: &Value,
        sort: &impl Fn(Vec<(Value, Value)>) -> Result<Vec<(Value, Value)>, Fault>,
    ) -> Result<(), Fault> {
        match value {
            Value::Sequence(sequence) if matches!(sequence.kind, Kind::List | Kind::Tuple) => {
                self.open.push(Open::List(std::rc::Rc::clone(sequence), 0));
                self.out.push(self.meter, "[")
            }
            Value::Map(map) => {
                let _copy = self.meter.charge(map.entries.len() * size_of::<(Value, Value)>())?;
                self.meter.walk(map.entries.len())?;
                let mut entries = map.entries.clone();
                if self.style.sort_keys {
                    entries = sort(entries)?;
                }
                self.open.push(Open::Map(entries, 0));
                self.out.push(self.meter, "{")
            }
            value => self.scalar(value),
        }
    }

    fn scalar(&mut self, value: &Value) -> Result<(), Fault> {
        self.meter.work(ALLOCATION_WORK)?;
        match value {
            Value::None => self.out.push(self.meter, "null"),
            Value::Bool(true) => self.out.push(self.meter, "true"),
            Value::Bool(false) => self.out.push(self.meter, "false"),
            Value::Int(number) => self.out.push(self.meter, &number.to_string()),
            Value::Unsigned(number) => self.out.push(self.meter, &number.to_string()),
            Value::Float(number) => self.out.push(self.meter, &json_float(*number)),
            Value::Text(text) => self.text(text.as_str()),
            other => Err(Fault::failed(format!("tojson cannot write {}", other.type_name()))),
        }
    }

    fn end(&mut self) -> Result<(), Fault> {
        let (bracket, empty) = match self.open.pop() {
            Some(Open::Map(entries, _)) => ("}", entries.is_empty()),
            Some(Open::List(sequence, _)) => ("]", sequence.items.is_empty()),
            None => return Ok(()),
        };
        if !empty {
            self.new_line(self.open.len())?;
        }
        self.out.push(self.meter, bracket)
    }

    fn new_line(&mut self, depth: usize) -> Result<(), Fault> {
        match &self.style.indent {
            Some(indent) => {
                self.out.push(self.meter, "\n")?;
                self.out.repeat(self.meter, indent.as_str(), depth)
            }
            None => Ok(()),
        }
    }

    fn key(&mut self, key: &Value) -> Result<(), Fault> {
        match key {
            Value::Text(text) => self.text(text.as_str()),
            Value::None => self.text("null"),
            Value::Bool(truth) => self.text(if *truth { "true" } else { "false" }),
            Value::Float(number) => self.text(&json_float(*number)),
            Value::Int(_) | Value::Unsigned(_) => {
                let text = to_text(self.meter, key)?;
                self.text(text.as_str())
            }
            other => Err(Fault::failed(format!("{} cannot be a key in JSON", other.type_name()))),
        }
    }

    fn text(&mut self, text: &str) -> Result<(), Fault> {
        let ensure_ascii = self.style.ensure_ascii;
        self.meter.walk(text.len())?;
        self.out.push(self.meter, "\"")?;
        // Text without escapes is written in one call.
        let mut written = 0;
        for (at, character) in text.char_indices() {
            let plain = match character {
                '"' | '\\' | '\0'..='\x1f' => false,
                // Python escapes DEL only if all non-ASCII text is escaped.
                character => character <= '~' || !ensure_ascii,
            };
            if !plain {
                self.out.push(self.meter, between(text, written..at)?)?;
                written = at + character.len_utf8();
                self.escape(character)?;
            }
        }
        self.out.push(self.meter, between(text, written..text.len())?)?;
        self.out.push(self.meter, "\"")
    }

    fn escape(&mut self, character: char) -> Result<(), Fault> {
        let simple = match character {
            '"' => "\\\"",
            '\\' => "\\\\",
            '\n' => "\\n",
            '\r' => "\\r",
            '\t' => "\\t",
            '\u{8}' => "\\b",
            '\u{c}' => "\\f",
            _ => {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    self.out.push(self.meter, &format!("\\u{unit:04x}"))?;
                }
                return Ok(());
            }
        };
        self.out.push(self.meter, simple)
    }
}

fn json_float(number: f64) -> String {
    if number.is_nan() {
        return "NaN".into();
    }
    if number.is_infinite() {
        return if number > 0.0 { "Infinity".into() } else { "-Infinity".into() };
    }
    float_text(number)
}
