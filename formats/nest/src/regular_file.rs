//! Files that are opened to be read at offsets.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::path::Path;

/// Opens a file that is one: opening a pipe would wait until somebody writes to it.
///
/// # Errors
/// Of the system, and where the path names something other than a regular file.
pub fn open_regular(path: &Path) -> io::Result<File> {
    check(&std::fs::metadata(path)?)?;
    let file = File::open(path)?;
    // Somebody may have put something else in its place meanwhile.
    check(&file.metadata()?)?;
    Ok(file)
}

/// Opens a regular file with `options`, as for a lock or a record in a folder that others may write to. Does not follow a link
/// at the end of the path, and does not wait for the other end of a pipe.
///
/// # Errors
/// Of the system; [`io::ErrorKind::InvalidInput`] for a link, a pipe or a device.
pub fn open_own_file(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    #[cfg(unix)]
    {
        use rustix::fs::OFlags;
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
        std::os::unix::fs::OpenOptionsExt::custom_flags(options, flags);
    }
    let file = match options.open(path) {
        Ok(file) => file,
        // The system's own words are about loops of links, or devices that are not there.
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
