//! Test for schemas without common values.

use serde_json::{Map, Value};

use crate::schema_work::{ReferencePath, SchemaRewrite, list};

/// Maximum nesting that is inspected.
const DEPTH_MAX: usize = 8;

impl SchemaRewrite<'_> {
    /// Returns true if it is certain that no value is valid for both schemas.
    pub fn are_disjoint(&self, one: &Value, other: &Value) -> bool {
        self.disjoint(one, other, DEPTH_MAX)
    }

    fn disjoint(&self, one: &Value, other: &Value, depth: usize) -> bool {
        let Some(depth) = depth.checked_sub(1) else { return false };
        if *one == Value::Bool(false) || *other == Value::Bool(false) {
            return true;
        }
        let (Some(one), Some(other)) = (self.target(one), self.target(other)) else { return false };
        let is_none = |(one, other)| one & other == 0;
        if kinds(one).zip(kinds(other)).is_some_and(is_none) {
            return true;
        }
        if let (Some(one), Some(other)) = (values(one), values(other)) {
            return one.iter().all(|one| other.iter().all(|other| are_unlike(one, other)));
        }
        let only_objects = kinds(one).is_some_and(|kinds| kinds == OBJECT)
            || kinds(other).is_some_and(|kinds| kinds == OBJECT);
        only_objects && self.members_are_disjoint(one, other, depth)
    }

    /// Returns true if a required member cannot satisfy the schemas of both objects.
    fn members_are_disjoint(
        &self,
        one: &Map<String, Value>,
        other: &Map<String, Value>,
        depth: usize,
    ) -> bool {
        let required = |map: &Map<String, Value>, name: &str| {
            let names = map.get("required").map_or(&[][..], list);
            names.iter().any(|found| found.as_str() == Some(name))
        };
        let Some(Value::Object(members)) = one.get("properties") else { return false };
        members.iter().any(|(name, schema)| {
            let found = other.get("properties").and_then(|members| members.get(name));
            let is_required = required(one, name) || required(other, name);
            is_required && found.is_some_and(|found| self.disjoint(schema, found, depth))
        })
    }

    fn target<'v>(&'v self, schema: &'v Value) -> Option<&'v Map<String, Value>> {
        let map = schema.as_object()?;
        match map.get("$ref") {
            Some(reference) => self.follow(reference, &ReferencePath::new())?.0.as_object(),
            None => Some(map),
        }
    }
}

const OBJECT: u8 = 1 << 5;

/// Returns the types of a schema's values, one bit each.
fn kinds(map: &Map<String, Value>) -> Option<u8> {
    if let Some(values) = values(map) {
        return Some(values.iter().map(kind_of).fold(0, |all, kind| all | kind));
    }
    let names = map.get("type")?;
    let named = |name: &Value| match name.as_str() {
        Some("null") => 1,
        Some("boolean") => 1 << 1,
        Some("number" | "integer") => 1 << 2,
        Some("string") => 1 << 3,
        Some("array") => 1 << 4,
        Some("object") => OBJECT,
        _ => u8::MAX,
    };
    Some(match names {
        Value::Array(names) => names.iter().map(named).fold(0, |all, kind| all | kind),
        name => named(name),
    })
}

fn kind_of(value: &Value) -> u8 {
    match value {
        Value::Null => 1,
        Value::Bool(_) => 1 << 1,
        Value::Number(_) => 1 << 2,
        Value::String(_) => 1 << 3,
        Value::Array(_) => 1 << 4,
        Value::Object(_) => OBJECT,
    }
}

/// Returns the values of a schema that lists them.
fn values(map: &Map<String, Value>) -> Option<&[Value]> {
    match (map.get("const"), map.get("enum")) {
        (Some(value), _) => Some(std::slice::from_ref(value)),
        (None, Some(Value::Array(values))) => Some(values),
        _ => None,
    }
}

/// Returns true if two values certainly differ. Numbers are compared by value.
fn are_unlike(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => one.as_f64() != other.as_f64(),
        (Value::Array(_), Value::Array(_)) | (Value::Object(_), Value::Object(_)) => false,
        _ => one != other,
    }
}
