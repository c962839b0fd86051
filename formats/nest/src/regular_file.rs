//! Opening of files for reading at offsets.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::path::Path;

/// Opens a regular file for reading. Anything else is rejected, because opening a pipe would block until it
/// has a writer.
///
/// # Errors
/// System errors; an error if the path is not a regular file.
pub fn open_regular(path: &Path) -> io::Result<File> {
    check(&std::fs::metadata(path)?)?;
    let file = File::open(path)?;
    // The file may have been replaced in the meantime.
    check(&file.metadata()?)?;
    Ok(file)
}

/// Opens a regular file with `options`, for locks and records in folders that other users can write to. Does
/// not follow a symbolic link at the end of the path and does not block on a pipe.
///
/// # Errors
/// System errors; [`io::ErrorKind::InvalidInput`] for a link, a pipe or a device.
pub fn open_own_file(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    #[cfg(unix)]
    {
        use rustix::fs::OFlags;
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
        std::os::unix::fs::OpenOptionsExt::custom_flags(options, flags);
    }
    let file = match options.open(path) {
        Ok(file) => file,
        // The system's own message would mention link loops or missing devices.
        Err(error) => {
            return Err(std::fs::symlink_metadata(path)
                .map_or(Ok(()), |data| check(&data))
                .err()
                .unwrap_or(error));
        }
    };
    check(&file.metadata()?)?;
    Ok(file)
}

fn check(metadata: &Metadata) -> io::Result<()> {
    if metadata.is_file() {
        return Ok(());
    }
    let kind = match metadata.is_dir() {
        true => io::ErrorKind::IsADirectory,
        false => io::ErrorKind::InvalidInput,
    };
    Err(io::Error::new(kind, "it is not a regular file"))
}
