//! Strict readers of untrusted JSON objects: duplicate keys are errors, and values are read by type.

use std::borrow::Cow;
use std::fmt;

use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, Visitor,
};
use serde_json::Value;

use crate::ImportError;
use crate::limits::MAX_TENSORS;

/// Members of an object in file order. Duplicate names are an error.
pub(crate) struct UniqueMap<V>(pub Vec<(String, V)>);

impl<'de, V: Deserialize<'de>> Deserialize<'de> for UniqueMap<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members<V>(std::marker::PhantomData<V>);
        impl<'de, V: Deserialize<'de>> Visitor<'de> for Members<V> {
            type Value = UniqueMap<V>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry::<String, V>()? {
                    if members.len() == MAX_TENSORS {
                        let message = format_args!("more than {MAX_TENSORS} members");
                        return Err(M::Error::custom(message));
                    }
                    members.push(member);
                }
                match duplicate(&members) {
                    Some(key) => Err(M::Error::custom(format_args!("duplicate key `{key}`"))),
                    None => Ok(UniqueMap(members)),
                }
            }
        }
        deserializer.deserialize_map(Members(std::marker::PhantomData))
    }
}

pub(crate) fn duplicate<V>(members: &[(String, V)]) -> Option<&str> {
    let mut names: Vec<&str> = members.iter().map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    names.windows(2).find(|two| two[0] == two[1]).map(|two| two[0])
}

/// Selection of a member of nested objects by the names that lead to it. Other members are passed over, so that no
/// memory is needed for them.
pub(crate) struct MemberAt<'a>(pub &'a [&'a str]);

impl<'de> DeserializeSeed<'de> for MemberAt<'_> {
    type Value = Option<Value>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        if self.0.is_empty() {
            return Value::deserialize(deserializer).map(Some);
        }
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for MemberAt<'_> {
    type Value = Option<Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
        let mut found = None;
        while let Some(name) = map.next_key::<String>()? {
            match self.0.split_first() {
                Some((first, rest)) if name == *first => {
                    found = map.next_value_seed(MemberAt(rest))?;
                }
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(found)
    }
}

/// Puts `Infinity`, `-Infinity` and `NaN` in quotes outside of texts. JSON has no such numbers, but Python writes
/// them, and published configurations have them.
fn without_bare_floats(bytes: &[u8]) -> Cow<'_, [u8]> {
    const NAMES: [&[u8]; 3] = [b"-Infinity", b"Infinity", b"NaN"];
    let is_name = |at: usize| NAMES.into_iter().find(|name| bytes[at..].starts_with(name));
    let (mut out, mut copied, mut at, mut is_text) = (Vec::new(), 0, 0, false);
    while at < bytes.len() {
        match (bytes[at], is_text) {
            (b'\\', true) => at += 1,
            (b'"', _) => is_text = !is_text,
            (_, true) => {}
            (_, false) => {
                if let Some(name) = is_name(at) {
                    out.extend_from_slice(&bytes[copied..at]);
                    out.extend([b"\"", name, b"\""].concat());
                    at += name.len();
                    copied = at;
                    continue;
                }
            }
        }
        at += 1;
    }
    if copied == 0 {
        return Cow::Borrowed(bytes);
    }
    out.extend_from_slice(&bytes[copied..]);
    Cow::Owned(out)
}

/// Members of a configuration file, with defaults for absent ones. A member that is `null` has neither a
/// value nor a default.
pub(crate) struct Fields {
    file: String,
    members: Vec<(String, Value)>,
    nulls: Vec<String>,
    defaults: Vec<(String, Value)>,
}

impl Fields {
    pub(crate) fn parse(file: &str, bytes: &[u8], limit: u64) -> Result<Self, ImportError> {
        let found = bytes.len() as u64;
        if found > limit {
            let what = "its size in bytes".into();
            return Err(ImportError::Limit { file: file.into(), what, found, limit });
        }
        let members = serde_json::from_slice::<UniqueMap<Value>>(&without_bare_floats(bytes))
            .map_err(|source| ImportError::Json { file: file.into(), source })?
            .0;
        Ok(Self::new(file.into(), members))
    }

