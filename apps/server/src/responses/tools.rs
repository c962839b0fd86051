//! Tools and tool choice of a response request.

use nestling::guide::ToolChoice;
use nestling::{Model, ToolSchema};
use serde_json::Value;

use crate::error::ApiError;
use crate::fields::Fields;
use crate::limits::{BODY_BYTES_MAX, NAME_BYTES_MAX};
use crate::tools::{self, Tool, Tools, check_schema, function, function_name};

/// # Errors
/// Returns an error for the first invalid tool or a model without tool support.
pub(super) fn take(fields: &mut Fields, model: &Model) -> Result<Tools, ApiError> {
    let (schemas, strict) = tools::take(fields, model, read)?;
    let choice = choice(fields, &schemas)?;
    // Default: several calls are allowed, as the API specifies.
    let parallel = fields.flag("parallel_tool_calls")?.unwrap_or(true);
    Ok(Tools { schemas, choice, strict, calls_max: (!parallel).then_some(1) })
}

fn read(mut fields: Fields) -> Result<Tool, ApiError> {
    let kind = fields.required_text("type", NAME_BYTES_MAX)?;
    if kind != "function" {
        return Err(fields.unsupported("type", "only tools of type `function` are supported"));
    }
    let name = function_name(&mut fields, NAME_BYTES_MAX)?;
    let description = fields.text("description", BODY_BYTES_MAX)?;
    let parameters = fields.take("parameters");
    if let Some(parameters) = &parameters {
        check_schema(&fields.path("parameters"), parameters)?;
    }
    // Default: schemas are not enforced unless requested.
    let strict = fields.flag("strict")?.unwrap_or(false);
    let name_place = fields.path("name");
    fields.end()?;
    Ok(Tool { schema: function(name, description, parameters), strict, name_place })
}

fn choice(fields: &mut Fields, schemas: &[ToolSchema]) -> Result<ToolChoice, ApiError> {
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
            let mut choice = Fields::new(fields.path(name), value)?;
            if choice.required_text("type", NAME_BYTES_MAX)? != "function" {
                return Err(choice.unsupported("type", "only `function` is supported"));
            }
            let called = choice.required_text("name", NAME_BYTES_MAX)?;
            if !tools::has(schemas, &called) {
                return Err(choice.invalid("name", "no tool of the request has this name"));
            }
            choice.end()?;
            ToolChoice::Named(called)
        }
    };
    if schemas.is_empty() {
        return Err(fields.invalid(name, "it requires `tools`"));
    }
    Ok(choice)
}
