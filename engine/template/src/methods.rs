//! Python's methods of dicts and lists; methods of text are in `text_methods.rs`. Mutating methods are
//! rejected, as in jinja2's immutable sandbox.

use super::arguments::Arguments;
use super::compare::{equal, equal_keys};
use super::error::Fault;
use super::meter::Meter;
use super::text_methods::{TEXT_METHODS, call_text_method};
use super::value::{Items, Kind, Map, Value};

const MAP_METHODS: [&str; 5] = ["items", "keys", "values", "get", "copy"];
const LIST_METHODS: [&str; 3] = ["index", "count", "copy"];
const TUPLE_METHODS: [&str; 2] = ["index", "count"];

/// Mutating methods, which the sandbox rejects.
const CHANGES: [&str; 11] = [
    "append",
    "clear",
    "extend",
    "insert",
    "pop",
    "popitem",
    "remove",
    "reverse",
    "setdefault",
    "sort",
    "update",
];

/// Returns whether `value.name` is a method.
pub(crate) fn has_method(value: &Value, name: &str) -> bool {
    match value {
        Value::Map(_) => MAP_METHODS.contains(&name),
        Value::Sequence(sequence) if sequence.kind == Kind::List => LIST_METHODS.contains(&name),
        Value::Sequence(sequence) if sequence.kind == Kind::Tuple => TUPLE_METHODS.contains(&name),
        Value::Text(_) => TEXT_METHODS.contains(&name),
        Value::Loop(_) => matches!(name, "cycle" | "changed"),
        Value::Cycler(_) => matches!(name, "next" | "reset"),
        _ => false,
    }
}

/// Calls a method for which [`has_method`] returned true.
pub(crate) fn call_method(
    meter: &Meter<'_>,
    value: &Value,
    name: &str,
    arguments: Arguments<'_>,
) -> Result<Value, Fault> {
    match value {
        Value::Text(text) => call_text_method(meter, text, name, arguments),
        Value::Map(map) => map_method(meter, map, name, arguments),
        Value::Sequence(sequence) => match name {
            "copy" => {
                arguments.none()?;
                Ok(value.clone())
            }
            _ => search(meter, &sequence.items, name, arguments),
        },
        Value::Loop(state) => match name {
            "cycle" => {
                let items = arguments.positional;
                let index = state.begun.get().saturating_sub(1).checked_rem(items.len());
                let item = index.and_then(|index| items.get(index));
                item.cloned().ok_or(Fault::failed("`loop.cycle` without items"))
            }
            _ => {
                let now = Items::new(meter)?;
                let now = arguments.positional.iter().try_fold(now, |mut now, item| {
                    now.push(meter, item.clone())?;
                    Ok(now)
                })?;
                let now = now.into_value(Kind::Tuple)?;
                let before = state.last.replace(Some(now.clone()));
                let same = match &before {
                    Some(before) => equal(meter, before, &now)?,
                    None => false,
                };
                Ok(Value::Bool(!same))
            }
        },
        Value::Cycler(cycler) => {
            arguments.none()?;
            if name == "reset" {
                cycler.next.set(0);
                return Ok(Value::None);
            }
            let current = cycler.current()?;
            cycler.next.set((cycler.next.get() + 1) % cycler.items.items.len());
            Ok(current)
        }
        other => Err(unknown(other, name)),
    }
}

/// Returns the error for an unknown method.
pub(crate) fn unknown(value: &Value, name: &str) -> Fault {
    let of = value.type_name();
    if CHANGES.contains(&name) && matches!(value, Value::Map(_) | Value::Sequence(_)) {
        return Fault::failed(format!("`{name}` would change {of}, which templates may not"));
    }
    Fault::failed(format!("{of} has no method `{name}`"))
}

fn map_method(
    meter: &Meter<'_>,
    map: &Map,
    name: &str,
    arguments: Arguments<'_>,
) -> Result<Value, Fault> {
    if name == "get" {
        let [key, default] = arguments.bind(["key", "default"])?;
        let Some(key) = key else { return Err(Fault::failed("`get` wants a key")) };
        if let Value::Text(key) = key {
            if let Some(value) = map.get(meter, key.as_str())? {
                return Ok(value.clone());
            }
        } else {
            for (candidate, value) in &map.entries {
                if equal_keys(meter, candidate, key)? {
                    return Ok(value.clone());
                }
            }
        }
        // Default: `None`, as in Python.
        return Ok(default.cloned().unwrap_or(Value::None));
    }
    arguments.none()?;
    let mut items = Items::with_capacity(meter, map.entries.len())?;
    match name {
        "keys" => {
            for (key, _) in &map.entries {
                items.push(meter, key.clone())?;
            }
            items.into_value(Kind::Keys)
        }
        "values" => {
            for (_, value) in &map.entries {
                items.push(meter, value.clone())?;
            }
            items.into_value(Kind::Values)
        }
        "copy" => Ok(Value::Map(Map::of(meter, map.entries.iter().cloned())?)),
        _ => items_of_map(meter, map, Kind::Items),
    }
}

pub(crate) fn items_of_map(meter: &Meter<'_>, map: &Map, kind: Kind) -> Result<Value, Fault> {
    let mut items = Items::with_capacity(meter, map.entries.len())?;
    for (key, value) in &map.entries {
        let mut pair = Items::with_capacity(meter, 2)?;
        pair.push(meter, key.clone())?;
        pair.push(meter, value.clone())?;
        items.push(meter, pair.into_value(Kind::Tuple)?)?;
    }
    items.into_value(kind)
}

/// Implements `index` and `count` of lists.
fn search(
    meter: &Meter<'_>,
    items: &[Value],
    name: &str,
    arguments: Arguments<'_>,
) -> Result<Value, Fault> {
    let [wanted] = arguments.bind(["value"])?;
    let Some(wanted) = wanted else { return Err(Fault::failed("a value to look for is missing")) };
    let mut count = 0;
    for (index, item) in items.iter().enumerate() {
        if equal(meter, item, wanted)? {
            if name == "index" {
                return Ok(Value::Int(index as i64));
            }
            count += 1;
        }
    }
    match name {
        "index" => Err(Fault::failed("the value is not in the list")),
        _ => Ok(Value::Int(count)),
    }
}
