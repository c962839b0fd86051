//! Error messages for checkpoints of unknown families, with the most similar known family.

use std::collections::BTreeSet;
use std::path::Path;

use crate::config::nearest::{Nearest, listed};
use crate::json::Fields;
use crate::limits::MAX_CONFIG_BYTES;
use crate::names;
use crate::weight_files::open_weights;
use crate::{ImportError, ModelConfig, ModelShape};

/// Extends the error for an unknown family by a comparison with the most similar family. Differing tensors
/// are listed if weights are available.
pub(super) fn explained(directory: &Path, config: &[u8], error: ImportError) -> ImportError {
    match error {
        ImportError::Unsupported { file, key, found, supported } if key == "model_type" => {
            let differs = differences(directory, &file, config);
            let supported = match differs {
                Some(differs) => format!("{differs}; {supported}"),
                None => supported,
            };
            ImportError::Unsupported { file, key, found, supported }
        }
        error => error,
    }
}

/// Returns `None` if the checkpoint cannot be compared.
fn differences(directory: &Path, file: &str, config: &[u8]) -> Option<String> {
    let fields = Fields::parse(file, config, MAX_CONFIG_BYTES).ok()?;
    let config = Nearest::of(&fields)?.config(&fields)?;
    let (_, tensors) = open_weights(directory).ok()?;
    let expected = expected(&config);
    let naming = names::published(config.architecture);
    let other = tensors
        .keys()
        .filter(|name| !expected.contains(*name) && !(naming.is_redundant)(&config, name));
    let missing = expected.iter().filter(|name| !tensors.contains_key(*name));
    let (other, missing) = (patterns(other), patterns(missing));
    Some(match (other.is_empty(), missing.is_empty()) {
        (true, true) => "with the same tensors".into(),
        (false, true) => format!("with more tensors: {}", listed(&other)),
        (true, false) => format!("without its tensors {}", listed(&missing)),
        (false, false) => {
            format!("with more tensors: {}, without its {}", listed(&other), listed(&missing))
        }
    })
}

/// Returns the tensor names of a model of a known family.
fn expected(config: &ModelConfig) -> BTreeSet<String> {
    let shape = ModelShape::new(config);
    let matrices =
        shape.matrices.iter().flat_map(|matrix| names::matrix_tensors(config, matrix.id));
    let floats = shape.floats.iter().filter_map(|float| names::float_tensor(config, float.id));
    matrices.map(|slice| slice.name).chain(floats.map(|source| source.name)).collect()
}

/// Returns the distinct names with numbers replaced by `N`.
fn patterns<'a>(names: impl Iterator<Item = &'a String>) -> Vec<String> {
    let pattern = |name: &String| {
        let part = |part: &str| match part.parse::<u32>() {
            Ok(_) => "N".to_owned(),
            Err(_) => part.to_owned(),
        };
        name.split('.').map(part).collect::<Vec<_>>().join(".")
    };
    names.map(pattern).collect::<BTreeSet<_>>().into_iter().collect()
}
