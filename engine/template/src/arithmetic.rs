//! Operators with Python's semantics; integers have 64 bits.

use super::error::Fault;
use super::meter::Meter;
use super::print::{escaped, to_text};
use super::program::Arithmetic;
use super::text::TextBuffer;
use super::value::{Items, Kind, Sequence, Value};

/// Error text. Results are limited to 64 bits, so that valid exponents of integer powers are small.
const OVERFLOW: &str = "a whole number beyond 64 bits";

/// Evaluates `left operation right`.
pub(crate) fn compute(
    meter: &Meter<'_>,
    operation: Arithmetic,
    left: Value,
    right: &Value,
) -> Result<Value, Fault> {
    if operation == Arithmetic::Concat {
        return concat(meter, left, right);
    }
    if matches!(left, Value::Markup(_)) || matches!(right, Value::Markup(_)) {
        return add_markup(meter, operation, left, right);
    }
    match (left, right) {
        (Value::Text(left), Value::Text(right)) if operation == Arithmetic::Add => {
            left.append(meter, right.as_str()).map(Value::Text)
        }
        (Value::Sequence(a), Value::Sequence(b)) if operation == Arithmetic::Add => {
            join(meter, &a, b)
        }
        (left @ (Value::Text(_) | Value::Sequence(_)), right)
            if operation == Arithmetic::Multiply
                && let Some(count) = right.as_int() =>
        {
            repeat(meter, &left, count)
        }
        (left, right @ (Value::Text(_) | Value::Sequence(_)))
            if operation == Arithmetic::Multiply
                && let Some(count) = left.as_int() =>
        {
            repeat(meter, right, count)
        }
        (left, right) => numbers(operation, &left, right),
    }
}

/// Adds text to marked text, which escapes it.
fn add_markup(
    meter: &Meter<'_>,
    operation: Arithmetic,
    left: Value,
    right: &Value,
) -> Result<Value, Fault> {
    if operation != Arithmetic::Add {
        return compute(meter, operation, left.unmarked(), &right.clone().unmarked());
    }
    let part = |value: &Value| match value {
        Value::Markup(text) => Ok(text.clone()),
        Value::Text(text) => escaped(meter, text),
        other => {
            Err(Fault::failed(format!("`+` is not defined for text and {}", other.type_name())))
        }
    };
    let (left, right) = (part(&left)?, part(right)?);
    left.append(meter, right.as_str()).map(Value::Markup)
}

/// Evaluates `left ~ right`, with both converted to text.
fn concat(meter: &Meter<'_>, left: Value, right: &Value) -> Result<Value, Fault> {
    let left = match left {
        Value::Text(left) | Value::Markup(left) => left,
        other => to_text(meter, &other)?,
    };
    let joined = match right {
        Value::Text(right) => left.append(meter, right.as_str())?,
        right => left.append(meter, to_text(meter, right)?.as_str())?,
    };
    Ok(Value::Text(joined))
}

fn join(meter: &Meter<'_>, left: &Sequence, right: &Sequence) -> Result<Value, Fault> {
    if left.kind != right.kind || !matches!(left.kind, Kind::List | Kind::Tuple) {
        return Err(Fault::failed(format!(
            "cannot add {} and {}",
            Value::type_name_of(left),
            Value::type_name_of(right)
        )));
    }
    let mut items = Items::with_capacity(meter, left.items.len() + right.items.len())?;
    for item in left.items.iter().chain(&right.items) {
        items.push(meter, item.clone())?;
    }
    items.into_value(left.kind)
}

fn repeat(meter: &Meter<'_>, value: &Value, count: i64) -> Result<Value, Fault> {
    // Default: a negative count gives an empty result.
    let count = usize::try_from(count).unwrap_or(0);
    match value {
        Value::Text(text) => {
            let bytes = text.len().checked_mul(count).ok_or(Fault::Text)?;
            let mut out = TextBuffer::with_capacity(meter, bytes)?;
            out.repeat(meter, text.as_str(), count)?;
            Ok(Value::Text(out.finish()))
        }
        Value::Sequence(list) if matches!(list.kind, Kind::List | Kind::Tuple) => {
            let total = list.items.len().checked_mul(count).ok_or(Fault::Memory)?;
            let mut items = Items::with_capacity(meter, total)?;
            if total > 0 {
                for _ in 0..count {
                    for item in &list.items {
                        items.push(meter, item.clone())?;
                    }
                }
            }
            items.into_value(list.kind)
        }
        other => Err(Fault::failed(format!("cannot multiply {}", other.type_name()))),
    }
}

