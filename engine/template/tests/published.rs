//! Published templates, over conversations and all options that they mention, against jinja2 as configured by
//! `transformers`: the same bytes, and an error where jinja2 raises one.
//!
//! `scripts/make_published_goldens.py FOLDER FILE` makes goldens of further templates.
//! `NESTLING_TEMPLATES=FOLDER` with `NESTLING_TEMPLATE_GOLDENS=FILE` tests them too.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

use std::fs;
use std::path::{Path, PathBuf};

use nestling_template::{RenderOptions, Template, TemplateErrorKind};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

/// Templates on which jinja2 and this interpreter disagree about success, with the reason.
const EXCEPTIONS: &[(&str, &str)] = &[];

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data")
}

/// The date of the goldens, 2026-11-21 04:05:06.
fn date(format: &str) -> Result<String, String> {
    let parts = [
        ("%Y", "2026"),
        ("%m", "11"),
        ("%d", "21"),
        ("%B", "November"),
        ("%b", "Nov"),
        ("%A", "Saturday"),
        ("%a", "Sat"),
        ("%H", "04"),
        ("%M", "05"),
        ("%S", "06"),
    ];
    let text = parts.iter().fold(format.to_owned(), |text, (from, to)| text.replace(from, to));
    if text.contains('%') { Err(format!("unknown directive in {format}")) } else { Ok(text) }
}

fn variables(conversation: &Value, generation: &Value, options: &Value) -> Map<String, Value> {
    let mut variables = json!({
        "messages": conversation["messages"],
        "tools": conversation.get("tools"),
        "documents": null,
        "add_generation_prompt": generation,
        "bos_token": "<s>",
        "eos_token": "</s>",
    });
    let variables = variables.as_object_mut().unwrap();
    variables.extend(options.as_object().unwrap().clone());
    variables.clone()
}

fn hash(text: &str) -> String {
    let digest = Sha256::digest(text.as_bytes());
    digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the number of cases and the differences.
fn differences(folder: &Path, goldens: &Path) -> (usize, Vec<String>) {
    let goldens: Value = serde_json::from_str(&fs::read_to_string(goldens).unwrap()).unwrap();
    let mut found = vec![];
    let mut count = 0;
    for (name, cases) in goldens["rendered"].as_object().unwrap() {
        let source = fs::read_to_string(folder.join(name)).unwrap();
        let template = Template::parse(&source);
        for case in cases.as_array().unwrap() {
            count += 1;
            let conversation = &goldens["conversations"][case[0].as_str().unwrap()];
            let variables = variables(conversation, &case[1], &case[2]);
            let options = RenderOptions { strftime_now: Some(&date), ..Default::default() };
            let rendered = match &template {
                Ok(template) => template.render(&variables, &options),
                Err(error) => Err(error.clone()),
            };
            let same = match (&rendered, case[3].as_str()) {
                (Ok(text), Some(golden)) => hash(text) == golden,
                (Err(error), None) => matches!(
                    error.kind,
                    TemplateErrorKind::Failed(_) | TemplateErrorKind::Refused(_)
                ),
                _ => false,
            };
            let expected = EXCEPTIONS.iter().any(|(template, _)| template == name);
            if !same && !expected {
                let got = match rendered {
                    Ok(text) => format!("other text, {} bytes", text.len()),
                    Err(error) => error.to_string(),
                };
                found.push(format!("{name} {} {} {}: {got}", case[0], case[1], case[2]));
            }
        }
    }
    (count, found)
}

#[test]
fn published_templates_render_as_in_jinja2() {
    let (count, found) =
        differences(&data().join("published"), &data().join("published_goldens.json"));
    assert!(count > 5_000, "only {count} cases");
    assert!(found.is_empty(), "{} of {count} cases:\n{}", found.len(), found.join("\n"));
}

#[test]
fn further_templates_render_as_in_jinja2() {
    let named = |name| std::env::var_os(name).map(PathBuf::from);
    let folder = named("NESTLING_TEMPLATES");
    let (Some(folder), Some(goldens)) = (folder, named("NESTLING_TEMPLATE_GOLDENS")) else {
        return; // Default: no further templates are configured.
    };
    let (count, found) = differences(&folder, &goldens);
    assert!(found.is_empty(), "{} of {count} cases:\n{}", found.len(), found.join("\n"));
}
