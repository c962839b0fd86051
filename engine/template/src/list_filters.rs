//! Filters of lists.

use super::access::item;
use super::arguments::{Arguments, int_of, is_on};
use super::arithmetic::compute;
use super::compare::equal;
use super::error::Fault;
use super::iterate::{items_of, reversed};
use super::limits::ALLOCATION_WORK;
use super::meter::Meter;
use super::program::Arithmetic;
use super::sort::sorted_places;
use super::text_methods::change_case;
use super::value::{Items, Kind, Sequence, Value};

/// Returns the value at a path such as `function.name` or `0`.
pub(crate) fn attribute_of(meter: &Meter<'_>, value: &Value, path: &Value) -> Result<Value, Fault> {
    let Value::Text(path) = path else { return item(meter, value, path) };
    let mut found = value.clone();
    for part in path.as_str().split('.') {
        meter.work(ALLOCATION_WORK)?;
        let key = match part.parse() {
            Ok(index) if part.bytes().all(|byte| byte.is_ascii_digit()) => Value::Int(index),
            _ => Value::Text(path.part_of(part)),
        };
        found = item(meter, &found, &key)?;
    }
    Ok(found)
}

/// Converts a key to lower case, for comparisons that ignore case.
pub(crate) fn folded(meter: &Meter<'_>, key: Value) -> Result<Value, Fault> {
    match &key {
        Value::Text(text) => change_case(meter, text.as_str(), "lower").map(Value::Text),
        _ => Ok(key),
    }
}

pub(crate) fn list(
    meter: &Meter<'_>,
    value: &Value,
    arguments: Arguments<'_>,
) -> Result<Value, Fault> {
    arguments.none()?;
    let items = items_of(meter, value)?;
    if items.kind == Kind::List {
        return Ok(Value::Sequence(items));
    }
    Sequence::of(meter, Kind::List, items.items.iter().cloned()).map(Value::Sequence)
}

pub(crate) fn first(
    meter: &Meter<'_>,
    value: &Value,
    arguments: Arguments<'_>,
) -> Result<Value, Fault> {
    arguments.none()?;
    if let Value::Text(text) = value {
        let first = text.as_str().chars().next();
        return Ok(first.map_or(Value::Undefined, |c| Value::Text(text.part(0, c.len_utf8()))));
    }
    // Default: an empty list has no first item.
    Ok(items_of(meter, value)?.items.first().cloned().unwrap_or(Value::Undefined))
}

pub(crate) fn last(
    meter: &Meter<'_>,
    value: &Value,
    arguments: Arguments<'_>,
) -> Result<Value, Fault> {
    arguments.none()?;
    match value {
        Value::Sequence(sequence) if sequence.kind == Kind::Generator => {
            return Err(Fault::failed("a generator cannot be gone through backwards"));
        }
        Value::Text(text) => {
            let last = text.as_str().chars().next_back();
            return Ok(last.map_or(Value::Undefined, |c| {
                Value::Text(text.part(text.len() - c.len_utf8(), text.len()))
            }));
        }
        _ => {}
    }
    // Default: an empty list has no last item.
    Ok(items_of(meter, value)?.items.last().cloned().unwrap_or(Value::Undefined))
}

pub(crate) fn reverse(
    meter: &Meter<'_>,
    value: &Value,
    arguments: Arguments<'_>,
) -> Result<Value, Fault> {
    arguments.none()?;
    if let Value::Text(_) = value {
        return super::access::slice(meter, value, [&Value::None, &Value::None, &Value::Int(-1)]);
    }
    reversed(meter, &items_of(meter, value)?.items, Kind::Generator)
}

/// Returns the sort keys of the items, by path.
fn keys_of(
    meter: &Meter<'_>,
    items: &[Value],
    path: Option<&Value>,
    case_sensitive: bool,
) -> Result<Items, Fault> {
    let mut keys = Items::with_capacity(meter, items.len())?;
    for value in items {
        let key = match path {
            Some(path) if !matches!(path, Value::None) => attribute_of(meter, value, path)?,
            _ => value.clone(),
        };
        keys.push(meter, if case_sensitive { key } else { folded(meter, key)? })?;
    }
    Ok(keys)
}

