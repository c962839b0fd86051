//! Linux settings that affect the speed of memory and disk.

use nestling::system::SystemFiles;
use std::path::Path;

/// Returns the mode of transparent huge pages: the selected word of `always [madvise] never`.
pub fn huge_pages(files: &SystemFiles) -> Option<String> {
    let text = files.read("/sys/kernel/mm/transparent_hugepage/enabled")?;
    let (_, rest) = text.split_once('[')?;
    Some(rest.split_once(']')?.0.into())
}

/// Returns true if the system allows io_uring, or `None` if it has no such setting.
pub fn io_uring_allowed(files: &SystemFiles) -> Option<bool> {
    Some(files.number("/proc/sys/kernel/io_uring_disabled")? == 0)
}

/// The disk that stores a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// Device name, such as nvme0n1.
    pub name: String,
    /// Readahead of the system in bytes; also applies to mapped files.
    pub readahead_bytes: Option<u64>,
    /// Logical block size in bytes.
    pub block_bytes: Option<u64>,
    /// True for rotating disks.
    pub rotates: Option<bool>,
}

/// Returns the properties of the disk that stores a file. Returns `None` if there is no local disk, as for
/// network file systems or file systems in memory.
#[cfg(target_os = "linux")]
pub fn disk_of(files: &SystemFiles, path: &Path) -> Option<Disk> {
    use std::os::linux::fs::MetadataExt;
    let device = path.metadata().ok()?.st_dev();
    // Same computation as glibc's gnu_dev_major and gnu_dev_minor.
    let major = ((device >> 32) & 0xffff_f000) | ((device >> 8) & 0xfff);
    let minor = ((device >> 12) & 0xffff_ff00) | (device & 0xff);
    disk(files, &format!("{major}:{minor}"))
}

#[cfg(not(target_os = "linux"))]
pub fn disk_of(_: &SystemFiles, _: &Path) -> Option<Disk> {
    None
}

#[cfg(any(target_os = "linux", test))]
fn disk(files: &SystemFiles, number: &str) -> Option<Disk> {
    let place = format!("/sys/dev/block/{number}");
    let event = files.read(format!("{place}/uevent"))?;
    let name = event.lines().find_map(|line| line.strip_prefix("DEVNAME="))?;
    // A partition uses the queue of its disk.
    let setting = |name: &str| {
        let own = files.number(format!("{place}/queue/{name}"));
        own.or_else(|| files.number(format!("{place}/../queue/{name}")))
    };
    Some(Disk {
        name: name.into(),
        readahead_bytes: setting("read_ahead_kb").map(|kibibytes| kibibytes * 1024),
        block_bytes: setting("logical_block_size"),
        rotates: setting("rotational").map(|number| number != 0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_where_they_are() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let files = SystemFiles::below(root.path());
        assert_eq!((huge_pages(&files), io_uring_allowed(&files)), (None, None));
        write("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
        write("proc/sys/kernel/io_uring_disabled", "2\n");
        assert_eq!(huge_pages(&files).as_deref(), Some("madvise"));
        assert_eq!(io_uring_allowed(&files), Some(false));
        assert_eq!(disk(&files, "254:0"), None);
        write("sys/dev/block/254:0/uevent", "MAJOR=254\nDEVNAME=vda\n");
        write("sys/dev/block/254:0/queue/read_ahead_kb", "128\n");
        write("sys/dev/block/254:0/queue/logical_block_size", "512\n");
        let expected = Disk {
            name: "vda".into(),
            readahead_bytes: Some(128 << 10),
            block_bytes: Some(512),
            rotates: None,
        };
        assert_eq!(disk(&files, "254:0"), Some(expected));
    }
}
