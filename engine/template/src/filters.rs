//! Filters by name. This module holds the filters that apply a filter or a test to each item. Filters of
//! lists are in `list_filters.rs`, filters of text in `text_filters.rs`.

use std::rc::Rc;

use super::arguments::{Arguments, int_of, is_on, text_of};
use super::compare::order;
use super::error::Fault;
use super::iterate::{items_of, length_of};
use super::limits::ALLOCATION_WORK;
use super::list_filters as lists;
use super::list_filters::{attribute_of, folded};
use super::meter::Meter;
use super::methods::{has_method, items_of_map};
use super::numbers::{parse_float, parse_int};
use super::predicates::apply_test;
use super::print::to_text;
use super::text_filters as texts;
use super::value::{Bound, Items, Kind, Sequence, Value};

/// Evaluates `value | name(arguments)`.
pub(crate) fn apply_filter(
    meter: &Meter<'_>,
    name: &str,
    value: &Value,
    arguments: Arguments<'_>,
) -> Result<Value, Fault> {
    match name {
        "tojson" => texts::tojson(meter, value, arguments),
        "trim" => texts::trim(meter, value, arguments),
        "length" | "count" => {
            arguments.none()?;
            Ok(Value::Int(length_of(meter, value)? as i64))
        }
        "default" | "d" => {
            let [other, falsy] = arguments.bind(["default_value", "boolean"])?;
            if value.is_undefined() || (is_on(falsy) && !value.is_true()) {
                return other.map_or_else(|| Value::text(meter, ""), |other| Ok(other.clone()));
            }
            Ok(value.clone())
        }
        "join" => texts::join(meter, value, arguments),
        "map" => map(meter, value, arguments),
        "select" | "reject" => choose(meter, value, arguments, name == "select"),
        "selectattr" | "rejectattr" => choose_by(meter, value, arguments, name == "selectattr"),
        "upper" | "lower" | "capitalize" => {
            arguments.none()?;
            let text = to_text(meter, value)?;
            super::text_methods::change_case(meter, text.as_str(), name).map(Value::Text)
        }
        "title" => texts::title(meter, value, arguments),
        "string" => {
            arguments.none()?;
            to_text(meter, value).map(Value::Text)
        }
        "safe" => {
            arguments.none()?;
            to_text(meter, value).map(Value::Markup)
        }
        "escape" | "e" | "forceescape" => texts::escape(meter, value, arguments),
        "replace" => texts::replace_filter(meter, value, arguments),
        "indent" => texts::indent(meter, value, arguments),
        "wordcount" => texts::word_count(meter, value, arguments),
        "center" => texts::center(meter, value, arguments),
        "list" => lists::list(meter, value, arguments),
        "first" => lists::first(meter, value, arguments),
        "last" => lists::last(meter, value, arguments),
        "reverse" => lists::reverse(meter, value, arguments),
        "sort" => lists::sort(meter, value, arguments),
        "unique" => lists::unique(meter, value, arguments),
        "batch" => lists::batch(meter, value, arguments),
        "slice" => lists::slices(meter, value, arguments),
        "groupby" => lists::group_by(meter, value, arguments),
        "dictsort" => lists::dict_sort(meter, value, arguments),
        "sum" => lists::sum(meter, value, arguments),
        "min" | "max" => extreme(meter, value, arguments, name == "min"),
        "items" => items(meter, value, arguments),
        "attr" => attr(meter, value, arguments),
        "int" => int(value, arguments),
        "float" => float(value, arguments),
        "abs" => abs(value, arguments),
        "round" => round(value, arguments),
        _ => Err(Fault::failed(format!("there is no filter `{name}`"))),
    }
}

fn items(meter: &Meter<'_>, value: &Value, arguments: Arguments<'_>) -> Result<Value, Fault> {
    arguments.none()?;
    match value {
        Value::Undefined => Sequence::of(meter, Kind::Generator, []).map(Value::Sequence),
        Value::Map(map) => items_of_map(meter, map, Kind::Generator),
        other => Err(Fault::failed(format!("{} has no keys", other.type_name()))),
    }
}

