use super::{FolderFiles, PageFiles};
use crate::page_store::record::{PageName, StoredKind};
use nestling_core::kv_cache::PrefixKey;
use std::io::ErrorKind;

#[test]
fn files_are_whole_or_not_there_and_their_owners_alone() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("a/pages");
    let files = FolderFiles::open(folder.clone()).unwrap();
    let name = PageName::new(StoredKind::Page, &PrefixKey([1; 32]));
    assert_eq!(files.read(&name, 5).unwrap_err().kind(), ErrorKind::NotFound);
    std::fs::write(folder.join(format!("{name}.page.partial")), b"half").unwrap();
    std::fs::write(folder.join("notes.page"), b"somebody else's").unwrap();
    std::fs::create_dir(folder.join(format!("{}.page", "0".repeat(64)))).unwrap();
    assert!(files.claim().unwrap() && files.claim().unwrap());
    files.write(&name, &[b"on", b"e"]).unwrap();
    assert_eq!(files.read(&name, 3).unwrap(), b"one");
    assert_eq!(files.read(&name, 4).unwrap_err().kind(), ErrorKind::InvalidData);
    let listed = files.list().unwrap();
    assert_eq!(listed.iter().map(|file| (file.name, file.bytes)).collect::<Vec<_>>(), [(name, 3)]);
    #[cfg(unix)]
    for (path, mode) in [(folder.clone(), 0o700), (files.path(&name), 0o600)] {
        use std::os::unix::fs::PermissionsExt;
        let found = std::fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(found & 0o777, mode);
    }
    let other = FolderFiles::open(folder.clone()).unwrap();
    assert!(!other.claim().unwrap(), "one writer at a time");
    drop(files);
    // A child that another test starts has a copy of the lock until it runs its program.
    let waits = || std::thread::sleep(std::time::Duration::from_millis(10));
    assert!((0..500).any(|_| other.claim().unwrap() || {
        waits();
        false
    }));
    assert!(other.contains(&name));
    other.remove(&name).unwrap();
    other.remove(&name).unwrap();
    assert!(!other.contains(&name));
    let mut left: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left.len(), 3, "the lock and what is somebody else's: {left:?}");
}

#[cfg(unix)]
#[test]
fn folders_that_others_may_write_to_are_refused() {
    use std::os::unix::fs::PermissionsExt;
    let root = tempfile::tempdir().unwrap();
    for (mode, allowed) in [(0o777, false), (0o770, false), (0o702, false), (0o755, true)] {
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(root.path(), mode.clone()).unwrap();
        let opened = FolderFiles::open(root.path().to_owned());
        assert_eq!(opened.is_ok(), allowed, "{mode:?}");
        if let Err(error) = opened {
            assert_eq!(error.kind(), ErrorKind::PermissionDenied);
            assert!(error.to_string().contains("other users may write"), "{error}");
        }
    }
}

#[cfg(unix)]
#[test]
fn a_lock_that_is_no_file_is_refused_at_once() {
    let root = tempfile::tempdir().unwrap();
    let files = FolderFiles::open(root.path().join("pages")).unwrap();
    let lock = root.path().join("pages/lock");
    assert!(std::process::Command::new("mkfifo").arg(&lock).status().unwrap().success());
    assert_eq!(files.claim().unwrap_err().kind(), ErrorKind::InvalidInput);
    std::fs::remove_file(&lock).unwrap();
    std::os::unix::fs::symlink(root.path().join("target"), &lock).unwrap();
    assert_eq!(files.claim().unwrap_err().kind(), ErrorKind::InvalidInput);
    assert!(!root.path().join("target").exists());
    std::fs::remove_file(&lock).unwrap();
    assert!(files.claim().unwrap());
}
