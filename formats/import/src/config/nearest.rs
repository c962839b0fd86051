//! Similarity of an unknown configuration to known families.

use serde_json::Value;

use super::{FAMILIES, Family, ModelConfig, defaults, keys};
use crate::json::Fields;

/// Minimum number of shared keys for a family to count as similar.
const SHARED_MIN: usize = 3;

/// Maximum number of names listed in a message; the rest is counted.
const LISTED_MAX: usize = 6;

/// The most similar known family, and the keys that it does not have.
pub(crate) struct Nearest {
    family: &'static Family,
    unknown: Vec<String>,
}

impl Nearest {
    /// Returns the family with the most similar keys to a configuration or its text part, if any is similar.
    pub(crate) fn of(fields: &Fields) -> Option<Self> {
        // Default: a `text_config` that is not an object has no keys.
        let text = fields.object("text_config").ok().flatten();
        let parts = [Some(fields), text.as_ref()].into_iter().flatten();
        let all = parts.flat_map(|part| FAMILIES.iter().map(move |family| (part, family)));
        let alike = all.filter_map(|(part, family)| {
            let (shared, unknown) = compare(part, family);
            // Shared keys count for the family, unknown keys against it.
            let likeness = shared.len() as i64 - unknown.len() as i64;
            let score = (likeness, std::cmp::Reverse(family.keys.len()));
            (shared.len() >= SHARED_MIN).then_some((score, Self { family, unknown }))
        });
        // Ties are resolved in favour of the first family.
        let nearest = alike.reduce(|best, next| if next.0 > best.0 { next } else { best });
        nearest.map(|(_, nearest)| nearest)
    }

    pub(crate) fn describe(&self) -> String {
        let model_type = self.family.model_type;
        match self.unknown.len() {
            0 => format!("by its keys as {model_type}"),
            _ => format!("as {model_type}, but for the keys {}", listed(&self.unknown)),
        }
    }

    /// Reads the configuration as that family, without the unknown keys. Returns `None` if that fails.
    pub(crate) fn config(&self, fields: &Fields) -> Option<ModelConfig> {
        let model_type = Value::from(self.family.model_type);
        let left_out = |key: &str| key == "architectures" || self.unknown.iter().any(|k| k == key);
        let fields = fields.replaced("model_type", model_type, left_out);
        let fields = defaults::complete(fields, self.family.model_type).ok()?;
        (self.family.read)(&fields).ok()
    }
}

/// Splits the keys of a configuration into those of a family and the others.
fn compare(fields: &Fields, family: &Family) -> (Vec<String>, Vec<String>) {
    let own = fields.members().filter(|(key, value)| !keys::is_plain(key, value));
    own.map(|(key, _)| key.to_owned()).partition(|key| family.keys.contains(&key.as_str()))
}

/// Formats the first names and the number of further ones.
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
