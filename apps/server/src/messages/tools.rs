//! Tools and tool choice of a message request.

use nestling::ToolSchema;
use nestling::guide::ToolChoice;

use super::blocks;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::limits::{BODY_BYTES_MAX, NAME_BYTES_MAX, TOOL_NAME_BYTES_MAX};
use crate::server::ServedModel;
use crate::tools::{self, Tool, ToolEntry, Tools, check_schema, function, function_name};

/// # Errors
/// Returns an error for the first invalid tool or a model without tool support.
pub(super) fn take(fields: &mut Fields, served: &ServedModel) -> Result<Tools, ApiError> {
    let (schemas, strict) = tools::take(fields, served, read)?;
    let (choice, calls_max) = choice(fields, &schemas)?;
    Ok(Tools { schemas, choice, strict, calls_max, style: served.tool_style })
}

fn read(mut fields: Fields) -> Result<ToolEntry, ApiError> {
    let kind = fields.text("type", NAME_BYTES_MAX)?;
    if let Some(kind) = kind.filter(|kind| kind != "custom") {
        return Ok(ToolEntry::Hosted(kind));
    }
    let name = function_name(&mut fields)?;
    let description = fields.text("description", BODY_BYTES_MAX)?;
    let schema = fields.require("input_schema")?;
    check_schema(&fields.path("input_schema"), &schema)?;
    // Default: schemas are not enforced unless requested.
    let strict = fields.flag("strict")?.unwrap_or(false);
    blocks::take_cache_control(&mut fields)?;
    // Tool input is always streamed.
    if fields.flag("eager_input_streaming")? == Some(false) {
        fields.ignore("eager_input_streaming")?;
    }
    let name_place = fields.path("name");
    fields.end()?;
    let schema = function(name, description, Some(schema));
    Ok(ToolEntry::Function(Tool { schema, strict, name_place }))
}

/// Returns the tool choice and the number of calls after which the generation ends.
fn choice(
    fields: &mut Fields,
    schemas: &[ToolSchema],
) -> Result<(ToolChoice, Option<usize>), ApiError> {
    let name = "tool_choice";
    let Some(mut said) = fields.object(name)? else { return Ok((ToolChoice::Auto, None)) };
    let kind = said.required_text("type", NAME_BYTES_MAX)?;
    let choice = match kind.as_str() {
        "none" => ToolChoice::None,
        "auto" => ToolChoice::Auto,
        "any" => ToolChoice::Required,
        "tool" => {
            let called = said.required_text("name", TOOL_NAME_BYTES_MAX)?;
            if !tools::has(schemas, &called) {
                return Err(said.invalid("name", "no tool of the request has this name"));
            }
            ToolChoice::Named(called)
        }
        _ => return Err(said.invalid("type", "auto, any, tool or none was expected")),
    };
    // Default: several calls are allowed, as the API specifies.
    let alone = kind != "none" && said.flag("disable_parallel_tool_use")?.unwrap_or(false);
    said.end()?;
    if schemas.is_empty() && choice != ToolChoice::None {
        return Err(fields.invalid(name, "it requires `tools`"));
    }
    Ok((choice, alone.then_some(1)))
}