    fn new(file: String, members: Vec<(String, Value)>) -> Self {
        let (nulls, members): (Vec<_>, Vec<_>) =
            members.into_iter().partition(|(_, value)| value.is_null());
        let nulls = nulls.into_iter().map(|(key, _)| key).collect();
        Self { file, members, nulls, defaults: Vec::new() }
    }

    /// Returns the fields with defaults for absent members.
    pub(crate) fn with_defaults(mut self, defaults: Vec<(String, Value)>) -> Self {
        // A null object counts as absent, because its members have defaults.
        let is_object =
            |name: &str| defaults.iter().any(|(key, value)| key == name && value.is_object());
        self.nulls.retain(|name| !is_object(name));
        Self { defaults, ..self }
    }

    /// Returns the fields with members renamed, for pairs of `(alias, key)`.
    ///
    /// # Errors
    /// Returns an error if both names are present with different values.
    pub(crate) fn renamed<'a>(
        mut self,
        aliases: impl Iterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, ImportError> {
        for (alias, key) in aliases {
            let has = |name: &str| self.member(name).is_some() || self.is_null(name);
            if has(alias) && has(key) && self.member(alias) != self.member(key) {
                return Err(self.wrong(alias, format!("the same as `{key}`")));
            }
            let is_alone = !has(key);
            self.members.retain(|(name, _)| is_alone || name != alias);
            self.nulls.retain(|name| is_alone || name != alias);
            let names = self.members.iter_mut().map(|(name, _)| name).chain(&mut self.nulls);
            names.filter(|name| *name == alias).for_each(|name| key.clone_into(name));
        }
        Ok(self)
    }

    /// Returns the fields with `key` replaced and without the members for which `left_out` is true.
    pub(crate) fn replaced(
        &self,
        key: &str,
        value: Value,
        left_out: impl Fn(&str) -> bool,
    ) -> Self {
        let kept = |name: &str| name != key && !left_out(name);
        let members = self.members.iter().filter(|(name, _)| kept(name)).cloned();
        let nulls = self.nulls.iter().filter(|name| kept(name)).cloned().collect();
        let members = members.chain([(key.into(), value)]).collect();
        Self { file: self.file.clone(), members, nulls, defaults: self.defaults.clone() }
    }

