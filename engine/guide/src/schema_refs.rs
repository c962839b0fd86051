//! Resolution of a schema's references within the same document.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::error::GuideError;

/// Keywords that are annotations, or that have no effect once references are resolved.
const REMARKS: [&str; 16] = [
    "$id",
    "$anchor",
    "$dynamicAnchor",
    "$comment",
    "$vocabulary",
    "title",
    "description",
    "default",
    "examples",
    "deprecated",
    "readOnly",
    "writeOnly",
    "contentMediaType",
    "contentEncoding",
    "contentSchema",
    "$schema",
];

/// Kind of a keyword's value.
#[derive(Clone, Copy, PartialEq, Eq)]
enum KeywordValue {
    Schema,
    List,
    /// A map from names to schemas.
    Map,
    Data,
}

fn holds(key: &str) -> KeywordValue {
    match key {
        "items"
        | "contains"
        | "not"
        | "if"
        | "then"
        | "else"
        | "propertyNames"
        | "additionalProperties"
        | "unevaluatedItems"
        | "unevaluatedProperties" => KeywordValue::Schema,
        "allOf" | "anyOf" | "oneOf" | "prefixItems" => KeywordValue::List,
        "properties" | "patternProperties" | "dependentSchemas" | "$defs" | "definitions" => {
            KeywordValue::Map
        }
        _ => KeywordValue::Data,
    }
}

/// JSON pointers of a document's resources and anchors.
#[derive(Default)]
struct ReferenceTargets {
    resources: BTreeMap<String, String>,
    /// Anchors, keyed by the resource's address and the anchor's name.
    anchors: BTreeMap<(String, String), Anchor>,
}

struct Anchor {
    pointer: String,
    is_dynamic: bool,
}

/// Returns the schema without annotations and identifiers. Each `$ref` becomes a JSON pointer in the
/// document, with a leading `#`.
///
/// # Errors
/// Fails for references to other documents or to missing targets, and for references whose target depends on
/// the evaluation path.
pub(crate) fn resolved(schema: &Value) -> Result<Value, GuideError> {
    let mut places = ReferenceTargets::default();
    places.resources.insert(String::new(), String::new());
    places.find(schema, "", "");
    let mut out = places.rewritten(schema, "", "")?;
    let known = out.clone();
    check_targets(&mut out, &known)?;
    Ok(out)
}

impl ReferenceTargets {
    fn find(&mut self, schema: &Value, base: &str, pointer: &str) {
        // Default: boolean schemas have no names.
        let Value::Object(map) = schema else { return };
        let base = base_of(map, base);
        // The outermost resource has an empty name until it declares one.
        self.resources.entry(base.clone()).or_insert_with(|| pointer.to_owned());
        for key in ["$anchor", "$dynamicAnchor"] {
            if let Some(name) = map.get(key).and_then(Value::as_str) {
                let is_dynamic = key == "$dynamicAnchor";
                let anchor = Anchor { pointer: pointer.to_owned(), is_dynamic };
                self.anchors.entry((base.clone(), name.to_owned())).or_insert(anchor);
            }
        }
        for (key, value) in map {
            let pointer = child(pointer, key);
            match (holds(key), value) {
                (KeywordValue::Schema, _) => self.find(value, &base, &pointer),
                (KeywordValue::List, Value::Array(items)) => {
                    for (index, item) in items.iter().enumerate() {
                        self.find(item, &base, &child(&pointer, &index.to_string()));
                    }
                }
                (KeywordValue::Map, Value::Object(items)) => {
                    for (name, item) in items {
                        self.find(item, &base, &child(&pointer, name));
                    }
                }
                _ => {}
            }
        }
    }

    fn rewritten(&self, schema: &Value, base: &str, pointer: &str) -> Result<Value, GuideError> {
        let Value::Object(map) = schema else { return Ok(schema.clone()) };
        let base = base_of(map, base);
        let mut out = Map::new();
        for (key, value) in map {
            let pointer = child(pointer, key);
            let value = match (holds(key), value) {
                (KeywordValue::Schema, _) => self.rewritten(value, &base, &pointer)?,
                (KeywordValue::List, Value::Array(items)) => {
                    let items = items.iter().enumerate();
                    let items = items.map(|(index, item)| {
                        self.rewritten(item, &base, &child(&pointer, &index.to_string()))
                    });
                    Value::Array(items.collect::<Result<_, _>>()?)
                }
                (KeywordValue::Map, Value::Object(items)) => {
                    let items = items.iter().map(|(name, item)| {
                        Ok((name.clone(), self.rewritten(item, &base, &child(&pointer, name))?))
                    });
                    Value::Object(items.collect::<Result<_, GuideError>>()?)
                }
                (_, Value::String(reference)) if key == "$ref" => {
                    format!("#{}", self.target(reference, &base, &pointer)?).into()
                }
                (_, Value::String(reference)) if key == "$dynamicRef" => {
                    let target = self.dynamic_target(reference, &base, &pointer)?;
                    add_conjunct(&mut out, Value::from_iter([("$ref", format!("#{target}"))]));
                    continue;
                }
                _ if REMARKS.contains(&key.as_str()) => continue,
                _ => value.clone(),
            };
            match (key.as_str(), value) {
                ("allOf", Value::Array(items)) => {
                    items.into_iter().for_each(|item| add_conjunct(&mut out, item));
                    // An empty list of schemas is kept.
                    out.entry("allOf").or_insert_with(|| Value::Array(Vec::new()));
                }
                (key, value) => {
                    out.insert(key.to_owned(), value);
                }
            }
        }
        Ok(Value::Object(out))
    }

