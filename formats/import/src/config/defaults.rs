//! Defaults and aliases of the keys of a `config.json`, per family, as in transformers. The table is written by
//! `scripts/make_config_defaults.py` and names its version of transformers.

use serde_json::Value;

use crate::ImportError;
use crate::json::Fields;

const FILE: &str = "defaults.json";

const TABLE: &str = include_str!("defaults.json");

/// Returns the fields of a family's configuration with aliases replaced by the keys that the family reads, and with
/// defaults for absent keys.
///
/// # Errors
/// Fails if a key that needs a value is `null`, or if a key and its alias differ.
pub(super) fn complete(fields: Fields, model_type: &str) -> Result<Fields, ImportError> {
    let table = serde_json::from_str::<Value>(TABLE)
        .map_err(|source| ImportError::Json { file: FILE.into(), source })?;
    let family = table.get("families").and_then(|families| families.get(model_type));
    let part = |name: &str| family.and_then(|family| family.get(name));
    let aliases = part("aliases").and_then(Value::as_object);
    let aliases = aliases.into_iter().flatten();
    let aliases = aliases.filter_map(|(alias, key)| Some((alias.as_str(), key.as_str()?)));
    let fields = fields.renamed(aliases)?;
    let not_null = part("not_null").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    for key in not_null.iter().filter_map(Value::as_str) {
        fields.refuse_null(key)?;
    }
    let absent = part("absent").and_then(Value::as_object);
    let absent = absent.into_iter().flatten().map(|(key, value)| (key.clone(), value.clone()));
    Ok(fields.with_defaults(absent.collect()))
}
