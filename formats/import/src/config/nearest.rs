//! How near a configuration of an unknown family is to known ones.

use serde_json::Value;

use super::{FAMILIES, Family, ModelConfig, defaults, keys};
use crate::json::Fields;

/// Keys of a family that a configuration must have for the two to be alike.
const SHARED_MIN: usize = 3;

/// Names that are listed before the rest is counted.
const LISTED_MAX: usize = 6;

/// A known family, and what a configuration has beyond it.
pub(crate) struct Nearest {
    family: &'static Family,
    unknown: Vec<String>,
}

impl Nearest {
    /// The family whose keys are most like those of a configuration, or of its text part, if any is
    /// like them at all.
    pub(crate) fn of(fields: &Fields) -> Option<Self> {
        // Default: a text part that is no object has no keys.
        let text = fields.object("text_config").ok().flatten();
        let parts = [Some(fields), text.as_ref()].into_iter().flatten();
        let all = parts.flat_map(|part| FAMILIES.iter().map(move |family| (part, family)));
        let alike = all.filter_map(|(part, family)| {
            let (shared, unknown) = compare(part, family);
            // What both have counts for it, what only the configuration has against it.
            let likeness = shared.len() as i64 - unknown.len() as i64;
            let score = (likeness, std::cmp::Reverse(family.keys.len()));
            (shared.len() >= SHARED_MIN).then_some((score, Self { family, unknown }))
        });
        // The first of several that are equally near.
        let nearest = alike.reduce(|best, next| if next.0 > best.0 { next } else { best });
        nearest.map(|(_, nearest)| nearest)
    }

    /// What is said of it.
    pub(crate) fn describe(&self) -> String {
        let model_type = self.family.model_type;
        match self.unknown.len() {
            0 => format!("by its keys as {model_type}"),
            _ => format!("as {model_type}, but for the keys {}", listed(&self.unknown)),
        }
    }

    /// The configuration as that family reads it, without what it does not know; none if there is
    /// more to it.
    pub(crate) fn config(&self, fields: &Fields) -> Option<ModelConfig> {
        let model_type = Value::from(self.family.model_type);
        let left_out = |key: &str| key == "architectures" || self.unknown.iter().any(|k| k == key);
        let fields = fields.replaced("model_type", model_type, left_out);
        let fields = defaults::complete(fields, self.family.model_type).ok()?;
        (self.family.read)(&fields).ok()
    }
}

/// The keys of a configuration that a family has, and those that it has not.
fn compare(fields: &Fields, family: &Family) -> (Vec<String>, Vec<String>) {
    let own = fields.members().filter(|(key, value)| !keys::is_plain(key, value));
    own.map(|(key, _)| key.to_owned()).partition(|key| family.keys.contains(&key.as_str()))
}

/// The first names, and how many more there are.
pub(crate) fn listed(names: &[String]) -> String {
    let shown = |name: &String| {
        let clean = name.chars().filter(|c| !c.is_control()).take(80);
        format!("`{}`", clean.collect::<String>())
    };
    let first: Vec<String> = names.iter().take(LISTED_MAX).map(shown).collect();
    match names.len().saturating_sub(LISTED_MAX) {
        0 => first.join(", "),
        rest => format!("{} and {rest} more", first.join(", ")),
    }
}
