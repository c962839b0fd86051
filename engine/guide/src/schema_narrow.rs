//! Rewrites schemas to the keywords of the grammar engine. An unsupported keyword is replaced by a schema
//! that admits the same values or fewer, never more.

use std::collections::{BTreeMap, VecDeque};

use serde_json::{Map, Value, json};

use crate::error::GuideError;
use crate::schema_refs::{add_conjunct, resolved};
use crate::schema_work::{ReferencePath, SchemaRewrite, all_of, any_of, list, property};

/// Supported keywords that contain no schemas.
const PLAIN: [&str; 16] = [
    "type",
    "const",
    "enum",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "minLength",
    "maxLength",
    "pattern",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "required",
];

/// Unsupported keywords, from older drafts or unknown, that change the meaning of a schema.
const UNKNOWN: [&str; 6] = [
    "$dynamicRef",
    "$recursiveRef",
    "$recursiveAnchor",
    "additionalItems",
    "dependencies",
    "x-guidance",
];

/// Maximum number of values for which the lists without duplicates are enumerated.
const UNIQUE_VALUES_MAX: usize = 6;

/// Maximum number of positions at which a required list item is tried.
const PLACES_MAX: usize = 4;

/// Maximum integer below which floats represent all integers exactly.
const WHOLE_MAX: f64 = 9_007_199_254_740_992.0;

/// A schema that only uses keywords of the grammar engine.
#[derive(Debug, Clone)]
pub(crate) struct NarrowedSchema {
    pub schema: Value,
    /// True if the schema may admit fewer values than its source.
    pub is_narrowed: bool,
}

/// Rewrites a schema.
///
/// # Errors
/// Fails with an error that names the unsupported keyword, or with [`GuideError::Limit`] if the rewriting
/// grows too large.
pub(crate) fn narrowed(schema: &Value) -> Result<NarrowedSchema, GuideError> {
    let root = resolved(schema)?;
    let mut narrow = Narrow {
        work: SchemaRewrite::new(&root),
        known: BTreeMap::new(),
        open: VecDeque::new(),
        bounds_formats: !restricts_texts(&root),
    };
    let mut schema = narrow.schema(&root, 0)?;
    let mut definitions = Map::new();
    while let Some((name, target)) = narrow.open.pop_front() {
        let trail = ReferencePath::new();
        let Some((target, _)) = narrow.work.follow(&target.into(), &trail) else { continue };
        let definition = narrow.schema(target, 0)?;
        definitions.insert(name, definition);
    }
    if let (Value::Object(map), false) = (&mut schema, definitions.is_empty()) {
        map.insert("$defs".into(), definitions.into());
    }
    Ok(NarrowedSchema { schema, is_narrowed: narrow.work.is_narrowed })
}

struct Narrow<'a> {
    work: SchemaRewrite<'a>,
    /// Names of definitions, keyed by reference.
    known: BTreeMap<String, String>,
    open: VecDeque<(String, String)>,
    /// True if the parts of texts with a format are bounded.
    bounds_formats: bool,
}

