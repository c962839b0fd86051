//! Parsing of JSON objects: fields are taken by name, and leftover fields are recorded as without effect.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::field_path::FieldPath;

/// A JSON object whose fields are taken one by one. `null` counts as absent.
#[derive(Debug)]
pub(crate) struct Fields {
    place: FieldPath,
    map: Map<String, Value>,
}

impl Fields {
    /// # Errors
    /// Returns an error if `value` is not an object.
    pub fn new(place: FieldPath, value: Value) -> Result<Self, ApiError> {
        match value {
            Value::Object(map) => Ok(Self { place, map }),
            _ if place.is_request() => Err(ApiError::malformed("the body is not a JSON object")),
            _ => Err(place.invalid("an object was expected")),
        }
    }

    /// Returns the place of the object.
    pub fn place(&self) -> &FieldPath {
        &self.place
    }

    /// Returns the place of a field.
    pub fn at(&self, name: &str) -> FieldPath {
        self.place.field(name)
    }

    /// Returns the path of a field in the request.
    pub fn path(&self, name: &str) -> String {
        self.at(name).path().to_owned()
    }

    /// Records that a field has no effect.
    ///
    /// # Errors
    /// Returns an error that names the field if the server refuses such fields.
    pub fn ignore(&self, name: &str) -> Result<(), ApiError> {
        self.at(name).ignore()
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
        self.map.shift_remove(name).filter(|value| !value.is_null())
    }

    /// Takes all fields whose names fulfil `is_taken`.
    pub fn take_where(&mut self, is_taken: impl Fn(&str) -> bool) -> Map<String, Value> {
        let all = std::mem::take(&mut self.map).into_iter();
        let (taken, left) = all.partition(|(name, _)| is_taken(name));
        self.map = left;
        taken
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
        let number = whole(&value).filter(|number| range.contains(number));
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

    /// Appends items to a list. A field that is not a list is left as it is.
    pub fn append(&mut self, name: &str, items: Vec<Value>) {
        if items.is_empty() {
            return;
        }
        match self.map.entry(name).or_insert_with(|| Value::Array(Vec::new())) {
            Value::Array(list) => list.extend(items),
            null @ Value::Null => *null = items.into(),
            _ => {}
        }
    }

    /// Applies `edit` to each item of a list, with its index. A field that is not a list is left as it is.
    ///
    /// # Errors
    /// Returns the first error of `edit`.
    pub fn edit_list(
        &mut self,
        name: &str,
        mut edit: impl FnMut(usize, &mut Value) -> Result<(), ApiError>,
    ) -> Result<(), ApiError> {
        match self.map.get_mut(name) {
            Some(Value::Array(items)) => {
                items.iter_mut().enumerate().try_for_each(|(index, item)| edit(index, item))
            }
            _ => Ok(()),
        }
    }

    /// # Errors
    /// Returns an error if the field is not an object.
    pub fn object(&mut self, name: &str) -> Result<Option<Self>, ApiError> {
        let place = self.at(name);
        self.take(name).map(|value| Self::new(place, value)).transpose()
    }

    /// Takes an unsupported field. Only empty values are accepted: see [`says_nothing`].
    ///
    /// # Errors
    /// Returns an error that contains `why` if the field has any other value.
    pub fn refuse(&mut self, name: &str, why: &str) -> Result<(), ApiError> {
        match self.take(name) {
            Some(value) if !says_nothing(&value) => Err(self.unsupported(name, why)),
            _ => Ok(()),
        }
    }

    /// Finishes the object after all its known fields were taken. The other fields have no effect.
    ///
    /// # Errors
    /// Returns an error for the first such field if the server refuses fields without effect.
    pub fn end(self) -> Result<(), ApiError> {
        let left = self.map.iter().filter(|(_, value)| !value.is_null());
        left.map(|(name, _)| name).try_for_each(|name| self.place.field(name).ignore())
    }
}

/// Returns a whole number, also one written with a fraction of zero, as some languages do.
fn whole(value: &Value) -> Option<u64> {
    // Below this bound every whole f64 is exact.
    const EXACT_MAX: f64 = (1_u64 << 53) as f64;
    let from_fraction = |number: f64| {
        let is_whole = number.fract() == 0.0 && (0.0..=EXACT_MAX).contains(&number);
        is_whole.then_some(number as u64)
    };
    value.as_u64().or_else(|| value.as_f64().and_then(from_fraction))
}

/// Returns the bits of a whole number of 64 bits, which may be negative: the value of a seed.
pub(crate) fn seed_bits(value: &Value) -> Option<u64> {
    let negative = value.as_i64().map(i64::cast_unsigned);
    whole(value).or(negative)
}

/// Returns true for values that request nothing: `false`, an empty string, list or object.
pub(crate) fn says_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::Number(_) => false,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field_path::{IgnoredFields, UnknownFields};
    use serde_json::json;

    fn request(policy: UnknownFields, value: Value) -> Fields {
        Fields::new(FieldPath::request(IgnoredFields::new(policy)), value).unwrap()
    }

    #[test]
    fn what_is_left_is_named_with_its_path() {
        let value = json!({ "a": 1, "b": { "c": true, "d": 2 }, "e": null });
        let mut fields = request(UnknownFields::Refuse, value);
        assert_eq!(fields.integer("a", 0..=1).unwrap(), Some(1));
        let mut inner = fields.object("b").unwrap().unwrap();
        assert_eq!(inner.flag("c").unwrap(), Some(true));
        let error = inner.end().unwrap_err();
        assert_eq!(error.param.as_deref(), Some("b.d"));
        fields.end().unwrap();
    }

    #[test]
    fn whole_numbers_may_be_written_with_a_fraction() {
        let cases = [(json!(3.0), Some(3)), (json!(3.5), None), (json!(1e300), None)];
        for (value, expected) in cases {
            let mut fields = request(UnknownFields::Report, json!({ "n": value }));
            assert_eq!(fields.integer("n", 0..=u64::MAX).ok().flatten(), expected);
        }
        assert_eq!(seed_bits(&json!(-1)), Some(u64::MAX));
        assert_eq!(seed_bits(&json!(1.0)), Some(1));
        assert_eq!(seed_bits(&json!(1.5)), None);
    }

    #[test]
    fn numbers_outside_of_their_range_are_named() {
        for value in [json!(-1), json!(5), json!(1.5), json!("1"), json!([])] {
            let mut fields = request(UnknownFields::Report, json!({ "n": value }));
            let error = fields.integer("n", 1..=4).unwrap_err();
            assert_eq!(error.param.as_deref(), Some("n"));
        }
    }
}
