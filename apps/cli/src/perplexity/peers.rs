//! Results of other quantizations, read from a file.

use crate::failure::{Failure, Result};
use serde::Deserialize;
use std::path::Path;

/// A file with sets of results. Each set was measured in its own way.
#[derive(Debug, Deserialize)]
struct PeerFile {
    sets: Vec<PeerSet>,
}

/// Quantizations that were measured in the same way.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct PeerSet {
    pub name: String,
    /// Description of the set.
    pub title: String,
    pub points: Vec<PeerPoint>,
}

/// Result of one quantization.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct PeerPoint {
    pub scheme: String,
    pub bits_per_weight: f64,
    pub kl_mean: f64,
}

impl PeerSet {
    /// Reads the set with the given name, or the first set.
    pub fn read(path: &Path, name: Option<&str>) -> Result<Self> {
        let bytes = std::fs::read(path).map_err(|error| Failure::file("read", path, &error))?;
        let wrong = |reason: String| {
            Failure::new(format!("{}: {reason}", path.display()))
                .advise("see benches/records/peers-quality.json for what such a file holds")
        };
        let file: PeerFile =
            serde_json::from_slice(&bytes).map_err(|error| wrong(error.to_string()))?;
        let names = file.sets.iter().map(|set| set.name.as_str()).collect::<Vec<_>>().join(", ");
        let set = file.sets.into_iter().find(|set| name.is_none_or(|name| set.name == name));
        let set = set.ok_or_else(|| match name {
            Some(name) => wrong(format!("no set `{name}`; there are: {names}")),
            None => wrong("no sets".into()),
        })?;
        let positive = |value: f64| value.is_finite() && value > 0.0;
        match set.points.iter().find(|p| !positive(p.bits_per_weight) || !positive(p.kl_mean)) {
            Some(point) => Err(wrong(format!("{}: figures must be above 0", point.scheme))),
            None => Ok(set),
        }
    }
}