/// Returns the items in the order of the keys.
fn in_order(
    meter: &Meter<'_>,
    items: &[Value],
    keys: &[Value],
    reverse: bool,
) -> Result<Items, Fault> {
    let mut out = Items::with_capacity(meter, items.len())?;
    for place in sorted_places(meter, keys, reverse)? {
        if let Some(value) = items.get(place) {
            out.push(meter, value.clone())?;
        }
    }
    Ok(out)
}

pub(crate) fn sort(
    meter: &Meter<'_>,
    value: &Value,
    arguments: Arguments<'_>,
) -> Result<Value, Fault> {
    let [reverse, case_sensitive, path] =
        arguments.bind(["reverse", "case_sensitive", "attribute"])?;
    if path.and_then(Value::as_str).is_some_and(|path| path.contains(',')) {
        return Err(Fault::failed("sorting by several attributes is not supported"));
    }
    let items = items_of(meter, value)?;
    let keys = keys_of(meter, &items.items, path, is_on(case_sensitive))?;
    in_order(meter, &items.items, keys.as_slice(), is_on(reverse))?.into_value(Kind::List)
}

pub(crate) fn unique(
    meter: &Meter<'_>,
    value: &Value,
    arguments: Arguments<'_>,
) -> Result<Value, Fault> {
    let [case_sensitive, path] = arguments.bind(["case_sensitive", "attribute"])?;
    let items = items_of(meter, value)?;
    let keys = keys_of(meter, &items.items, path, is_on(case_sensitive))?;
    let (mut seen, mut out) = (Items::new(meter)?, Items::new(meter)?);
    for (value, key) in items.items.iter().zip(keys.as_slice()) {
        let mut known = false;
        for other in seen.as_slice() {
            known = known || equal(meter, key, other)?;
        }
        if !known {
            seen.push(meter, key.clone())?;
            out.push(meter, value.clone())?;
        }
    }
    out.into_value(Kind::Generator)
}

pub(crate) fn batch(
    meter: &Meter<'_>,
    value: &Value,
    arguments: Arguments<'_>,
) -> Result<Value, Fault> {
    let [size, fill] = arguments.bind(["linecount", "fill_with"])?;
    let size = size.map_or(Ok(0), |size| int_of(size, "the size of a batch"))?;
    // Default: without a positive size, there is one batch with everything.
    let size = usize::try_from(size).ok().filter(|size| *size > 0).unwrap_or(usize::MAX);
    let items = items_of(meter, value)?;
    let mut out = Items::new(meter)?;
    for chunk in items.items.chunks(size) {
        let mut batch = Items::with_capacity(meter, chunk.len())?;
        for value in chunk {
            batch.push(meter, value.clone())?;
        }
        if let Some(fill) = fill.filter(|fill| !matches!(fill, Value::None))
            && size < usize::MAX
        {
            while batch.len() < size {
                meter.work(4)?;
                batch.push(meter, fill.clone())?;
            }
        }
        out.push(meter, batch.into_value(Kind::List)?)?;
    }
    out.into_value(Kind::Generator)
}

pub(crate) fn slices(
    meter: &Meter<'_>,
    value: &Value,
    arguments: Arguments<'_>,
) -> Result<Value, Fault> {
    let [count, fill] = arguments.bind(["slices", "fill_with"])?;
    let count = count.map_or(Ok(0), |count| int_of(count, "the number of slices"))?;
    let count = usize::try_from(count).ok().filter(|count| *count > 0);
    let count = count.ok_or(Fault::failed("the number of slices has to be above 0"))?;
    let items = items_of(meter, value)?;
    let (each, longer) = (items.items.len() / count, items.items.len() % count);
    let mut out = Items::new(meter)?;
    let mut rest = items.items.as_slice();
    for number in 0..count {
        meter.work(20)?;
        let size = each + usize::from(number < longer);
        let (now, later) = rest.split_at(size.min(rest.len()));
        rest = later;
        let mut slice = Items::with_capacity(meter, now.len())?;
        for value in now {
            slice.push(meter, value.clone())?;
        }
        if let Some(fill) = fill.filter(|fill| !matches!(fill, Value::None))
            && number >= longer
        {
            slice.push(meter, fill.clone())?;
        }
        out.push(meter, slice.into_value(Kind::List)?)?;
    }
    out.into_value(Kind::Generator)
}