    /// Returns the pointer of a reference's target.
    fn target(&self, reference: &str, base: &str, place: &str) -> Result<String, GuideError> {
        let whole = join(base, reference);
        let (address, fragment) = whole.split_once('#').unwrap_or((&whole, ""));
        let unknown =
            |reason: String| GuideError::Unsupported { place: format!("#{place}"), reason };
        let root = self.resources.get(address).ok_or_else(|| {
            unknown(format!("{reference}: references to other documents are not followed"))
        })?;
        let fragment = percent_decoded(fragment)
            .ok_or_else(|| unknown(format!("{reference}: not a reference")))?;
        if fragment.is_empty() || fragment.starts_with('/') {
            return Ok(format!("{root}{fragment}"));
        }
        let anchor = self.anchors.get(&(address.to_owned(), fragment));
        let anchor =
            anchor.ok_or_else(|| unknown(format!("{reference}: the anchor does not exist")))?;
        Ok(anchor.pointer.clone())
    }

    /// Returns the pointer of a dynamic reference's target, if it is the same for all evaluation paths.
    fn dynamic_target(
        &self,
        reference: &str,
        base: &str,
        place: &str,
    ) -> Result<String, GuideError> {
        let target = self.target(reference, base, place)?;
        let name = reference.split_once('#').map_or("", |(_, name)| name);
        let same = |anchor: &&Anchor| anchor.is_dynamic;
        let named = self.anchors.iter().filter(|((_, other), _)| other == name);
        let dynamic: Vec<&Anchor> = named.map(|(_, anchor)| anchor).filter(same).collect();
        let is_dynamic = dynamic.iter().any(|anchor| anchor.pointer == target);
        if is_dynamic && dynamic.len() > 1 {
            let reason = "a dynamic reference with several targets is not followed".to_owned();
            return Err(GuideError::Unsupported { place: format!("#{place}"), reason });
        }
        Ok(target)
    }
}

/// Adds a schema to `allOf`.
pub(crate) fn add_conjunct(map: &mut Map<String, Value>, schema: Value) {
    match map.get_mut("allOf") {
        Some(Value::Array(items)) => items.push(schema),
        _ => {
            map.insert("allOf".into(), Value::Array(vec![schema]));
        }
    }
}

/// Checks that all reference targets exist. References under unknown keywords were not rewritten.
fn check_targets(schema: &mut Value, root: &Value) -> Result<(), GuideError> {
    let mut open = vec![&*schema];
    while let Some(value) = open.pop() {
        match value {
            Value::Array(items) => open.extend(items),
            Value::Object(map) => {
                if let Some(Value::String(reference)) = map.get("$ref") {
                    let target = reference.strip_prefix('#').and_then(|at| root.pointer(at));
                    if target.is_none() {
                        let reason = "there is nothing that it refers to".to_owned();
                        return Err(GuideError::Unsupported { place: reference.clone(), reason });
                    }
                }
                open.extend(map.iter().filter(|(key, _)| !is_data(key)).map(|(_, item)| item));
            }
            _ => {}
        }
    }
    Ok(())
}

fn is_data(key: &str) -> bool {
    matches!(key, "enum" | "const" | "required" | "type" | "dependentRequired")
}

fn base_of(map: &Map<String, Value>, base: &str) -> String {
    match map.get("$id").and_then(Value::as_str) {
        Some(id) => {
            let whole = join(base, id);
            whole.split_once('#').map_or(whole.clone(), |(address, _)| address.to_owned())
        }
        None => base.to_owned(),
    }
}

fn child(pointer: &str, key: &str) -> String {
    format!("{pointer}/{}", key.replace('~', "~0").replace('/', "~1"))
}

/// Resolves a reference against `base`: RFC 3986, section 5.2, for addresses as they occur in schemas.
fn join(base: &str, reference: &str) -> String {
    let (path, fragment) = match reference.split_once('#') {
        Some((path, fragment)) => (path, format!("#{fragment}")),
        None => (reference, String::new()),
    };
    let scheme = path.split_once(':').map(|(scheme, _)| scheme);
    let is_scheme = |text: &str| {
        text.starts_with(|c: char| c.is_ascii_alphabetic())
            && text.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
    };
    if scheme.is_some_and(is_scheme) {
        return format!("{path}{fragment}");
    }
    if path.is_empty() {
        return format!("{base}{fragment}");
    }
    let (authority, base_path) = match base.split_once("://") {
        Some((scheme, rest)) => {
            let at = rest.find('/').unwrap_or(rest.len());
            (format!("{scheme}://{}", &rest[..at]), &rest[at..])
        }
        None => (String::new(), base),
    };
    let whole = match path.strip_prefix('/') {
        Some(_) => path.to_owned(),
        None => {
            let folder = base_path.rsplit_once('/').map_or("", |(folder, _)| folder);
            if base_path.is_empty() && authority.is_empty() {
                path.to_owned()
            } else {
                format!("{folder}/{path}")
            }
        }
    };
    format!("{authority}{}{fragment}", without_dots(&whole))
}

fn without_dots(path: &str) -> String {
    let mut out: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "." => {}
            ".." if out.len() > 1 => {
                out.pop();
            }
            part => out.push(part),
        }
    }
    out.join("/")
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let digits = [rest.next()?, rest.next()?];
            let digits = std::str::from_utf8(&digits).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}
