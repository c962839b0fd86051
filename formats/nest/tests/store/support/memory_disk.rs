//! A disk in memory that fails on purpose: at a given operation, when it is full, or by losing unsynced data.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use nestling_formats::store::{Disk, DiskFile};

use super::Random;

/// Failure mode of operations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// A single failed operation; later ones succeed.
    Once(io::ErrorKind),
    /// Failure of all operations from the given one on.
    Sticky(io::ErrorKind),
}

#[derive(Clone, Debug)]
enum Change {
    Write(usize, Vec<u8>),
    Length(usize),
}

#[derive(Clone, Debug, Default)]
struct FileState {
    now: Vec<u8>,
    durable: Vec<u8>,
    pending: Vec<Change>,
    locked: bool,
}

#[derive(Clone, Debug)]
enum NameChange {
    Create(PathBuf, usize),
    Rename(PathBuf, PathBuf),
    Remove(PathBuf),
}

#[derive(Default)]
struct DiskState {
    files: Vec<FileState>,
    names: HashMap<PathBuf, usize>,
    durable_names: HashMap<PathBuf, usize>,
    pending_names: Vec<NameChange>,
    operations: usize,
    fault: Option<(usize, Fault)>,
    bytes_max: Option<usize>,
}

/// The disk; clones share the same state.
#[derive(Clone, Default)]
pub struct MemoryDisk(Arc<Mutex<DiskState>>);

struct MemoryFile {
    disk: MemoryDisk,
    number: usize,
}

impl Change {
    fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Length(length) => bytes.resize(*length, 0),
            Self::Write(at, written) => {
                let end = at + written.len();
                bytes.resize(bytes.len().max(end), 0);
                bytes[*at..end].copy_from_slice(written);
            }
        }
    }
}

impl NameChange {
    fn apply(&self, names: &mut HashMap<PathBuf, usize>) {
        match self {
            Self::Create(path, file) => drop(names.insert(path.clone(), *file)),
            Self::Remove(path) => drop(names.remove(path)),
            Self::Rename(from, to) => {
                if let Some(file) = names.remove(from) {
                    names.insert(to.clone(), file);
                }
            }
        }
    }
}

impl MemoryDisk {
    fn state(&self) -> MutexGuard<'_, DiskState> {
        self.0.lock().unwrap()
    }

    /// Counts an operation and fails if it is selected.
    fn operate(&self) -> io::Result<MutexGuard<'_, DiskState>> {
        let mut state = self.state();
        let number = state.operations;
        state.operations += 1;
        match state.fault {
            Some((at, Fault::Once(kind))) if number == at => Err(kind.into()),
            Some((at, Fault::Sticky(kind))) if number >= at => Err(kind.into()),
            _ => Ok(state),
        }
    }

    /// Selects an operation to fail, counted from this call.
    pub fn fail_at(&self, operation: usize, fault: Fault) {
        let mut state = self.state();
        state.operations = 0;
        state.fault = Some((operation, fault));
    }

    /// Limits the total size of all files in bytes.
    pub fn limit(&self, bytes_max: Option<usize>) {
        self.state().bytes_max = bytes_max;
    }

    pub fn heal(&self) {
        self.state().fault = None;
    }

    pub fn operations(&self) -> usize {
        self.state().operations
    }

    pub fn contents(&self, path: &Path) -> Option<Vec<u8>> {
        let state = self.state();
        Some(state.files[*state.names.get(path)?].now.clone())
    }

    pub fn names(&self) -> Vec<PathBuf> {
        let mut names: Vec<_> = self.state().names.keys().cloned().collect();
        names.sort();
        names
    }

    /// Simulates a power failure: each unsynced write is kept or lost at random, and the last may be torn.
    pub fn lose_power(&self, random: &mut Random) {
        let mut state = self.state();
        for file in &mut state.files {
            let mut bytes = file.durable.clone();
            for change in &file.pending {
                match change {
                    Change::Write(at, written) if random.below(3) == 0 => {
                        let torn = written[..random.below(written.len() + 1)].to_vec();
                        Change::Write(*at, torn).apply(&mut bytes);
                    }
                    change if random.below(2) == 0 => change.apply(&mut bytes),
                    _ => (),
                }
            }
            *file = FileState { now: bytes.clone(), durable: bytes, ..FileState::default() };
        }
        // Renames are kept in order, up to a random one.
        let mut names = state.durable_names.clone();
        let kept = random.below(state.pending_names.len() + 1);
        state.pending_names.iter().take(kept).for_each(|change| change.apply(&mut names));
        state.durable_names = names.clone();
        state.names = names;
        state.pending_names.clear();
    }

    fn change_name(&self, state: &mut DiskState, change: NameChange) {
        change.apply(&mut state.names);
        state.pending_names.push(change);
    }
}

