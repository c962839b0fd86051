//! How much a model should reason: which variables of its chat template say so.

use nestling::Model;
use serde_json::{Map, Value};

/// How much, as the APIs say it.
pub(crate) const EFFORTS: [&str; 7] = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];

/// The variable that takes an effort.
const EFFORT: &str = "reasoning_effort";

/// The variable that takes whether to reason at all.
const SWITCH: &str = "enable_thinking";

/// Whether the chat template has a variable.
pub(crate) fn knows(model: &Model, variable: &str) -> bool {
    model.chat_template().is_some_and(|template| template.names(variable))
}

/// Tells the template an effort, or at least whether to reason, unless the variable is set already. False where it can
/// be told neither.
#[must_use]
pub(crate) fn set_effort(arguments: &mut Map<String, Value>, model: &Model, effort: &str) -> bool {
    let reasons = effort != "none";
    if reasons && knows(model, EFFORT) {
        arguments.entry(EFFORT).or_insert(effort.into());
        return true;
    }
    set_switch(arguments, model, reasons)
}

/// Tells the template whether to reason, unless that is set already. False where it cannot be told.
#[must_use]
pub(crate) fn set_switch(arguments: &mut Map<String, Value>, model: &Model, reasons: bool) -> bool {
    let is_known = knows(model, SWITCH);
    if is_known {
        arguments.entry(SWITCH).or_insert(reasons.into());
    }
    is_known
}

/// Whether the template takes an effort, not only a switch.
pub(crate) fn has_efforts(model: &Model) -> bool {
    knows(model, EFFORT)
}
