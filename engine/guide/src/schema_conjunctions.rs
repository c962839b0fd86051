//! Limits on keywords whose automata multiply when they apply to the same value.
//!
//! The grammar engine computes the first transitions of an automaton without a limit. The automaton of
//! `multipleOf` has one state per remainder. Conjunctions of patterns or multiples have up to the product of
//! the states of their parts. These are therefore limited before a schema is compiled.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use crate::error::GuideError;
use crate::limits::{CONJOINED_PATTERNS_MAX, MULTIPLE_MAX};
use crate::schema_work::{SchemaRewrite, list};

type Conjunction<'a> = Vec<&'a Value>;

/// Checks all conjunctions of a schema.
///
/// # Errors
/// Fails with [`GuideError::Limit`] if the multiples or patterns of a value exceed their limits, or if the
/// schema has too many alternatives to check.
pub(crate) fn check_conjunctions(schema: &Value) -> Result<(), GuideError> {
    let mut work = SchemaRewrite::new(schema);
    let mut seen = BTreeSet::new();
    let mut open = vec![(vec![schema], 0)];
    while let Some((schemas, depth)) = open.pop() {
        let mut places: Vec<usize> = schemas.iter().map(|schema| address(schema)).collect();
        places.sort_unstable();
        places.dedup();
        if !seen.insert(places) {
            continue;
        }
        for conjunction in alternatives(schemas, &mut work)? {
            check(&conjunction)?;
            open.extend(children(&conjunction).into_iter().map(|schemas| (schemas, depth + 1)));
        }
        work.charge(1, depth)?;
    }
    Ok(())
}

fn address(value: &Value) -> usize {
    std::ptr::from_ref(value).addr()
}

/// Expands the alternatives of schemas that apply together: each result is one choice of `anyOf` and `oneOf`, with `allOf`,
/// references and conditions merged into it.
fn alternatives<'a>(
    schemas: Conjunction<'a>,
    work: &mut SchemaRewrite<'a>,
) -> Result<Vec<Conjunction<'a>>, GuideError> {
    let mut done = Vec::new();
    let mut open = vec![Expansion { merged: Vec::new(), rest: schemas, choices: Vec::new() }];
    while let Some(Expansion { mut merged, mut rest, mut choices }) = open.pop() {
        while let Some(schema) = rest.pop() {
            let is_known = merged.iter().any(|known| std::ptr::eq(*known, schema));
            let Some(map) = schema.as_object().filter(|_| !is_known) else { continue };
            work.charge(1, 0)?;
            merged.push(schema);
            rest.extend(merged_into(map, work));
            let found = ["anyOf", "oneOf"].iter().filter_map(|key| map.get(*key)).map(list);
            choices.extend(found.filter(|branches| !branches.is_empty()));
        }
        let Some(branches) = choices.pop() else {
            done.push(merged);
            continue;
        };
        for branch in branches {
            work.charge(merged.len() as u64, 0)?;
            open.push(Expansion {
                merged: merged.clone(),
                rest: vec![branch],
                choices: choices.clone(),
            });
        }
    }
    Ok(done)
}

/// Schemas that apply together, while their alternatives are expanded.
struct Expansion<'a> {
    merged: Conjunction<'a>,
    rest: Conjunction<'a>,
    /// Branches of each `anyOf` and `oneOf` still to choose from.
    choices: Vec<&'a [Value]>,
}

/// Returns the schemas that apply, or may apply, to the same values as a schema.
fn merged_into<'a>(map: &'a Map<String, Value>, work: &SchemaRewrite<'a>) -> Vec<&'a Value> {
    let mut found: Vec<&'a Value> = Vec::new();
    found.extend(map.get("allOf").into_iter().flat_map(list));
    found.extend(["if", "then", "else", "not"].iter().filter_map(|key| map.get(*key)));
    found.extend(
        map.get("dependentSchemas").and_then(Value::as_object).into_iter().flat_map(Map::values),
    );
    let target = map.get("$ref").and_then(|reference| work.follow(reference, &Vec::new()));
    found.extend(target.map(|(target, _)| target));
    found
}

/// Returns the schemas of each property and item of schemas that apply together.
fn children<'a>(conjunction: &[&'a Value]) -> Vec<Conjunction<'a>> {
    let maps: Vec<_> = conjunction.iter().filter_map(|schema| schema.as_object()).collect();
    let of = |key: &'static str| maps.iter().filter_map(move |map| map.get(key));
    let properties = || of("properties").filter_map(Value::as_object);
    let names: BTreeSet<&String> = properties().flat_map(Map::keys).collect();
    // Patterns and additional properties may apply to any property, so they are assumed to apply to all.
    let others: Vec<&'a Value> = of("patternProperties")
        .filter_map(Value::as_object)
        .flat_map(Map::values)
        .chain(of("additionalProperties"))
        .chain(of("unevaluatedProperties"))
        .collect();
    let mut found: Vec<Conjunction<'a>> = Vec::new();
    for name in names {
        let own = properties().filter_map(|map| map.get(name));
        found.push(own.chain(others.iter().copied()).collect());
    }
    found.push(others);
    found.push(of("propertyNames").collect());
    let items = ["items", "additionalItems", "unevaluatedItems", "contains", "prefixItems"];
    found.push(
        items
            .into_iter()
            .flat_map(of)
            .flat_map(|value| match value {
                Value::Array(items) => items.iter().collect(),
                value => vec![value],
            })
            .collect(),
    );
    found.retain(|schemas| !schemas.is_empty());
    found
}

