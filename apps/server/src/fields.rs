//! Strict parsing of JSON objects: fields are taken by name, and leftover fields are errors.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use crate::error::ApiError;

/// A JSON object whose fields are taken one by one. `null` counts as absent.
#[derive(Debug)]
pub(crate) struct Fields {
    /// Path of the object in the request; empty for the request itself.
    place: String,
    map: Map<String, Value>,
}

impl Fields {
    /// # Errors
    /// Returns an error if `value` is not an object.
    pub fn new(place: impl Into<String>, value: Value) -> Result<Self, ApiError> {
        let place = place.into();
        match value {
            Value::Object(map) => Ok(Self { place, map }),
            _ if place.is_empty() => Err(ApiError::malformed("the body is not a JSON object")),
            _ => Err(ApiError::invalid(place, "an object was expected")),
        }
    }

    /// Returns the path of a field in the request.
    pub fn path(&self, name: &str) -> String {
        if self.place.is_empty() { name.to_owned() } else { format!("{}.{name}", self.place) }
    }

    /// Returns an error for an invalid field.
    pub fn invalid(&self, name: &str, message: impl Into<String>) -> ApiError {
        ApiError::invalid(self.path(name), message)
    }

    /// Returns an error for a field that the server or the model does not support.
    pub fn unsupported(&self, name: &str, message: impl Into<String>) -> ApiError {
        ApiError::unsupported(self.path(name), message)
    }

    /// Returns a field without taking it.
    pub fn peek(&self, name: &str) -> Option<&Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    /// Returns true if a field is present.
    pub fn names(&self, name: &str) -> bool {
        self.peek(name).is_some()
    }

    /// Returns a string field without taking it.
    pub fn peek_text(&self, name: &str) -> Option<&str> {
        self.peek(name).and_then(Value::as_str)
    }

    pub fn take(&mut self, name: &str) -> Option<Value> {
        self.map.remove(name).filter(|value| !value.is_null())
    }

    /// Takes a required field.
    ///
    /// # Errors
    /// Returns an error if the field is missing.
    pub fn require(&mut self, name: &str) -> Result<Value, ApiError> {
        self.take(name)
            .ok_or_else(|| self.invalid(name, format!("`{}` is missing", self.path(name))))
    }

    /// # Errors
    /// Returns an error if the field is not a string or is longer than `bytes_max` bytes.
    pub fn text(&mut self, name: &str, bytes_max: usize) -> Result<Option<String>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) if text.len() <= bytes_max => Ok(Some(text)),
            Some(Value::String(text)) => {
                let found = text.len();
                Err(self.invalid(name, format!("at most {bytes_max} bytes, found {found}")))
            }
            Some(_) => Err(self.invalid(name, "a text was expected")),
        }
    }

    /// # Errors
    /// The errors of [`Self::text`], and an error if the field is missing.
    pub fn required_text(&mut self, name: &str, bytes_max: usize) -> Result<String, ApiError> {
        let missing = || self.path(name);
        let path = missing();
        let text = self.text(name, bytes_max)?;
        text.ok_or_else(|| ApiError::invalid(path.clone(), format!("`{path}` is missing")))
    }

    /// # Errors
    /// Returns an error if the field is not a boolean.
    pub fn flag(&mut self, name: &str) -> Result<Option<bool>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(flag)),
            Some(_) => Err(self.invalid(name, "`true` or `false` was expected")),
        }
    }

    /// # Errors
    /// Returns an error if the field is not an integer or is outside `range`.
    pub fn integer(
        &mut self,
        name: &str,
        range: RangeInclusive<u64>,
    ) -> Result<Option<u64>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let number = value.as_u64().filter(|number| range.contains(number));
        let (least, most) = (range.start(), range.end());
        let expected = format!("a whole number from {least} to {most} was expected, found {value}");
        number.map(Some).ok_or_else(|| self.invalid(name, expected))
    }

    /// # Errors
    /// Returns an error if the field is not a number or is outside `range`.
    pub fn number(
        &mut self,
        name: &str,
        range: RangeInclusive<f64>,
    ) -> Result<Option<f32>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let number = value.as_f64().filter(|number| range.contains(number));
        let (least, most) = (range.start(), range.end());
        let expected = format!("a number from {least} to {most} was expected, found {value}");
        number.map(|number| Some(number as f32)).ok_or_else(|| self.invalid(name, expected))
    }

    /// # Errors
    /// Returns an error if the field is not a list or has more than `count_max` items.
    pub fn list(&mut self, name: &str, count_max: usize) -> Result<Option<Vec<Value>>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Array(items)) if items.len() <= count_max => Ok(Some(items)),
            Some(Value::Array(items)) => {
                let found = items.len();
                Err(self.invalid(name, format!("at most {count_max} items, found {found}")))
            }
            Some(_) => Err(self.invalid(name, "a list was expected")),
        }
    }

    /// # Errors
    /// Returns an error if the field is not an object.
    pub fn object(&mut self, name: &str) -> Result<Option<Self>, ApiError> {
        let path = self.path(name);
        self.take(name).map(|value| Self::new(path, value)).transpose()
    }

    /// Takes an unsupported field. Only empty values are accepted: `false`, an empty string or an empty list.
    ///
    /// # Errors
    /// Returns an error that contains `why` if the field has any other value.
    pub fn refuse(&mut self, name: &str, why: &str) -> Result<(), ApiError> {
        let says_nothing = |value: &Value| match value {
            Value::Bool(flag) => !flag,
            Value::String(text) => text.is_empty(),
            Value::Array(items) => items.is_empty(),
            _ => false,
        };
        match self.take(name) {
            Some(value) if !says_nothing(&value) => Err(self.unsupported(name, why)),
            _ => Ok(()),
        }
    }

    /// Finishes the object after all its known fields were taken.
    ///
    /// # Errors
    /// Returns an error for the first field that was not taken.
    pub fn end(self) -> Result<(), ApiError> {
        let left = self.map.iter().find(|(_, value)| !value.is_null());
        left.map_or(Ok(()), |(name, _)| Err(ApiError::unknown(self.path(name))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_left_is_named_with_its_path() {
        let request = json!({ "a": 1, "b": { "c": true, "d": 2 }, "e": null });
        let mut fields = Fields::new("", request).unwrap();
        assert_eq!(fields.integer("a", 0..=1).unwrap(), Some(1));
        let mut inner = fields.object("b").unwrap().unwrap();
        assert_eq!(inner.flag("c").unwrap(), Some(true));
        let error = inner.end().unwrap_err();
        assert_eq!(error.param.as_deref(), Some("b.d"));
        fields.end().unwrap();
    }

    #[test]
    fn numbers_outside_of_their_range_are_named() {
        for value in [json!(-1), json!(5), json!(1.5), json!("1"), json!([])] {
            let mut fields = Fields::new("", json!({ "n": value })).unwrap();
            let error = fields.integer("n", 1..=4).unwrap_err();
            assert_eq!(error.param.as_deref(), Some("n"));
        }
    }
}