/// Implements `attr`, which looks up attributes but not items.
fn attr(meter: &Meter<'_>, value: &Value, arguments: Arguments<'_>) -> Result<Value, Fault> {
    let [name] = arguments.bind(["name"])?;
    match name {
        Some(Value::Text(name)) => match value {
            Value::Map(_) if !has_method(value, name.as_str()) => Ok(Value::Undefined),
            Value::Map(_) => Bound::new(meter, value.clone(), name.clone()).map(Value::Method),
            value => super::access::attribute(meter, value, name.as_str()),
        },
        _ => Err(Fault::failed("`attr` wants a name")),
    }
}

/// Returns the items of a value. A false value of any type has no items, as in jinja2.
fn items_if_any(meter: &Meter<'_>, value: &Value) -> Result<Rc<Sequence>, Fault> {
    if value.is_true() { items_of(meter, value) } else { Sequence::of(meter, Kind::List, []) }
}

/// Implements `map`: an attribute or a filter of each item.
fn map(meter: &Meter<'_>, value: &Value, arguments: Arguments<'_>) -> Result<Value, Fault> {
    let source = items_if_any(meter, value)?;
    let mut out = Items::new(meter)?;
    match arguments.split_first() {
        None => {
            let [path, default] = arguments.bind(["attribute", "default"])?;
            let path = path.ok_or(Fault::failed("`map` wants a filter or an attribute"))?;
            for value in &source.items {
                let mut found = attribute_of(meter, value, path)?;
                if let (Value::Undefined, Some(default)) = (&found, default) {
                    found = default.clone();
                }
                out.push(meter, found)?;
            }
        }
        Some((filter, rest)) => {
            let filter = text_of(filter, "the name of a filter")?;
            for value in &source.items {
                meter.work(ALLOCATION_WORK)?;
                let mapped = meter.nested(|| apply_filter(meter, filter, value, rest))?;
                out.push(meter, mapped)?;
            }
        }
    }
    out.into_value(Kind::Generator)
}

/// Keeps the items for which a test returns `wanted`.
fn choose(
    meter: &Meter<'_>,
    value: &Value,
    arguments: Arguments<'_>,
    wanted: bool,
) -> Result<Value, Fault> {
    let mut out = Items::new(meter)?;
    for value in &items_if_any(meter, value)?.items {
        if passes(meter, value, arguments)? == wanted {
            out.push(meter, value.clone())?;
        }
    }
    out.into_value(Kind::Generator)
}

/// Keeps the items for whose attribute a test returns `wanted`.
fn choose_by(
    meter: &Meter<'_>,
    value: &Value,
    arguments: Arguments<'_>,
    wanted: bool,
) -> Result<Value, Fault> {
    let Some((path, rest)) = arguments.split_first() else {
        return Err(Fault::failed("the name of an attribute is missing"));
    };
    let mut out = Items::new(meter)?;
    for value in &items_if_any(meter, value)?.items {
        let found = attribute_of(meter, value, path)?;
        if passes(meter, &found, rest)? == wanted {
            out.push(meter, value.clone())?;
        }
    }
    out.into_value(Kind::Generator)
}

fn passes(meter: &Meter<'_>, value: &Value, arguments: Arguments<'_>) -> Result<bool, Fault> {
    meter.work(ALLOCATION_WORK)?;
    match arguments.split_first() {
        None => Ok(value.is_true()),
        Some((test, rest)) => {
            let test = text_of(test, "the name of a test")?;
            apply_test(meter, test, value, rest)
        }
    }
}

fn extreme(
    meter: &Meter<'_>,
    value: &Value,
    arguments: Arguments<'_>,
    smallest: bool,
) -> Result<Value, Fault> {
    let [case_sensitive, path] = arguments.bind(["case_sensitive", "attribute"])?;
    let mut best: Option<(Value, Value)> = None;
    for value in &items_of(meter, value)?.items {
        let key = match path {
            Some(path) => attribute_of(meter, value, path)?,
            None => value.clone(),
        };
        let key = if is_on(case_sensitive) { key } else { folded(meter, key)? };
        let better = match &best {
            None => true,
            Some((known, _)) => {
                let order = order(meter, &key, known)?;
                order
                    == Some(if smallest {
                        std::cmp::Ordering::Less
                    } else {
                        std::cmp::Ordering::Greater
                    })
            }
        };
        if better {
            best = Some((key, value.clone()));
        }
    }
    Ok(best.map_or(Value::Undefined, |(_, value)| value))
}

