//! The form that an answer must have (`response_format`).

use nestling::guide::Guide;
use serde_json::json;

use super::tools::check_schema;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::limits::{BODY_BYTES_MAX, NAME_BYTES_MAX};

/// What answers are kept to, `strict` or not; none where they are free.
///
/// # Errors
/// A form that is unknown, and a schema that cannot be kept to.
pub(super) fn take(fields: &mut Fields) -> Result<Option<Guide>, ApiError> {
    let Some(mut form) = fields.object("response_format")? else { return Ok(None) };
    let kind = form.required_text("type", NAME_BYTES_MAX)?;
    let guide = match kind.as_str() {
        "text" => None,
        "json_object" => {
            Some(Guide::json_object().map_err(|error| ApiError::internal(error.to_string()))?)
        }
        "json_schema" => Some(json_schema(&mut form)?),
        _ => {
            let message = format!("`{kind}` is not supported: text, json_object or json_schema");
            return Err(form.unsupported("type", message));
        }
    };
    form.end()?;
    Ok(guide)
}

fn json_schema(form: &mut Fields) -> Result<Guide, ApiError> {
    let named = form.object("json_schema")?;
    let mut named = named.ok_or_else(|| form.invalid("json_schema", "`json_schema` is missing"))?;
    named.required_text("name", NAME_BYTES_MAX)?;
    named.text("description", BODY_BYTES_MAX)?;
    // Answers are kept to it in any case.
    named.flag("strict")?;
    // Default: without a schema any object is valid.
    let schema = named.take("schema").unwrap_or_else(|| json!({ "type": "object" }));
    let place = named.path("schema");
    check_schema(&place, &schema)?;
    named.end()?;
    Guide::json_schema(&schema).map_err(|error| ApiError::invalid(place, error.to_string()))
}
