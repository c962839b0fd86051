//! The bundled model, whose answers are nonsense, writes JSON for the schemas of JSON-Schema-Test-Suite.
//! Another library validates it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use nestling_core::CancelToken;
use nestling_guide::Guide;
use nestling_runtime::{
    Engine, EngineOptions, FinishReason, GenerateOptions, Model, ModelOptions, SamplingParams,
};
use serde_json::Value;

const TOKENS_MAX: usize = 512;

/// Number of parallel sessions.
const THREADS: usize = 16;

struct Case {
    name: String,
    schema: Value,
}

/// Names of cases, keyed by the reason of their rejection.
type Refusals = BTreeMap<String, Vec<String>>;

fn cases() -> Vec<Case> {
    let suite: Value = serde_json::from_str(include_str!("../data/schemas.json")).unwrap();
    let schemas = suite["schemas"].as_array().unwrap().iter();
    let cases = schemas.map(|case| Case {
        name: format!("{}: {}", case["file"].as_str().unwrap(), case["case"].as_str().unwrap()),
        schema: case["schema"].clone(),
    });
    cases.collect()
}

/// Returns whether a schema's references are recursive, so that the length of answers may be unbounded.
fn is_recursive(schema: &Value) -> bool {
    leads_back(schema, schema, &mut vec![])
}

fn leads_back(root: &Value, value: &Value, trail: &mut Vec<String>) -> bool {
    let any = |trail: &mut Vec<String>, items: Vec<&Value>| {
        items.into_iter().any(|item| leads_back(root, item, trail))
    };
    match value {
        Value::Array(items) => any(trail, items.iter().collect()),
        Value::Object(map) => {
            let mut references = ["$ref", "$dynamicRef"].into_iter().filter_map(|key| map.get(key));
            let found = references.any(|reference| {
                let reference = reference.as_str().unwrap().to_owned();
                if trail.contains(&reference) {
                    return true;
                }
                trail.push(reference.clone());
                let mut targets = vec![];
                find_targets(root, root, &reference, &mut targets);
                let found = any(trail, targets);
                trail.pop();
                found
            });
            let inner =
                map.iter().filter(|(key, _)| !matches!(key.as_str(), "$defs" | "const" | "enum"));
            found || any(trail, inner.map(|(_, item)| item).collect())
        }
        _ => false,
    }
}

/// Collects all possible targets of a reference, regardless of its base address.
fn find_targets<'a>(
    root: &'a Value,
    value: &'a Value,
    reference: &str,
    found: &mut Vec<&'a Value>,
) {
    let (address, fragment) = reference.split_once('#').unwrap_or((reference, ""));
    if let (true, Some(target)) = (address.is_empty(), root.pointer(fragment)) {
        found.push(target);
        return;
    }
    match value {
        Value::Array(items) => {
            items.iter().for_each(|item| find_targets(root, item, reference, found))
        }
        Value::Object(map) => {
            let says = |key: &str, end: &str| {
                let text = map.get(key).and_then(Value::as_str);
                !end.is_empty()
                    && text.is_some_and(|text| text.ends_with(end.trim_start_matches('.')))
            };
            let name = address.rsplit('/').next().unwrap();
            if says("$id", name) || says("$anchor", fragment) || says("$dynamicAnchor", fragment) {
                found.push(value);
            }
            map.values().for_each(|item| find_targets(root, item, reference, found));
        }
        _ => {}
    }
}

fn model() -> Model {
    let engine = Engine::new(EngineOptions::default()).unwrap();
    let store = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/nestling-storyteller.nest");
    let kv_tokens = Some(2 * THREADS * TOKENS_MAX);
    let options = ModelOptions { kv_tokens, ..ModelOptions::default() };
    Model::open(&engine, store, &options, &mut |_| {}, &CancelToken::new()).unwrap()
}

#[derive(Debug, Default)]
struct Outcome {
    answers: AtomicUsize,
    tokens: AtomicUsize,
    cut: AtomicUsize,
    cut_recursive: AtomicUsize,
}

/// Generates an answer for each case and seed, and validates it.
fn judge(model: &Model, cases: &[(Case, Guide)], seeds: std::ops::Range<u64>) -> Outcome {
    let outcome = Outcome::default();
    let next = AtomicUsize::new(0);
    let count = seeds.end - seeds.start;
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed) as u64;
                    let Some((case, guide)) = cases.get((index / count) as usize) else { return };
                    answer(model, case, guide, seeds.start + index % count, &outcome);
                }
            });
        }
    });
    outcome
}

