//! GGUF files run in place.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use nestling_convert::convert::ConvertError;
use nestling_convert::in_place::open_in_place;
use nestling_core::EngineError;
use nestling_formats::store::{Digits, Storage};
use nestling_import::{ByteSource, Checkpoint};
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
    let source = in_place(Checkpoint::open(path)?, device)?;
    let mut options = options.clone();
    if device.is_cpu() && options.residence == Residence::Auto {
        options.residence = Residence::Lazy;
    }
    Ok((source, options))
}

/// Opens a GGUF file in storages as a store in place, for a model on `device`: the parts of a split file in their order, or a
/// single one.
///
/// Only the header is read. `nestling::open` does the same for paths.
///
/// ```
/// use nestling::formats::store::{FileStorage, Storage};
/// use nestling::{CancelToken, DeviceOptions, Engine, GenerateOptions, ModelOptions};
/// use std::path::Path;
/// use std::sync::Arc;
///
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/engine/runtime/tests/data/gguf/llama.gguf");
/// let file = FileStorage::open(Path::new(path), 0, None)?;
/// let device = DeviceOptions::default().open()?;
/// let source = nestling::gguf_in_place(vec![Arc::new(file) as Arc<dyn Storage>], &device)?;
/// let engine = Engine::new(Default::default())?;
/// let model = device.open_model(
///     &engine, source, &ModelOptions::default(), &mut |_| {}, &CancelToken::new(),
/// )?;
/// let options = GenerateOptions { max_tokens: Some(4), ..GenerateOptions::greedy() };
/// model.session().generate(vec![3, 1, 4], &options)?.into_text()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Fails with [`EngineError::Import`] or [`EngineError::Store`] if the file is damaged or its model family is
/// not supported. Fails with [`EngineError::NotAModel`] if it cannot run in place.
pub fn gguf_in_place(
    parts: Vec<Arc<dyn Storage>>,
    device: &OpenDevice,
) -> Result<ModelSource, EngineError> {
    let source = |part| Arc::new(StorageBytes(part)) as Arc<dyn ByteSource>;
    in_place(Checkpoint::from_gguf(parts.into_iter().map(source).collect())?, device)
}

/// A storage as the source of a checkpoint's bytes.
struct StorageBytes(Arc<dyn Storage>);

impl ByteSource for StorageBytes {
    fn name(&self) -> String {
        self.0.name()
    }

    fn length(&self) -> u64 {
        self.0.len()
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read_at(offset, out)
    }
}

fn in_place(checkpoint: Checkpoint, device: &OpenDevice) -> Result<ModelSource, EngineError> {
    let digits = if device.is_cpu() { Digits::Merged } else { Digits::Apart };
    let path = checkpoint.directory().to_owned();
    let store = open_in_place(Arc::new(checkpoint), digits);
    Ok(ModelSource::Store(Arc::new(store.map_err(|error| explain(&path, error))?)))
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