impl Narrow<'_> {
    fn schema(&mut self, schema: &Value, depth: usize) -> Result<Value, GuideError> {
        self.work.charge(1, depth)?;
        let map = match schema {
            Value::Bool(_) => return Ok(schema.clone()),
            Value::Object(map) => map,
            other => {
                let found = other.to_string().chars().take(100).collect();
                let expected = "an object, true or false";
                return Err(GuideError::Invalid { what: "a schema".into(), expected, found });
            }
        };
        if map.contains_key("unevaluatedProperties") || map.contains_key("unevaluatedItems") {
            self.work.is_narrowed = true;
            let schema = self.work.evaluated(map, &ReferencePath::new(), depth)?;
            return self.schema(&schema, depth + 1);
        }
        let mut out = Map::new();
        // Additional constraints, which still have to be rewritten.
        let mut more = Vec::new();
        for (key, value) in map {
            check_form(key, value)?;
            self.keyword(map, key, value, &mut out, &mut more, depth)?;
        }
        count_members(&mut out, &mut self.work.is_narrowed)?;
        for schema in more {
            match self.schema(&schema, depth + 1)? {
                Value::Bool(true) => {}
                Value::Bool(false) => return Ok(false.into()),
                schema => add_conjunct(&mut out, schema),
            }
        }
        Ok(if out.is_empty() { true.into() } else { out.into() })
    }

    fn keyword(
        &mut self,
        map: &Map<String, Value>,
        key: &str,
        value: &Value,
        out: &mut Map<String, Value>,
        more: &mut Vec<Value>,
        depth: usize,
    ) -> Result<(), GuideError> {
        let rewritten = match key {
            "items" | "additionalProperties" => self.schema(value, depth + 1)?,
            "prefixItems" | "allOf" | "anyOf" => {
                let all = list(value).iter().map(|item| self.schema(item, depth + 1));
                Value::Array(all.collect::<Result<_, _>>()?)
            }
            "properties" | "patternProperties" => {
                let mut all = Map::new();
                for (name, item) in value.as_object().into_iter().flatten() {
                    all.insert(name.clone(), self.schema(item, depth + 1)?);
                }
                all.into()
            }
            "$ref" => self.reference(value).into(),
            "const" | "enum" => whole_numbers(value),
            "format" => match format(value) {
                Some(Value::Object(pattern)) => {
                    self.work.is_narrowed = true;
                    more.push(pattern.into());
                    return Ok(());
                }
                name => {
                    let bound = format_bound(name.as_ref().unwrap_or(value));
                    if let Some(pattern) = bound.filter(|_| self.bounds_formats) {
                        self.work.is_narrowed = true;
                        more.push(json!({ "pattern": pattern }));
                    }
                    name.unwrap_or_else(|| value.clone())
                }
            },
            _ if PLAIN.contains(&key) => whole_number(value),
            _ if UNKNOWN.contains(&key) => {
                let reason = format!("{key} is not supported");
                return Err(GuideError::Unsupported { place: key.to_owned(), reason });
            }
            _ => return self.conjuncts(map, key, value, more, depth),
        };
        out.insert(key.to_owned(), rewritten);
        Ok(())
    }

    fn reference(&mut self, reference: &Value) -> String {
        // Default: a reference that is not a string is empty, which the grammar engine rejects.
        let reference = reference.as_str().unwrap_or_default();
        let next = format!("d{}", self.known.len());
        let open = &mut self.open;
        let name = self.known.entry(reference.to_owned()).or_insert_with(|| {
            open.push_back((next.clone(), reference.to_owned()));
            next
        });
        format!("#/$defs/{name}")
    }

    /// Adds the constraints that replace an unsupported keyword.
    fn conjuncts(
        &mut self,
        map: &Map<String, Value>,
        key: &str,
        value: &Value,
        more: &mut Vec<Value>,
        depth: usize,
    ) -> Result<(), GuideError> {
        let trail = ReferencePath::new();
        match key {
            "not" if value.is_boolean() || *value == json!({}) => {
                more.push((*value == Value::Bool(false)).into());
                return Ok(());
            }
            "not" => more.push(self.work.negate(value, &trail, depth + 1)?),
            "oneOf" => more.push(self.one_of(list(value), depth)?),
            "if" => {
                let yes = Value::Bool(true);
                let branch = |key: &str| map.get(key).unwrap_or(&yes).clone();
                let fails = self.work.negate(value, &trail, depth + 1)?;
                let holds = all_of(vec![self.work.copy(value)?, branch("then")]);
                more.push(any_of(vec![holds, all_of(vec![fails, branch("else")])]));
            }
            "contains" => more.push(self.contains(map, value, depth)?),
            "uniqueItems" if *value == Value::Bool(true) => more.push(self.unique(map)?),
            "propertyNames" => more.push(self.names(value)?),
            "dependentRequired" => {
                for (name, others) in value.as_object().into_iter().flatten() {
                    if list(others).iter().any(|other| other.as_str() != Some(name)) {
                        let there = [json!([name]).as_array().cloned(), others.as_array().cloned()];
                        let there: Vec<Value> = there.into_iter().flatten().flatten().collect();
                        let without = property(name, false.into());
                        more.push(any_of(vec![
                            json!({"type": "object", "required": there}),
                            without,
                        ]));
                    }
                }
                return Ok(());
            }
            "dependentSchemas" => {
                for (name, schema) in value.as_object().into_iter().flatten() {
                    let schema = self.work.copy(schema)?;
                    let there = all_of(vec![json!({"type": "object", "required": [name]}), schema]);
                    more.push(any_of(vec![there, property(name, false.into())]));
                }
                return Ok(());
            }
            // Keywords that are handled with others or have no meaning.
            _ => return Ok(()),
        }
        self.work.is_narrowed = true;
        Ok(())
    }

    /// Replaces `oneOf`: each schema, without the others that it may overlap with.
    fn one_of(&mut self, schemas: &[Value], depth: usize) -> Result<Value, GuideError> {
        let mut all = Vec::new();
        for (at, schema) in schemas.iter().enumerate() {
            let mut parts = vec![self.work.copy(schema)?];
            for (other, schema) in schemas.iter().enumerate() {
                if other != at && !self.work.are_disjoint(&parts[0], schema) {
                    parts.push(self.work.negate(schema, &ReferencePath::new(), depth + 1)?);
                }
            }
            all.push(all_of(parts));
        }
        Ok(any_of(all))
    }

    /// Replaces `contains`: consecutive matching items from one of the first positions. If there is a
    /// maximum, all other items do not match.
    fn contains(
        &mut self,
        map: &Map<String, Value>,
        schema: &Value,
        depth: usize,
    ) -> Result<Value, GuideError> {
        let count = |key: &str| map.get(key).and_then(Value::as_f64).filter(|count| *count >= 0.0);
        let least = count("minContains").map_or(1, |count| count.ceil() as usize);
        let most = count("maxContains").map(|count| count as usize);
        let other = match most {
            Some(_) => self.work.negate(schema, &ReferencePath::new(), depth + 1)?,
            None => true.into(),
        };
        GuideError::check("repetitions", least, UNIQUE_VALUES_MAX * 16)?;
        if most.is_some_and(|most| most < least) {
            return Ok(json!({"type": ["null", "boolean", "number", "string", "object"]}));
        }
        let places = map.get("prefixItems").map_or(0, |items| list(items).len()).min(PLACES_MAX);
        let mut found = Vec::new();
        for place in 0..=places + 1 {
            let mut items = vec![other.clone(); place];
            for _ in 0..least {
                items.push(self.work.copy(schema)?);
            }
            let after = self.work.copy(&other)?;
            found.push(json!({"prefixItems": items, "items": after, "minItems": place + least}));
        }
        Ok(any_of(found))
    }

    /// Replaces `uniqueItems`: at most one item, values of a list in its order, or items of different types.
    fn unique(&mut self, map: &Map<String, Value>) -> Result<Value, GuideError> {
        let mut found = vec![json!({"maxItems": 1})];
        let values = map.get("items").and_then(|items| items.get("enum"));
        // Default: without an `enum` there are no values to enumerate.
        let values = values.map(list).unwrap_or_default();
        if values.len() <= UNIQUE_VALUES_MAX && are_different(values) {
            for chosen in 0_u32..1 << values.len() {
                let bits = values.iter().enumerate();
                let values = bits.filter(|(at, _)| chosen >> at & 1 == 1).map(|(_, value)| value);
                let values: Vec<&Value> = values.collect();
                if values.len() > 1 {
                    found.push(self.work.copy(&json!({"type": "array", "const": values}))?);
                }
            }
        }
        let kinds = ["string", "integer", "boolean", "null", "object", "array"];
        let kinds: Vec<Value> = kinds.iter().map(|kind| json!({"type": kind})).collect();
        for count in 2..=kinds.len() {
            found.push(json!({"type": "array", "prefixItems": kinds[..count], "items": false,
                "minItems": count}));
        }
        let both = [json!({"const": true}), json!({"const": false})];
        found.push(json!({"type": "array", "prefixItems": both, "items": false, "minItems": 2}));
        Ok(any_of(found))
    }

    /// Replaces `propertyNames`: restricts the members to the names that a string schema admits.
    fn names(&mut self, schema: &Value) -> Result<Value, GuideError> {
        let unsupported = || {
            let reason = "only patterns, lengths and lists of names are supported".to_owned();
            GuideError::Unsupported { place: "propertyNames".to_owned(), reason }
        };
        let map = match schema {
            Value::Bool(true) => return Ok(true.into()),
            Value::Bool(false) => return Ok(json!({"additionalProperties": false})),
            Value::Object(map) => map,
            _ => return Err(unsupported()),
        };
        let none = json!({"additionalProperties": false});
        let mut parts = Vec::new();
        let count = |key: &str| map.get(key).and_then(Value::as_f64).map(|count| count as u64);
        for (key, value) in map {
            parts.push(match (key.as_str(), value) {
                ("type", Value::String(name)) if name == "string" => continue,
                ("type", _) if list(value).iter().any(|name| name == "string") => continue,
                ("type", _) => none.clone(),
                ("pattern", Value::String(pattern)) => {
                    json!({"patternProperties": {pattern: true}, "additionalProperties": false})
                }
                ("minLength" | "maxLength", _) => {
                    // Default: an absent minimum length is 0.
                    let least = count("minLength").unwrap_or_default();
                    let most = count("maxLength").map_or(String::new(), |most| most.to_string());
                    let pattern = format!("^(?s:.{{{least},{most}}})$");
                    json!({"patternProperties": {pattern: true}, "additionalProperties": false})
                }
                ("const" | "enum", _) => {
                    let one = std::slice::from_ref(value);
                    let values = if key == "const" { one } else { list(value) };
                    let names = values.iter().filter_map(Value::as_str);
                    let names = names.map(|name| (name.to_owned(), true.into()));
                    let names = Value::Object(names.collect());
                    json!({"properties": names, "additionalProperties": false})
                }
                _ => return Err(unsupported()),
            });
        }
        parts.dedup();
        Ok(all_of(parts))
    }
}

