//! GGUF files in place: opened as stores without writing a store file.

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

/// Returns true if a file runs in place: it is a GGUF file, and no calibration was requested.
pub fn is_wanted(path: &Path, asked: &CalibrationArgs) -> bool {
    is_gguf(path) && calibration::is_lighter(asked)
}

/// A GGUF file that is open in place. Checksums of its extents are saved when it is closed.
pub struct InPlaceFile {
    pub checkpoint: Arc<Checkpoint>,
    /// Number of extents whose checksums were known when the file was opened.
    pub known: usize,
    store: Arc<Store>,
    /// `None` if there is no cache directory.
    reads: Option<FirstReads>,
}

/// Returns the layout of P3 and P4 for a device. The CPU uses merged digits, GPUs separate planes.
pub fn digits(device: &OpenDevice) -> Digits {
    if device.is_cpu() { Digits::Merged } else { Digits::Apart }
}

/// Returns how experts become resident. The CPU starts to compute before all experts have been transcoded.
pub fn residence(device: &OpenDevice) -> Residence {
    if device.is_cpu() { Residence::Lazy } else { Residence::Auto }
}

/// Opens a GGUF file as a store without writing one.
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
        // Damage is detected only within this process if there is no cache.
        let _ = self.reads.as_ref().map(|reads| reads.keep(&self.store));
    }
}

/// Total of the tensors of one type.
#[derive(Clone, Copy, Debug, Default)]
pub struct TypeShare {
    pub tensors: usize,
    pub bytes: u64,
}

impl InPlaceFile {
    /// Returns the path of the saved checksums, if there is a cache.
    pub fn reads_file(&self) -> Option<PathBuf> {
        self.reads.as_ref().map(|reads| reads.path(&self.store))
    }

    /// Returns the tensors by type, the type with the most bytes first.
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

    /// Returns the tensors that the model does not use.
    pub fn unused(&self) -> Vec<&str> {
        let shape = self.checkpoint.shape();
        let mut used = BTreeSet::new();
        for matrix in &shape.matrices {
            let place = self.checkpoint.matrix(matrix.id);
            if let Ok(place) = &place {
                used.extend(place.tensors().map(|(name, _)| name.to_owned()));
                used.extend(place.scale_tensors().map(str::to_owned));
            }
        }
        let floats = shape.floats.iter().map(|float| self.checkpoint.float(float.id));
        used.extend(floats.flatten().map(|place| place.name().to_owned()));
        let names = self.checkpoint.tensors().map(|(name, _)| name);
        names.filter(|name| !used.contains(*name)).collect()
    }

    /// Returns the number of bytes after the last tensor of each part, including padding.
    pub fn trailing_bytes(&self) -> u64 {
        let mut ends: BTreeMap<usize, u64> = BTreeMap::new();
        for (_, tensor) in self.checkpoint.tensors() {
            let end = ends.entry(tensor.file).or_default();
            *end = (*end).max(tensor.offset.saturating_add(tensor.length));
        }
        self.checkpoint.weight_bytes().saturating_sub(self.parts_before(&ends))
    }

    /// Returns the size of all parts up to the ends of their last tensors.
    fn parts_before(&self, ends: &BTreeMap<usize, u64>) -> u64 {
        let parts = self.checkpoint.files().enumerate();
        // Default: a part without tensors consists of its header only.
        let end = |(part, path): (usize, &Path)| match ends.get(&part) {
            Some(end) => *end,
            None => path.metadata().map_or(0, |metadata| metadata.len()),
        };
        parts.map(end).sum()
    }
}

/// Returns advice with the command that converts a file into a store.
pub fn instead(path: &Path) -> String {
    format!("make a store of it with `nestling convert --exact {} -o OUT.nest`", path.display())
}

/// Refuses options that a file in place does not support, and warns about options without effect. Each option
/// is given by its name and whether it was used.
pub fn check(
    path: &Path,
    refused: &[(&str, bool)],
    ignored: &[(&str, bool)],
    console: &Console,
) -> Result<()> {
    if let Some((name, _)) = refused.iter().find(|(_, given)| *given) {
        let why = match *name {
            "--load-mode mmap" => "it cannot be mapped",
            _ => "its weights have one level",
        };
        let file = path.display();
        return Err(Failure::new(format!("{file} runs in place, without {name}: {why}"))
            .advise(instead(path)));
    }
    for (name, _) in ignored.iter().filter(|(_, given)| *given) {
        console.warn(format_args!(
            "{name} has no effect on {}: its weights have one level; {}",
            path.display(),
            instead(path),
        ));
    }
    Ok(())
}

/// Warns about options without effect on a file in place, and refuses unsupported ones.
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
            "{} runs in place, with its exact weights, which have one level; a store made by \
             `nestling convert` has lower levels that read less",
            path.display()
        ));
    }
    Ok(())
}

/// Returns the model options for a file in place, which has only one level.
pub fn options(asked: ModelOptions) -> ModelOptions {
    ModelOptions { level: None, weight_budget: None, dual: None, ..asked }
}