fn numbers(operation: Arithmetic, left: &Value, right: &Value) -> Result<Value, Fault> {
    if let (Some(a), Some(b)) = (left.as_int(), right.as_int()) {
        return integers(operation, a, b);
    }
    if let (Some(a), Some(b)) = (left.as_float(), right.as_float()) {
        return floats(operation, a, b);
    }
    let symbol = match operation {
        Arithmetic::Add => "+",
        Arithmetic::Subtract => "-",
        Arithmetic::Multiply => "*",
        Arithmetic::Divide => "/",
        Arithmetic::FloorDivide => "//",
        Arithmetic::Remainder => "%",
        Arithmetic::Power => "**",
        Arithmetic::Concat => "~",
    };
    let (left, right) = (left.type_name(), right.type_name());
    Err(Fault::failed(format!("`{symbol}` is not defined for {left} and {right}")))
}

fn integers(operation: Arithmetic, a: i64, b: i64) -> Result<Value, Fault> {
    let divides =
        matches!(operation, Arithmetic::Divide | Arithmetic::FloorDivide | Arithmetic::Remainder);
    if divides && b == 0 {
        return Err(Fault::failed("division by zero"));
    }
    let result = match operation {
        Arithmetic::Add => a.checked_add(b),
        Arithmetic::Subtract => a.checked_sub(b),
        Arithmetic::Multiply => a.checked_mul(b),
        Arithmetic::Divide => return Ok(Value::Float(a as f64 / b as f64)),
        // Python rounds down, and the remainder has the sign of the divisor.
        Arithmetic::FloorDivide => a.checked_div(b).map(|quotient| {
            quotient - i64::from(a.checked_rem(b).is_some_and(|r| r != 0 && (r < 0) != (b < 0)))
        }),
        Arithmetic::Remainder => {
            a.checked_rem(b).map(|r| if r != 0 && (r < 0) != (b < 0) { r + b } else { r })
        }
        Arithmetic::Power => return power(a, b),
        Arithmetic::Concat => None,
    };
    result.map(Value::Int).ok_or(Fault::failed(OVERFLOW))
}

fn power(a: i64, b: i64) -> Result<Value, Fault> {
    if b < 0 {
        if a == 0 {
            return Err(Fault::failed("division by zero"));
        }
        return Ok(Value::Float((a as f64).powf(b as f64)));
    }
    if matches!(a, 0 | 1) {
        return Ok(Value::Int(if b == 0 { 1 } else { a }));
    }
    let result = match (a, u32::try_from(b)) {
        (-1, _) => Some(if b % 2 == 0 { 1 } else { -1 }),
        (a, Ok(b)) => a.checked_pow(b),
        _ => None,
    };
    result.map(Value::Int).ok_or(Fault::failed(OVERFLOW))
}

fn floats(operation: Arithmetic, a: f64, b: f64) -> Result<Value, Fault> {
    let divides =
        matches!(operation, Arithmetic::Divide | Arithmetic::FloorDivide | Arithmetic::Remainder);
    if divides && b == 0.0 {
        return Err(Fault::failed("division by zero"));
    }
    let remainder = || {
        let rest = a % b;
        if rest != 0.0 && (rest < 0.0) != (b < 0.0) { rest + b } else { rest }
    };
    Ok(Value::Float(match operation {
        Arithmetic::Add => a + b,
        Arithmetic::Subtract => a - b,
        Arithmetic::Multiply => a * b,
        Arithmetic::Divide => a / b,
        Arithmetic::FloorDivide => ((a - remainder()) / b).round(),
        Arithmetic::Remainder => remainder(),
        Arithmetic::Power => {
            let result = a.powf(b);
            if result.is_infinite() && a.is_finite() && b.is_finite() {
                return Err(Fault::failed("a number too large for a float"));
            }
            if result.is_nan() && !a.is_nan() && !b.is_nan() {
                return Err(Fault::failed("complex numbers are not supported"));
            }
            result
        }
        Arithmetic::Concat => return Err(Fault::failed("texts are joined, not numbers")),
    }))
}

/// Evaluates `-value`.
pub(crate) fn negate(value: &Value) -> Result<Value, Fault> {
    match value {
        Value::Float(number) => Ok(Value::Float(-number)),
        value => match value.as_int() {
            Some(number) => number.checked_neg().map(Value::Int).ok_or(Fault::failed(OVERFLOW)),
            None => Err(Fault::failed(format!("`-` is not defined for {}", value.type_name()))),
        },
    }
}

/// Evaluates `+value`.
pub(crate) fn positive(value: &Value) -> Result<Value, Fault> {
    match value {
        Value::Float(_) | Value::Unsigned(_) => Ok(value.clone()),
        value => match value.as_int() {
            Some(number) => Ok(Value::Int(number)),
            None => Err(Fault::failed(format!("`+` is not defined for {}", value.type_name()))),
        },
    }
}
