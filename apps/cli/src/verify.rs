//! `nestling verify`: every byte of a store against its checksums.

use crate::args::VerifyArgs;
use crate::bytes::ByteSize;
use crate::console::{Console, write_out};
use crate::explain::explain_store;
use crate::failure::{Exit, Failure, Result};
use crate::interrupt::Interrupt;
use crate::progress::Progress;
use crate::template_check::template_fault;
use crate::{in_place, places};
use nestling::formats::store::{Digits, OpenOptions, Store, VerifyReport};
use nestling_hub::is_gguf;
use std::ops::ControlFlow;
use std::path::PathBuf;

/// Damage that is listed one by one.
const DAMAGE_LINES_MAX: usize = 20;

pub fn verify(args: &VerifyArgs, console: &Console, interrupt: &Interrupt) -> Result<()> {
    let path = store_path(args.path.as_ref().or(args.model.as_ref()))?;
    let store = open_store_with(&path, args.partial)?;
    let (present, whole) = store.lengths();
    let mut bar = Progress::bytes(console, "verifying", present, 0);
    let report = interrupt.guard(|cancel| {
        store.verify(&mut |at| {
            bar.set(at.done_bytes);
            if cancel.is_cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
    });
    drop(bar);
    let report = report.map_err(|error| explain_store(&error))?;
    if !report.damage.is_empty() {
        return Err(damage(&path, &report, console));
    }
    write_out(&format!(
        "{}: {} extents, {}, no damage\n",
        path.display(),
        report.extents,
        ByteSize(report.bytes),
    ))?;
    if let Some(fault) = template_fault(&store)? {
        write_out(&format!("the chat template cannot be used: {fault}\n"))?;
    }
    if present < whole {
        write_out(&format!(
            "the store is complete up to level {} ({} of {})\n",
            store.level(),
            ByteSize(present),
            ByteSize(whole),
        ))?;
    }
    Ok(())
}

fn damage(path: &std::path::Path, report: &VerifyReport, console: &Console) -> Failure {
    for what in report.damage.iter().take(DAMAGE_LINES_MAX) {
        console.line(what);
    }
    let more = report.damage.len().saturating_sub(DAMAGE_LINES_MAX);
    if more > 0 {
        console.line(format_args!("... and {more} more"));
    }
    let count = report.damage.len();
    let things = if count == 1 { "1 place is".into() } else { format!("{count} places are") };
    Failure { exit: Exit::Damaged, ..Failure::new(format!("{}: {things} damaged", path.display())) }
        .advise("convert or download the store again")
}

/// The store that was named, or the bundled one.
pub fn store_path(given: Option<&PathBuf>) -> Result<PathBuf> {
    given.map_or_else(places::bundled_store, |path| Ok(path.clone()))
}

pub fn open_store(path: &std::path::Path) -> Result<Store> {
    open_store_with(path, false)
}

/// A store; of one that was cut within a section, what is before that, if `partial` allows it.
pub fn open_store_with(path: &std::path::Path, partial: bool) -> Result<Store> {
    if path.is_dir() {
        return Err(Failure::new(format!("{} is a folder, not a store", path.display()))
            .advise("make a store of a checkpoint with `nestling convert HF_DIR -o OUT.nest`"));
    }
    if is_gguf(path) {
        return in_place::open(path, Digits::Merged);
    }
    let options = OpenOptions { partial, ..OpenOptions::default() };
    Store::open_with(path, &options).map_err(|error| explain_store(&error))
}
