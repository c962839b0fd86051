//! `nestling convert`: from a Hugging Face checkpoint to a store.

use crate::args::{CalibrationArgs, ConvertArgs};
use crate::bytes::ByteSize;
use crate::console::{Console, write_out};
use crate::explain::{explain_import, explain_store};
use crate::failure::{Failure, Result};
use crate::hub::Obtained;
use crate::interrupt::Interrupt;
use crate::progress::Progress;
use nestling::engine::convert::{
    ConvertError, ConvertOptions, ConvertPhase, ConvertProgress, ConvertReport,
};
use nestling::formats::Checkpoint;
use std::path::Path;
use std::time::Instant;

pub fn convert(args: &ConvertArgs, console: &Console, interrupt: &Interrupt) -> Result<()> {
    let started = Instant::now();
    let mut options = ConvertOptions::default();
    options.threads = args.threads.map_or(0, |threads| threads as usize);
    options.overwrite = args.force;
    args.quantizer.apply(&mut options);
    let paths = (args.checkpoint.as_path(), args.output.as_path());
    let report = run(paths, options, &args.calibration, console, interrupt)?;
    if report.resumed_bytes > 0 {
        let resumed = ByteSize(report.resumed_bytes);
        console.note(format_args!("went on from {resumed} of an earlier conversion"));
    }
    write_out(&format!(
        "{}: {}, id {}, in {:.1?}\n",
        report.path.display(),
        ByteSize(report.store_bytes),
        report.id,
        started.elapsed(),
    ))
}

/// Converts a download into Nestling's cache.
pub fn into_cache(obtained: &Obtained, console: &Console, interrupt: &Interrupt) -> Result<()> {
    if let Some(directory) = obtained.store.parent() {
        std::fs::create_dir_all(directory)
            .map_err(|error| Failure::file("make", directory, &error))?;
    }
    console.note("converting the download into a store; this is done once");
    let paths = (obtained.checkpoint.as_path(), obtained.store.as_path());
    let (options, calibration) = (ConvertOptions::default(), CalibrationArgs::default());
    let report = run(paths, options, &calibration, console, interrupt)?;
    console.note(format_args!(
        "converted into {} ({}); the download may be deleted now: {}",
        report.path.display(),
        ByteSize(report.store_bytes),
        obtained.checkpoint.display(),
    ));
    Ok(())
}

fn run(
    (checkpoint, destination): (&Path, &Path),
    mut options: ConvertOptions,
    calibration: &CalibrationArgs,
    console: &Console,
    interrupt: &Interrupt,
) -> Result<ConvertReport> {
    let checkpoint = Checkpoint::open(checkpoint).map_err(|error| explain_import(&error))?;
    options.calibration = crate::calibration::calibration(calibration, &checkpoint)?;
    let mut shown = Shown { console, task: None, bar: None };
    let report = interrupt.guard(|cancel| {
        let mut progress = |at: ConvertProgress| shown.show(&at);
        let convert = nestling::engine::convert::convert;
        convert(&checkpoint, destination, &options, cancel, &mut progress)
    });
    drop(shown);
    report.map_err(|error| explain_convert(&error))
}

/// The bar of what is under way.
struct Shown<'a> {
    console: &'a Console,
    task: Option<&'static str>,
    bar: Option<Progress>,
}

impl Shown<'_> {
    fn show(&mut self, at: &ConvertProgress) {
        // Calibrating and quantizing take turns in one task.
        let (task, now) = match at.phase {
            ConvertPhase::Hashing => ("hashing", "hashing"),
            ConvertPhase::Calibrating => ("converting", "calibrating"),
            ConvertPhase::Quantizing => ("converting", "converting"),
            _ => ("finishing", "finishing"),
        };
        if self.task != Some(task) {
            // The old bar goes before the new one comes.
            self.bar = None;
            self.bar = Some(Progress::bytes(self.console, task, at.total_bytes, at.done_bytes));
            self.task = Some(task);
        }
        if let Some(bar) = &mut self.bar {
            bar.set_message(now);
            bar.set(at.done_bytes);
        }
    }
}

fn explain_convert(error: &ConvertError) -> Failure {
    match error {
        ConvertError::Cancelled => Failure {
            message: "interrupted; the same command goes on where it stopped".into(),
            ..Failure::interrupted()
        },
        ConvertError::Checkpoint(error) => explain_import(error),
        ConvertError::Store(error) => explain_store(error),
        ConvertError::Quantize { .. } => Failure::new(error.to_string())
            .advise("download the checkpoint again; it may be damaged"),
        ConvertError::Refused { reason, .. } if reason.starts_with("it exists") => {
            Failure::sentence(error)
                .advise("remove it, give another name, or replace it with --force")
        }
        other => Failure::sentence(other),
    }
}
