//! Tools of a chat (`tools`, `tool_choice`, `parallel_tool_calls`).

use nestling::guide::ToolChoice;
use nestling::{Model, ToolSchema};
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::fields::Fields;
use crate::limits::{BODY_BYTES_MAX, NAME_BYTES_MAX};
use crate::tools::{self, Tool, Tools, check_schema, function_name};

/// # Errors
/// Returns an error for the first invalid tool or a model without tool support.
pub(crate) fn take(fields: &mut Fields, model: &Model) -> Result<Tools, ApiError> {
    let (schemas, strict) = tools::take(fields, model, read)?;
    let choice = choice(fields, &schemas)?;
    // Default: several calls are allowed, as the API specifies.
    let parallel = fields.flag("parallel_tool_calls")?.unwrap_or(true);
    let calls_max = (!parallel).then_some(1);
    Ok(Tools { schemas, choice, strict, calls_max })
}

fn read(mut fields: Fields) -> Result<Tool, ApiError> {
    let kind = fields.required_text("type", NAME_BYTES_MAX)?;
    if kind != "function" {
        return Err(fields.unsupported("type", "only tools of type `function` are supported"));
    }
    // Templates receive the tool as the request contains it.
    let shown = fields.require("function")?;
    let mut function = Fields::new(fields.path("function"), shown.clone())?;
    fields.end()?;
    function_name(&mut function, NAME_BYTES_MAX)?;
    function.text("description", BODY_BYTES_MAX)?;
    if let Some(parameters) = function.take("parameters") {
        check_schema(&function.path("parameters"), &parameters)?;
    }
    // Default: schemas are not enforced unless requested.
    let strict = function.flag("strict")?.unwrap_or(false);
    let name_place = function.path("name");
    function.end()?;
    let mut shown = shown;
    // Models are trained on tools without this field.
    if let Value::Object(function) = &mut shown {
        function.shift_remove("strict");
    }
    let schema = ToolSchema(json!({ "type": kind, "function": shown }));
    Ok(Tool { schema, strict, name_place })
}

fn choice(fields: &mut Fields, schemas: &[ToolSchema]) -> Result<ToolChoice, ApiError> {
    let name = "tool_choice";
    let choice = match fields.take(name) {
        None => return Ok(ToolChoice::Auto),
        Some(Value::String(word)) => match word.as_str() {
            "none" => return Ok(ToolChoice::None),
            "auto" => ToolChoice::Auto,
            "required" => ToolChoice::Required,
            _ => {
                return Err(fields.invalid(name, "none, auto, required or a function was expected"));
            }
        },
        Some(value) => {
            let mut choice = Fields::new(fields.path(name), value)?;
            if choice.required_text("type", NAME_BYTES_MAX)? != "function" {
                return Err(choice.unsupported("type", "only `function` is supported"));
            }
            let function = choice.object("function")?;
            let mut function =
                function.ok_or_else(|| choice.invalid("function", "`function` is missing"))?;
            let called = function.required_text("name", NAME_BYTES_MAX)?;
            if !tools::has(schemas, &called) {
                return Err(function.invalid("name", "no tool of the request has this name"));
            }
            function.end()?;
            choice.end()?;
            ToolChoice::Named(called)
        }
    };
    if schemas.is_empty() {
        return Err(fields.invalid(name, "it requires `tools`"));
    }
    Ok(choice)
}
