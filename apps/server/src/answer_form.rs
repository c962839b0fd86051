//! Output constraints of a request: `response_format` of chats and its equivalents in other APIs.

use nestling::guide::limits::CHOICES_MAX;
use nestling::guide::{Guide, GuideError};
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::fields::Fields;
use crate::limits::{BODY_BYTES_MAX, NAME_BYTES_MAX};
use crate::tools::check_schema;

/// Form of an output, compiled.
#[derive(Debug)]
pub(crate) struct AnswerForm {
    /// JSON schema. `None` for forms that are no JSON, which exclude tools.
    pub schema: Option<Value>,
    pub guide: Guide,
}

impl AnswerForm {
    fn text(guide: Guide) -> Self {
        Self { schema: None, guide }
    }
}

/// Reads the output constraint of a request: `response_format`, or its equivalents in llama.cpp's and vLLM's
/// servers. `None` for free text.
///
/// # Errors
/// Returns an error if a constraint is invalid, or if there are several.
pub(crate) fn take(fields: &mut Fields) -> Result<Option<AnswerForm>, ApiError> {
    let format = response_format(fields)?;
    or_guided(fields, format, "response_format")
}

/// Reads a constraint in the fields of llama.cpp's and vLLM's servers, besides the one of the API's own field
/// `name`.
///
/// # Errors
/// Returns an error if a constraint is invalid, or if there are several.
pub(crate) fn or_guided(
    fields: &mut Fields,
    own: Option<AnswerForm>,
    name: &str,
) -> Result<Option<AnswerForm>, ApiError> {
    match (own, guided(fields)?) {
        (Some(_), Some((place, _))) => {
            Err(ApiError::invalid(place, format!("it excludes `{name}`")))
        }
        (own, guided) => Ok(own.or(guided.map(|(_, form)| form))),
    }
}

/// Returns the constraint with the path of its field.
fn guided(fields: &mut Fields) -> Result<Option<(String, AnswerForm)>, ApiError> {
    let mut found = Vec::new();
    for (name, kind) in [
        ("json_schema", "json"),
        ("guided_json", "json"),
        ("guided_regex", "regex"),
        ("guided_choice", "choice"),
        ("guided_grammar", "grammar"),
        ("grammar", "grammar"),
    ] {
        found.extend(one_guided(fields, name, kind)?);
    }
    if let Some(mut inner) = fields.object("structured_outputs")? {
        for kind in ["json", "regex", "choice", "grammar"] {
            found.extend(one_guided(&mut inner, kind, kind)?);
        }
        inner.end()?;
    }
    match (found.pop(), found.pop()) {
        (Some((place, _)), Some((other, _))) => {
            Err(ApiError::invalid(place, format!("it excludes `{other}`")))
        }
        (last, _) => Ok(last),
    }
}

fn one_guided(
    fields: &mut Fields,
    name: &str,
    kind: &str,
) -> Result<Option<(String, AnswerForm)>, ApiError> {
    let place = fields.path(name);
    let refused = |error: GuideError| ApiError::invalid(&place, error.to_string());
    let form = match kind {
        "json" => match fields.take(name) {
            None => return Ok(None),
            // vLLM also accepts the text of a schema.
            Some(Value::String(text)) => {
                let schema = serde_json::from_str(&text);
                let schema =
                    schema.map_err(|error| ApiError::invalid(&place, error.to_string()))?;
                of_schema(&place, &schema)?
            }
            Some(schema) => of_schema(&place, &schema)?,
        },
        "choice" => {
            let Some(choices) = fields.list(name, CHOICES_MAX)? else { return Ok(None) };
            let texts = choices.into_iter().map(|choice| match choice {
                Value::String(text) => Ok(text),
                _ => Err(ApiError::invalid(&place, "a list of texts was expected")),
            });
            let texts = texts.collect::<Result<Vec<_>, _>>()?;
            AnswerForm::text(Guide::choices(&texts).map_err(refused)?)
        }
        _ => {
            let Some(text) = fields.text(name, BODY_BYTES_MAX)? else { return Ok(None) };
            // Clients of llama.cpp's server send an empty grammar for free text.
            if place == "grammar" && text.is_empty() {
                return Ok(None);
            }
            let guide = if kind == "regex" { Guide::regex(&text) } else { Guide::grammar(&text) };
            AnswerForm::text(guide.map_err(refused)?)
        }
    };
    Ok(Some((place, form)))
}

/// Reads `response_format` and returns its output constraint, or `None` for free text. JSON schemas are
/// enforced whether or not `strict` is set.
///
/// # Errors
/// Returns an error if the format is unknown or its schema cannot be compiled.
fn response_format(fields: &mut Fields) -> Result<Option<AnswerForm>, ApiError> {
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
    Ok(AnswerForm { schema: Some(json!({ "type": "object" })), guide })
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
    Ok(AnswerForm { schema: Some(schema.clone()), guide })
}
