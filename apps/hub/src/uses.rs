//! Which models are open in some process, and when each was opened last.
//!
//! One small file for each path that was opened, named by the path's hash, with the path in it. A process with the model
//! open holds a shared lock on the file; one that removes it holds the lock alone. The file's own time is that of
//! the last use, so that nothing about the model itself changes.

use crate::error::{HubError, Result};
use nestling_formats::open_own_file;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::fs::{File, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Largest file of a use: a path, and the name of a file.
const RECORD_BYTES_MAX: u64 = 64 << 10;

/// Most files that are looked at.
const RECORDS_MAX: usize = 100_000;

/// Bytes of the hash that names a file.
const NAME_BYTES: usize = 16;

/// How often, and after how long each time, it is tried to open a model that somebody may be removing.
const LOOKS: usize = 20;
const LOOK_EVERY: Duration = Duration::from_millis(25);

/// Where uses are remembered.
#[derive(Clone, Debug)]
pub struct Uses {
    folder: PathBuf,
}

/// What a file of a use says.
#[derive(Debug, Deserialize, Serialize, PartialEq, Eq)]
struct Record {
    path: PathBuf,
    /// Where the first reads of a file in place are kept.
    reads: Option<PathBuf>,
}

/// A model that this process has open; until it is dropped nobody removes it.
#[derive(Debug)]
pub struct Use {
    _file: File,
}

/// A path that was opened once.
#[derive(Clone, Debug)]
pub struct KnownUse {
    /// The path, without links in it.
    pub path: PathBuf,
    /// Where the first reads of a file in place are kept.
    pub reads: Option<PathBuf>,
    /// When it was opened last.
    pub last: Option<SystemTime>,
    /// Whether some process has it open.
    pub is_open: bool,
    /// The file that says so.
    pub(crate) record: PathBuf,
}

impl Uses {
    /// Those that a folder remembers, which need not be there yet.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    /// Folder of the records.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Notes that a model is open from now on; without `reads` what was said of them earlier stays. None where nothing
    /// can be written there.
    ///
    /// # Errors
    /// [`HubError::Failed`] while another process removes the model.
    pub fn begin(&self, path: &Path, reads: Option<&Path>) -> Result<Option<Use>> {
        let Ok(path) = path.canonicalize() else { return Ok(None) };
        let record = Record { reads: reads.map(Path::to_owned), path };
        let Some(mut file) = self.open(&record.path) else { return Ok(None) };
        if !lock_shared(&file) {
            let what = format!("another process removes {}", record.path.display());
            return Err(HubError::new(what).advise("wait until it is finished, or name another"));
        }
        // What is not remembered costs no more than a line of a list.
        let _ = write(&mut file, &record);
        Ok(Some(Use { _file: file }))
    }

    fn open(&self, path: &Path) -> Option<File> {
        std::fs::create_dir_all(&self.folder).ok()?;
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false);
        open_own_file(&self.folder.join(name_of(path)), &mut options).ok()
    }

    /// All paths that were opened, as far as their files can be read.
    pub fn all(&self) -> Vec<KnownUse> {
        let entries = std::fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let mut uses: Vec<KnownUse> =
            entries.take(RECORDS_MAX).filter_map(|entry| known(&entry.path())).collect();
        uses.sort_by(|one, other| one.path.cmp(&other.path));
        uses
    }
}

impl KnownUse {
    /// Keeps others from opening the model until the file is dropped; none where some process has it open.
    pub(crate) fn claim(&self) -> Option<File> {
        let file = open_own_file(&self.record, File::options().read(true).write(true)).ok()?;
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => None,
            // A file system without locks.
            Ok(()) | Err(TryLockError::Error(_)) => Some(file),
        }
    }
}

/// Whether nobody removes the model. Who only looks whether it is open holds the lock alone, too, for a moment.
fn lock_shared(file: &File) -> bool {
    for _ in 0..LOOKS {
        match file.try_lock_shared() {
            Err(TryLockError::WouldBlock) => std::thread::sleep(LOOK_EVERY),
            // A file system without locks.
            Ok(()) | Err(TryLockError::Error(_)) => return true,
        }
    }
    false
}

fn known(record: &Path) -> Option<KnownUse> {
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
        // One that removes it keeps others from opening it.
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
