//! The OpenAPI document compared with the routes.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Value, json};

use crate::models::{NAME, at, strict_server, tool_server};
use crate::{get, post};

fn document() -> Value {
    get(&tool_server(), "/openapi.json").ok()
}

/// Returns the body schema of a route, or `None` for a route without a body.
fn body_of(document: &Value, path: &str) -> Option<Value> {
    let body = document["paths"][path].get("post")?;
    let name = body["requestBody"]["content"]["application/json"]["schema"]["$ref"].as_str()?;
    document.pointer(name.strip_prefix('#')?).cloned()
}

fn paths(document: &Value) -> Vec<String> {
    document["paths"].as_object().unwrap().keys().cloned().collect()
}

#[test]
fn the_file_beside_the_sources_is_what_is_served() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("openapi.json");
    let served = serde_json::to_string_pretty(&document()).unwrap() + "\n";
    if std::env::var_os("NESTLING_WRITE").is_some() {
        std::fs::write(&path, &served).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap();
    assert!(kept == served, "write it again: NESTLING_WRITE=1 cargo test -p nestling-server");
}

/// Requests whose schemas list fields without effect and refused ones, with the routes that take them.
const REQUESTS: [(&str, &str); 7] = [
    ("Chat", "`/v1/chat/completions`"),
    ("Completion", "`/v1/completions`"),
    ("Response", "`/v1/responses`"),
    ("Messages", "`/v1/messages`"),
    ("OllamaChat", "`/api/chat`"),
    ("OllamaGenerate", "`/api/generate`"),
    ("OllamaOptions", "`options` of `/api/chat` and `/api/generate`"),
];

/// Returns the effect of a field without one, or of a refused one.
fn effect_of(schema: &Value) -> Option<String> {
    let described = schema["description"].as_str()?;
    let is_empty = |value: &Value| {
        value.is_null() || [json!(""), json!(false), json!([]), json!({})].contains(value)
    };
    // Default: a hint has no list of values.
    let passing = schema["enum"].as_array().into_iter().flatten().filter(|value| !is_empty(value));
    let passing: Vec<String> = passing.map(|value| format!("`{value}`")).collect();
    let passing = match passing.is_empty() {
        true => String::new(),
        false => format!(" Supported: {}.", passing.join(", ")),
    };
    (described == HINT || described.starts_with("Not supported"))
        .then(|| format!("{described}{passing}"))
}

/// Returns the page that documents these fields.
fn page(document: &Value) -> String {
    let mut fields: Vec<(String, String, Vec<&str>)> = Vec::new();
    for (name, route) in REQUESTS {
        let properties = &document["components"]["schemas"][name]["properties"];
        for (field, schema) in properties.as_object().unwrap() {
            let Some(effect) = effect_of(schema) else { continue };
            let known = fields.iter_mut().find(|known| known.0 == *field && known.1 == effect);
            match known {
                Some(known) => known.2.push(route),
                None => fields.push((field.clone(), effect, vec![route])),
            }
        }
    }
    let rows = fields.iter().map(|(field, effect, routes)| {
        format!("| `{field}` | {effect} | {} |\n", routes.join(", "))
    });
    format!(
        "{PAGE_HEAD}\n| field | effect | requests |\n|---|---|---|\n{}",
        rows.collect::<String>()
    )
}

const HINT: &str = "Accepted without effect.";

const PAGE_HEAD: &str = "\
# Request fields without effect, and refused ones

`nestling serve` treats the fields of a request in three ways.

1. Fields that change the output and are supported are honoured. `/openapi.json` lists them with their ranges.
2. Fields without effect are accepted. The response header `x-nestling-ignored` lists them, and
   `nestling_ignored_fields_total` in `/metrics` counts them. These are the hints in the table below, and all fields
   that the server does not know. `nestling serve --strict-fields` refuses them instead.
3. Fields that would change the output and are not supported are refused by name.

Null, empty values and values that ask for what happens anyway always pass. A value of the wrong type is an error.
Messages that a client only repeats are never refused for their fields; a text stands in for an image that a tool
returned. Tools that another server would run, such as a web search, are dropped and reported if the request has
functions as well.
";

#[test]
fn the_page_about_fields_is_that_of_the_schemas() {
    let path = at("docs/request-fields.md");
    let page = page(&document());
    if std::env::var_os("NESTLING_WRITE").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    assert!(page.lines().count() > 60, "{page}");
    let kept = std::fs::read_to_string(&path).unwrap();
    assert!(kept == page, "write it again: NESTLING_WRITE=1 cargo test --workspace --test routes");
}

#[test]
fn every_route_is_described_and_nothing_else() {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let router = std::fs::read_to_string(sources.join("router.rs")).unwrap();
    let routes = router.split(".route(\"").skip(1).map(|rest| rest.split('"').next().unwrap());
    let mut routes: BTreeSet<String> = routes
        .filter(|path| *path != "/api/{*path}")
        .map(|path| path.replace("{*id}", "{id}"))
        .collect();
    let ollama = ["version", "tags", "ps", "show", "chat", "generate"];
    routes.extend(ollama.iter().map(|name| format!("/api/{name}")));
    let (document, server) = (document(), tool_server());
    let request = json!({ "model": NAME, "input": "Hello", "max_output_tokens": 1 });
    let response = post(&server, "/v1/responses", &request).ok();
    let stored = response["id"].as_str().unwrap();
    assert_eq!(paths(&document).into_iter().collect::<BTreeSet<_>>(), routes);
    for path in paths(&document) {
        let id = if path.starts_with("/v1/responses") { stored } else { NAME };
        let answer = match body_of(&document, &path) {
            None => get(&server, &path.replace("{id}", id)),
            Some(_) => post(&server, &path, &json!({})),
        };
        assert!(![404, 405, 501].contains(&answer.status.as_u16()), "{path}: {}", answer.status);
        // The document must list the status.
        let method = if answer.status == 200 { "get" } else { "post" };
        let said = &document["paths"][&path][method]["responses"];
        assert!(said.get(answer.status.as_str()).is_some(), "{path}: {}", answer.status);
    }
}

