//! Warnings about options without effect for this model or machine, and errors for contradictory options.

use crate::args::{LoadModeArg, ModelArgs, ResourceArgs};
use crate::bytes::Units;
use crate::console::Console;
use crate::failure::{Failure, Result};
use crate::words::counted;
use nestling::Level;
use nestling::system::{MemoryState, SystemFiles};
use std::path::Path;

/// Checks that the options do not contradict each other.
///
/// # Errors
/// Returns an error if the mean level is above the highest level.
pub fn refuse_contradictions(model: &ModelArgs) -> Result<()> {
    match (model.mean_level, model.level) {
        (Some(mean), Some(level)) if mean > f32::from(level.0.bits()) => {
            Err(Failure::usage(format!("--mean-level {mean} is above --level {}", level.0))
                .advise("raise --level, which is the highest level of any expert, or omit it"))
        }
        _ => Ok(()),
    }
}

/// Warns about options without effect, before the model is opened.
pub fn of_options(model: &ModelArgs, resources: &ResourceArgs, path: &Path, console: &Console) {
    if path.is_dir() {
        let given = [
            ("--level", model.level.is_some()),
            ("--mean-level", model.mean_level.is_some()),
            ("--elastic", model.elastic),
            ("--weight-budget", model.weight_budget.is_some()),
            ("--partial", model.partial),
            ("--load-mode mmap", resources.load_mode == LoadModeArg::Mmap),
        ];
        for (name, _) in given.into_iter().filter(|(_, given)| *given) {
            console.warn(format_args!("{name} has no effect: a checkpoint runs unquantized"));
        }
    }
    let processors = std::thread::available_parallelism().map_or(usize::MAX, usize::from);
    if let Some(threads) = resources.threads.filter(|threads| *threads as usize > processors) {
        let processors = counted(processors, "processor");
        console.warn(format_args!("-t {threads} is more than this program has: {processors}"));
    }
    let memory = MemoryState::read(&SystemFiles::default());
    if let (Some(given), Some(memory)) = (resources.memory, memory)
        && given.0 > memory.total_bytes
    {
        let units = Units::of_typed(given.0);
        let (given, all) = (units.show(given.0), units.show(memory.total_bytes));
        console.warn(format_args!("--memory {given} is more than this machine has: {all}"));
    }
}

/// Warns if the model's highest level is below a requested level.
pub fn of_level(model: &ModelArgs, held: Option<Level>, console: &Console) {
    if let (Some(mean), Some(held)) = (model.mean_level, held)
        && mean > f32::from(held.bits())
    {
        console
            .warn(format_args!("--mean-level {mean} is above what the store holds: {held} bits"));
    }
}
