//! `nestling convert`: converts a Hugging Face checkpoint or a GGUF file into a store.

use crate::args::{CalibrationArgs, ConvertArgs, Rotation};
use crate::bytes::ByteSize;
use crate::calibration;
use crate::console::{Console, write_out};
use crate::explain::{explain_convert, explain_import};
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::progress::Progress;
use crate::room;
use crate::stores::open_store;
use nestling::engine::allocation::Allocation;
use nestling::engine::convert::{
    ConvertOptions, ConvertPhase, ConvertProgress, ConvertReport, RotationTrial, SourceBits,
    SourceBlocks, SourceErrors, convert_with_best_rotation, cut_store, estimate_store,
};
use nestling::formats::MatrixKind;
use nestling::import::Checkpoint;
use nestling_hub::{ConvertedModel, StoreCache, is_gguf};
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
    if args.exact {
        options.source_blocks = SourceBlocks::Exact;
    }
    let report = match args.budget {
        Some(budget) => within(args, budget.0, options, console, interrupt)?,
        None => {
            let files =
                Files { checkpoint: &args.checkpoint, store: &args.output, beside_bytes: 0 };
            let rotation = args.quantizer.rotation;
            run(&files, options, &calibrated(args), rotation, console, interrupt)?
        }
    };
    if args.exact {
        console.note(describe_exact(&report.errors));
    }
    if let Some(told) = describe_errors(&report.errors) {
        console.note(told);
    }
    write_out(&format!(
        "{}: {}, id {}, in {:.1?}\n",
        report.path.display(),
        ByteSize(report.store_bytes),
        report.id,
        started.elapsed(),
    ))
}

/// Returns the calibration settings. With `--exact`, codes are copied rather than chosen, so the default is
/// to use no calibration for the remaining matrices.
fn calibrated(args: &ConvertArgs) -> CalibrationArgs {
    if args.exact { calibration::of_gguf(&args.calibration) } else { args.calibration.clone() }
}

/// Describes how many matrices were kept exactly.
fn describe_exact(errors: &SourceErrors) -> String {
    match errors.measured() + errors.unknown() {
        0 => "every matrix is stored exactly as the file has it".into(),
        count => format!(
            "{count} matrices are floats in the file, or in an order that takes their blocks apart: \
             they were quantized, all others are stored exactly as the file has them"
        ),
    }
}

/// Writes a store of at most `budget` bytes from another store or a checkpoint.
fn within(
    args: &ConvertArgs,
    budget: u64,
    options: ConvertOptions,
    console: &Console,
    interrupt: &Interrupt,
) -> Result<ConvertReport> {
    if args.checkpoint.is_file() && !is_gguf(&args.checkpoint) {
        room::check(&args.output, budget)?;
        let cut = cut(&args.checkpoint, &args.output, budget, &options, console, interrupt);
        return Ok(cut?.0);
    }
    if args.output.exists() && !options.overwrite {
        return Err(Failure::new(format!(
            "cannot write {}: it exists already",
            args.output.display()
        ))
        .advise("remove it, give another name, or replace it with --force"));
    }
    let mut whole = args.output.clone().into_os_string();
    whole.push(".whole");
    let whole = PathBuf::from(whole);
    let mut errors = None;
    if !whole.exists() {
        let files = Files { checkpoint: &args.checkpoint, store: &whole, beside_bytes: budget };
        let (calibration, rotation) = (calibrated(args), args.quantizer.rotation);
        let report = run(&files, options.clone(), &calibration, rotation, console, interrupt)?;
        errors = Some(report.errors);
    }
    room::check(&args.output, budget)?;
    let cut = cut(&whole, &args.output, budget, &options, console, interrupt)?;
    let (mut report, allocation) = cut;
    match errors {
        Some(errors) => report.errors = errors.at(&allocation),
        None => console.note(format_args!(
            "the error against the source is unknown: {} is from an earlier attempt",
            whole.display(),
        )),
    }
    std::fs::remove_file(&whole).map_err(|error| Failure::file("remove", &whole, &error))?;
    Ok(report)
}

fn cut(
    whole: &Path,
    destination: &Path,
    budget: u64,
    options: &ConvertOptions,
    console: &Console,
    interrupt: &Interrupt,
) -> Result<(ConvertReport, Allocation)> {
    let store = open_store(whole)?;
    let mut shown = ConvertBar { console, task: None, bar: None };
    let cut = interrupt.guard(|cancel| {
        let mut progress = |at: ConvertProgress| shown.show(&at);
        cut_store(&store, destination, budget, options, cancel, &mut progress)
    });
    drop(shown);
    let (report, allocation) = cut.map_err(|error| explain_convert(&error))?;
    console.note(format_args!("levels by allocation {}", allocation.hash()));
    Ok((report, allocation))
}

/// Converts a download or a GGUF file into Nestling's cache, unless the store already exists.
pub fn once(
    cache: &StoreCache,
    obtained: &ConvertedModel,
    calibration: &CalibrationArgs,
    console: &Console,
    interrupt: &Interrupt,
) -> Result<()> {
    let mut convert = || into_cache(obtained, calibration, console, interrupt);
    cache.convert_once(obtained, console, &mut convert)
}

