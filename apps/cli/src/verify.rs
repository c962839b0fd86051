//! `nestling verify`: compares every byte of a store with its checksums.

use crate::args::VerifyArgs;
use crate::bytes::ByteSize;
use crate::console::{Console, write_out};
use crate::explain::explain_store;
use crate::failure::{Exit, Failure, Result};
use crate::in_place::InPlaceFile;
use crate::interrupt::Interrupt;
use crate::located::NamedModel;
use crate::progress::Progress;
use crate::stores::{OpenedStore, open_store_for, open_store_with};
use crate::template_check::template_fault;
use crate::words::{counted, printable};
use nestling::formats::store::{Digits, VerifyReport};
use std::fmt::Write as _;
use std::ops::ControlFlow;
use std::path::Path;

/// Maximum number of damaged extents that are listed.
const DAMAGE_LINES_MAX: usize = 20;

const NAMES_MAX: usize = 4;

/// Number of bytes after the last tensor that is too large to be padding.
const TRAILING_MUCH: u64 = 4096;

pub fn verify(args: &VerifyArgs, console: &Console, interrupt: &Interrupt) -> Result<()> {
    let named = NamedModel::of_files(args.path.as_ref().or(args.model.as_ref()), &args.hub);
    let path = named.locate(console, interrupt)?.path;
    let store = open_store_with(&path, args.partial)?;
    let (present, whole) = store.lengths();
    let report = undamaged(&path, &store, console, interrupt)?;
    if store.file.is_some() {
        // A run on a GPU may have saved checksums for the layout with separate planes.
        let of_device = open_store_for(&path, args.partial, Digits::Apart)?;
        if of_device.file.as_ref().is_some_and(|file| file.known > 0) {
            undamaged(&path, &of_device, console, interrupt)?;
        }
    }
    match &store.file {
        Some(file) => write_out(&whole_file(&path, file, &report))?,
        None => write_out(&format!(
            "{}: {} extents, {}, no damage\n",
            path.display(),
            report.extents,
            ByteSize(report.bytes),
        ))?,
    }
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

/// Compares a whole store with its checksums. Fails if it is damaged.
fn undamaged(
    path: &Path,
    store: &OpenedStore,
    console: &Console,
    interrupt: &Interrupt,
) -> Result<VerifyReport> {
    let mut bar = Progress::bytes(console, "verifying", store.lengths().0, 0);
    let report = interrupt.guard(|cancel| {
        store.verify(&mut |at| {
            bar.set(at.done_bytes);
            if cancel.is_cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
    });
    drop(bar);
    let report = report.map_err(|error| explain_store(&error))?;
    match report.damage.is_empty() {
        true => Ok(report),
        false => Err(damage(path, &report, console)),
    }
}

/// Describes the checks of a readable GGUF file and their limits.
fn whole_file(path: &Path, file: &InPlaceFile, report: &VerifyReport) -> String {
    let bytes = ByteSize(file.checkpoint.weight_bytes());
    let mut text = format!(
        "{}: {} in {}, no damage found\n\
         every tensor of the model lies where its header says, and was read; all scales are numbers\n",
        path.display(),
        bytes,
        counted(file.checkpoint.files().count(), "file"),
    );
    let _ = match file.known {
        0 => writeln!(
            text,
            "a GGUF file has no checksums: damage before this first read is only found where a scale is \
             not finite; later damage is always found"
        ),
        known => writeln!(
            text,
            "{known} of {} extents were read before and are unchanged",
            report.extents,
        ),
    };
    let unused = file.unused();
    if !unused.is_empty() {
        let count = counted(unused.len(), "tensor");
        let _ =
            writeln!(text, "{count} that the model does not use: not read ({})", first(&unused));
    }
    let trailing = file.trailing_bytes();
    if trailing >= TRAILING_MUCH {
        let _ = writeln!(text, "{} after the last tensor belong to none", ByteSize(trailing));
    }
    text
}

fn first(names: &[&str]) -> String {
    let more = if names.len() > NAMES_MAX { ", ..." } else { "" };
    let names: Vec<_> = names.iter().take(NAMES_MAX).map(|name| printable(name)).collect();
    names.join(", ") + more
}

fn damage(path: &Path, report: &VerifyReport, console: &Console) -> Failure {
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
        .advise("convert or download it again")
}
