//! What is said of a checkpoint of an unknown family: which known one it is nearest to, by its tensors
//! too.

use std::collections::BTreeSet;
use std::path::Path;

use crate::config::nearest::{Nearest, listed};
use crate::json::Fields;
use crate::limits::MAX_CONFIG_BYTES;
use crate::names;
use crate::weight_files::open_weights;
use crate::{ImportError, ModelConfig, ModelShape};

/// The refusal of a family, with the tensors by which it differs from the nearest one, where weights
/// are beside the configuration.
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

/// None where nothing can be compared.
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

/// The tensors that a model of a known family has.
fn expected(config: &ModelConfig) -> BTreeSet<String> {
    let shape = ModelShape::new(config);
    let matrices =
        shape.matrices.iter().flat_map(|matrix| names::matrix_tensors(config, matrix.id));
    let floats = shape.floats.iter().filter_map(|float| names::float_tensor(config, float.id));
    matrices.map(|slice| slice.name).chain(floats.map(|source| source.name)).collect()
}

/// Names with `N` in the place of numbers, each once.
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