fn int(value: &Value, arguments: Arguments<'_>) -> Result<Value, Fault> {
    let [default, base] = arguments.bind(["default", "base"])?;
    let base = base.map_or(Ok(10), |base| int_of(base, "a base"))?;
    let base = u32::try_from(base).ok().filter(|base| (2..=36).contains(base));
    let base = base.ok_or(Fault::failed("a base lies between 2 and 36"))?;
    let whole = |number: f64| {
        let number = number.trunc();
        let fits = number >= i64::MIN as f64 && number < i64::MAX as f64;
        fits.then_some(Value::Int(number as i64))
    };
    let found = match value {
        Value::Undefined => return Err(Fault::failed("an undefined value is not a number")),
        Value::Text(text) if text.len() > 400 => None,
        Value::Text(text) => match parse_int(text.as_str(), base) {
            Some(number) => Some(Value::Int(number)),
            None => parse_float(text.as_str()).and_then(whole),
        },
        Value::Unsigned(_) => Some(value.clone()),
        value => match value.as_int() {
            Some(number) => Some(Value::Int(number)),
            None => value.as_float().and_then(whole),
        },
    };
    // Default: 0, as in jinja2.
    Ok(found.unwrap_or(default.cloned().unwrap_or(Value::Int(0))))
}

fn float(value: &Value, arguments: Arguments<'_>) -> Result<Value, Fault> {
    let [default] = arguments.bind(["default"])?;
    let found = match value {
        Value::Undefined => return Err(Fault::failed("an undefined value is not a number")),
        Value::Text(text) if text.len() > 400 => None,
        Value::Text(text) => parse_float(text.as_str()),
        value => value.as_float(),
    };
    // Default: 0.0, as in jinja2.
    Ok(found.map_or(default.cloned().unwrap_or(Value::Float(0.0)), Value::Float))
}

fn abs(value: &Value, arguments: Arguments<'_>) -> Result<Value, Fault> {
    arguments.none()?;
    match value {
        Value::Float(number) => Ok(Value::Float(number.abs())),
        Value::Unsigned(_) => Ok(value.clone()),
        value => {
            let number = int_of(value, "what `abs` takes")?.checked_abs();
            number.map(Value::Int).ok_or(Fault::failed("a whole number beyond 64 bits"))
        }
    }
}

/// Implements `round(precision, method)`, which rounds halves to even.
fn round(value: &Value, arguments: Arguments<'_>) -> Result<Value, Fault> {
    let [precision, method] = arguments.bind(["precision", "method"])?;
    let precision = precision.map_or(Ok(0), |precision| int_of(precision, "a precision"))?;
    let precision = i32::try_from(precision).ok().filter(|p| (-300..=300).contains(p));
    let precision = precision.ok_or(Fault::failed("a precision beyond 300 digits"))?;
    let method = method.map_or(Ok("common"), |method| text_of(method, "a method"))?;
    let number = value.as_float();
    let number =
        number.ok_or_else(|| Fault::failed(format!("{} is not a number", value.type_name())))?;
    let factor = 10f64.powi(precision);
    let rounded = match method {
        "ceil" => (number * factor).ceil() / factor,
        "floor" => (number * factor).floor() / factor,
        "common" if precision >= 0 && !matches!(value, Value::Float(_)) => return Ok(value.clone()),
        "common" if precision > 0 => {
            // Formatting rounds the exact decimal value.
            let decimal = format!("{number:.*}", precision.unsigned_abs() as usize);
            decimal.parse().map_err(|_| Fault::broken("a number that was written can be read"))?
        }
        "common" => (number * factor).round_ties_even() / factor,
        _ => return Err(Fault::failed("`round` knows common, ceil and floor")),
    };
    match value {
        Value::Float(_) => Ok(Value::Float(rounded)),
        _ if method != "common" => Ok(Value::Float(rounded)),
        // The result is within the range of the input, or one step beyond it.
        _ => Ok(Value::Int(rounded as i64)),
    }
}
