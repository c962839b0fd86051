//! Arguments of functions, methods, filters and tests.

use super::error::Fault;
use super::value::Value;

/// Arguments of a call: positional ones, then named ones.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arguments<'v> {
    pub(crate) positional: &'v [Value],
    pub(crate) named: &'v [Value],
    pub(crate) names: &'v [&'v str],
}

impl<'v> Arguments<'v> {
    pub(crate) fn positional(positional: &'v [Value]) -> Self {
        Self { positional, named: &[], names: &[] }
    }

    /// Assigns the arguments to parameters with these names. Missing arguments are `None`.
    pub(crate) fn bind<const N: usize>(
        &self,
        parameters: [&str; N],
    ) -> Result<[Option<&'v Value>; N], Fault> {
        let mut bound = [None; N];
        if self.positional.len() > N {
            let given = self.positional.len();
            return Err(Fault::failed(format!("{given} arguments where {N} are taken")));
        }
        for (place, value) in bound.iter_mut().zip(self.positional) {
            *place = Some(value);
        }
        for (name, value) in self.names.iter().zip(self.named) {
            let place = parameters.iter().position(|parameter| parameter == name);
            match place.and_then(|place| bound.get_mut(place)) {
                Some(place @ None) => *place = Some(value),
                Some(_) => return Err(Fault::failed(format!("`{name}` is given twice"))),
                None => return Err(Fault::failed(format!("there is no argument `{name}`"))),
            }
        }
        Ok(bound)
    }

    /// Returns an error if there are arguments.
    pub(crate) fn none(&self) -> Result<(), Fault> {
        self.bind([]).map(|_| ())
    }

    pub(crate) fn split_first(&self) -> Option<(&'v Value, Self)> {
        let (first, positional) = self.positional.split_first()?;
        Some((first, Self { positional, ..*self }))
    }
}

/// Returns the text of a value, or an error that names `what`.
pub(crate) fn text_of<'v>(value: &'v Value, what: &str) -> Result<&'v str, Fault> {
    value
        .as_str()
        .ok_or_else(|| Fault::failed(format!("{what} has to be a text, not {}", value.type_name())))
}

/// Returns the integer of a value, or an error that names `what`.
pub(crate) fn int_of(value: &Value, what: &str) -> Result<i64, Fault> {
    value.as_int().ok_or_else(|| {
        Fault::failed(format!("{what} has to be a whole number, not {}", value.type_name()))
    })
}

/// Returns whether an option is true. A missing option is false.
pub(crate) fn is_on(option: Option<&Value>) -> bool {
    option.is_some_and(Value::is_true)
}
