//! GGUF files run in place.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use nestling_convert::convert::ConvertError;
use nestling_convert::in_place::open_in_place;
use nestling_core::EngineError;
use nestling_formats::store::Digits;
use nestling_import::Checkpoint;
use nestling_runtime::{ModelOptions, ModelSource, Residence};

use crate::device::OpenDevice;

/// Returns true if a file starts with the GGUF magic.
pub fn is_gguf(path: &Path) -> bool {
    let mut magic = [0; 4];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut magic));
    read.is_ok() && magic == *b"GGUF"
}

/// Opens a GGUF file as a store in place, and returns it with adapted model options.
///
/// On the CPU, P3 and P4 are merged into one digit, and the model opens before all experts are read.
///
/// # Errors
/// Fails with [`EngineError::Import`] or [`EngineError::Store`] if the file is damaged or its model family is
/// not supported. Fails with [`EngineError::NotAModel`] if it cannot run in place.
pub fn source_at(
    path: &Path,
    device: &OpenDevice,
    options: &ModelOptions,
) -> Result<(ModelSource, ModelOptions), EngineError> {
    let digits = if device.is_cpu() { Digits::Merged } else { Digits::Apart };
    let checkpoint = Arc::new(Checkpoint::open(path)?);
    let store = open_in_place(checkpoint, digits).map_err(|error| explain(path, error))?;
    let mut options = options.clone();
    if device.is_cpu() && options.residence == Residence::Auto {
        options.residence = Residence::Lazy;
    }
    Ok((ModelSource::Store(Arc::new(store)), options))
}

fn explain(path: &Path, error: ConvertError) -> EngineError {
    match error {
        ConvertError::Checkpoint(error) => error.into(),
        ConvertError::Store(error) => error.into(),
        ConvertError::Memory(error) => error.into(),
        other => {
            EngineError::NotAModel { path: path.display().to_string(), reason: other.to_string() }
        }
    }
}
