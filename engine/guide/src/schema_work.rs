//! What rewriting a schema may cost, and where its references lead.

use serde_json::{Map, Value, json};

use crate::error::GuideError;
use crate::limits::{REWRITE_DEPTH_MAX, REWRITE_PARTS_MAX};

/// A schema at work: its references are pointers in it.
pub(crate) struct Work<'a> {
    root: &'a Value,
    parts: u64,
    /// Something was rewritten as less than it says.
    pub is_narrowed: bool,
}

/// The references that led to a place, innermost last.
pub(crate) type Trail = Vec<String>;

impl<'a> Work<'a> {
    pub fn new(root: &'a Value) -> Self {
        Self { root, parts: 0, is_narrowed: false }
    }

    /// Counts a part; `depth` is how deep it is.
    ///
    /// # Errors
    /// [`GuideError::Limit`].
    pub fn charge(&mut self, parts: u64, depth: usize) -> Result<(), GuideError> {
        self.parts += parts;
        let limit = REWRITE_PARTS_MAX;
        if self.parts > limit {
            let what = "parts of a schema as it is rewritten";
            return Err(GuideError::Limit { what, limit, found: self.parts });
        }
        GuideError::check("depth of a schema as it is rewritten", depth, REWRITE_DEPTH_MAX)
    }

    /// Counts the parts of a copy.
    ///
    /// # Errors
    /// [`GuideError::Limit`].
    pub fn copy(&mut self, value: &Value) -> Result<Value, GuideError> {
        self.charge(parts(value), 0)?;
        Ok(value.clone())
    }

    /// What a reference leads to; nothing where it was followed already, so that it has no end.
    pub fn follow(&self, reference: &Value, trail: &Trail) -> Option<(&'a Value, Trail)> {
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

/// All of `schemas`.
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

/// One of `schemas` at least.
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

/// A schema of one property.
pub(crate) fn property(name: &str, schema: Value) -> Value {
    json!({ "properties": Map::from_iter([(name.to_owned(), schema)]) })
}

/// A schema of an array whose items from `start` on are `items`.
pub(crate) fn items_at(start: usize, items: Vec<Value>) -> Vec<Value> {
    std::iter::repeat_n(Value::Bool(true), start).chain(items).collect()
}

/// The schemas of a list.
pub(crate) fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}
