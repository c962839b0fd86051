//! Attributes, items and slices of values, as in jinja2's sandbox. A missing attribute or item is undefined,
//! and Python-only attributes are missing.

use super::compare::equal_keys;
use super::error::Fault;
use super::meter::Meter;
use super::methods::has_method;
use super::text::{Text, TextBuffer};
use super::value::{Bound, Items, LoopState, Value};

/// Evaluates `value.name`.
pub(crate) fn attribute(meter: &Meter<'_>, value: &Value, name: &str) -> Result<Value, Fault> {
    match value {
        Value::Undefined => {
            Err(Fault::failed(format!("an undefined value has no attribute `{name}`")))
        }
        Value::Map(map) if !has_method(value, name) => {
            // Default: missing keys of a dict are undefined.
            Ok(map.get(meter, name)?.cloned().unwrap_or(Value::Undefined))
        }
        Value::Namespace(namespace) => {
            // Default: missing attributes of a namespace are undefined.
            Ok(namespace.get(meter, name)?.unwrap_or(Value::Undefined))
        }
        Value::Loop(state) if !has_method(value, name) => loop_attribute(meter, state, name),
        Value::Cycler(cycler) if name == "current" => cycler.current(),
        value if has_method(value, name) => {
            Bound::new(meter, value.clone(), Text::copy(meter, name)?).map(Value::Method)
        }
        _ => Ok(Value::Undefined),
    }
}

fn loop_attribute(meter: &Meter<'_>, state: &LoopState, name: &str) -> Result<Value, Fault> {
    let length = state.items.items.len();
    let begun = state.begun.get();
    let number = |count: usize| Ok(Value::Int(count as i64));
    let neighbor = |index: Option<usize>| {
        let item = index.and_then(|index| state.items.items.get(index));
        // Default: there is no item before the first and after the last.
        Ok(item.cloned().unwrap_or(Value::Undefined))
    };
    meter.work(1)?;
    match name {
        "index" => number(begun),
        "index0" => number(begun.saturating_sub(1)),
        "revindex" => number((length + 1).saturating_sub(begun)),
        "revindex0" => number(length.saturating_sub(begun)),
        "first" => Ok(Value::Bool(begun <= 1)),
        "last" => Ok(Value::Bool(begun >= length)),
        "length" => number(length),
        "depth" => number(state.depth0 + 1),
        "depth0" => number(state.depth0),
        "previtem" => neighbor(begun.checked_sub(2)),
        "nextitem" => neighbor(Some(begun)),
        _ => Ok(Value::Undefined),
    }
}

/// Evaluates `value[key]`.
pub(crate) fn item(meter: &Meter<'_>, value: &Value, key: &Value) -> Result<Value, Fault> {
    let found = match (value, key) {
        (Value::Undefined, _) => {
            return Err(Fault::failed("an undefined value has no items"));
        }
        (Value::Map(map), Value::Text(key)) => map.get(meter, key.as_str())?.cloned(),
        (Value::Map(map), key) => {
            let mut found = None;
            for (name, value) in &map.entries {
                if equal_keys(meter, name, key)? {
                    found = Some(value.clone());
                    break;
                }
            }
            found
        }
        (Value::Sequence(sequence), key) if sequence.kind.is_indexed() => {
            let index = key.as_int().and_then(|index| place(index, sequence.items.len()));
            index.and_then(|index| sequence.items.get(index).cloned())
        }
        (Value::Text(text), key) => match key.as_int() {
            Some(index) => character(meter, text, index)?,
            None => None,
        },
        _ => None,
    };
    match (found, key) {
        (Some(found), _) => Ok(found),
        // If there is no item, the attribute is used, as in jinja2.
        (None, Value::Text(name)) => attribute(meter, value, name.as_str()),
        // Default: missing items are undefined.
        (None, _) => Ok(Value::Undefined),
    }
}

/// Converts an index, which may count from the end, to one from the start. Returns `None` if it is out of
/// range.
fn place(index: i64, length: usize) -> Option<usize> {
    match usize::try_from(index) {
        Ok(index) => Some(index).filter(|index| *index < length),
        Err(_) => length.checked_sub(usize::try_from(index.unsigned_abs()).ok()?),
    }
}

