//! Equality, order and membership with Python's semantics.

use std::cmp::Ordering;

use super::error::Fault;
use super::iterate::items_of;
use super::limits::ITEM_WORK;
use super::meter::Meter;
use super::value::{Kind, Sequence, Value};

/// Evaluates `left == right`. Nested items wait on an explicit stack.
pub(crate) fn equal(meter: &Meter<'_>, left: &Value, right: &Value) -> Result<bool, Fault> {
    if let (Value::Text(left), Value::Text(right)) = (left, right) {
        if left.len() != right.len() {
            return Ok(false);
        }
        meter.scan(left.len())?;
        return Ok(left.as_str() == right.as_str());
    }
    let mut open = vec![];
    if !begin(meter, left, right, &mut open)? {
        return Ok(false);
    }
    while let Some((left, right, next)) = open.last_mut() {
        let index = *next;
        *next += 1;
        let pair = match (left, right) {
            (Value::Sequence(left), Value::Sequence(right)) => {
                match (left.items.get(index), right.items.get(index)) {
                    (Some(left), Some(right)) => Some((left, right)),
                    _ => None,
                }
            }
            (Value::Map(left), Value::Map(right)) => match left.entries.get(index) {
                Some((key, left)) => {
                    let mut found = None;
                    for (name, right) in &right.entries {
                        if equal_keys(meter, name, key)? {
                            found = Some((left, right));
                            break;
                        }
                    }
                    match found {
                        Some(pair) => Some(pair),
                        None => return Ok(false),
                    }
                }
                None => None,
            },
            _ => None,
        };
        match pair {
            None => {
                open.pop();
            }
            Some((left, right)) => {
                if !begin(meter, left, right, &mut open)? {
                    return Ok(false);
                }
            }
        }
    }
    Ok(true)
}

/// Compares keys, which are texts and numbers. Tuples as keys are unequal to everything.
pub(crate) fn equal_keys(meter: &Meter<'_>, left: &Value, right: &Value) -> Result<bool, Fault> {
    let mut open = vec![];
    Ok(begin(meter, left, right, &mut open)? && open.is_empty())
}

/// Compares two values without their items, which are pushed on `open`.
fn begin<'v>(
    meter: &Meter<'_>,
    left: &'v Value,
    right: &'v Value,
    open: &mut Vec<(&'v Value, &'v Value, usize)>,
) -> Result<bool, Fault> {
    meter.work(ITEM_WORK)?;
    Ok(match (left, right) {
        (Value::Undefined, Value::Undefined) | (Value::None, Value::None) => true,
        (Value::Text(left), Value::Text(right)) => {
            if left.len() != right.len() {
                return Ok(false);
            }
            meter.scan(left.len())?;
            left.as_str() == right.as_str()
        }
        (Value::Sequence(a), Value::Sequence(b)) => {
            if a.kind != b.kind || a.kind == Kind::Generator || a.items.len() != b.items.len() {
                return Ok(std::rc::Rc::ptr_eq(a, b));
            }
            open.push((left, right, 0));
            true
        }
        (Value::Map(a), Value::Map(b)) => {
            if a.entries.len() != b.entries.len() {
                return Ok(false);
            }
            open.push((left, right, 0));
            true
        }
        (Value::Namespace(left), Value::Namespace(right)) => std::rc::Rc::ptr_eq(left, right),
        (Value::Function(left), Value::Function(right)) => left == right,
        (Value::Macro(left), Value::Macro(right)) => {
            left.index == right.index && left.serial == right.serial
        }
        (Value::Unsigned(left), Value::Unsigned(right)) => left == right,
        _ => match (left.as_int(), right.as_int()) {
            (Some(left), Some(right)) => left == right,
            _ => match (left.as_float(), right.as_float()) {
                (Some(left), Some(right)) => left == right,
                _ => false,
            },
        },
    })
}

/// Returns the order of two values, or `None` if they are unordered.
pub(crate) fn order(
    meter: &Meter<'_>,
    left: &Value,
    right: &Value,
) -> Result<Option<Ordering>, Fault> {
    let (mut left, mut right) = (left, right);
    // The first items that differ decide, so that only they are compared further.
    loop {
        meter.work(2 * ITEM_WORK)?;
        match (left, right) {
            (Value::Sequence(a), Value::Sequence(b))
                if a.kind == b.kind && matches!(a.kind, Kind::List | Kind::Tuple) =>
            {
                match first_difference(meter, a, b)? {
                    Some(index) => match (a.items.get(index), b.items.get(index)) {
                        (Some(a), Some(b)) => (left, right) = (a, b),
                        _ => return Ok(Some(a.items.len().cmp(&b.items.len()))),
                    },
                    None => return Ok(Some(a.items.len().cmp(&b.items.len()))),
                }
            }
            _ => return order_scalars(meter, left, right),
        }
    }
}

fn first_difference(
    meter: &Meter<'_>,
    left: &Sequence,
    right: &Sequence,
) -> Result<Option<usize>, Fault> {
    for (index, (left, right)) in left.items.iter().zip(&right.items).enumerate() {
        if !equal(meter, left, right)? {
            return Ok(Some(index));
        }
    }
    Ok(None)
}

fn order_scalars(
    meter: &Meter<'_>,
    left: &Value,
    right: &Value,
) -> Result<Option<Ordering>, Fault> {
    if let (Value::Text(left), Value::Text(right)) = (left, right) {
        meter.scan(left.len().min(right.len()))?;
        return Ok(Some(left.as_str().cmp(right.as_str())));
    }
    if let (Value::Unsigned(left), Value::Unsigned(right)) = (left, right) {
        return Ok(Some(left.cmp(right)));
    }
    if let (Some(left), Some(right)) = (left.as_int(), right.as_int()) {
        return Ok(Some(left.cmp(&right)));
    }
    match (left.as_float(), right.as_float()) {
        (Some(left), Some(right)) => Ok(left.partial_cmp(&right)),
        _ => Err(Fault::failed(format!(
            "{} cannot be ordered with {}",
            left.type_name(),
            right.type_name()
        ))),
    }
}

/// Evaluates `item in container`.
pub(crate) fn contains(meter: &Meter<'_>, container: &Value, item: &Value) -> Result<bool, Fault> {
    match container {
        Value::Text(text) => match item {
            Value::Text(part) => {
                meter.search(text.len().saturating_add(part.len()))?;
                Ok(text.as_str().contains(part.as_str()))
            }
            other => Err(Fault::failed(format!("a text cannot contain {}", other.type_name()))),
        },
        Value::Map(map) => match item {
            Value::Text(key) => Ok(map.get(meter, key.as_str())?.is_some()),
            Value::Map(_) => Err(Fault::failed("a dict cannot be a key")),
            Value::Sequence(sequence) if sequence.kind == Kind::List => {
                Err(Fault::failed("a list cannot be a key"))
            }
            other => {
                for (key, _) in &map.entries {
                    if equal_keys(meter, key, other)? {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
        },
        container => {
            let items = items_of(meter, container)?;
            for candidate in &items.items {
                if equal(meter, candidate, item)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
    }
}