pub(crate) fn group_by(
    meter: &Meter<'_>,
    value: &Value,
    arguments: Arguments<'_>,
) -> Result<Value, Fault> {
    let [path, default, case_sensitive] =
        arguments.bind(["attribute", "default", "case_sensitive"])?;
    let path = path.ok_or(Fault::failed("`groupby` wants an attribute"))?;
    let items = items_of(meter, value)?;
    let mut keys = Items::with_capacity(meter, items.items.len())?;
    for value in &items.items {
        let mut key = attribute_of(meter, value, path)?;
        if let (Value::Undefined, Some(default)) = (&key, default) {
            key = default.clone();
        }
        keys.push(meter, key)?;
    }
    let folded = keys_of(meter, keys.as_slice(), None, is_on(case_sensitive))?;
    let mut out = Items::new(meter)?;
    let mut group: Option<(Value, &Value, Items)> = None;
    for place in sorted_places(meter, folded.as_slice(), false)? {
        let (Some(value), Some(key), Some(real)) =
            (items.items.get(place), folded.as_slice().get(place), keys.as_slice().get(place))
        else {
            continue;
        };
        let same = match &group {
            Some((_, known, _)) => equal(meter, known, key)?,
            None => false,
        };
        if !same && let Some((real, _, members)) = group.take() {
            out.push(meter, grouped(meter, real, members)?)?;
        }
        let (_, _, members) = match &mut group {
            Some(group) => group,
            None => group.insert((real.clone(), key, Items::new(meter)?)),
        };
        members.push(meter, value.clone())?;
    }
    if let Some((real, _, members)) = group {
        out.push(meter, grouped(meter, real, members)?)?;
    }
    out.into_value(Kind::List)
}

fn grouped(meter: &Meter<'_>, key: Value, members: Items) -> Result<Value, Fault> {
    let members = members.into_value(Kind::List)?;
    Sequence::of(meter, Kind::Tuple, [key, members]).map(Value::Sequence)
}

pub(crate) fn dict_sort(
    meter: &Meter<'_>,
    value: &Value,
    arguments: Arguments<'_>,
) -> Result<Value, Fault> {
    let [case_sensitive, by, reverse] = arguments.bind(["case_sensitive", "by", "reverse"])?;
    let Value::Map(map) = value else {
        return Err(Fault::failed(format!("{} cannot be sorted by keys", value.type_name())));
    };
    let by_value = match by.map(Value::as_str) {
        None | Some(Some("key")) => false,
        Some(Some("value")) => true,
        Some(_) => return Err(Fault::failed("`dictsort` sorts by key or by value")),
    };
    let mut keys = Items::with_capacity(meter, map.entries.len())?;
    for (key, value) in &map.entries {
        let key = if by_value { value } else { key }.clone();
        keys.push(meter, if is_on(case_sensitive) { key } else { folded(meter, key)? })?;
    }
    let pairs = items_of(meter, &super::methods::items_of_map(meter, map, Kind::List)?)?;
    in_order(meter, &pairs.items, keys.as_slice(), is_on(reverse))?.into_value(Kind::List)
}

pub(crate) fn sum(
    meter: &Meter<'_>,
    value: &Value,
    arguments: Arguments<'_>,
) -> Result<Value, Fault> {
    let [path, start] = arguments.bind(["attribute", "start"])?;
    // Default: 0, as in jinja2.
    let mut sum = start.cloned().unwrap_or(Value::Int(0));
    if matches!(sum, Value::Text(_)) {
        return Err(Fault::failed("texts are joined, not summed"));
    }
    for value in &items_of(meter, value)?.items {
        meter.work(ALLOCATION_WORK)?;
        let value = match path {
            Some(path) if !matches!(path, Value::None) => attribute_of(meter, value, path)?,
            _ => value.clone(),
        };
        sum = compute(meter, Arithmetic::Add, sum, &value)?;
    }
    Ok(sum)
}
