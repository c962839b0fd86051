//! Errors for files of a kind that a command does not accept.

use crate::failure::Failure;
use nestling_hub::{FileKind, SniffedFile};
use std::path::Path;

/// Describes the kind of a file in words that follow "is". Returns `None` if it cannot be read.
pub fn describe(path: &Path) -> Option<String> {
    SniffedFile::at(path).map(SniffedFile::describe)
}

/// Returns the error for a file that is not a checkpoint. Returns `None` if the path is not a file.
pub fn no_checkpoint(path: &Path) -> Option<Failure> {
    let file = SniffedFile::at(path)?;
    let (shown, what) = (path.display(), file.describe());
    Some(match file.kind {
        FileKind::Store => Failure::new(format!("{shown} is a store already"))
            .advise("run it as it is, or give --budget SIZE to make a smaller store of it"),
        FileKind::Safetensors => Failure::new(format!("{shown} is {what}, a part of a checkpoint"))
            .advise("name the folder with config.json, tokenizer.json and *.safetensors"),
        _ => Failure::new(format!(
            "{shown} is {what}, neither a GGUF file nor the folder of a checkpoint"
        ))
        .advise(TAKEN),
    })
}

/// Advice that lists the convertible sources.
pub const TAKEN: &str = "name a GGUF file, or a folder with config.json, tokenizer.json and \
                         *.safetensors, as downloaded from the Hugging Face Hub";