impl Disk for MemoryDisk {
    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let mut state = self.operate()?;
        let number = match state.names.get(path) {
            Some(number) => *number,
            None => {
                state.files.push(FileState::default());
                let number = state.files.len() - 1;
                self.change_name(&mut state, NameChange::Create(path.to_owned(), number));
                number
            }
        };
        Ok(Box::new(MemoryFile { disk: self.clone(), number }))
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        Ok(self.operate()?.names.contains_key(path))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.operate()?;
        if !state.names.contains_key(from) {
            return Err(io::ErrorKind::NotFound.into());
        }
        self.change_name(&mut state, NameChange::Rename(from.to_owned(), to.to_owned()));
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut state = self.operate()?;
        self.change_name(&mut state, NameChange::Remove(path.to_owned()));
        Ok(())
    }

    fn sync_folder_of(&self, _: &Path) -> io::Result<()> {
        let mut state = self.operate()?;
        state.durable_names = state.names.clone();
        state.pending_names.clear();
        Ok(())
    }
}

impl MemoryFile {
    fn change(&self, change: Change) -> io::Result<()> {
        let full = |state: &DiskState| {
            let used = state.files.iter().map(|file| file.now.len()).sum::<usize>();
            state.bytes_max.is_some_and(|limit| used > limit)
        };
        match self.disk.operate() {
            Ok(mut state) => {
                let before = state.files[self.number].now.clone();
                change.apply(&mut state.files[self.number].now);
                // A longer file takes no space until it is written to, as on a real disk.
                if matches!(change, Change::Write(..)) && full(&state) {
                    state.files[self.number].now = before;
                    return Err(io::ErrorKind::StorageFull.into());
                }
                state.files[self.number].pending.push(change);
                Ok(())
            }
            Err(error) => {
                // A failed write may have written its first half.
                if let Change::Write(at, bytes) = change {
                    let half = Change::Write(at, bytes[..bytes.len() / 2].to_vec());
                    let mut state = self.disk.state();
                    half.apply(&mut state.files[self.number].now);
                    state.files[self.number].pending.push(half);
                }
                Err(error)
            }
        }
    }
}

impl DiskFile for MemoryFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.disk.operate()?.files[self.number].now.len() as u64)
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.change(Change::Length(length as usize))
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let state = self.disk.operate()?;
        let bytes = state.files[self.number].now.get(offset as usize..);
        let bytes = bytes.and_then(|bytes| bytes.get(..out.len()));
        out.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.change(Change::Write(offset as usize, bytes.to_vec()))
    }

    fn sync(&self) -> io::Result<()> {
        let operated = self.disk.operate().map(drop);
        let mut state = self.disk.state();
        let file = &mut state.files[self.number];
        // Data that a sync failed to write counts as written afterwards, as on Linux.
        let pending = std::mem::take(&mut file.pending);
        operated?;
        pending.iter().for_each(|change| change.apply(&mut file.durable));
        Ok(())
    }

    fn lock(&self) -> io::Result<bool> {
        let mut state = self.disk.operate()?;
        Ok(!std::mem::replace(&mut state.files[self.number].locked, true))
    }
}

impl Drop for MemoryFile {
    fn drop(&mut self) {
        self.disk.state().files[self.number].locked = false;
    }
}
