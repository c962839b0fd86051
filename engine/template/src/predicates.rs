//! Tests by name, as used after `is`.

use std::cmp::Ordering;
use std::rc::Rc;

use super::arguments::{Arguments, int_of};
use super::arithmetic::compute;
use super::compare::{contains, equal, order};
use super::error::Fault;
use super::iterate::is_iterable;
use super::meter::Meter;
use super::print::to_text;
use super::program::Arithmetic;
use super::value::{Kind, Value};

/// Evaluates `value is name(arguments)`.
pub(crate) fn apply_test(
    meter: &Meter<'_>,
    name: &str,
    value: &Value,
    arguments: Arguments<'_>,
) -> Result<bool, Fault> {
    if let Some(passed) = of_type(meter, name, value)? {
        arguments.none()?;
        return Ok(passed);
    }
    let [other] = arguments.bind(["other"])?;
    let other = other.ok_or_else(|| match is_known(name) {
        true => Fault::failed(format!("the test `{name}` wants a value to compare with")),
        false => Fault::failed(format!("there is no test `{name}`")),
    })?;
    let is = |wanted: &[Ordering]| -> Result<bool, Fault> {
        Ok(order(meter, value, other)?.is_some_and(|order| wanted.contains(&order)))
    };
    match name {
        "==" | "eq" | "equalto" => equal(meter, value, other),
        "!=" | "ne" => Ok(!equal(meter, value, other)?),
        "<" | "lt" | "lessthan" => is(&[Ordering::Less]),
        "<=" | "le" => is(&[Ordering::Less, Ordering::Equal]),
        ">" | "gt" | "greaterthan" => is(&[Ordering::Greater]),
        ">=" | "ge" => is(&[Ordering::Greater, Ordering::Equal]),
        "in" => contains(meter, other, value),
        "sameas" => Ok(same(value, other)),
        "divisibleby" => {
            let rest = compute(meter, Arithmetic::Remainder, value.clone(), other)?;
            Ok(!rest.is_true())
        }
        _ => Err(Fault::failed(format!("there is no test `{name}`"))),
    }
}

fn is_known(name: &str) -> bool {
    let known = [
        "==",
        "eq",
        "equalto",
        "!=",
        "ne",
        "<",
        "lt",
        "lessthan",
        "<=",
        "le",
        ">",
        "gt",
        "greaterthan",
        ">=",
        "ge",
        "in",
        "sameas",
        "divisibleby",
    ];
    known.contains(&name)
}

/// Evaluates tests without arguments.
fn of_type(meter: &Meter<'_>, name: &str, value: &Value) -> Result<Option<bool>, Fault> {
    Ok(Some(match name {
        "defined" => !value.is_undefined(),
        "undefined" => value.is_undefined(),
        "none" => matches!(value, Value::None),
        "boolean" => matches!(value, Value::Bool(_)),
        "true" => matches!(value, Value::Bool(true)),
        "false" => matches!(value, Value::Bool(false)),
        "integer" => matches!(value, Value::Int(_) | Value::Unsigned(_)),
        "float" => matches!(value, Value::Float(_)),
        "number" => value.as_float().is_some(),
        "string" => matches!(value, Value::Text(_)),
        "mapping" => matches!(value, Value::Map(_)),
        "sequence" => match value {
            Value::Undefined | Value::Text(_) | Value::Map(_) => true,
            Value::Sequence(sequence) => sequence.kind.is_indexed(),
            _ => false,
        },
        "iterable" => is_iterable(value),
        "callable" => is_callable(value),
        "escaped" => false,
        "lower" | "upper" => {
            let text = to_text(meter, value)?;
            meter.walk(text.len())?;
            let has = |test: fn(char) -> bool| text.as_str().chars().any(test);
            let (lower, upper) = (has(char::is_lowercase), has(char::is_uppercase));
            if name == "lower" { lower && !upper } else { upper && !lower }
        }
        "odd" => int_of(value, "what is odd or not")?.rem_euclid(2) == 1,
        "even" => int_of(value, "what is even or not")?.rem_euclid(2) == 0,
        _ => return Ok(None),
    }))
}

pub(crate) fn is_callable(value: &Value) -> bool {
    matches!(
        value,
        Value::Function(_)
            | Value::Macro(_)
            | Value::Method(_)
            | Value::Joiner(_)
            | Value::Undefined
    )
}

/// Returns whether both are the same object, as far as it can be determined.
fn same(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::None, Value::None) | (Value::Undefined, Value::Undefined) => true,
        (Value::Bool(left), Value::Bool(right)) => left == right,
        (Value::Int(left), Value::Int(right)) => left == right,
        (Value::Text(left), Value::Text(right)) => left.as_str() == right.as_str(),
        (Value::Sequence(left), Value::Sequence(right)) => {
            Rc::ptr_eq(left, right)
                || (left.kind == Kind::Tuple && right.kind == left.kind)
                    && left.items.is_empty()
                    && right.items.is_empty()
        }
        (Value::Map(left), Value::Map(right)) => Rc::ptr_eq(left, right),
        (Value::Namespace(left), Value::Namespace(right)) => Rc::ptr_eq(left, right),
        _ => false,
    }
}
