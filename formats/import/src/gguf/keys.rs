//! Access to the metadata through the keys of the file's family.

use serde_json::{Map, Value, json};

use super::families::{COMMON, EXPERTS, KNOWN};
use super::family::Family;
use super::key::Key;
use super::{GgufMetadata, GgufValue};
use crate::ImportError;

/// The metadata with the keys of the file's family.
pub(super) struct Keys<'a> {
    pub(super) metadata: &'a GgufMetadata,
    pub(super) family: &'static Family,
}

impl Keys<'_> {
    pub(super) fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.family.gguf)
    }

    /// Returns the family's keys and the common keys that it does not replace.
    pub(super) fn all(&self) -> impl Iterator<Item = &'static Key> {
        let own = self.family.keys;
        let is_own = |key: &Key| own.iter().any(|own| own.theirs() == key.theirs());
        let experts = if self.family.is_dense { &[] } else { EXPERTS };
        COMMON.iter().chain(experts).filter(move |key| !is_own(key)).chain(own)
    }

    pub(super) fn refuse_unknown(&self) -> Result<(), ImportError> {
        for (name, value) in self.metadata.iter() {
            let key = name.strip_prefix(self.family.gguf).and_then(|key| key.strip_prefix('.'));
            let Some(key) = key else { continue };
            let mut known = self.all().map(Key::theirs);
            let ignored = KNOWN.contains(&key) || self.family.ignored.contains(&key);
            if !ignored && !known.any(|known| known == key) {
                return Err(ImportError::UnknownOption {
                    file: self.metadata.file().into(),
                    key: name.into(),
                    found: self.metadata.shown(value),
                });
            }
        }
        Ok(())
    }

    /// Returns a value as JSON: a number, a text, a boolean or a list of numbers.
    pub(super) fn value(&self, key: &str) -> Result<Option<Value>, ImportError> {
        let name = self.name(key);
        let Some(value) = self.metadata.get(&name) else { return Ok(None) };
        Ok(Some(match value {
            GgufValue::Integer(_) => json!(self.metadata.unsigned(&name)?),
            GgufValue::Float(_) => json!(self.metadata.number(&name)?),
            GgufValue::Bool(value) => json!(value),
            GgufValue::Text(_) => json!(self.metadata.text(&name)?),
            GgufValue::Array(_) => self.one_of(&name)?,
        }))
    }

    /// Returns the value of a per-layer list, which must be the same for all layers.
    fn one_of(&self, name: &str) -> Result<Value, ImportError> {
        // Default: an absent list counts as empty, which is rejected below.
        let list = self.metadata.numbers(name)?.unwrap_or_default();
        match list.split_first() {
            Some((first, rest)) if rest.iter().all(|value| value == first) => Ok(whole(*first)),
            _ => Err(self.metadata.wrong(name, "one value for all layers")),
        }
    }

    pub(super) fn required(&self, key: &str) -> Result<Value, ImportError> {
        self.value(key)?.ok_or_else(|| self.metadata.wrong(&self.name(key), "a value"))
    }

    pub(super) fn number(&self, key: &str) -> Result<Option<f64>, ImportError> {
        self.metadata.number(&self.name(key))
    }

    pub(super) fn unsigned(&self, key: &str) -> Result<Option<u64>, ImportError> {
        self.metadata.unsigned(&self.name(key))
    }

    pub(super) fn quotient(&self, key: &str, divisor: &str) -> Result<u64, ImportError> {
        let size = |key: &str| {
            let wrong = || self.metadata.wrong(&self.name(key), "a size");
            self.unsigned(key)?.ok_or_else(wrong)
        };
        let (whole, divisor_size) = (size(key)?, size(divisor)?);
        match whole.checked_rem(divisor_size) {
            Some(0) => Ok(whole / divisor_size),
            _ => {
                let expected = format!("a multiple of `{}`, {divisor_size}", self.name(divisor));
                Err(self.metadata.wrong(&self.name(key), &expected))
            }
        }
    }

    /// Returns the kinds of all layers except multi-token prediction layers.
    pub(super) fn layer_kinds(
        &self,
        key: &str,
        names: [&'static str; 2],
    ) -> Result<Option<Vec<&'static str>>, ImportError> {
        let name = self.name(key);
        let Some(values) = self.metadata.numbers(&name)? else { return Ok(None) };
        let layers = usize::try_from(self.layers()?).ok().and_then(|count| values.get(..count));
        let layers = layers.ok_or_else(|| self.metadata.wrong(&name, "a value for every layer"))?;
        Ok(Some(layers.iter().map(|value| names[usize::from(*value != 0.0)]).collect()))
    }

    /// Inserts the values of all layers as `list`, and the first one as `first`.
    pub(super) fn insert_each(
        &self,
        key: &str,
        first: &str,
        list: &str,
        config: &mut Map<String, Value>,
    ) -> Result<(), ImportError> {
        let name = self.name(key);
        if !self.metadata.is_array(&name) {
            config.insert(first.into(), self.required(key)?);
            return Ok(());
        }
        // Default: an absent list counts as too short, which is rejected below.
        let values = self.metadata.numbers(&name)?.unwrap_or_default();
        let values = usize::try_from(self.layers()?).ok().and_then(|count| values.get(..count));
        let values = values.filter(|values| !values.is_empty());
        let values = values.ok_or_else(|| self.metadata.wrong(&name, "a value for every layer"))?;
        config.insert(first.into(), whole(values[0]));
        config.insert(list.into(), values.iter().copied().map(whole).collect());
        Ok(())
    }

    /// Returns the value of a per-layer list, the same for all layers but those with 0.
    pub(super) fn value_of_layers(&self, key: &str) -> Result<f64, ImportError> {
        let name = self.name(key);
        // Default: an absent list counts as empty, which is rejected below.
        let mut list = self.metadata.numbers(&name)?.unwrap_or_default();
        list.retain(|value| *value != 0.0);
        match list.split_first() {
            Some((first, rest)) if rest.iter().all(|value| value == first) => Ok(*first),
            _ => Err(self.metadata.wrong(&name, "one value for all layers but those with 0")),
        }
    }

    /// Returns the number of layers without multi-token prediction layers.
    pub(super) fn layers(&self) -> Result<u64, ImportError> {
        const KEY: &str = "block_count";
        let wrong = || self.metadata.wrong(&self.name(KEY), "a number of layers");
        let all = self.unsigned(KEY)?.ok_or_else(wrong)?;
        // Default: most models have none.
        let further = self.unsigned("nextn_predict_layers")?.unwrap_or(0);
        all.checked_sub(further).ok_or_else(wrong)
    }
}

/// Returns a JSON number, as an integer if possible.
pub(super) fn whole(number: f64) -> Value {
    if number.fract() == 0.0 { json!(number as i64) } else { json!(number) }
}