/// Checks that a keyword has a value of the right form.
fn check_form(key: &str, value: &Value) -> Result<(), GuideError> {
    let are_texts =
        |value: &Value| value.as_array().is_some_and(|texts| texts.iter().all(Value::is_string));
    let (is_right, expected) = match key {
        "allOf" | "anyOf" | "oneOf" => {
            (value.as_array().is_some_and(|items| !items.is_empty()), "a list of schemas")
        }
        "prefixItems" | "enum" => (value.is_array(), "a list"),
        "properties" | "patternProperties" | "dependentSchemas" => {
            (value.is_object(), "schemas with names")
        }
        "dependentRequired" => {
            let all = value.as_object();
            (all.is_some_and(|all| all.values().all(are_texts)), "lists of names with names")
        }
        "required" => (are_texts(value), "a list of names"),
        "minContains" | "maxContains" => {
            (value.as_f64().is_some_and(|count| count >= 0.0), "a number that is not negative")
        }
        "uniqueItems" => (value.is_boolean(), "true or false"),
        "$ref" | "format" | "pattern" => (value.is_string(), "a text"),
        _ => return Ok(()),
    };
    if is_right {
        return Ok(());
    }
    let found = value.to_string().chars().take(100).collect();
    Err(GuideError::Invalid { what: key.to_owned(), expected, found })
}

