//! Generation options.

use std::sync::Arc;

use nestling::guide::{Guide, GuideError, ToolChoice, ToolGuide};
use nestling::{ConstraintSource, GenerateOptions, ToolSchema};
use serde_json::{Map, Value, json};

use crate::error::Failure;

/// Options of the engine, and the tool choice.
pub(crate) struct GenerationOptions {
    pub options: GenerateOptions,
    pub choice: ToolChoice,
}

/// Parses options: engine options by name, `tool_choice`, and at most one output constraint.
pub(crate) fn read(json: &str, tools: &[ToolSchema]) -> Result<GenerationOptions, Failure> {
    let wrong = |error: &dyn std::fmt::Display| Failure::caller(format!("options: {error}"));
    let mut fields: Map<String, Value> =
        serde_json::from_str(json).map_err(|error| wrong(&error))?;
    let form = form(&mut fields)?;
    let choice = choice(text(&mut fields, "tool_choice")?, tools)?;
    let mut options: GenerateOptions = serde_json::from_value(Value::Object(fields.clone()))
        .map_err(|error| wrong(&named(&fields, &error.to_string())))?;
    let calls = !choice.tools(tools).is_empty();
    options.constraint = match form {
        Some(_) if calls => {
            let both = "a form of the answer and tools: one of them, or tool_choice \"none\"";
            return Err(Failure::caller(both));
        }
        None if calls => Some(Arc::new(ToolGuide::new(tools, choice.clone()).map_err(refused)?)),
        form => form,
    };
    Ok(GenerationOptions { options, choice })
}

/// Adds the name of the first invalid field to an error, because errors of serde do not contain it. The fields
/// are read one at a time; those that are missing have defaults.
fn named(fields: &Map<String, Value>, error: &str) -> String {
    let alone = |options| serde_json::from_value::<GenerateOptions>(options).err();
    for (name, value) in fields {
        if name == "sampling"
            && let Value::Object(sampling) = value
        {
            for (name, value) in sampling {
                if let Some(error) = alone(json!({ "sampling": { name: value } })) {
                    return format!("{name}: {error}");
                }
            }
        } else if let Some(error) = alone(json!({ name: value })) {
            return format!("{name}: {error}");
        }
    }
    error.to_owned()
}

fn text(fields: &mut Map<String, Value>, name: &str) -> Result<Option<String>, Failure> {
    match fields.remove(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(other) => Err(Failure::caller(format!("{name}: expected a text, found {other}"))),
    }
}

fn form(fields: &mut Map<String, Value>) -> Result<Option<Arc<dyn ConstraintSource>>, Failure> {
    let schema = text(fields, "json_schema")?;
    let regex = text(fields, "regex")?;
    let lark = text(fields, "lark")?;
    let guide = match (schema, regex, lark) {
        (None, None, None) => return Ok(None),
        (Some(schema), None, None) => Guide::json_schema_text(&schema),
        (None, Some(regex), None) => Guide::regex(&regex),
        (None, None, Some(lark)) => Guide::grammar(&lark),
        _ => return Err(Failure::caller("at most one of schema, regex and lark may be given")),
    };
    Ok(Some(Arc::new(guide.map_err(refused)?)))
}

fn choice(said: Option<String>, tools: &[ToolSchema]) -> Result<ToolChoice, Failure> {
    let choice = ToolChoice::of_name(said.as_deref());
    if choice.must_call() && tools.is_empty() {
        return Err(Failure::caller("tool_choice: the conversation has no tools"));
    }
    Ok(choice)
}

fn refused(error: GuideError) -> Failure {
    Failure::caller(error.to_string())
}