fn answer(model: &Model, case: &Case, guide: &Guide, seed: u64, outcome: &Outcome) {
    let sampling = SamplingParams { seed: Some(seed), ..SamplingParams::default() };
    let options = GenerateOptions {
        sampling: sampling.into(),
        max_tokens: Some(TOKENS_MAX),
        constraint: Some(Arc::new(guide.clone())),
        ..GenerateOptions::default()
    };
    let generation = model.session().generate("Once upon a time", &options);
    let (text, finished) = generation.unwrap().into_answer().unwrap_or_else(|error| {
        panic!("{}, seed {seed}: {error}", case.name);
    });
    outcome.answers.fetch_add(1, Ordering::Relaxed);
    outcome.tokens.fetch_add(finished.usage.completion_tokens, Ordering::Relaxed);
    if finished.reason == FinishReason::Length {
        let recursive = is_recursive(&case.schema);
        let count = if recursive { &outcome.cut_recursive } else { &outcome.cut };
        count.fetch_add(1, Ordering::Relaxed);
        return;
    }
    assert_eq!(finished.reason, FinishReason::Stop);
    let value: Value = serde_json::from_str(&text)
        .unwrap_or_else(|error| panic!("{}, seed {seed}: {error}: {text}", case.name));
    let validator = jsonschema::draft202012::new(&case.schema).unwrap();
    let is_valid = validator.is_valid(&value)
        || shortened(&text, &case.schema).is_some_and(|value| validator.is_valid(&value));
    assert!(is_valid, "{}, seed {seed}: {} gave {text}", case.name, case.schema);
}

/// Returns an answer with each integer of more than 15 digits replaced by a smaller one that leaves the same remainders
/// by all integers of `multipleOf`. The library divides as floats do, which says nothing about the last digits of longer
/// ones. `None` if there is none, or a `multipleOf` is no integer.
fn shortened(text: &str, schema: &Value) -> Option<Value> {
    let mut divisors = Vec::new();
    collect_divisors(schema, &mut divisors);
    let divisors: Option<Vec<u64>> = divisors.into_iter().map(Value::as_u64).collect();
    let divisor = divisors?.into_iter().fold(1, |lcm, next| lcm / gcd(lcm, next) * next);
    let mut out = String::new();
    let mut rest = text;
    while let Some(start) = rest.find(|c: char| c.is_ascii_digit()) {
        let end = rest[start..].find(|c: char| !c.is_ascii_digit());
        let end = end.map_or(rest.len(), |length| start + length);
        let digits = &rest[start..end];
        out.push_str(&rest[..start]);
        match digits.len() {
            0..=15 => out.push_str(digits),
            _ => {
                let of = |sum: u64, digit: u8| (sum * 10 + u64::from(digit - b'0')) % divisor;
                let remainder = digits.bytes().fold(0, of);
                out.push_str(&(1_000_000_000_000 / divisor * divisor + remainder).to_string());
            }
        }
        rest = &rest[end..];
    }
    out.push_str(rest);
    (divisor > 1).then(|| serde_json::from_str(&out).unwrap())
}

fn collect_divisors<'a>(schema: &'a Value, found: &mut Vec<&'a Value>) {
    match schema {
        Value::Object(map) => {
            found.extend(map.get("multipleOf").filter(|value| value.is_number()));
            map.values().for_each(|value| collect_divisors(value, found));
        }
        Value::Array(items) => items.iter().for_each(|value| collect_divisors(value, found)),
        _ => {}
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[test]
fn long_integers_are_judged_by_their_remainders() {
    let schema = serde_json::json!({"multipleOf": 6, "allOf": [{"multipleOf": 10}]});
    let valid = |text: &str| {
        let value = shortened(text, &schema).unwrap();
        jsonschema::draft202012::new(&schema).unwrap().is_valid(&value)
    };
    assert!(valid("123456789012345678901234567890"));
    for wrong in ["123456789012345678901234567870", "123456789012345678901234567875"] {
        assert!(!valid(wrong), "{wrong}");
    }
    assert_eq!(shortened("12345678901234567890", &serde_json::json!({"multipleOf": 0.5})), None);
}

/// Returns the accepted cases, and the reasons why others are rejected.
fn accepted(cases: Vec<Case>) -> (Vec<(Case, Guide)>, Refusals) {
    let (mut accepted, mut refused) = (vec![], BTreeMap::<String, Vec<String>>::new());
    for case in cases {
        match Guide::json_schema(&case.schema) {
            Ok(guide) => accepted.push((case, guide)),
            Err(error) => refused.entry(error.to_string()).or_default().push(case.name),
        }
    }
    (accepted, refused)
}

fn report(outcome: &Outcome) {
    println!("{outcome:?}");
    let (answers, cut) =
        (outcome.answers.load(Ordering::Relaxed), outcome.cut.load(Ordering::Relaxed));
    assert!(cut * 20 <= answers, "{cut} of {answers} answers were cut off");
}

#[test]
fn schemas_are_accepted_or_refused_by_name() {
    let all = cases();
    let count = all.len();
    let (accepted, refused) = accepted(all);
    println!("{} of {count} accepted", accepted.len());
    for (reason, names) in &refused {
        println!("{:3} {reason}: {}", names.len(), names.join("; "));
        assert!(reason.len() > 10 && !reason.contains("panic"), "{reason}");
    }
    // Most of the other schemas refer to other documents or have no valid value. The number may only
    // increase.
    assert!(accepted.len() >= 333, "{} of {count}", accepted.len());
}

/// Uses every seventh schema.
#[test]
fn answers_are_valid() {
    let cases = cases().into_iter().step_by(7).collect();
    report(&judge(&model(), &accepted(cases).0, 0..3));
}

/// `NESTLING_SEEDS` is the number of seeds.
#[test]
#[ignore = "takes minutes"]
fn answers_to_all_schemas_are_valid() {
    let seeds = std::env::var("NESTLING_SEEDS").map_or(20, |seeds| seeds.parse().unwrap());
    report(&judge(&model(), &accepted(cases()).0, 0..seeds));
}