    pub(crate) fn object(&self, key: &str) -> Result<Option<Self>, ImportError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let Value::Object(map) = value else {
            return Err(self.wrong(key, "an object"));
        };
        let members = map.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
        Ok(Some(Self::new(format!("{}: {key}", self.file), members)))
    }

    pub(crate) fn file(&self) -> &str {
        &self.file
    }

    /// Returns true if the object has no members, not even `null`.
    pub(crate) fn is_empty(&self) -> bool {
        self.members.is_empty() && self.nulls.is_empty()
    }

    pub(crate) fn members(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.members.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// Returns the value of a member, or its default if the file does not have it.
    pub(crate) fn get(&self, key: &str) -> Option<&Value> {
        let default = || {
            let default = self.defaults.iter().find(|(name, _)| name == key);
            default.filter(|_| !self.is_null(key)).map(|(_, value)| value)
        };
        self.member(key).or_else(default)
    }

    /// Returns the value of a member in the file, without defaults.
    pub(crate) fn member(&self, key: &str) -> Option<&Value> {
        self.members().find(|(name, _)| *name == key).map(|(_, value)| value)
    }

    /// Returns the names of the members that are `null`.
    pub(crate) fn nulls(&self) -> impl Iterator<Item = &str> {
        self.nulls.iter().map(String::as_str)
    }

    /// Returns true if the member is `null` in the file.
    pub(crate) fn is_null(&self, key: &str) -> bool {
        self.nulls.iter().any(|name| name == key)
    }

    pub(crate) fn refuse_null(&self, key: &str) -> Result<(), ImportError> {
        if self.is_null(key) { Err(self.wrong(key, "a value")) } else { Ok(()) }
    }

    /// Describes the value of a member for an error message; `absent` is the text for a missing one.
    fn describe(&self, key: &str, absent: &str) -> String {
        match (self.member(key), self.get(key)) {
            (Some(value), _) => shown(value),
            (None, Some(default)) => {
                format!("{absent}, for which the default is {}", shown(default))
            }
            (None, None) if self.is_null(key) => "null".into(),
            (None, None) => absent.into(),
        }
    }

    pub(crate) fn wrong(&self, key: &str, expected: impl Into<String>) -> ImportError {
        let found = self.describe(key, "nothing");
        ImportError::Value {
            file: self.file.clone(),
            key: key.into(),
            expected: expected.into(),
            found,
        }
    }

    pub(crate) fn unknown(&self, key: &str, value: &Value) -> ImportError {
        ImportError::UnknownOption { file: self.file.clone(), key: key.into(), found: shown(value) }
    }

    pub(crate) fn unsupported(&self, key: &str, supported: &str) -> ImportError {
        let found = self.describe(key, "absent");
        ImportError::Unsupported {
            file: self.file.clone(),
            key: key.into(),
            found,
            supported: supported.into(),
        }
    }

    /// Returns an integer from 1 to `limit`, if the key is present.
    pub(crate) fn size(&self, key: &str, limit: usize) -> Result<Option<usize>, ImportError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let number = value.as_u64().ok_or_else(|| self.wrong(key, "a whole number"))?;
        if number > limit as u64 {
            return Err(ImportError::Limit {
                file: self.file.clone(),
                what: format!("`{key}`"),
                found: number,
                limit: limit as u64,
            });
        }
        match usize::try_from(number) {
            Ok(number) if number > 0 => Ok(Some(number)),
            _ => Err(self.wrong(key, "a number above 0")),
        }
    }

    /// Returns a required integer from 1 to `limit`.
    pub(crate) fn required_size(&self, key: &str, limit: usize) -> Result<usize, ImportError> {
        self.size(key, limit)?.ok_or_else(|| self.wrong(key, "a whole number"))
    }

    pub(crate) fn boolean(&self, key: &str) -> Result<Option<bool>, ImportError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(*value)),
            Some(_) => Err(self.wrong(key, "true or false")),
        }
    }

    pub(crate) fn text(&self, key: &str) -> Result<Option<&str>, ImportError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(value)) => Ok(Some(value)),
            Some(_) => Err(self.wrong(key, "a string")),
        }
    }

    /// Returns a finite number, if the key is present.
    pub(crate) fn number(&self, key: &str) -> Result<Option<f64>, ImportError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.as_f64() {
            Some(number) if number.is_finite() => Ok(Some(number)),
            _ => Err(self.wrong(key, "a finite number")),
        }
    }

    /// Returns a list of at most `limit` numbers; empty if the key is absent.
    pub(crate) fn floats(&self, key: &str, limit: usize) -> Result<Vec<f64>, ImportError> {
        let list = match self.get(key) {
            None => return Ok(Vec::new()),
            Some(Value::Array(list)) if list.len() <= limit => list,
            Some(_) => return Err(self.wrong(key, format!("a list of at most {limit} numbers"))),
        };
        let numbers = list.iter().map(|value| value.as_f64().filter(|number| number.is_finite()));
        numbers.collect::<Option<_>>().ok_or_else(|| self.wrong(key, "a list of finite numbers"))
    }

    /// Returns a list of integers. A single integer counts as a list of one.
    pub(crate) fn numbers(&self, key: &str, limit: usize) -> Result<Vec<u32>, ImportError> {
        let list = match self.get(key) {
            None => return Ok(Vec::new()),
            Some(Value::Array(list)) => list.as_slice(),
            Some(value) => std::slice::from_ref(value),
        };
        if list.len() > limit {
            return Err(ImportError::Limit {
                file: self.file.clone(),
                what: format!("the length of `{key}`"),
                found: list.len() as u64,
                limit: limit as u64,
            });
        }
        list.iter()
            .map(|value| value.as_u64().and_then(|n| u32::try_from(n).ok()))
            .collect::<Option<_>>()
            .ok_or_else(|| self.wrong(key, "a 32-bit whole number, or a list of them"))
    }
}

/// Formats a value for an error message, truncated to 60 characters.
pub(crate) fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