/// Checks the multiples and patterns of one conjunction.
fn check(conjunction: &[&Value]) -> Result<(), GuideError> {
    let maps = || conjunction.iter().filter_map(|schema| schema.as_object());
    let mut common: Option<Decimal> = None;
    for multiple in maps().filter_map(|map| map.get("multipleOf")).filter_map(Decimal::of) {
        let next = common.map_or(multiple, |common| common.common_multiple(multiple));
        if next.digits > MULTIPLE_MAX {
            let what = "common multiple of multipleOf";
            return Err(GuideError::Limit { what, limit: MULTIPLE_MAX, found: next.digits });
        }
        common = Some(next);
    }
    let patterns: BTreeSet<&str> =
        maps().filter_map(|map| map.get("pattern")).filter_map(Value::as_str).collect();
    GuideError::check("patterns of one value", patterns.len(), CONJOINED_PATTERNS_MAX)
}

/// A positive number: `digits` times 10 to the power of minus `scale`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Decimal {
    digits: u64,
    scale: u32,
}

impl Decimal {
    /// Returns `None` unless the value is a positive number. The grammar engine rejects other values or
    /// accepts them unchanged.
    fn of(value: &Value) -> Option<Self> {
        let (mut number, mut scale) = (value.as_f64().filter(|number| *number > 0.0)?, 0);
        while number.fract() != 0.0 && number < MULTIPLE_MAX as f64 {
            number *= 10.0;
            scale += 1;
        }
        // Casts of floats saturate.
        Some(Self { digits: number as u64, scale })
    }

    /// Returns the least common multiple. It saturates if the grammar engine's 32-bit arithmetic would
    /// overflow.
    fn common_multiple(self, other: Self) -> Self {
        let scale = self.scale.max(other.scale);
        let scaled = |of: Self| {
            let factor = 10u64.saturating_pow(scale - of.scale);
            of.digits.saturating_mul(factor)
        };
        let (a, b) = (scaled(self), scaled(other));
        let product = a.saturating_mul(b);
        if product > u64::from(u32::MAX) {
            return Self { digits: product, scale };
        }
        Self { digits: product / common_divisor(a, b), scale }
    }
}

/// Returns the greatest common divisor of two numbers that are not both 0.
fn common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn conjunctions(schema: &Value) -> Option<u64> {
        match check_conjunctions(schema) {
            Ok(()) => None,
            Err(GuideError::Limit { found, .. }) => Some(found),
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn multiples_of_one_value_are_bounded() {
        let all = |multiples: &[u64]| {
            let all: Vec<_> = multiples.iter().map(|n| json!({ "multipleOf": n })).collect();
            json!({ "type": "integer", "allOf": all })
        };
        assert_eq!(conjunctions(&all(&[97, 89])), None);
        assert_eq!(conjunctions(&all(&[97, 89, 83])), Some(97 * 89 * 83));
        assert_eq!(conjunctions(&all(&[99_991, 99_989])), Some(99_991 * 99_989));
        assert_eq!(conjunctions(&all(&[86_400, 43_200, 10])), None);
        assert_eq!(conjunctions(&json!({ "multipleOf": 999_983 })), Some(999_983));
        assert_eq!(conjunctions(&json!({ "multipleOf": 0.01 })), None);
        assert_eq!(conjunctions(&json!({ "multipleOf": 1e-8 })), None);
        assert_eq!(
            conjunctions(&json!({ "allOf": [{ "multipleOf": 0.001 }, { "multipleOf": 7 }] })),
            None
        );
        assert_eq!(
            conjunctions(&json!({ "multipleOf": 1e-9, "allOf": [{ "multipleOf": 7 }] })),
            Some(7_000_000_000)
        );
    }

    #[test]
    fn conjunctions_are_found_wherever_they_arise() {
        let (a, b) = (json!({ "multipleOf": 997 }), json!({ "multipleOf": 991 }));
        let product = Some(997 * 991);
        for schema in [
            json!({ "$defs": { "a": a }, "$ref": "#/$defs/a", "multipleOf": 991 }),
            json!({ "properties": { "x": a }, "allOf": [{ "properties": { "x": b } }] }),
            json!({ "properties": { "x": a }, "patternProperties": { "^x": b } }),
            json!({ "items": a, "allOf": [{ "contains": b }] }),
            json!({ "if": a, "then": b }),
            json!({ "multipleOf": 997, "not": b }),
            json!({ "multipleOf": 997, "oneOf": [{ "multipleOf": 2 }, b] }),
            json!({ "anyOf": [{ "items": { "allOf": [a, b] } }, true] }),
        ] {
            assert_eq!(conjunctions(&schema), product, "{schema}");
        }
        for schema in [
            json!({ "anyOf": [a, b] }),
            json!({ "properties": { "x": a, "y": b } }),
            json!({ "oneOf": [{ "properties": { "x": a } }, { "properties": { "x": b } }] }),
            json!({ "$defs": { "list": { "properties": { "next": { "$ref": "#/$defs/list" } } } }, "$ref": "#/$defs/list" }),
        ] {
            assert_eq!(conjunctions(&schema), None, "{schema}");
        }
    }

    #[test]
    fn patterns_of_one_value_are_bounded() {
        let patterns = |count: usize| -> Vec<_> {
            (1..=count).map(|n| json!({ "pattern": format!("a{{{n}}}") })).collect()
        };
        assert_eq!(conjunctions(&json!({ "allOf": patterns(CONJOINED_PATTERNS_MAX) })), None);
        assert_eq!(
            conjunctions(&json!({ "allOf": patterns(CONJOINED_PATTERNS_MAX + 1) })),
            Some(9)
        );
        assert_eq!(conjunctions(&json!({ "anyOf": patterns(40) })), None);
        // 2^24 alternatives are too many to check.
        let choices: Vec<_> = (0..24).map(|_| json!({ "anyOf": patterns(2) })).collect();
        assert!(conjunctions(&json!({ "allOf": choices })).is_some());
    }
}
