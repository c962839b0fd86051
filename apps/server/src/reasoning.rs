//! Reasoning effort, mapped to variables of the chat template.

use nestling::Model;
use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::field_path::FieldPath;
use crate::fields::Fields;
use crate::limits::{NAME_BYTES_MAX, TOKENS_MAX};

pub(crate) const EFFORTS: [&str; 7] = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];

/// Name of the template variable for the effort.
const EFFORT: &str = "reasoning_effort";

/// Name of the template variable that enables reasoning.
const SWITCH: &str = "enable_thinking";

/// Returns true if the chat template reads a variable.
pub(crate) fn knows(model: &Model, variable: &str) -> bool {
    model.chat_template().is_some_and(|template| template.names(variable))
}

/// Sets the template variable for the effort, or else the one that enables reasoning. Existing values are
/// kept. Returns false if the template has neither.
#[must_use]
pub(crate) fn set_effort(arguments: &mut Map<String, Value>, model: &Model, effort: &str) -> bool {
    let reasons = effort != "none";
    if reasons && knows(model, EFFORT) {
        arguments.entry(EFFORT).or_insert(effort.into());
        return true;
    }
    set_switch(arguments, model, reasons)
}

/// Sets the template variable that enables reasoning. An existing value is kept. Returns false if the
/// template does not have it.
#[must_use]
pub(crate) fn set_switch(arguments: &mut Map<String, Value>, model: &Model, reasons: bool) -> bool {
    let is_known = knows(model, SWITCH);
    if is_known {
        arguments.entry(SWITCH).or_insert(reasons.into());
    }
    is_known
}

/// Reads a reasoning effort and sets the template variable for it. Without such a variable the effort is a
/// hint.
///
/// # Errors
/// Returns an error if the value is not the name of an effort.
pub(crate) fn take_effort(
    fields: &mut Fields,
    name: &str,
    model: &Model,
    arguments: &mut Map<String, Value>,
) -> Result<(), ApiError> {
    let Some(effort) = fields.text(name, NAME_BYTES_MAX)? else { return Ok(()) };
    if !EFFORTS.contains(&effort.as_str()) {
        return Err(fields.invalid(name, format!("one of {} was expected", EFFORTS.join(", "))));
    }
    if set_effort(arguments, model, &effort) || (effort == "none" && !model.capabilities().thinking)
    {
        return Ok(());
    }
    fields.ignore(name)
}

/// Reads the object `reasoning`. Summaries are a hint: reasoning is returned in full.
///
/// # Errors
/// Returns an error if the effort is invalid.
pub(crate) fn take_reasoning(
    fields: &mut Fields,
    model: &Model,
    arguments: &mut Map<String, Value>,
) -> Result<(), ApiError> {
    let Some(mut asked) = fields.object("reasoning")? else { return Ok(()) };
    take_effort(&mut asked, "effort", model, arguments)?;
    asked.end()
}

/// Turns reasoning on or off as the field at `place` requests. On a model that does not reason, a request for
/// reasoning is a hint.
///
/// # Errors
/// Returns an error if the model cannot stop reasoning as requested.
pub(crate) fn switch(
    place: &FieldPath,
    model: &Model,
    arguments: &mut Map<String, Value>,
    reasons: bool,
) -> Result<(), ApiError> {
    let can_reason = model.capabilities().thinking;
    match (set_switch(arguments, model, reasons), reasons, can_reason) {
        (false, false, true) => {
            let message =
                "this model always reasons: its chat template has no option to disable it";
            Err(place.unsupported(message))
        }
        (false, true, false) => place.ignore(),
        _ => Ok(()),
    }
}

/// Reads `thinking` of Anthropic's and other APIs, and sets the template variables for it. On a model that
/// does not reason, a request for reasoning is a hint.
///
/// # Errors
/// Returns an error for an unknown type, and for a model that cannot stop reasoning as requested.
pub(crate) fn take_thinking(
    fields: &mut Fields,
    model: &Model,
    arguments: &mut Map<String, Value>,
) -> Result<(), ApiError> {
    let Some(mut thinking) = fields.object("thinking")? else { return Ok(()) };
    let kind = thinking.required_text("type", NAME_BYTES_MAX)?;
    let reasons = match kind.as_str() {
        "disabled" => false,
        "adaptive" | "enabled" | "auto" => true,
        _ => {
            let message = format!("{kind:?} is not supported: adaptive, enabled or disabled");
            return Err(thinking.unsupported("type", message));
        }
    };
    switch(&fields.at("thinking"), model, arguments, reasons)?;
    take_budget(&mut thinking, model, arguments)?;
    thinking.end()
}

/// Reads the maximum length of the reasoning and sets the template variable for it. Without such a variable
/// the length is a hint.
fn take_budget(
    thinking: &mut Fields,
    model: &Model,
    arguments: &mut Map<String, Value>,
) -> Result<(), ApiError> {
    let (name, variable) = ("budget_tokens", "thinking_budget");
    let Some(budget) = thinking.integer(name, 0..=TOKENS_MAX)? else { return Ok(()) };
    if !knows(model, variable) {
        return thinking.ignore(name);
    }
    arguments.insert(variable.into(), budget.into());
    Ok(())
}