/// Makes named members required or forbidden if members are counted, because the grammar engine only counts
/// such members.
///
/// # Errors
/// Fails if more than one member may have any name: nothing keeps such names from being repeated, and a parsed
/// object would have fewer members.
fn count_members(map: &mut Map<String, Value>, is_narrowed: &mut bool) -> Result<(), GuideError> {
    let count = |key: &str| map.get(key).and_then(Value::as_u64).map(|count| count as usize);
    let (least, most) = (count("minProperties"), count("maxProperties"));
    if least.is_none() && most.is_none() {
        return Ok(());
    }
    let required = map.get("required").map_or(&[][..], list);
    let mut required: Vec<Value> = required.to_vec();
    let members = map.get("properties").and_then(Value::as_object);
    let named = members.into_iter().flatten().filter(|(name, schema)| {
        **schema != false && !required.iter().any(|required| required == name.as_str())
    });
    if least.is_some_and(|least| least > required.len() + named.count() + 1) {
        let reason = "more members are required than have names".to_owned();
        return Err(GuideError::Unsupported { place: "minProperties".to_owned(), reason });
    }
    // Default: without named members there is nothing to count.
    let Some(mut members) = members.cloned() else { return Ok(()) };
    for (name, schema) in &mut members {
        let name = Value::from(name.as_str());
        if required.contains(&name) || *schema == Value::Bool(false) {
            continue;
        }
        *is_narrowed = true;
        if least.is_some_and(|least| required.len() < least) {
            required.push(name);
        } else {
            *schema = false.into();
        }
    }
    map.insert("properties".into(), members.into());
    map.insert("required".into(), required.into());
    Ok(())
}

