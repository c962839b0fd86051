//! Tools of a conversation and the tool choice, common to all APIs.

use nestling::ToolSchema;
use nestling::engine::text::ToolStyle;
use nestling::guide::ToolChoice;
use serde_json::{Map, Value, json};

use crate::error::ApiError;
use crate::fields::Fields;
use crate::limits::{NAME_BYTES_MAX, SCHEMA_BYTES_MAX, TOOL_NAME_BYTES_MAX, TOOLS_MAX};
use crate::server::ServedModel;

#[derive(Debug)]
pub(crate) struct Tools {
    pub schemas: Vec<ToolSchema>,
    pub choice: ToolChoice,
    /// True if arguments must match their schemas.
    pub strict: bool,
    /// Number of calls after which a generation ends.
    pub calls_max: Option<usize>,
    pub style: ToolStyle,
}

impl Tools {
    /// Returns true if calls are constrained to their schemas: a call is required, or a tool is strict.
    pub fn is_constrained(&self) -> bool {
        match self.choice {
            ToolChoice::None => false,
            ToolChoice::Auto => self.strict,
            _ => true,
        }
    }

    /// Returns the number of calls after which a generation ends. A named tool is called once.
    pub fn calls_max(&self) -> Option<usize> {
        match self.choice {
            ToolChoice::Named(_) => Some(1),
            _ => self.calls_max,
        }
    }
}

/// An entry of `tools`.
#[derive(Debug)]
pub(crate) enum ToolEntry {
    Function(Tool),
    /// The functions of a namespace.
    Functions(Vec<Tool>),
    /// A tool that another server would run itself, such as a web search. Contains its type.
    Hosted(String),
}

#[derive(Debug)]
pub(crate) struct Tool {
    pub schema: ToolSchema,
    /// True if the arguments must match their schema.
    pub strict: bool,
    /// Path of its name in the request.
    pub name_place: String,
}

/// Reads `tools`, parsing each entry with `read`. The flag is true if any tool is strict. Hosted tools beside
/// functions are dropped and reported.
///
/// # Errors
/// Returns an error for the first invalid tool, for duplicate names, for hosted tools alone, and for models
/// without tool support.
pub(crate) fn take(
    fields: &mut Fields,
    served: &ServedModel,
    mut read: impl FnMut(Fields) -> Result<ToolEntry, ApiError>,
) -> Result<(Vec<ToolSchema>, bool), ApiError> {
    // Default: no tools.
    let tools = fields.list("tools", TOOLS_MAX)?.unwrap_or_default();
    if !tools.is_empty() && !served.takes_tools() {
        let message = "the chat template of this model has no place for tools";
        return Err(fields.unsupported("tools", message));
    }
    let place = fields.at("tools");
    let (mut schemas, mut hosted, mut any_strict) = (Vec::new(), Vec::new(), false);
    for (index, tool) in tools.into_iter().enumerate() {
        let entry = match read(Fields::new(place.item(index), tool)?)? {
            ToolEntry::Function(tool) => vec![tool],
            ToolEntry::Functions(tools) => tools,
            ToolEntry::Hosted(kind) => {
                hosted.push((place.item(index).field("type"), kind));
                continue;
            }
        };
        for Tool { schema, strict, name_place } in entry {
            if schemas.iter().any(|known: &ToolSchema| known.name() == schema.name()) {
                return Err(ApiError::invalid(name_place, "a tool of this name is there already"));
            }
            schemas.push(schema);
            any_strict |= strict;
        }
    }
    if schemas.len() > TOOLS_MAX {
        let found = schemas.len();
        return Err(fields.invalid("tools", format!("at most {TOOLS_MAX} tools, found {found}")));
    }
    for (place, kind) in hosted {
        if schemas.is_empty() {
            let message = format!("a tool of type `{kind}` is not offered, only functions");
            return Err(place.unsupported(message));
        }
        place.ignore()?;
    }
    Ok((schemas, any_strict))
}

/// Reads the name of a function.
///
/// # Errors
/// Returns an error if the name is invalid.
pub(crate) fn function_name(fields: &mut Fields) -> Result<String, ApiError> {
    let name = fields.required_text("name", TOOL_NAME_BYTES_MAX)?;
    let is_good = |c: char| c.is_ascii_alphanumeric() || "_-.:/".contains(c);
    if name.is_empty() || !name.chars().all(is_good) {
        let message = "letters, digits, `_`, `-`, `.`, `:` and `/` were expected";
        return Err(fields.invalid("name", message));
    }
    Ok(name)
}

/// Returns the schema that chat templates receive for a function.
pub(crate) fn function(
    name: String,
    description: Option<String>,
    parameters: Option<Value>,
) -> ToolSchema {
    let mut function = Map::new();
    function.insert("name".into(), name.into());
    function.extend(description.map(|text| ("description".to_owned(), text.into())));
    function.extend(parameters.map(|schema| ("parameters".to_owned(), schema)));
    ToolSchema(json!({ "type": "function", "function": function }))
}

/// Restricts the tools to those of a list: OpenAI's choice of type `allowed_tools`.
///
/// # Errors
/// Returns an error for an unknown mode, or a name that no tool has.
pub(crate) fn allow(
    choice: &mut Fields,
    schemas: &mut Vec<ToolSchema>,
) -> Result<ToolChoice, ApiError> {
    let mode = choice.required_text("mode", NAME_BYTES_MAX)?;
    let place = choice.at("tools");
    // Default: without a list no tool is allowed, which the check below refuses.
    let allowed = choice.list("tools", TOOLS_MAX)?.unwrap_or_default();
    let mut names = Vec::with_capacity(allowed.len());
    for (index, tool) in allowed.into_iter().enumerate() {
        let mut tool = Fields::new(place.item(index), tool)?;
        let mut named = tool.object("function")?.unwrap_or(tool);
        let name = function_name(&mut named)?;
        if !has(schemas, &name) {
            return Err(named.invalid("name", "no tool of the request has this name"));
        }
        names.push(name);
    }
    schemas.retain(|schema| names.iter().any(|name| schema.name() == Some(name)));
    match mode.as_str() {
        "auto" => Ok(ToolChoice::Auto),
        "required" if !schemas.is_empty() => Ok(ToolChoice::Required),
        "required" => Err(place.invalid("at least one tool was expected")),
        _ => Err(choice.invalid("mode", "auto or required was expected")),
    }
}

pub(crate) fn has(schemas: &[ToolSchema], name: &str) -> bool {
    schemas.iter().any(|schema| schema.name() == Some(name))
}

/// # Errors
/// Returns an error if `schema` is not an object or is too long.
pub(crate) fn check_schema(place: &str, schema: &Value) -> Result<(), ApiError> {
    if !schema.is_object() {
        return Err(ApiError::invalid(place, "a JSON schema was expected, which is an object"));
    }
    let found = schema.to_string().len();
    if found > SCHEMA_BYTES_MAX {
        let message = format!("a schema of at most {SCHEMA_BYTES_MAX} bytes, found {found}");
        return Err(ApiError::invalid(place, message));
    }
    Ok(())
}
