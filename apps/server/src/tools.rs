//! Tools of a conversation and the tool choice, common to all APIs.

use nestling::guide::ToolChoice;
use nestling::{Model, ToolSchema};
use serde_json::{Map, Value, json};

use crate::error::ApiError;
use crate::fields::Fields;
use crate::limits::{SCHEMA_BYTES_MAX, TOOLS_MAX};

#[derive(Debug)]
pub(crate) struct Tools {
    pub schemas: Vec<ToolSchema>,
    pub choice: ToolChoice,
    /// True if arguments must match their schemas.
    pub strict: bool,
    /// Number of calls after which a generation ends.
    pub calls_max: Option<usize>,
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

#[derive(Debug)]
pub(crate) struct Tool {
    pub schema: ToolSchema,
    /// True if the arguments must match their schema.
    pub strict: bool,
    /// Path of its name in the request.
    pub name_place: String,
}

/// Reads `tools`, parsing each entry with `read`. The flag is true if any tool is strict.
///
/// # Errors
/// Returns an error for the first invalid tool, for duplicate names, and for models without tool support.
pub(crate) fn take(
    fields: &mut Fields,
    model: &Model,
    read: fn(Fields) -> Result<Tool, ApiError>,
) -> Result<(Vec<ToolSchema>, bool), ApiError> {
    // Default: no tools.
    let tools = fields.list("tools", TOOLS_MAX)?.unwrap_or_default();
    if !tools.is_empty() && !model.capabilities().tools {
        let message = "the chat template of this model has no place for tools";
        return Err(fields.unsupported("tools", message));
    }
    let (mut schemas, mut any_strict) = (Vec::with_capacity(tools.len()), false);
    for (index, tool) in tools.into_iter().enumerate() {
        let Tool { schema, strict, name_place } =
            read(Fields::new(format!("tools[{index}]"), tool)?)?;
        if schemas.iter().any(|known: &ToolSchema| known.name() == schema.name()) {
            return Err(ApiError::invalid(name_place, "a tool of this name is there already"));
        }
        schemas.push(schema);
        any_strict |= strict;
    }
    Ok((schemas, any_strict))
}

/// Reads the name of a function.
///
/// # Errors
/// Returns an error if the name is invalid.
pub(crate) fn function_name(fields: &mut Fields, bytes_max: usize) -> Result<String, ApiError> {
    let name = fields.required_text("name", bytes_max)?;
    let is_good = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if name.is_empty() || !name.chars().all(is_good) {
        return Err(fields.invalid("name", "letters, digits, `_` and `-` were expected"));
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
