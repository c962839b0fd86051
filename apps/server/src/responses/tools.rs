//! Tools and tool choice of a response request.

use std::collections::BTreeMap;

use nestling::ToolSchema;
use nestling::guide::ToolChoice;
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::fields::Fields;
use crate::limits::{BODY_BYTES_MAX, NAME_BYTES_MAX, TOOL_NAME_BYTES_MAX, TOOLS_MAX};
use crate::server::ServedModel;
use crate::tools::{self, Tool, ToolEntry, Tools, check_schema, function, function_name};

/// Tools whose calls are items of their own form in a reply, by the name that the model knows.
pub(super) type ToolForms = BTreeMap<String, ToolForm>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ToolForm {
    /// A function of a namespace: its items name the namespace.
    Namespaced {
        namespace: String,
        /// Name within the namespace.
        name: String,
    },
    /// A tool whose input is a text. The model sees a function with one argument.
    Custom,
}

/// Name of the argument of a tool whose input is a text.
pub(super) const INPUT: &str = "input";

/// Reads the tools, the tool choice, and the tools whose calls have a form of their own.
///
/// # Errors
/// Returns an error for the first invalid tool or a model without tool support.
pub(super) fn take(
    fields: &mut Fields,
    served: &ServedModel,
) -> Result<(Tools, ToolForms), ApiError> {
    let mut forms = ToolForms::new();
    let (mut schemas, strict) = tools::take(fields, served, |fields| read(fields, &mut forms))?;
    let choice = choice(fields, &mut schemas)?;
    // Default: several calls are allowed, as the API specifies.
    let parallel = fields.flag("parallel_tool_calls")?.unwrap_or(true);
    let (calls_max, style) = ((!parallel).then_some(1), served.tool_style);
    Ok((Tools { schemas, choice, strict, calls_max, style }, forms))
}

fn read(mut fields: Fields, forms: &mut ToolForms) -> Result<ToolEntry, ApiError> {
    let kind = fields.required_text("type", NAME_BYTES_MAX)?;
    match kind.as_str() {
        "function" => read_function(fields).map(ToolEntry::Function),
        "custom" => {
            let (name, tool) = read_custom(fields)?;
            forms.insert(name, ToolForm::Custom);
            Ok(ToolEntry::Function(tool))
        }
        "namespace" => read_namespace(fields, forms).map(ToolEntry::Functions),
        _ => Ok(ToolEntry::Hosted(kind)),
    }
}

/// Reads the functions of a namespace. The model knows them as `namespace.name`, so that two namespaces may
/// have functions of one name. Other tools of a namespace are dropped and reported.
fn read_namespace(mut fields: Fields, forms: &mut ToolForms) -> Result<Vec<Tool>, ApiError> {
    let namespace = function_name(&mut fields)?;
    fields.text("description", BODY_BYTES_MAX)?;
    let place = fields.at("tools");
    // Default: an empty namespace.
    let entries = fields.list("tools", TOOLS_MAX)?.unwrap_or_default();
    fields.end()?;
    let mut tools = Vec::with_capacity(entries.len());
    for (index, entry) in entries.into_iter().enumerate() {
        let mut fields = Fields::new(place.item(index), entry)?;
        if fields.required_text("type", NAME_BYTES_MAX)? != "function" {
            place.item(index).ignore()?;
            continue;
        }
        let name = function_name(&mut fields)?;
        let known = format!("{namespace}.{name}");
        tools.push(read_named(known.clone(), fields)?);
        forms.insert(known, ToolForm::Namespaced { namespace: namespace.clone(), name });
    }
    Ok(tools)
}

/// Reads a tool whose input is a text, and returns its name as well. The grammar of the text is shown to the
/// model and not enforced.
fn read_custom(mut fields: Fields) -> Result<(String, Tool), ApiError> {
    let name = function_name(&mut fields)?;
    // Default: no description.
    let mut description = fields.text("description", BODY_BYTES_MAX)?.unwrap_or_default();
    if let Some(mut format) = fields.object("format")?
        && format.required_text("type", NAME_BYTES_MAX)? == "grammar"
    {
        let grammar = format.required_text("definition", BODY_BYTES_MAX)?;
        format.text("syntax", NAME_BYTES_MAX)?;
        description.push_str("\nThe input follows this grammar:\n");
        description.push_str(&grammar);
        format.place().ignore()?;
    }
    let parameters = json!({
        "type": "object", "properties": { (INPUT): { "type": "string" } }, "required": [INPUT],
    });
    let name_place = fields.path("name");
    fields.end()?;
    let schema = function(name.clone(), Some(description), Some(parameters));
    Ok((name, Tool { schema, strict: false, name_place }))
}

fn read_function(mut fields: Fields) -> Result<Tool, ApiError> {
    let name = function_name(&mut fields)?;
    read_named(name, fields)
}

fn read_named(name: String, mut fields: Fields) -> Result<Tool, ApiError> {
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
                let allowed = tools::allow(&mut choice, schemas)?;
                choice.end()?;
                return Ok(allowed);
            }
            if kind != "function" && kind != "custom" {
                let message = "only `function`, `custom` and `allowed_tools` are supported";
                return Err(choice.unsupported("type", message));
            }
            let called = choice.required_text("name", TOOL_NAME_BYTES_MAX)?;
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
