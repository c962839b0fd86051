//! Settings of Linux that decide how fast memory and disk are.

use nestling::system::SystemFiles;
use std::path::Path;

/// Whether the system gives large pages to programs that ask: the chosen word of
/// `always [madvise] never`.
pub fn huge_pages(files: &SystemFiles) -> Option<String> {
    let text = files.read("/sys/kernel/mm/transparent_hugepage/enabled")?;
    let (_, rest) = text.split_once('[')?;
    Some(rest.split_once(']')?.0.into())
}

/// Whether the system lets programs use io_uring; none where it has no such setting.
pub fn io_uring_allowed(files: &SystemFiles) -> Option<bool> {
    Some(files.number("/proc/sys/kernel/io_uring_disabled")? == 0)
}

/// The disk that a file is on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// The system's name for it, such as nvme0n1.
    pub name: String,
    /// Bytes that the system reads ahead in files, mapped ones too.
    pub readahead_bytes: Option<u64>,
    /// Bytes of the disk's smallest unit.
    pub block_bytes: Option<u64>,
    /// Whether it has moving parts.
    pub rotates: Option<bool>,
}

/// What the system says of the disk with that device number; none for what is no disk of its own,
/// such as a network's or a file system in memory.
#[cfg(target_os = "linux")]
pub fn disk_of(files: &SystemFiles, path: &Path) -> Option<Disk> {
    use std::os::linux::fs::MetadataExt;
    let device = path.metadata().ok()?.st_dev();
    // As glibc's gnu_dev_major and gnu_dev_minor.
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
    // A partition has its disk's queue.
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
