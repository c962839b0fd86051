//! Shared state of schema rewriting: work limits and references.

use serde_json::{Map, Value, json};

use crate::error::GuideError;
use crate::limits::{REWRITE_DEPTH_MAX, REWRITE_PARTS_MAX};

/// A schema that is being rewritten. Its references are pointers into it.
pub(crate) struct SchemaRewrite<'a> {
    root: &'a Value,
    parts: u64,
    /// Set if a keyword was replaced by a stricter schema.
    pub is_narrowed: bool,
}

/// References on the path to a place, innermost last.
pub(crate) type ReferencePath = Vec<String>;

impl<'a> SchemaRewrite<'a> {
    pub fn new(root: &'a Value) -> Self {
        Self { root, parts: 0, is_narrowed: false }
    }

    /// Counts parts at a depth.
    ///
    /// # Errors
    /// Fails with [`GuideError::Limit`] if the number of parts or the depth exceeds its limit.
    pub fn charge(&mut self, parts: u64, depth: usize) -> Result<(), GuideError> {
        self.parts += parts;
        let limit = REWRITE_PARTS_MAX;
        if self.parts > limit {
            let what = "parts of a schema as it is rewritten";
            return Err(GuideError::Limit { what, limit, found: self.parts });
        }
        GuideError::check("depth of a schema as it is rewritten", depth, REWRITE_DEPTH_MAX)
    }

    /// Copies a value and counts its parts.
    ///
    /// # Errors
    /// Fails with [`GuideError::Limit`].
    pub fn copy(&mut self, value: &Value) -> Result<Value, GuideError> {
        self.charge(parts(value), 0)?;
        Ok(value.clone())
    }

    /// Returns the target of a reference. Returns `None` if the reference is already in the trail, which
    /// prevents infinite recursion.
    pub fn follow(
        &self,
        reference: &Value,
        trail: &ReferencePath,
    ) -> Option<(&'a Value, ReferencePath)> {
        let reference = reference.as_str()?;
        if trail.iter().any(|known| known == reference) {
            return None;
        }
        let target = self.root.pointer(reference.strip_prefix('#')?)?;
        let mut trail = trail.clone();
        trail.push(reference.to_owned());
        Some((target, trail))
    }
}

fn parts(value: &Value) -> u64 {
    let (mut open, mut count) = (vec![value], 0);
    while let Some(value) = open.pop() {
        count += 1;
        match value {
            Value::Array(items) => open.extend(items),
            Value::Object(map) => open.extend(map.values()),
            _ => {}
        }
    }
    count
}

/// Returns a schema that requires all of `schemas`.
pub(crate) fn all_of(mut schemas: Vec<Value>) -> Value {
    schemas.retain(|schema| *schema != Value::Bool(true) && *schema != json!({}));
    if schemas.contains(&Value::Bool(false)) {
        return false.into();
    }
    match schemas.len() {
        0 => true.into(),
        1 => schemas.remove(0),
        _ => json!({ "allOf": schemas }),
    }
}

/// Returns a schema that requires at least one of `schemas`.
pub(crate) fn any_of(mut schemas: Vec<Value>) -> Value {
    if schemas.iter().any(|schema| *schema == Value::Bool(true) || *schema == json!({})) {
        return true.into();
    }
    schemas.retain(|schema| *schema != Value::Bool(false));
    match schemas.len() {
        0 => false.into(),
        1 => schemas.remove(0),
        _ => json!({ "anyOf": schemas }),
    }
}

/// Returns a schema for one property.
pub(crate) fn property(name: &str, schema: Value) -> Value {
    json!({ "properties": Map::from_iter([(name.to_owned(), schema)]) })
}

/// Returns the prefix items of an array whose items from `start` on are `items`.
pub(crate) fn items_at(start: usize, items: Vec<Value>) -> Vec<Value> {
    std::iter::repeat_n(Value::Bool(true), start).chain(items).collect()
}

pub(crate) fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}
