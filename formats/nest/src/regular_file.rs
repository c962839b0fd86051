//! Files that are opened to be read at offsets.

use std::fs::{File, Metadata};
use std::io;
use std::path::Path;

/// Opens a file that is one: opening a pipe would wait until somebody writes to it.
///
/// # Errors
/// Of the system, and where the path names something other than a regular file.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let check = |metadata: Metadata| match metadata.is_file() {
        true => Ok(()),
        false => {
            let kind = match metadata.is_dir() {
                true => io::ErrorKind::IsADirectory,
                false => io::ErrorKind::InvalidInput,
            };
            Err(io::Error::new(kind, "it is not a regular file"))
        }
    };
    check(std::fs::metadata(path)?)?;
    let file = File::open(path)?;
    // Somebody may have put something else in its place meanwhile.
    check(file.metadata()?)?;
    Ok(file)
}