fn into_cache(
    obtained: &ConvertedModel,
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
    let (checkpoint, store) = (obtained.checkpoint.as_path(), obtained.store.as_path());
    let files = Files { checkpoint, store, beside_bytes: 0 };
    let report = run(&files, ConvertOptions::default(), &how, None, console, interrupt)?;
    if let Some(told) = describe_errors(&report.errors) {
        console.note(told);
    }
    console.note(format_args!(
        "converted into {} ({}); it no longer needs {}",
        report.path.display(),
        ByteSize(report.store_bytes),
        obtained.checkpoint.display(),
    ));
    Ok(())
}

struct Files<'a> {
    checkpoint: &'a Path,
    store: &'a Path,
    /// Number of bytes that will be written next to the store later.
    beside_bytes: u64,
}

fn run(
    files: &Files<'_>,
    mut options: ConvertOptions,
    calibration: &CalibrationArgs,
    rotation: Option<Rotation>,
    console: &Console,
    interrupt: &Interrupt,
) -> Result<ConvertReport> {
    let Files { checkpoint, store: destination, beside_bytes } = *files;
    let checkpoint = Checkpoint::open(checkpoint).map_err(|error| explain_import(&error))?;
    options.calibration = calibration::calibration(calibration, &checkpoint)?;
    if options.overwrite || !destination.exists() {
        let store =
            estimate_store(&checkpoint, &options).map_err(|error| explain_convert(&error))?;
        let stores = if rotation == Some(Rotation::Auto) { 2 } else { 1 };
        room::check(
            destination,
            store.length().saturating_mul(stores).saturating_add(beside_bytes),
        )?;
    }
    let mut shown = ConvertBar { console, task: None, bar: None };
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
        console.note(describe_rotation(&trial));
    }
    Ok(report)
}

/// Describes the error of the written store against the source, each matrix at its highest level. Errors are
/// relative root mean squares.
fn describe_errors(errors: &SourceErrors) -> Option<String> {
    let plain = 100.0 * errors.overall()?;
    let mut text = match errors.weighted() {
        Some(weighted) => format!(
            "output error on the calibration text: {:.2} %{}\n\
             weight error against the source: {plain:.2} % (calibration trades it for output error)",
            100.0 * weighted,
            kinds(errors.weighted_by_kind()),
        ),
        None => format!(
            "weight error against the source: {plain:.2} %{}\n\
             which says nothing of what the model loses: compare stores with `nestling perplexity`",
            kinds(errors.by_kind()),
        ),
    };
    if errors.unknown() > 0 {
        let (known, all) = (errors.measured(), errors.measured() + errors.unknown());
        text += &format!(
            "\n{known} of {all} matrices are counted; the others were coded by an earlier release"
        );
    }
    Some(text)
}

/// Lists the errors of each kind of matrix in parentheses.
fn kinds(errors: impl Iterator<Item = (MatrixKind, bool, f64)>) -> String {
    let shown = errors.map(|(kind, is_expert, error)| {
        let owner = if is_expert { "experts' " } else { "" };
        format!("{owner}{} {:.2}", format!("{kind:?}").to_lowercase(), 100.0 * error)
    });
    format!(" ({})", shown.collect::<Vec<_>>().join(", "))
}

/// Describes the result of the rotation trial in one line.
fn describe_rotation(trial: &RotationTrial) -> String {
    let rows = trial.levels.iter().zip(trial.without.iter().zip(&trial.with));
    let rows: Vec<String> = rows
        .map(|(level, (without, with))| format!("level {level} {without:.5} -> {with:.5}"))
        .collect();
    let chosen = if trial.is_accepted() { "taken" } else { "not taken" };
    let tokens = trial.tokens;
    format!("rotation {chosen}: mean KL on {tokens} tokens kept for it, {}", rows.join(", "))
}

struct ConvertBar<'a> {
    console: &'a Console,
    task: Option<&'static str>,
    bar: Option<Progress>,
}

impl ConvertBar<'_> {
    fn show(&mut self, at: &ConvertProgress) {
        let task = match at.phase {
            ConvertPhase::Hashing => "hashing",
            // These phases alternate for each layer.
            ConvertPhase::Calibrating | ConvertPhase::Quantizing => "converting",
            ConvertPhase::Cutting => "copying",
            ConvertPhase::Judging => "judging",
            _ => "finishing",
        };
        if self.task != Some(task) {
            // The previous bar must be removed before the next one is drawn.
            self.bar = None;
            if task == "converting" && at.done_bytes > 0 {
                let (done, total) = (ByteSize(at.done_bytes), ByteSize(at.total_bytes));
                self.console.note(format_args!(
                    "going on where an earlier conversion stopped: {done} of {total} are done"
                ));
            }
            self.bar = Some(match at.phase {
                ConvertPhase::Judging => Progress::parts(self.console, task),
                ConvertPhase::Finishing => Progress::spinner(self.console, task),
                _ => Progress::bytes(self.console, task, at.total_bytes, at.done_bytes),
            });
            self.task = Some(task);
        }
        if let Some(bar) = &mut self.bar {
            bar.set_total(at.total_bytes);
            bar.set(at.done_bytes);
        }
    }
}
