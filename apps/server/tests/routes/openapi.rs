//! The OpenAPI document compared with the routes.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Value, json};

use crate::models::{NAME, tool_server};
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
    assert_eq!(paths(&document).into_iter().collect::<BTreeSet<_>>(), routes);
    for path in paths(&document) {
        let answer = match body_of(&document, &path) {
            None => get(&server, &path.replace("{id}", NAME)),
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
    let (document, server) = (document(), tool_server());
    let mut fields = 0;
    for path in paths(&document) {
        let Some(schema) = body_of(&document, &path) else { continue };
        assert_eq!(schema["additionalProperties"], false, "{path}");
        let is_unknown = |name: &str| {
            let answer = post(&server, &path, &complete(&schema, name));
            assert!(answer.status.is_client_error(), "{path} {name}: {}", answer.status);
            answer.body.contains(&format!("`{name}` is not a field that this server knows"))
        };
        for name in schema["properties"].as_object().unwrap().keys() {
            assert!(!is_unknown(name), "{path} does not know `{name}`");
            fields += 1;
        }
        // A server without a memory budget rejects the request before checking fields.
        assert!(is_unknown("surely_unknown") || path == "/memory", "{path}");
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
