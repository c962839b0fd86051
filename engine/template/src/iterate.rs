//! Iteration over values.

use std::rc::Rc;

use super::error::Fault;
use super::meter::Meter;
use super::text::Text;
use super::value::{Items, Kind, Sequence, Value};

/// Returns the items of a value. A generator has items only the first time.
pub(crate) fn items_of(meter: &Meter<'_>, value: &Value) -> Result<Rc<Sequence>, Fault> {
    match value {
        Value::Undefined => Sequence::of(meter, Kind::List, []),
        Value::Sequence(sequence) => {
            if sequence.use_up() {
                return Sequence::of(meter, Kind::List, []);
            }
            Ok(Rc::clone(sequence))
        }
        Value::Map(map) => {
            let mut items = Items::with_capacity(meter, map.entries.len())?;
            for (key, _) in &map.entries {
                items.push(meter, key.clone())?;
            }
            items.finish(Kind::List)
        }
        Value::Text(text) => characters(meter, text),
        other => Err(Fault::failed(format!("{} cannot be gone through", other.type_name()))),
    }
}

/// Returns whether [`items_of`] would succeed.
pub(crate) fn is_iterable(value: &Value) -> bool {
    matches!(value, Value::Undefined | Value::Sequence(_) | Value::Map(_) | Value::Text(_))
}

fn characters(meter: &Meter<'_>, text: &Text) -> Result<Rc<Sequence>, Fault> {
    let mut items = Items::with_capacity(meter, text.count(meter)?)?;
    for (at, character) in text.as_str().char_indices() {
        items.push(meter, Value::Text(text.part(at, at + character.len_utf8())))?;
    }
    items.finish(Kind::List)
}

/// Evaluates `len(value)`.
pub(crate) fn length_of(meter: &Meter<'_>, value: &Value) -> Result<usize, Fault> {
    match value {
        Value::Undefined => Ok(0),
        Value::Text(text) => text.count(meter),
        Value::Sequence(sequence) if sequence.kind != Kind::Generator => Ok(sequence.items.len()),
        Value::Map(map) => Ok(map.entries.len()),
        other => Err(Fault::failed(format!("{} has no length", other.type_name()))),
    }
}

pub(crate) fn reversed(meter: &Meter<'_>, items: &[Value], kind: Kind) -> Result<Value, Fault> {
    let mut out = Items::with_capacity(meter, items.len())?;
    for item in items.iter().rev() {
        out.push(meter, item.clone())?;
    }
    out.into_value(kind)
}
