//! Output constraints of a request: `response_format` of chats and its equivalents in other APIs.

use nestling::guide::Guide;
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::fields::Fields;
use crate::limits::{BODY_BYTES_MAX, NAME_BYTES_MAX};
use crate::tools::check_schema;

/// JSON schema of an output, compiled.
#[derive(Debug)]
pub(crate) struct AnswerForm {
    pub schema: Value,
    pub guide: Guide,
}

/// Reads `response_format` and returns its output constraint, or `None` for free text. JSON schemas are
/// enforced whether or not `strict` is set.
///
/// # Errors
/// Returns an error if the format is unknown or its schema cannot be compiled.
pub(crate) fn take(fields: &mut Fields) -> Result<Option<AnswerForm>, ApiError> {
    let Some(mut form) = fields.object("response_format")? else { return Ok(None) };
    let kind = form.required_text("type", NAME_BYTES_MAX)?;
    let guide = match kind.as_str() {
        "text" => None,
        "json_object" => Some(any_object()?),
        "json_schema" => Some(json_schema(&mut form)?),
        _ => {
            let message = format!("`{kind}` is not supported: text, json_object or json_schema");
            return Err(form.unsupported("type", message));
        }
    };
    form.end()?;
    Ok(guide)
}

/// Returns a constraint to any JSON object.
///
/// # Errors
/// An internal error if the grammar cannot be compiled.
pub(crate) fn any_object() -> Result<AnswerForm, ApiError> {
    let guide = Guide::json_object().map_err(|error| ApiError::internal(error.to_string()))?;
    Ok(AnswerForm { schema: json!({ "type": "object" }), guide })
}

fn json_schema(form: &mut Fields) -> Result<AnswerForm, ApiError> {
    let named = form.object("json_schema")?;
    let mut named = named.ok_or_else(|| form.invalid("json_schema", "`json_schema` is missing"))?;
    let guide = named_schema(&mut named)?;
    named.end()?;
    Ok(guide)
}

/// Reads a named schema with its optional description and flags.
///
/// # Errors
/// Returns an error if the schema cannot be compiled.
pub(crate) fn named_schema(named: &mut Fields) -> Result<AnswerForm, ApiError> {
    named.required_text("name", NAME_BYTES_MAX)?;
    named.text("description", BODY_BYTES_MAX)?;
    // The schema is enforced regardless of this flag.
    named.flag("strict")?;
    // Default: without a schema any object is valid.
    let schema = named.take("schema").unwrap_or_else(|| json!({ "type": "object" }));
    of_schema(&named.path("schema"), &schema)
}

/// Compiles a JSON schema. `place` is its path in the request, for error messages.
///
/// # Errors
/// Returns an error if the schema is too long or cannot be compiled.
pub(crate) fn of_schema(place: &str, schema: &Value) -> Result<AnswerForm, ApiError> {
    check_schema(place, schema)?;
    let guide = Guide::json_schema(schema);
    let guide = guide.map_err(|error| ApiError::invalid(place, error.to_string()))?;
    Ok(AnswerForm { schema: schema.clone(), guide })
}
