//! GGUF files where they lie: opened as stores that are written nowhere.

use crate::args::{CalibrationArgs, LoadModeArg, ModelArgs, ResourceArgs};
use crate::console::Console;
use crate::explain::{explain_convert, explain_import};
use crate::failure::{Failure, Result};
use crate::{calibration, hub};
use nestling::OpenDevice;
use nestling::engine::in_place::open_in_place;
use nestling::engine::{ModelOptions, Residence};
use nestling::formats::store::{Digits, Store};
use nestling::import::Checkpoint;
use nestling_hub::{FirstReads, is_gguf};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Whether a file runs where it lies: nothing was asked of its conversion.
pub fn is_wanted(path: &Path, asked: &CalibrationArgs) -> bool {
    is_gguf(path) && calibration::is_lighter(asked)
}

/// A GGUF file that is open where it lies. What was read of it is remembered when it is closed.
pub struct InPlaceFile {
    pub checkpoint: Arc<Checkpoint>,
    /// Extents whose checksums were known when it was opened.
    pub known: usize,
    store: Arc<Store>,
    /// None where there is no cache.
    reads: Option<FirstReads>,
}

/// How P3 and P4 lie for a device: the CPU computes with both as one digit.
pub fn digits(device: &OpenDevice) -> Digits {
    if device.is_cpu() { Digits::Merged } else { Digits::Apart }
}

/// Where the experts of a file are: the CPU computes before all of them are planes.
pub fn residence(device: &OpenDevice) -> Residence {
    if device.is_cpu() { Residence::Lazy } else { Residence::Auto }
}

/// The store that a file is, without one being written.
pub fn open(path: &Path, digits: Digits) -> Result<(Arc<Store>, InPlaceFile)> {
    let checkpoint = Checkpoint::open(path).map_err(|error| explain_import(&error))?;
    let checkpoint = Arc::new(checkpoint);
    let store =
        open_in_place(Arc::clone(&checkpoint), digits).map_err(|error| explain_convert(&error))?;
    let (store, reads) = (Arc::new(store), hub::first_reads().ok());
    let known = reads.as_ref().map_or(0, |reads| reads.recall(&store));
    let file = InPlaceFile { checkpoint, known, store: Arc::clone(&store), reads };
    Ok((store, file))
}

impl Drop for InPlaceFile {
    fn drop(&mut self) {
        // Where nothing can be kept, damage is seen within a process alone.
        let _ = self.reads.as_ref().map(|reads| reads.keep(&self.store));
    }
}

/// Tensors of one type.
#[derive(Clone, Copy, Debug, Default)]
pub struct TypeShare {
    pub tensors: usize,
    pub bytes: u64,
}

impl InPlaceFile {
    /// Where is kept what was read of it, where there is a cache.
    pub fn reads_file(&self) -> Option<PathBuf> {
        self.reads.as_ref().map(|reads| reads.path(&self.store))
    }

    /// Tensors by type, the type with most bytes first.
    pub fn types(&self) -> Vec<(&'static str, TypeShare)> {
        let mut shares: BTreeMap<&'static str, TypeShare> = BTreeMap::new();
        for (_, tensor) in self.checkpoint.tensors() {
            let share = shares.entry(tensor.element.name()).or_default();
            share.tensors += 1;
            share.bytes += tensor.length;
        }
        let mut shares: Vec<_> = shares.into_iter().collect();
        shares.sort_by_key(|(_, share)| std::cmp::Reverse(share.bytes));
        shares
    }

    /// Tensors that the model does not use.
    pub fn unused(&self) -> Vec<&str> {
        let shape = self.checkpoint.shape();
        let mut used = BTreeSet::new();
        for matrix in &shape.matrices {
            let place = self.checkpoint.matrix(matrix.id);
            used.extend(
                place.iter().flat_map(|place| place.tensors()).map(|(name, _)| name.to_owned()),
            );
        }
        let floats = shape.floats.iter().map(|float| self.checkpoint.float(float.id));
        used.extend(floats.flatten().map(|place| place.name().to_owned()));
        let names = self.checkpoint.tensors().map(|(name, _)| name);
        names.filter(|name| !used.contains(*name)).collect()
    }

    /// Bytes after the last tensor of each part, padding included.
    pub fn trailing_bytes(&self) -> u64 {
        let mut ends: BTreeMap<usize, u64> = BTreeMap::new();
        for (_, tensor) in self.checkpoint.tensors() {
            let end = ends.entry(tensor.file).or_default();
            *end = (*end).max(tensor.offset.saturating_add(tensor.length));
        }
        self.checkpoint.weight_bytes().saturating_sub(self.parts_before(&ends))
    }

    /// Bytes of all parts up to the ends of their last tensors.
    fn parts_before(&self, ends: &BTreeMap<usize, u64>) -> u64 {
        let parts = self.checkpoint.files().enumerate();
        // Default: a part without tensors is its header alone.
        let end = |(part, path): (usize, &Path)| match ends.get(&part) {
            Some(end) => *end,
            None => path.metadata().map_or(0, |metadata| metadata.len()),
        };
        parts.map(end).sum()
    }
}

/// The command that makes a store of a file.
pub fn instead(path: &Path) -> String {
    format!("make a store of it with `nestling convert --exact {} -o OUT.nest`", path.display())
}

/// Refuses what a file in place cannot do at all, and warns of what has no effect on it: options by
/// their names, and whether they were given.
pub fn check(
    path: &Path,
    refused: &[(&str, bool)],
    ignored: &[(&str, bool)],
    console: &Console,
) -> Result<()> {
    if let Some((name, _)) = refused.iter().find(|(_, given)| *given) {
        let why = match *name {
            "--load-mode mmap" => "it cannot be mapped",
            _ => "its experts are read whole, at one level",
        };
        let file = path.display();
        return Err(Failure::new(format!("{file} runs where it lies, without {name}: {why}"))
            .advise(instead(path)));
    }
    for (name, _) in ignored.iter().filter(|(_, given)| *given) {
        console.warn(format_args!(
            "{name} has no effect on {}: its experts are read whole; {}",
            path.display(),
            instead(path),
        ));
    }
    Ok(())
}

/// Says what a file in place cannot do that a store can, and refuses what it cannot do at all.
pub fn tell(
    path: &Path,
    model: &ModelArgs,
    resources: &ResourceArgs,
    console: &Console,
) -> Result<()> {
    let refused = [
        ("--load-mode mmap", resources.load_mode == LoadModeArg::Mmap),
        ("--weight-budget", model.weight_budget.is_some()),
    ];
    let ignored = [
        ("--level", model.level.is_some()),
        ("--mean-level", model.mean_level.is_some()),
        ("--elastic", model.elastic),
    ];
    check(path, &refused, &ignored, console)?;
    if ignored.iter().all(|(_, given)| !given) {
        console.note(format_args!(
            "{} runs where it lies, exactly; its experts are read whole: `nestling convert` makes a \
             store whose lower levels read less",
            path.display()
        ));
    }
    Ok(())
}

/// What a model of a file in place is opened with: it has one level.
pub fn options(asked: ModelOptions) -> ModelOptions {
    ModelOptions { level: None, weight_budget: None, dual: None, ..asked }
}
