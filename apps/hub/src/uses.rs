//! Records of open models and of their times of last use.
//!
//! There is one small file for each opened path. It is named by the path's hash and contains the path. A
//! process holds a shared lock on the file while the model is open, and an exclusive lock while it removes
//! the model. The time of last use is the modification time of the record, so that the model itself stays
//! unchanged.

use crate::error::{HubError, Result};
use nestling_formats::open_own_file;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::fs::{File, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Maximum size of a record in bytes. It contains a path and a file name.
const RECORD_BYTES_MAX: u64 = 64 << 10;

const RECORDS_MAX: usize = 100_000;

const NAME_BYTES: usize = 16;

/// Number of attempts and interval for locking a model that another process may be removing.
const LOOKS: usize = 20;
const LOOK_EVERY: Duration = Duration::from_millis(25);

/// Folder of the records.
#[derive(Clone, Debug)]
pub struct Uses {
    folder: PathBuf,
}

#[derive(Debug, Deserialize, Serialize, PartialEq, Eq)]
struct Record {
    path: PathBuf,
    /// Path of the first-read checksums of a file in place.
    reads: Option<PathBuf>,
}

/// A model that this process has open. Other processes cannot remove it until this is dropped.
#[derive(Debug)]
pub struct ModelLease {
    _file: File,
}

/// A path that was opened at some time.
#[derive(Clone, Debug)]
pub struct KnownUse {
    /// Canonical path.
    pub path: PathBuf,
    /// Path of the first-read checksums of a file in place.
    pub reads: Option<PathBuf>,
    /// Time of last use.
    pub last: Option<SystemTime>,
    /// True if a process has the path open.
    pub is_open: bool,
    /// Path of the record.
    pub(crate) record: PathBuf,
}

impl Uses {
    /// Creates an instance for a folder, which need not exist.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    /// Returns the folder of the records.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Records that a model is open. Without `reads`, an earlier value is kept. Returns `None` if the record
    /// cannot be written.
    ///
    /// # Errors
    /// Returns [`HubError::Failed`] while another process removes the model.
    pub fn begin(&self, path: &Path, reads: Option<&Path>) -> Result<Option<ModelLease>> {
        let Ok(path) = path.canonicalize() else { return Ok(None) };
        let record = Record { reads: reads.map(Path::to_owned), path };
        let Some(mut file) = self.open(&record.path) else { return Ok(None) };
        if !lock_shared(&file) {
            let what = format!("another process removes {}", record.path.display());
            return Err(HubError::new(what).advise("wait until it is finished, or name another"));
        }
        // A lost record only affects the list of models.
        let _ = write(&mut file, &record);
        Ok(Some(ModelLease { _file: file }))
    }

    fn open(&self, path: &Path) -> Option<File> {
        std::fs::create_dir_all(&self.folder).ok()?;
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false);
        open_own_file(&self.folder.join(name_of(path)), &mut options).ok()
    }

    /// Returns all opened paths with readable records.
    pub fn all(&self) -> Vec<KnownUse> {
        let entries = std::fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let mut uses: Vec<KnownUse> =
            entries.take(RECORDS_MAX).filter_map(|entry| read_use(&entry.path())).collect();
        uses.sort_by(|one, other| one.path.cmp(&other.path));
        uses
    }
}

impl KnownUse {
    /// Prevents others from opening the model until the returned file is dropped. Returns `None` if a process
    /// has it open.
    pub(crate) fn claim(&self) -> Option<File> {
        let file = open_own_file(&self.record, File::options().read(true).write(true)).ok()?;
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => None,
            // The file system does not support locks.
            Ok(()) | Err(TryLockError::Error(_)) => Some(file),
        }
    }
}

/// Acquires a shared lock. Returns false if the model is being removed. A process that checks for users holds
/// an exclusive lock for a moment, so the attempt is repeated.
fn lock_shared(file: &File) -> bool {
    for _ in 0..LOOKS {
        match file.try_lock_shared() {
            Err(TryLockError::WouldBlock) => std::thread::sleep(LOOK_EVERY),
            // The file system does not support locks.
            Ok(()) | Err(TryLockError::Error(_)) => return true,
        }
    }
    false
}

fn read_use(record: &Path) -> Option<KnownUse> {
    if record.extension().is_none_or(|ending| ending != "use") {
        return None;
    }
    let file = open_own_file(record, File::options().read(true)).ok()?;
    let last = file.metadata().ok()?.modified().ok();
    let mut text = Vec::new();
    (&file).take(RECORD_BYTES_MAX).read_to_end(&mut text).ok()?;
    let Record { path, reads } = serde_json::from_slice(&text).ok()?;
    let is_open = matches!(file.try_lock(), Err(TryLockError::WouldBlock));
    Some(KnownUse { path, reads, last, is_open, record: record.into() })
}

fn write(file: &mut File, record: &Record) -> std::io::Result<()> {
    let mut old = Vec::new();
    file.take(RECORD_BYTES_MAX).read_to_end(&mut old)?;
    let known = serde_json::from_slice::<Record>(&old).ok();
    let reads = record.reads.clone().or(known.and_then(|known| known.reads));
    let text = serde_json::to_vec(&Record { path: record.path.clone(), reads })?;
    if old != text {
        file.set_len(0)?;
        file.seek(SeekFrom::Start(0))?;
        file.write_all(&text)?;
    }
    file.set_modified(SystemTime::now())
}

fn name_of(path: &Path) -> String {
    let hash = Sha256::digest(path.as_os_str().as_encoded_bytes());
    let mut name = String::new();
    for byte in hash.iter().take(NAME_BYTES) {
        let _ = write!(name, "{byte:02x}");
    }
    name + ".use"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_use_lasts_as_long_as_it_is_held() {
        let folder = tempfile::tempdir().unwrap();
        let model = folder.path().join("a.nest");
        std::fs::write(&model, "x").unwrap();
        let uses = Uses::new(folder.path().join("uses"));
        assert!(uses.all().is_empty());
        let one = uses.begin(&model, None).unwrap().unwrap();
        let two = uses.begin(&model, Some(Path::new("r"))).unwrap().unwrap();
        let three = uses.begin(&model, None).unwrap().unwrap();
        let known = uses.all().remove(0);
        assert_eq!((known.path.as_path(), known.is_open), (&*model.canonicalize().unwrap(), true));
        assert_eq!(known.reads.as_deref(), Some(Path::new("r")));
        assert!(known.last.is_some() && known.claim().is_none());
        drop((one, two, three));
        let known = uses.all().remove(0);
        assert!(!known.is_open);
        // A process that removes the model prevents others from opening it.
        let claim = known.claim().unwrap();
        let refused = uses.begin(&model, None).unwrap_err();
        assert!(refused.to_string().contains("another process removes"), "{refused}");
        drop(claim);
        uses.begin(&model, None).unwrap().unwrap();
        assert!(uses.begin(&folder.path().join("gone"), None).unwrap().is_none());
    }

    #[test]
    fn what_is_no_record_counts_as_nothing() {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in [("a.use", "{"), ("b.use", "[]"), ("c.txt", "{\"path\":\"/\"}")] {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        assert!(Uses::new(folder.path()).all().is_empty());
        assert!(Uses::new(folder.path().join("none")).all().is_empty());
    }
}