fn are_different(values: &[Value]) -> bool {
    let all = values.iter().enumerate();
    let mut pairs =
        all.flat_map(|(at, one)| values[at + 1..].iter().map(move |other| (one, other)));
    pairs.all(|(one, other)| whole_numbers(one) != whole_numbers(other))
}

/// Converts an integral float to an integer.
fn whole_number(value: &Value) -> Value {
    match value.as_f64() {
        Some(number) if value.is_f64() && number.fract() == 0.0 && number.abs() < WHOLE_MAX => {
            Value::from(number as i64)
        }
        _ => value.clone(),
    }
}

fn whole_numbers(value: &Value) -> Value {
    match value {
        Value::Array(items) => items.iter().map(whole_numbers).collect(),
        Value::Object(map) => {
            map.iter().map(|(key, item)| (key.clone(), whole_numbers(item))).collect()
        }
        value => whole_number(value),
    }
}

/// Returns a supported format that is at least as strict as the named one, or a pattern for it.
fn format(name: &Value) -> Option<Value> {
    Some(match name.as_str()? {
        "idn-email" => "email".into(),
        "idn-hostname" => "hostname".into(),
        "iri" | "uri-reference" | "iri-reference" | "uri-template" => "uri".into(),
        "json-pointer" => json!({"pattern": "^(/([^~/]|~[01])*)*$"}),
        "relative-json-pointer" => json!({"pattern": "^(0|[1-9][0-9]*)(/([^~/]|~[01])*)*$"}),
        "regex" => json!({"pattern": "^[0-9A-Za-z _]*$"}),
        _ => return None,
    })
}

/// Returns a pattern that bounds the parts of a format after which a text cannot end, so that it draws to an end.
fn format_bound(name: &Value) -> Option<&'static str> {
    Some(match name.as_str()? {
        "date-time" | "time" => r"^[^.]*([.][0-9]{1,9}[^0-9].*)?$",
        "duration" => "^([PT]|[0-9]{1,9}[A-Z])*$",
        "email" => "^[^@]{1,64}@",
        "uri" => "^[^:]{1,16}:",
        _ => return None,
    })
}

/// Returns whether a schema restricts texts by other means than formats, which lifts the bounds of formats.
fn restricts_texts(schema: &Value) -> bool {
    let keys = ["minLength", "maxLength", "pattern"];
    match schema {
        Value::Array(items) => items.iter().any(restricts_texts),
        Value::Object(map) => {
            map.iter().any(|(key, value)| keys.contains(&key.as_str()) || restricts_texts(value))
        }
        _ => false,
    }
}
