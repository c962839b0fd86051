//! Tools of a chat (`tools`, `tool_choice`, `parallel_tool_calls`).

use nestling::ToolSchema;
use nestling::guide::ToolChoice;
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::fields::Fields;
use crate::limits::{BODY_BYTES_MAX, NAME_BYTES_MAX, TOOL_NAME_BYTES_MAX};
use crate::server::ServedModel;
use crate::tools::{self, Tool, ToolEntry, Tools, check_schema, function_name};

/// # Errors
/// Returns an error for the first invalid tool or a model without tool support.
pub(crate) fn take(fields: &mut Fields, served: &ServedModel) -> Result<Tools, ApiError> {
    let (mut schemas, strict) = tools::take(fields, served, read)?;
    let choice = choice(fields, &mut schemas)?;
    // Default: several calls are allowed, as the API specifies.
    let parallel = fields.flag("parallel_tool_calls")?.unwrap_or(true);
    let (calls_max, style) = ((!parallel).then_some(1), served.tool_style);
    Ok(Tools { schemas, choice, strict, calls_max, style })
}

fn read(mut fields: Fields) -> Result<ToolEntry, ApiError> {
    let kind = fields.required_text("type", NAME_BYTES_MAX)?;
    if kind != "function" {
        return Ok(ToolEntry::Hosted(kind));
    }
    // Templates receive the tool as the request contains it.
    let shown = fields.require("function")?;
    let mut function = Fields::new(fields.at("function"), shown.clone())?;
    fields.end()?;
    function_name(&mut function)?;
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
    Ok(ToolEntry::Function(Tool { schema, strict, name_place }))
}

fn choice(fields: &mut Fields, schemas: &mut Vec<ToolSchema>) -> Result<ToolChoice, ApiError> {
    let name = "tool_choice";
    let choice = match fields.take(name) {
        None => return Ok(ToolChoice::Auto),
        Some(Value::String(word)) => match word.as_str() {
            "none" => return Ok(ToolChoice::None),
            // Clients send this value even without tools.
            "auto" => return Ok(ToolChoice::Auto),
            "required" => ToolChoice::Required,
            _ => {
                return Err(fields.invalid(name, "none, auto, required or a function was expected"));
            }
        },
        Some(value) => {
            let mut choice = Fields::new(fields.at(name), value)?;
            let kind = choice.required_text("type", NAME_BYTES_MAX)?;
            if kind == "allowed_tools" {
                // The list is an object of its own here, unlike in responses.
                let mut allowed = choice.object("allowed_tools")?.unwrap_or(choice);
                let choice = tools::allow(&mut allowed, schemas)?;
                allowed.end()?;
                return Ok(choice);
            }
            if kind != "function" {
                let message = "only `function` and `allowed_tools` are supported";
                return Err(choice.unsupported("type", message));
            }
            let function = choice.object("function")?;
            let mut function =
                function.ok_or_else(|| choice.invalid("function", "`function` is missing"))?;
            let called = function.required_text("name", TOOL_NAME_BYTES_MAX)?;
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