#[test]
fn every_field_that_is_described_is_known_and_no_other() {
    let (document, server) = (document(), strict_server());
    let mut fields = 0;
    for path in paths(&document) {
        let Some(schema) = body_of(&document, &path) else { continue };
        let is_unknown = |name: &str| {
            let answer = post(&server, &path, &complete(&schema, name));
            assert!(answer.status.is_client_error(), "{path} {name}: {}", answer.status);
            answer.body.contains(&format!("`{name}` has no effect on this server"))
        };
        let is_hint = |schema: &Value| schema["description"] == HINT;
        let properties = schema["properties"].as_object().unwrap().iter();
        for (name, _) in properties.filter(|(_, schema)| !is_hint(schema)) {
            assert!(!is_unknown(name), "{path} does not know `{name}`");
            fields += 1;
        }
        // These requests are rejected before: without a memory budget, and without one of two texts.
        let is_earlier = ["/memory", "/tokenize"].contains(&&*path);
        assert!(is_unknown("surely_unknown") || is_earlier, "{path}");
    }
    assert!(fields > 100, "{fields}");
}

/// Returns a body with the fields that a schema requires, and an unknown field.
fn complete(schema: &Value, nonsense: &str) -> Value {
    let talk = json!([{ "role": "user", "content": "a" }]);
    let mut body = json!({ "model": NAME });
    for name in schema["required"].as_array().unwrap() {
        let name = name.as_str().unwrap();
        body[name] = match name {
            "model" => NAME.into(),
            "messages" => talk.clone(),
            "max_tokens" => 1.into(),
            "tokens" => json!([1]),
            "budget_bytes" => 1.into(),
            _ => "a".into(),
        };
    }
    body[nonsense] = json!([[[]]]);
    body
}

/// Fields whose largest value takes long, or is lowered by an option of the server.
const UNBOUNDED: [&str; 7] = [
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "n_predict",
    "num_predict",
    "n",
    "best_of",
];

/// Returns the ends of a number's range as values that are accepted, and values beyond them.
fn ends_of(name: &str, schema: &Value) -> (Vec<Value>, Vec<Value>) {
    let (least, most) = (&schema["minimum"], &schema["maximum"]);
    let is_whole = schema["type"] == "integer" || schema["type"] == json!(["integer", "null"]);
    let (mut within, mut beyond) = (vec![least.clone()], vec![]);
    match (least.as_i64(), most.as_u64(), least.as_f64(), most.as_f64()) {
        (Some(least), Some(most), ..) if is_whole => {
            beyond.extend(least.checked_sub(1).map(Value::from));
            beyond.extend(most.checked_add(1).map(Value::from));
            beyond.push(json!(least as f64 + 0.5));
        }
        (_, _, Some(least), Some(most)) => {
            beyond.extend([json!(least - 0.5), json!(most + 0.5)]);
        }
        _ => panic!("{name}: {schema}"),
    }
    if !UNBOUNDED.contains(&name) {
        within.push(most.clone());
    }
    (within, beyond)
}

/// Routes with a body, and the components whose ranges belong to it: those of the body itself or of a field.
const RANGES: [(&str, &str, Option<&str>); 7] = [
    ("/v1/chat/completions", "Chat", None),
    ("/v1/completions", "Completion", None),
    ("/v1/responses", "Response", None),
    ("/v1/messages", "Messages", None),
    ("/api/chat", "OllamaChat", None),
    ("/api/chat", "OllamaOptions", Some("options")),
    ("/api/generate", "OllamaOptions", Some("options")),
];

#[test]
fn ranges_are_those_that_are_checked() {
    let (document, server) = (document(), tool_server());
    let mut compared = 0;
    for (path, component, field) in RANGES {
        let body = body_of(&document, path).unwrap();
        let properties = &document["components"]["schemas"][component]["properties"];
        let is_number = |schema: &Value| schema.get("minimum").is_some();
        for (name, schema) in properties.as_object().unwrap().iter().filter(|p| is_number(p.1)) {
            let names_it = |value: &Value| {
                let mut request = complete(&body, "surely_unknown");
                let short =
                    if path == "/v1/responses" { "max_output_tokens" } else { "max_tokens" };
                match field {
                    None => {
                        request[short] = 1.into();
                        request["logprobs"] = (component == "Chat").then_some(true).into();
                        request[name] = value.clone();
                    }
                    Some(field) => {
                        request[field] = json!({ "num_predict": 1, (name): value });
                        request["prompt"] = "a".into();
                        request["messages"] = json!([{ "role": "user", "content": "a" }]);
                        request["stream"] = false.into();
                    }
                }
                let answer = post(&server, path, &request);
                answer.status == 400 && answer.body.contains(name.as_str())
            };
            let (within, beyond) = ends_of(name, schema);
            for value in &within {
                assert!(!names_it(value), "{path} refuses `{name}`: {value}");
            }
            for value in &beyond {
                assert!(names_it(value), "{path} accepts `{name}`: {value}");
            }
            compared += 1;
        }
    }
    assert!(compared > 80, "{compared}");
}