fn character(meter: &Meter<'_>, text: &Text, index: i64) -> Result<Option<Value>, Fault> {
    let count = text.count(meter)?;
    let Some(index) = place(index, count) else { return Ok(None) };
    let start = byte_of(text.as_str(), count, index);
    let length = text.as_str().get(start..).and_then(|rest| rest.chars().next());
    Ok(length.map(|character| Value::Text(text.part(start, start + character.len_utf8()))))
}

/// Returns the byte offset of a character in a text of `count` characters.
fn byte_of(text: &str, count: usize, index: usize) -> usize {
    if count == text.len() {
        return index.min(count);
    }
    text.char_indices().nth(index).map_or(text.len(), |(at, _)| at)
}

/// Evaluates `value[start:stop:step]`.
pub(crate) fn slice(meter: &Meter<'_>, value: &Value, bounds: [&Value; 3]) -> Result<Value, Fault> {
    let mut numbers = [None; 3];
    for (number, bound) in numbers.iter_mut().zip(bounds) {
        *number = match bound {
            Value::None => None,
            bound => Some(bound.as_int().ok_or_else(|| {
                Fault::failed(format!("{} is not a valid slice bound", bound.type_name()))
            })?),
        };
    }
    let [start, stop, step] = numbers;
    // Default: a step of 1, as in Python.
    let bounds = Bounds { start, stop, step: step.unwrap_or(1) };
    if bounds.step == 0 {
        return Err(Fault::failed("the step of a slice cannot be 0"));
    }
    match value {
        Value::Text(text) => slice_text(meter, text, bounds),
        Value::Sequence(list) if list.kind.is_indexed() => {
            let range = Indices::new(bounds, list.items.len());
            let mut items = Items::with_capacity(meter, range.left)?;
            for index in range {
                if let Some(item) = list.items.get(index) {
                    items.push(meter, item.clone())?;
                }
            }
            items.into_value(list.kind)
        }
        Value::Undefined => Err(Fault::failed("an undefined value has no items")),
        other => Err(Fault::failed(format!("{} has no slices", other.type_name()))),
    }
}

#[derive(Clone, Copy)]
struct Bounds {
    start: Option<i64>,
    stop: Option<i64>,
    step: i64,
}

fn slice_text(meter: &Meter<'_>, text: &Text, bounds: Bounds) -> Result<Value, Fault> {
    let count = text.count(meter)?;
    let range = Indices::new(bounds, count);
    if bounds.step == 1 {
        meter.scan(text.len())?;
        let start = byte_of(text.as_str(), count, range.next);
        let end = byte_of(text.as_str(), count, range.next + range.left);
        return Ok(Value::Text(text.part(start, end)));
    }
    let _characters = meter.charge(count.saturating_mul(size_of::<char>()))?;
    meter.walk(text.len())?;
    let characters: Vec<char> = text.as_str().chars().collect();
    let mut out = TextBuffer::new(meter)?;
    for index in range {
        if let Some(character) = characters.get(index) {
            out.push_char(meter, *character)?;
        }
    }
    Ok(Value::Text(out.finish()))
}

/// Indices of a slice, computed as in Python.
struct Indices {
    next: usize,
    step: i64,
    left: usize,
}

impl Indices {
    fn new(bounds: Bounds, length: usize) -> Self {
        let Bounds { start, stop, step } = bounds;
        // Lengths are far below the limits of both types.
        let length = length as i64;
        let (lowest, highest) = if step > 0 { (0, length) } else { (-1, length - 1) };
        let bound = |bound: Option<i64>, otherwise: i64| match bound {
            None => otherwise,
            Some(bound) if bound < 0 => bound.saturating_add(length).max(lowest),
            Some(bound) => bound.min(highest),
        };
        let (first, last) = if step > 0 { (0, length) } else { (length - 1, -1) };
        let (start, stop) = (bound(start, first), bound(stop, last));
        let distance = if step > 0 { stop - start } else { start - stop };
        let size = step.unsigned_abs().max(1);
        // Default: a negative distance means no items.
        let left = u64::try_from(distance).map_or(0, |distance| distance.div_ceil(size));
        Self { next: usize::try_from(start).unwrap_or(0), step, left: left as usize } // Default: unused without items.
    }
}

impl Iterator for Indices {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        self.left = self.left.checked_sub(1)?;
        let index = self.next;
        // A clamped index is never returned, because `left` ends the iteration before.
        self.next = (index as i64).saturating_add(self.step).max(0) as usize;
        Some(index)
    }
}
