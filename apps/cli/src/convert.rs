//! `nestling convert`: from a Hugging Face checkpoint or a GGUF file to a store.

use crate::args::{CalibrationArgs, ConvertArgs, Rotation};
use crate::bytes::ByteSize;
use crate::calibration;
use crate::console::{Console, write_out};
use crate::explain::{explain_import, explain_store};
use crate::failure::{Failure, Result};
use crate::hub::Obtained;
use crate::imported::is_gguf;
use crate::interrupt::Interrupt;
use crate::progress::Progress;
use crate::verify::open_store;
use nestling::engine::convert::{
    ConvertError, ConvertOptions, ConvertPhase, ConvertProgress, ConvertReport, RotationTrial,
    SourceBits, SourceErrors, convert_with_best_rotation, cut_store,
};
use nestling::formats::Checkpoint;
use std::path::{Path, PathBuf};
use std::time::Instant;

pub fn convert(args: &ConvertArgs, console: &Console, interrupt: &Interrupt) -> Result<()> {
    let started = Instant::now();
    let mut options = ConvertOptions::default();
    options.threads = args.threads.map_or(0, |threads| threads as usize);
    options.overwrite = args.force;
    if let Some(level) = args.top_level {
        (options.level, options.source_bits) = (level.0, SourceBits::Any);
    }
    args.quantizer.apply(&mut options);
    let report = match args.budget {
        Some(budget) => within(args, budget.0, options, console, interrupt)?,
        None => {
            let paths = (args.checkpoint.as_path(), args.output.as_path());
            run(paths, options, (&args.calibration, args.quantizer.rotation), console, interrupt)?
        }
    };
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

/// A store of at most that many bytes, of another store or of a checkpoint.
fn within(
    args: &ConvertArgs,
    budget: u64,
    options: ConvertOptions,
    console: &Console,
    interrupt: &Interrupt,
) -> Result<ConvertReport> {
    if args.checkpoint.is_file() && !is_gguf(&args.checkpoint) {
        return cut(&args.checkpoint, &args.output, (budget, &options), console, interrupt);
    }
    if args.output.exists() && !options.overwrite {
        return Err(Failure::new(format!("{} exists already", args.output.display()))
            .advise("remove it, give another name, or replace it with --force"));
    }
    let mut whole = args.output.clone().into_os_string();
    whole.push(".whole");
    let whole = PathBuf::from(whole);
    if !whole.exists() {
        let paths = (args.checkpoint.as_path(), whole.as_path());
        let how = (&args.calibration, args.quantizer.rotation);
        run(paths, options.clone(), how, console, interrupt)?;
    }
    let report = cut(&whole, &args.output, (budget, &options), console, interrupt)?;
    std::fs::remove_file(&whole).map_err(|error| Failure::file("remove", &whole, &error))?;
    Ok(report)
}

fn cut(
    whole: &Path,
    destination: &Path,
    (budget, options): (u64, &ConvertOptions),
    console: &Console,
    interrupt: &Interrupt,
) -> Result<ConvertReport> {
    let store = open_store(whole)?;
    let mut shown = Shown { console, task: None, bar: None };
    let cut = interrupt.guard(|cancel| {
        let mut progress = |at: ConvertProgress| shown.show(&at);
        cut_store(&store, destination, budget, options, cancel, &mut progress)
    });
    drop(shown);
    let (report, allocation) = cut.map_err(|error| explain_convert(&error))?;
    console.note(format_args!("levels by allocation {}", allocation.hash()));
    Ok(report)
}

/// Converts a download, or a GGUF file, into Nestling's cache.
pub fn into_cache(
    obtained: &Obtained,
    calibration: &CalibrationArgs,
    console: &Console,
    interrupt: &Interrupt,
) -> Result<()> {
    if let Some(directory) = obtained.store.parent() {
        std::fs::create_dir_all(directory)
            .map_err(|error| Failure::file("make", directory, &error))?;
    }
    console.note("converting the model into a store; this is done once");
    let mut how = calibration.clone();
    if is_gguf(&obtained.checkpoint) {
        how = calibration::of_gguf(calibration);
        if calibration::is_lighter(calibration) {
            console.note(
                "its codes are chosen by the weights alone; --calibration prose looks at what the \
                 model computes too, which is better below level 4 and takes far longer",
            );
        }
    }
    let paths = (obtained.checkpoint.as_path(), obtained.store.as_path());
    let report = run(paths, ConvertOptions::default(), (&how, None), console, interrupt)?;
    console.note(format_args!(
        "converted into {} ({}); it no longer needs {}",
        report.path.display(),
        ByteSize(report.store_bytes),
        obtained.checkpoint.display(),
    ));
    Ok(())
}

fn run(
    (checkpoint, destination): (&Path, &Path),
    mut options: ConvertOptions,
    (calibration, rotation): (&CalibrationArgs, Option<Rotation>),
    console: &Console,
    interrupt: &Interrupt,
) -> Result<ConvertReport> {
    let checkpoint = Checkpoint::open(checkpoint).map_err(|error| explain_import(&error))?;
    options.calibration = calibration::calibration(calibration, &checkpoint)?;
    let mut shown = Shown { console, task: None, bar: None };
    let report = interrupt.guard(|cancel| {
        let mut progress = |at: ConvertProgress| shown.show(&at);
        if rotation == Some(Rotation::Auto) {
            let both = convert_with_best_rotation;
            let found = both(&checkpoint, destination, &options, cancel, &mut progress)?;
            return Ok((found.0, Some(found.1)));
        }
        let convert = nestling::engine::convert::convert;
        Ok((convert(&checkpoint, destination, &options, cancel, &mut progress)?, None))
    });
    drop(shown);
    let (report, trial) = report.map_err(|error| explain_convert(&error))?;
    if let Some(trial) = trial {
        console.note(said(&trial));
    }
    if let Some(told) = told(&report.errors) {
        console.note(told);
    }
    Ok(report)
}

/// How far the store's weights are from the source's: root mean squares, relative.
fn told(errors: &SourceErrors) -> Option<String> {
    let overall = errors.overall()?;
    let mut text = format!("error of the weights against the source: {:.2} %", 100.0 * overall);
    for (at, (kind, is_expert, error)) in errors.by_kind().enumerate() {
        let start = if at == 0 { " (" } else { ", " };
        let owner = if is_expert { "experts' " } else { "" };
        let kind = format!("{kind:?}").to_lowercase();
        text += &format!("{start}{owner}{kind} {:.2}", 100.0 * error);
    }
    Some(text + ")")
}

/// What rotation was found to do, in one line.
fn said(trial: &RotationTrial) -> String {
    let rows = trial.levels.iter().zip(trial.without.iter().zip(&trial.with));
    let rows: Vec<String> = rows
        .map(|(level, (without, with))| format!("level {level} {without:.5} -> {with:.5}"))
        .collect();
    let chosen = if trial.is_accepted() { "taken" } else { "not taken" };
    let tokens = trial.tokens;
    format!("rotation {chosen}: mean KL on {tokens} tokens kept for it, {}", rows.join(", "))
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
            ConvertPhase::Cutting => ("copying", "copying"),
            ConvertPhase::Judging => ("judging", "judging"),
            _ => ("finishing", "finishing"),
        };
        if self.task != Some(task) {
            // The old bar goes before the new one comes.
            self.bar = None;
            self.bar = Some(match at.phase {
                ConvertPhase::Judging => Progress::parts(self.console, task),
                _ => Progress::bytes(self.console, task, at.total_bytes, at.done_bytes),
            });
            self.task = Some(task);
        }
        if let Some(bar) = &mut self.bar {
            bar.set_message(now);
            bar.set_total(at.total_bytes);
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
        ConvertError::Budget { least, .. } => {
            Failure::sentence(error).advise(format!("give --budget {least} or more"))
        }
        other => Failure::sentence(other),
    }
}
