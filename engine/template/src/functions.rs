//! Global functions of templates.

use super::arguments::{Arguments, int_of, text_of};
use super::error::Fault;
use super::iterate::items_of;
use super::limits::RANGE_ITEMS_MAX;
use super::meter::Meter;
use super::print::to_text;
use super::text::Text;
use super::value::{Cycler, Function, Items, Joiner, Kind, Map, Namespace, Sequence, Value};

/// Implementation of `strftime_now`: returns the date in a format, or an error message.
pub type Clock<'a> = &'a dyn Fn(&str) -> Result<String, String>;

pub(crate) fn call_function(
    meter: &Meter<'_>,
    clock: Option<Clock<'_>>,
    function: Function,
    arguments: Arguments<'_>,
) -> Result<Value, Fault> {
    match function {
        Function::Range => range(meter, arguments),
        Function::Dict => dict(meter, arguments),
        Function::Namespace => namespace(meter, arguments),
        Function::RaiseException => {
            let [message] = arguments.bind(["message"])?;
            let message = message.ok_or(Fault::failed("`raise_exception` wants a message"))?;
            let message = to_text(meter, message)?;
            let shown: String = message.as_str().chars().take(4096).collect();
            Err(Fault::Refused(shown))
        }
        Function::StrftimeNow => {
            let [format] = arguments.bind(["format"])?;
            let format = text_of(format.unwrap_or(&Value::Undefined), "a format")?; // Default: fails here.
            if format.len() > 256 {
                return Err(Fault::failed("the format of a date has at most 256 bytes"));
            }
            let clock =
                clock.ok_or(Fault::failed("the template asks for the date, but none was given"))?;
            let date = clock(format).map_err(Fault::Failed)?;
            Value::text(meter, &date)
        }
        Function::Joiner => {
            let [separator] = arguments.bind(["sep"])?;
            let separator = match separator {
                Some(separator) => separator.clone(),
                None => Value::text(meter, ", ")?,
            };
            Joiner::new(meter, separator).map(Value::Joiner)
        }
        Function::Cycler => {
            if arguments.positional.is_empty() || !arguments.named.is_empty() {
                return Err(Fault::failed("`cycler` wants items"));
            }
            let items = Sequence::of(meter, Kind::List, arguments.positional.iter().cloned())?;
            Cycler::new(meter, items).map(Value::Cycler)
        }
    }
}

fn range(meter: &Meter<'_>, arguments: Arguments<'_>) -> Result<Value, Fault> {
    let mut numbers = [0; 3];
    if arguments.positional.is_empty() || arguments.positional.len() > 3 {
        return Err(Fault::failed("`range` wants one to three numbers"));
    }
    if !arguments.named.is_empty() {
        return Err(Fault::failed("`range` takes no names"));
    }
    for (number, value) in numbers.iter_mut().zip(arguments.positional) {
        *number = int_of(value, "a bound of a range")?;
    }
    let [first, second, third] = numbers;
    let (start, stop, step) = match arguments.positional.len() {
        1 => (0, first, 1),
        2 => (first, second, 1),
        _ => (first, second, third),
    };
    if step == 0 {
        return Err(Fault::failed("the step of a range cannot be 0"));
    }
    let (start, stop, step) = (i128::from(start), i128::from(stop), i128::from(step));
    let distance = if step > 0 { stop - start } else { start - stop };
    let count = distance.max(0).div_euclid(step.abs())
        + i128::from(distance > 0 && distance.rem_euclid(step.abs()) != 0);
    let count = usize::try_from(count).ok().filter(|count| *count <= RANGE_ITEMS_MAX);
    let count = count
        .ok_or_else(|| Fault::failed(format!("a range of more than {RANGE_ITEMS_MAX} numbers")))?;
    let mut items = Items::with_capacity(meter, count)?;
    let mut number = start;
    for _ in 0..count {
        // The number is between the bounds, which are of that type.
        items.push(meter, Value::Int(number as i64))?;
        number += step;
    }
    items.into_value(Kind::Range)
}

/// Returns the entries for `dict` and `namespace`.
fn entries(meter: &Meter<'_>, arguments: Arguments<'_>) -> Result<Vec<(Value, Value)>, Fault> {
    let mut entries: Vec<(Value, Value)> = vec![];
    match arguments.positional {
        [] => {}
        [Value::Map(map)] => entries.extend(map.entries.iter().cloned()),
        [pairs] => {
            for pair in &items_of(meter, pairs)?.items {
                match items_of(meter, pair)?.items.as_slice() {
                    [key, value] => insert(meter, &mut entries, key.clone(), value.clone())?,
                    _ => return Err(Fault::failed("a dict is made of pairs")),
                }
            }
        }
        _ => return Err(Fault::failed("a dict is made of one dict or list")),
    }
    for (name, value) in arguments.names.iter().zip(arguments.named) {
        let name = Value::text(meter, name)?;
        insert(meter, &mut entries, name, value.clone())?;
    }
    Ok(entries)
}

/// Inserts an entry, replacing one with the same key.
pub(crate) fn insert(
    meter: &Meter<'_>,
    entries: &mut Vec<(Value, Value)>,
    key: Value,
    value: Value,
) -> Result<(), Fault> {
    if matches!(key, Value::Map(_) | Value::Namespace(_))
        || matches!(&key, Value::Sequence(sequence) if sequence.kind != Kind::Tuple)
    {
        return Err(Fault::failed(format!("{} cannot be a key", key.type_name())));
    }
    for (known, place) in entries.iter_mut() {
        if super::compare::equal(meter, known, &key)? {
            *place = value;
            return Ok(());
        }
    }
    entries.push((key, value));
    Ok(())
}

fn dict(meter: &Meter<'_>, arguments: Arguments<'_>) -> Result<Value, Fault> {
    let entries = entries(meter, arguments)?;
    Map::of(meter, entries.into_iter()).map(Value::Map)
}

fn namespace(meter: &Meter<'_>, arguments: Arguments<'_>) -> Result<Value, Fault> {
    let namespace = Namespace::new(meter)?;
    for (key, value) in entries(meter, arguments)? {
        let Value::Text(key) = key else {
            return Err(Fault::failed("names in a namespace are texts"));
        };
        namespace.set(meter, key, value)?;
    }
    Ok(Value::Namespace(namespace))
}

/// Evaluates `joiner()`: empty on the first call, then the separator.
pub(crate) fn call_joiner(meter: &Meter<'_>, joiner: &Joiner) -> Result<Value, Fault> {
    match joiner.used.replace(true) {
        true => Ok(joiner.separator.clone()),
        false => Text::copy(meter, "").map(Value::Text),
    }
}
