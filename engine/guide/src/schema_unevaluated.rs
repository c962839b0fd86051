//! Rewrites `unevaluatedProperties` and `unevaluatedItems` to ordinary keywords.

use serde_json::{Map, Value, json};

use crate::error::GuideError;
use crate::schema_work::{ReferencePath, SchemaRewrite, all_of, any_of, list, property};

/// Maximum number of combinations of a schema's conditional parts.
const WAYS_MAX: usize = 64;

/// One combination of a schema's conditional parts: its constraints, and the members and items that it
/// evaluates.
#[derive(Debug, Clone, Default)]
struct SchemaBranch {
    parts: Vec<Value>,
    names: Vec<String>,
    patterns: Vec<String>,
    all_members: bool,
    /// Number of evaluated items at the start of a list.
    items: usize,
    all_items: bool,
}

impl SchemaBranch {
    fn and(&self, other: &Self) -> Self {
        let mut both = self.clone();
        both.parts.extend(other.parts.iter().cloned());
        both.names.extend(other.names.iter().cloned());
        both.patterns.extend(other.patterns.iter().cloned());
        both.all_members |= other.all_members;
        both.items = both.items.max(other.items);
        both.all_items |= other.all_items;
        both
    }

    fn of(part: Value) -> Self {
        Self { parts: vec![part], ..Self::default() }
    }
}

impl SchemaRewrite<'_> {
    /// Returns the schema without `unevaluatedProperties` and `unevaluatedItems`. The result admits no more
    /// values.
    ///
    /// # Errors
    /// Fails with [`GuideError::Limit`].
    pub fn evaluated(
        &mut self,
        map: &Map<String, Value>,
        trail: &ReferencePath,
        depth: usize,
    ) -> Result<Value, GuideError> {
        let mut inner = map.clone();
        let members = inner.remove("unevaluatedProperties");
        let items = inner.remove("unevaluatedItems");
        let ways = self.ways(&Value::Object(inner), trail, depth)?;
        let mut found = Vec::new();
        for way in ways {
            let mut parts = way.parts;
            if let Some(members) = members.as_ref().filter(|_| !way.all_members) {
                let all_true = |names: Vec<String>| {
                    Value::Object(names.into_iter().map(|name| (name, true.into())).collect())
                };
                parts.push(json!({"properties": all_true(way.names),
                    "patternProperties": all_true(way.patterns), "additionalProperties": members}));
            }
            if let Some(items) = items.as_ref().filter(|_| !way.all_items) {
                let first = vec![Value::Bool(true); way.items];
                parts.push(json!({"prefixItems": first, "items": items}));
            }
            found.push(all_of(parts));
        }
        Ok(any_of(found))
    }

    fn ways(
        &mut self,
        schema: &Value,
        trail: &ReferencePath,
        depth: usize,
    ) -> Result<Vec<SchemaBranch>, GuideError> {
        self.charge(1, depth)?;
        let Value::Object(map) = schema else { return Ok(vec![SchemaBranch::of(schema.clone())]) };
        if map.contains_key("unevaluatedProperties") || map.contains_key("unevaluatedItems") {
            let schema = self.evaluated(map, trail, depth + 1)?;
            return self.ways(&schema, trail, depth + 1);
        }
        let mut own = Map::new();
        let mut ways = vec![SchemaBranch::default()];
        for (key, value) in map {
            let more = match key.as_str() {
                "allOf" => {
                    for item in list(value) {
                        let more = self.ways(item, trail, depth + 1)?;
                        ways = self.both(&ways, &more)?;
                    }
                    continue;
                }
                "$ref" => match self.follow(value, trail) {
                    Some((target, trail)) => self.ways(target, &trail, depth + 1)?,
                    None => vec![SchemaBranch::of(json!({ "$ref": value }))],
                },
                "anyOf" => self.alternatives(list(value), false, trail, depth)?,
                "oneOf" => self.alternatives(list(value), true, trail, depth)?,
                "if" => self.condition(map, trail, depth)?,
                "then" | "else" => continue,
                "dependentSchemas" => {
                    for (name, item) in value.as_object().into_iter().flatten() {
                        let mut more = vec![SchemaBranch::of(property(name, false.into()))];
                        let there = SchemaBranch::of(json!({"required": [name]}));
                        let item = self.ways(item, trail, depth + 1)?;
                        more.extend(self.both(&[there], &item)?);
                        ways = self.both(&ways, &more)?;
                    }
                    continue;
                }
                _ => {
                    own.insert(key.clone(), value.clone());
                    continue;
                }
            };
            ways = self.both(&ways, &more)?;
        }
        let own = own_way(own);
        self.both(&[own], &ways)
    }

    fn both(
        &mut self,
        one: &[SchemaBranch],
        other: &[SchemaBranch],
    ) -> Result<Vec<SchemaBranch>, GuideError> {
        let what = "ways in which the parts of a schema hold";
        GuideError::check(what, one.len().saturating_mul(other.len()), WAYS_MAX)?;
        let mut all = Vec::new();
        for first in one {
            for second in other {
                for part in first.parts.iter().chain(&second.parts) {
                    self.copy(part)?;
                }
                all.push(first.and(second));
            }
        }
        Ok(all)
    }

    /// Returns the combinations of each alternative. If `only_one` is set, each excludes the other
    /// alternatives.
    fn alternatives(
        &mut self,
        schemas: &[Value],
        only_one: bool,
        trail: &ReferencePath,
        depth: usize,
    ) -> Result<Vec<SchemaBranch>, GuideError> {
        let mut all = Vec::new();
        for (at, schema) in schemas.iter().enumerate() {
            let mut others = SchemaBranch::default();
            for (other, schema) in schemas.iter().enumerate().filter(|_| only_one) {
                if other != at {
                    others.parts.push(self.negate(schema, trail, depth + 1)?);
                }
            }
            let ways = self.ways(schema, trail, depth + 1)?;
            all.extend(self.both(&ways, &[others])?);
            GuideError::check("ways in which the parts of a schema hold", all.len(), WAYS_MAX)?;
        }
        Ok(all)
    }

    fn condition(
        &mut self,
        map: &Map<String, Value>,
        trail: &ReferencePath,
        depth: usize,
    ) -> Result<Vec<SchemaBranch>, GuideError> {
        let yes = Value::Bool(true);
        let branch = |key: &str| map.get(key).unwrap_or(&yes);
        let condition = branch("if");
        let then = self.ways(branch("then"), trail, depth + 1)?;
        let holds = self.ways(condition, trail, depth + 1)?;
        let mut all = self.both(&holds, &then)?;
        let fails = SchemaBranch::of(self.negate(condition, trail, depth + 1)?);
        let other = self.ways(branch("else"), trail, depth + 1)?;
        all.extend(self.both(&[fails], &other)?);
        Ok(all)
    }
}

fn own_way(own: Map<String, Value>) -> SchemaBranch {
    let names = |key: &str| {
        let map = own.get(key).and_then(Value::as_object);
        map.into_iter().flat_map(|map| map.keys().cloned()).collect()
    };
    let has = |keys: [&str; 2]| keys.iter().any(|key| own.contains_key(*key));
    SchemaBranch {
        names: names("properties"),
        patterns: names("patternProperties"),
        all_members: has(["additionalProperties", "unevaluatedProperties"]),
        items: own.get("prefixItems").map_or(0, |items| list(items).len()),
        all_items: has(["items", "unevaluatedItems"]),
        parts: vec![Value::Object(own)],
    }
}
