//! Negation of schemas, which may admit fewer values than the exact complement.

use serde_json::{Map, Value, json};

use crate::error::GuideError;
use crate::schema_work::{ReferencePath, SchemaRewrite, all_of, any_of, items_at, list, property};

const TYPES: [&str; 6] = ["null", "boolean", "number", "string", "array", "object"];

/// Maximum number of alternatives of a `oneOf` whose pairs are considered.
const PAIRS_MAX: usize = 4;

impl SchemaRewrite<'_> {
    /// Returns a schema that admits no value that `schema` admits. The result may exclude other values too.
    ///
    /// # Errors
    /// Fails with [`GuideError::Limit`].
    pub fn negate(
        &mut self,
        schema: &Value,
        trail: &ReferencePath,
        depth: usize,
    ) -> Result<Value, GuideError> {
        self.charge(1, depth)?;
        let map = match schema {
            Value::Bool(all) => return Ok((!all).into()),
            Value::Object(map) => map,
            _ => return Ok(false.into()),
        };
        let mut found = Vec::new();
        for (key, value) in map {
            match key.as_str() {
                "$ref" => {
                    if let Some((target, trail)) = self.follow(value, trail) {
                        found.push(self.negate(target, &trail, depth + 1)?);
                    }
                }
                "not" => found.push(self.copy(value)?),
                "allOf" => {
                    for item in list(value) {
                        found.push(self.negate(item, trail, depth + 1)?);
                    }
                }
                "anyOf" => found.push(self.negate_all(list(value), trail, depth)?),
                "oneOf" => {
                    found.push(self.negate_all(list(value), trail, depth)?);
                    let all = list(value);
                    for (at, one) in all.iter().enumerate().take(PAIRS_MAX) {
                        for other in all.iter().take(PAIRS_MAX).skip(at + 1) {
                            found.push(all_of(vec![self.copy(one)?, self.copy(other)?]));
                        }
                    }
                }
                "if" => self.negate_condition(map, &mut found, trail, depth)?,
                "properties" | "dependentSchemas" => {
                    for (name, item) in value.as_object().into_iter().flatten() {
                        let item = self.negate(item, trail, depth + 1)?;
                        let required = json!({"type": "object", "required": [name]});
                        let item = if key == "properties" { property(name, item) } else { item };
                        found.push(all_of(vec![required, item]));
                    }
                }
                "prefixItems" => {
                    for (at, item) in list(value).iter().enumerate() {
                        let item = self.negate(item, trail, depth + 1)?;
                        found
                            .push(json!({"type": "array", "prefixItems": items_at(at, vec![item]),
                            "minItems": at + 1}));
                    }
                }
                "items" => {
                    let at = map.get("prefixItems").map_or(0, |items| list(items).len());
                    let item = self.negate(value, trail, depth + 1)?;
                    found.push(json!({"type": "array", "prefixItems": items_at(at, vec![item]),
                        "minItems": at + 1}));
                }
                "contains" if map.get("minContains").and_then(Value::as_f64) != Some(0.0) => {
                    let item = self.negate(value, trail, depth + 1)?;
                    found.push(json!({"type": "array", "items": item}));
                }
                _ => negate_plain(key, value, &mut found),
            }
        }
        found.retain(|schema| *schema != Value::Bool(false));
        Ok(any_of(found))
    }

    fn negate_all(
        &mut self,
        schemas: &[Value],
        trail: &ReferencePath,
        depth: usize,
    ) -> Result<Value, GuideError> {
        let all = schemas.iter().map(|schema| self.negate(schema, trail, depth + 1));
        Ok(all_of(all.collect::<Result<_, _>>()?))
    }

    fn negate_condition(
        &mut self,
        map: &Map<String, Value>,
        found: &mut Vec<Value>,
        trail: &ReferencePath,
        depth: usize,
    ) -> Result<(), GuideError> {
        let Some(condition) = map.get("if") else { return Ok(()) };
        if let Some(then) = map.get("then") {
            let then = self.negate(then, trail, depth + 1)?;
            found.push(all_of(vec![self.copy(condition)?, then]));
        }
        if let Some(other) = map.get("else") {
            let condition = self.negate(condition, trail, depth + 1)?;
            let other = self.negate(other, trail, depth + 1)?;
            found.push(all_of(vec![condition, other]));
        }
        Ok(())
    }
}

