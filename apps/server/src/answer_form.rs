//! The form that an answer must have: `response_format` of chats, and what other APIs call it.

use nestling::guide::Guide;
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::fields::Fields;
use crate::limits::{BODY_BYTES_MAX, NAME_BYTES_MAX};
use crate::tools::check_schema;

/// What answers are kept to, `strict` or not; none where they are free.
///
/// # Errors
/// A form that is unknown, and a schema that cannot be kept to.
pub(crate) fn take(fields: &mut Fields) -> Result<Option<Guide>, ApiError> {
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

/// Any JSON object.
///
/// # Errors
/// The server's own.
pub(crate) fn any_object() -> Result<Guide, ApiError> {
    Guide::json_object().map_err(|error| ApiError::internal(error.to_string()))
}

fn json_schema(form: &mut Fields) -> Result<Guide, ApiError> {
    let named = form.object("json_schema")?;
    let mut named = named.ok_or_else(|| form.invalid("json_schema", "`json_schema` is missing"))?;
    let guide = named_schema(&mut named)?;
    named.end()?;
    Ok(guide)
}

/// A schema with its name and what else is said of it.
///
/// # Errors
/// A schema that cannot be kept to.
pub(crate) fn named_schema(named: &mut Fields) -> Result<Guide, ApiError> {
    named.required_text("name", NAME_BYTES_MAX)?;
    named.text("description", BODY_BYTES_MAX)?;
    // Answers are kept to it in any case.
    named.flag("strict")?;
    // Default: without a schema any object is valid.
    let schema = named.take("schema").unwrap_or_else(|| json!({ "type": "object" }));
    of_schema(&named.path("schema"), &schema)
}

/// What a schema allows.
///
/// # Errors
/// A schema that cannot be kept to.
pub(crate) fn of_schema(place: &str, schema: &Value) -> Result<Guide, ApiError> {
    check_schema(place, schema)?;
    Guide::json_schema(schema).map_err(|error| ApiError::invalid(place, error.to_string()))
}
