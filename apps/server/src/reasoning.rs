//! Reasoning effort, mapped to variables of the chat template.

use nestling::Model;
use serde_json::{Map, Value};

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

pub(crate) fn has_efforts(model: &Model) -> bool {
    knows(model, EFFORT)
}
