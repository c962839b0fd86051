//! The tools of a chat, and whether they may or must be called.

use nestling::guide::ToolChoice;
use nestling::{Model, ToolSchema};
use serde_json::Value;

use crate::error::ApiError;
use crate::fields::Fields;
use crate::limits::{BODY_BYTES_MAX, NAME_BYTES_MAX, SCHEMA_BYTES_MAX, TOOLS_MAX};

/// What a request says of tools.
#[derive(Debug)]
pub(super) struct Tools {
    pub schemas: Vec<ToolSchema>,
    pub choice: ToolChoice,
    /// Whether arguments must keep to their schemas.
    strict: bool,
    /// Calls after which an answer ends.
    pub calls_max: Option<usize>,
}

impl Tools {
    /// Whether calls are kept to their schemas: where a tool must be called, and where one is strict.
    pub fn is_constrained(&self) -> bool {
        match self.choice {
            ToolChoice::None => false,
            ToolChoice::Auto => self.strict,
            _ => true,
        }
    }
}

/// # Errors
/// The first that makes no sense; tools for a model that knows none.
pub(super) fn take(fields: &mut Fields, model: &Model) -> Result<Tools, ApiError> {
    // Default: no tools.
    let tools = fields.list("tools", TOOLS_MAX)?.unwrap_or_default();
    if !tools.is_empty() && !model.capabilities().tools {
        let message = "the chat template of this model has no place for tools";
        return Err(fields.unsupported("tools", message));
    }
    let (mut schemas, mut strict) = (Vec::with_capacity(tools.len()), false);
    for (index, tool) in tools.into_iter().enumerate() {
        let (schema, is_strict) = read(&format!("tools[{index}]"), tool)?;
        if schemas.iter().any(|known: &ToolSchema| known.name() == schema.name()) {
            let place = format!("tools[{index}].function.name");
            return Err(ApiError::invalid(place, "a tool of this name is there already"));
        }
        schemas.push(schema);
        strict |= is_strict;
    }
    let choice = choice(fields, &schemas)?;
    // Default: the API lets answers have several calls.
    let parallel = fields.flag("parallel_tool_calls")?.unwrap_or(true);
    let calls_max = (!parallel).then_some(1);
    Ok(Tools { schemas, choice, strict, calls_max })
}

fn read(place: &str, tool: Value) -> Result<(ToolSchema, bool), ApiError> {
    let mut fields = Fields::new(place, tool.clone())?;
    let kind = fields.required_text("type", NAME_BYTES_MAX)?;
    if kind != "function" {
        return Err(fields.unsupported("type", "only tools of type `function` are supported"));
    }
    let function = fields.object("function")?;
    let mut function =
        function.ok_or_else(|| fields.invalid("function", "`function` is missing"))?;
    fields.end()?;
    let name = function.required_text("name", NAME_BYTES_MAX)?;
    let is_good = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if name.is_empty() || !name.chars().all(is_good) {
        return Err(function.invalid("name", "letters, digits, `_` and `-` were expected"));
    }
    function.text("description", BODY_BYTES_MAX)?;
    if let Some(parameters) = function.take("parameters") {
        check_schema(&function.path("parameters"), &parameters)?;
    }
    // Default: arguments are kept to their schema where that is asked for.
    let strict = function.flag("strict")?.unwrap_or(false);
    function.end()?;
    let mut tool = tool;
    // The model was trained on tools without it.
    if let Some(Value::Object(function)) = tool.get_mut("function") {
        function.shift_remove("strict");
    }
    Ok((ToolSchema(tool), strict))
}

/// # Errors
/// What is no object, or too long.
pub(super) fn check_schema(place: &str, schema: &Value) -> Result<(), ApiError> {
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
            if !schemas.iter().any(|schema| schema.name() == Some(&called)) {
                return Err(function.invalid("name", "no tool of the request has this name"));
            }
            function.end()?;
            choice.end()?;
            ToolChoice::Named(called)
        }
    };
    if schemas.is_empty() {
        return Err(fields.invalid(name, "it means something with `tools` only"));
    }
    Ok(choice)
}