/// Negates a keyword without subschemas.
fn negate_plain(key: &str, value: &Value, found: &mut Vec<Value>) {
    let count = value.as_f64().filter(|count| *count >= 0.0).map(|count| count as u64);
    match (key, count) {
        ("type", _) => found.extend(other_types(value)),
        ("const", _) => found.extend(other_values(std::slice::from_ref(value))),
        ("enum", _) => found.extend(other_values(list(value))),
        ("required", _) => {
            let names = list(value).iter().filter_map(Value::as_str);
            found.extend(names.map(|name| json!({"type": "object", "properties": {name: false}})));
        }
        ("dependentRequired", _) => {
            for (name, others) in value.as_object().into_iter().flatten() {
                let others = list(others).iter().filter_map(Value::as_str);
                found.extend(others.filter(|other| other != name).map(|other| {
                    json!({"type": "object", "required": [name], "properties": {other: false}})
                }));
            }
        }
        ("minimum", _) => found.push(json!({"type": "number", "exclusiveMaximum": value})),
        ("maximum", _) => found.push(json!({"type": "number", "exclusiveMinimum": value})),
        ("exclusiveMinimum", _) => found.push(json!({"type": "number", "maximum": value})),
        ("exclusiveMaximum", _) => found.push(json!({"type": "number", "minimum": value})),
        ("minLength", Some(1..)) => at_most("string", "maxLength", count, found),
        ("minItems", Some(1..)) => at_most("array", "maxItems", count, found),
        ("minProperties", Some(1..)) => at_most("object", "maxProperties", count, found),
        ("maxLength", Some(count)) => found.push(json!({"type": "string", "minLength": count + 1})),
        ("maxItems", Some(count)) => found.push(json!({"type": "array", "minItems": count + 1})),
        ("maxProperties", Some(count)) => {
            found.push(json!({"type": "object", "minProperties": count + 1}));
        }
        _ => {}
    }
}

fn at_most(kind: &str, key: &str, count: Option<u64>, found: &mut Vec<Value>) {
    // Default: the caller checked that there is a count.
    let count = count.unwrap_or_default().saturating_sub(1);
    found.push(json!({"type": kind, key: count}));
}

fn other_types(value: &Value) -> Option<Value> {
    let named = |kind: &str| match value {
        Value::String(name) => name == kind,
        value => list(value).iter().any(|name| name.as_str() == Some(kind)),
    };
    // No type name covers the numbers that are not integers.
    let left =
        TYPES.iter().filter(|kind| !named(kind) && (**kind != "number" || !named("integer")));
    let left: Vec<_> = left.collect();
    (!left.is_empty()).then(|| json!({"type": left}))
}

/// Returns schemas that exclude `values`.
fn other_values(values: &[Value]) -> Vec<Value> {
    let kind = |value: &Value| match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let of = |name: &'static str| values.iter().filter(move |value| kind(value) == name);
    let left: Vec<_> = TYPES.into_iter().filter(|name| of(name).next().is_none()).collect();
    let mut found = vec![json!({"type": left})];
    if let (1, Some(one)) = (of("boolean").count(), of("boolean").next()) {
        found.push(json!({"const": one == &Value::Bool(false)}));
    }
    let numbers = || of("number").filter_map(Value::as_f64);
    if let (Some(least), Some(most)) = (numbers().reduce(f64::min), numbers().reduce(f64::max)) {
        found.push(json!({"type": "number", "exclusiveMinimum": most}));
        found.push(json!({"type": "number", "exclusiveMaximum": least}));
    }
    if let Some(longest) = of("string").filter_map(Value::as_str).map(|s| s.chars().count()).max() {
        found.push(json!({"type": "string", "minLength": longest + 1}));
        let is_some = of("string").all(|text| text != "");
        found.extend(is_some.then(|| json!({"type": "string", "maxLength": 0})));
    }
    if let Some(longest) = of("array").filter_map(Value::as_array).map(Vec::len).max() {
        found.push(json!({"type": "array", "minItems": longest + 1}));
    }
    let mut objects = of("object").filter_map(Value::as_object);
    if let Some(first) = objects.next() {
        let others: Vec<_> = objects.collect();
        let mut names = first.keys();
        let common = names.find(|name| others.iter().all(|other| other.contains_key(*name)));
        let most = others
            .iter()
            .map(|other| other.len())
            .max()
            .map_or(first.len(), |most| most.max(first.len()));
        found.push(match common {
            Some(name) => json!({"type": "object", "properties": {name: false}}),
            None => json!({"type": "object", "minProperties": most + 1}),
        });
    }
    if left.is_empty() {
        found.remove(0);
    }
    found
}
