//! Paths of values in a request, and the record of the fields that have no effect.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use axum::http::{HeaderValue, Response};

use crate::error::ApiError;

/// Response header that lists the request's fields without effect.
pub(crate) const IGNORED_HEADER: &str = "x-nestling-ignored";

/// Maximum number of fields that the record of a request holds.
const NAMES_MAX: usize = 32;

/// Maximum length of one recorded name in bytes. Clients choose the names of unknown fields.
const NAME_BYTES_MAX: usize = 64;

/// Treatment of request fields without effect: unknown fields, and hints such as `service_tier`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum UnknownFields {
    /// They are accepted and listed in the response header `x-nestling-ignored`.
    #[default]
    Report,
    /// The request is refused with an error that names the field.
    Refuse,
}

/// Names of the fields of one request that had no effect. Clones share the record.
#[derive(Clone, Debug, Default)]
pub(crate) struct IgnoredFields {
    policy: UnknownFields,
    names: Arc<Mutex<Vec<String>>>,
}

impl IgnoredFields {
    pub fn new(policy: UnknownFields) -> Self {
        Self { policy, names: Arc::default() }
    }

    /// Returns the recorded names in the order in which they were found.
    fn names(&self) -> Vec<String> {
        // The list is valid after a panic: names are added as a whole.
        self.names.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn add(&self, path: &str) {
        let name = without_indices(path);
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        if names.len() < NAMES_MAX && !names.contains(&name) {
            names.push(name);
        }
    }

    /// Adds the response header, if any field had no effect. Returns the recorded names.
    pub fn report<B>(&self, response: &mut Response<B>) -> Vec<String> {
        let names = self.names();
        // Names consist of visible ASCII, so the conversion succeeds.
        if let Ok(value) = HeaderValue::from_str(&names.join(", "))
            && !names.is_empty()
        {
            response.headers_mut().insert(IGNORED_HEADER, value);
        }
        names
    }
}

/// Returns a path for a header: indices are dropped, so that one field of many messages is one name.
fn without_indices(path: &str) -> String {
    let (mut name, mut in_index) = (String::new(), false);
    for c in path.chars() {
        match c {
            '[' => in_index = true,
            ']' => in_index = false,
            _ if in_index => {}
            ',' | ' ' => name.push('_'),
            c if c.is_ascii_graphic() => name.push(c),
            _ => name.push('?'),
        }
        if name.len() >= NAME_BYTES_MAX {
            break;
        }
    }
    name
}

/// Path of a value in a request, such as `messages[2].content`; empty for the request itself.
#[derive(Clone, Debug)]
pub(crate) struct FieldPath {
    path: String,
    ignored: IgnoredFields,
}

impl FieldPath {
    /// Returns the place of the request itself.
    pub fn request(ignored: IgnoredFields) -> Self {
        Self { path: String::new(), ignored }
    }

    pub fn is_request(&self) -> bool {
        self.path.is_empty()
    }

    /// Returns the place of a field of the object here.
    pub fn field(&self, name: &str) -> Self {
        let path =
            if self.is_request() { name.to_owned() } else { format!("{}.{name}", self.path) };
        Self { path, ignored: self.ignored.clone() }
    }

    /// Returns the place of an item of the list here.
    pub fn item(&self, index: usize) -> Self {
        Self { path: format!("{}[{index}]", self.path), ignored: self.ignored.clone() }
    }

    pub fn path(&self) -> &str {
        &self.path
    }

    pub fn ignored(&self) -> &IgnoredFields {
        &self.ignored
    }

    /// Records that the value here has no effect.
    ///
    /// # Errors
    /// Returns an error that names the field if the server refuses such fields.
    pub fn ignore(&self) -> Result<(), ApiError> {
        if self.ignored.policy == UnknownFields::Refuse {
            return Err(ApiError::unknown(&self.path));
        }
        self.ignored.add(&self.path);
        Ok(())
    }

    /// Returns an error for an invalid value.
    pub fn invalid(&self, message: impl Into<String>) -> ApiError {
        ApiError::invalid(&self.path, message)
    }

    /// Returns an error for a value that the server or the model does not support.
    pub fn unsupported(&self, message: impl Into<String>) -> ApiError {
        ApiError::unsupported(&self.path, message)
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_fields_are_listed_once_in_visible_characters() {
        let ignored = IgnoredFields::default();
        let messages = FieldPath::request(ignored.clone()).field("messages");
        for index in 0..3 {
            messages.item(index).field("phase").ignore().unwrap();
        }
        FieldPath::request(ignored.clone()).field("ä\r\nb, c").ignore().unwrap();
        let mut response = Response::new(());
        ignored.report(&mut response);
        assert_eq!(response.headers()[IGNORED_HEADER], "messages.phase, ???b__c");
    }

    #[test]
    fn the_record_is_bounded() {
        let ignored = IgnoredFields::default();
        for index in 0..1000 {
            let name = format!("{index}{}", "x".repeat(1000));
            FieldPath::request(ignored.clone()).field(&name).ignore().unwrap();
        }
        assert_eq!(ignored.names().len(), NAMES_MAX);
        assert!(ignored.names().iter().all(|name| name.len() <= NAME_BYTES_MAX));
    }

    #[test]
    fn a_strict_server_refuses_what_has_no_effect() {
        let place = FieldPath::request(IgnoredFields::new(UnknownFields::Refuse)).field("colour");
        let error = place.ignore().unwrap_err();
        assert_eq!(error.param.as_deref(), Some("colour"));
    }
}
