//! Rotation trial: converts a checkpoint without and with rotation and keeps the better store.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nestling_formats::Level;
use nestling_formats::nested::InputTransform;
use nestling_formats::store::{Store, StorePlan};
use nestling_import::{Checkpoint, ImportError};

use super::progress::Meter;
use super::{
    Calibration, ConvertError, ConvertOptions, ConvertPhase, ConvertProgress, ConvertReport,
    SourceErrors, check_destination, convert, plan_store, source_hash, work,
};
use crate::calibrate::CalibrationTokens;
use crate::judge::{
    JudgeOpenOptions, JudgeOptions, JudgePaths, JudgeReport, JudgeSet, judge, level_point,
};
use nestling_core::CancelToken;
use nestling_core::kv_cache::KvDtype;
use nestling_cpu::Cpu;
use nestling_levels::dual::LevelMode;

/// Levels that are compared, which are the levels that rotation is meant for.
const LEVELS: [Level; 3] = [Level::L2, Level::L3, Level::L4];

/// Held-out part of the calibration text: one eighth, and at most this number of tokens.
const HELD_OUT: (usize, usize) = (8, 8192);

/// Number of tokens per evaluated sequence.
const SEQUENCE_LENGTH: usize = 512;

/// Effect of rotation on a model, measured on text held out from calibration.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct RotationTrial {
    /// Evaluated levels.
    pub levels: Vec<Level>,
    /// Mean divergence at each level without rotation.
    pub without: Vec<f64>,
    /// Mean divergence at each level with rotation.
    pub with: Vec<f64>,
    /// Number of predicted tokens.
    pub tokens: usize,
}

impl RotationTrial {
    /// Returns the geometric mean over levels of the ratio of divergence with rotation to divergence without.
    pub fn factor(&self) -> f64 {
        let logs = self.with.iter().zip(&self.without).map(|(with, without)| (with / without).ln());
        (logs.sum::<f64>() / self.levels.len().max(1) as f64).exp()
    }

    /// Returns whether rotation lowers the divergence.
    pub fn is_accepted(&self) -> bool {
        self.factor() < 1.0
    }
}

/// Converts a checkpoint without and with rotation of the inputs of experts' `down`, and keeps the better
/// store. Both are evaluated by their weights alone, on the end of the calibration text, which is held out
/// from calibration. The store with the lower divergence at levels 2 to 4 is kept.
///
/// Both stores are located beside the destination until one is chosen. The evaluation holds the unquantized
/// model in memory. `options.rotation` is ignored. A store that an interrupted call finished is reused.
///
/// # Errors
/// Fails with [`ConvertError`] like [`convert`], and with [`ConvertError::Refused`] without calibration and
/// for stores of several files.
pub fn convert_with_best_rotation(
    checkpoint: &Checkpoint,
    destination: &Path,
    options: &ConvertOptions,
    cancel: &CancelToken,
    progress: &mut dyn FnMut(ConvertProgress),
) -> Result<(ConvertReport, RotationTrial), ConvertError> {
    check_destination(destination, options)?;
    let refuse = |reason: &str| {
        let what = "rotation on trial".to_owned();
        Err(ConvertError::Refused { what, reason: reason.into() })
    };
    let Calibration::Tokens(tokens) = &options.calibration else {
        return refuse("it is judged on a part of the calibration text; calibrate with one");
    };
    if options.shard_bytes_max.is_some() {
        return refuse("the store must be one file");
    }
    let (tokens, held_out) = hold_out(tokens)?;
    let mut options = options.clone();
    (options.calibration, options.overwrite) = (Calibration::Tokens(tokens), true);
    let source = source_hash(checkpoint, cancel, &mut Meter::new(progress))?;
    let mut candidate = |rotation, ending: &str, cancel: &CancelToken| {
        options.rotation = rotation;
        let plan = plan_store(checkpoint, source.to_vec(), &options)?;
        let path = beside(destination, ending);
        if !is_made(&path, &plan)? {
            let report = convert(checkpoint, &path, &options, cancel, progress)?;
            return Ok::<_, ConvertError>((path, report.errors));
        }
        Ok((path, SourceErrors::default()))
    };
    let (plain, plain_errors) = candidate(InputTransform::None, ".plain", cancel)?;
    let (rotated, rotated_errors) = candidate(InputTransform::Hadamard, ".rotated", cancel)?;
    let mut judged = |path: &Path| {
        let threads = work::threads(options.threads);
        let mut meter = Meter::new(progress);
        let report = judge_store(path, checkpoint, &held_out, threads, cancel, &mut meter)?;
        let kl = report.rows.iter().map(|row| row.weights_only.kl.mean).collect::<Vec<_>>();
        let levels = report.rows.iter().filter_map(|row| row.level).collect::<Vec<_>>();
        Ok::<_, ConvertError>((levels, kl, report.tokens))
    };
    let (levels, without, tokens) = judged(&plain)?;
    let (_, with, _) = judged(&rotated)?;
    let trial = RotationTrial { levels, without, with, tokens };
    let (kept, dropped, errors) = match trial.is_accepted() {
        true => (rotated, plain, rotated_errors),
        false => (plain, rotated, plain_errors),
    };
    let store = Store::open(&kept)?;
    let report = ConvertReport {
        path: destination.to_owned(),
        id: store.index().id(),
        store_bytes: store.index().length(),
        resumed_bytes: 0,
        errors,
    };
    drop(store);
    let failed = |action| {
        move |source| {
            ConvertError::Checkpoint(ImportError::Io {
                file: destination.display().to_string(),
                action,
                source,
            })
        }
    };
    fs::rename(&kept, destination).map_err(failed("rename"))?;
    fs::remove_file(&dropped).map_err(failed("remove what was not chosen beside"))?;
    Ok((report, trial))
}

/// Splits the tokens into a calibration part and a held-out part.
fn hold_out(tokens: &CalibrationTokens) -> Result<(CalibrationTokens, Vec<u32>), ConvertError> {
    let all = tokens.tokens();
    let (calibration, held_out) =
        all.split_at(all.len() - (all.len() / HELD_OUT.0).min(HELD_OUT.1));
    let calibration =
        CalibrationTokens::with_length(calibration.to_vec(), tokens.sequence_length())?;
    Ok((calibration, held_out.to_vec()))
}

fn beside(destination: &Path, ending: &str) -> PathBuf {
    let mut path: OsString = destination.as_os_str().to_owned();
    path.push(ending);
    path.into()
}

/// Returns whether the store of a plan already exists.
fn is_made(path: &Path, plan: &StorePlan) -> Result<bool, ConvertError> {
    let id = plan.index()?.id();
    Ok(Store::open(path).is_ok_and(|store| store.index().id() == id))
}

/// Returns the divergence of a store's weights at each compared level.
fn judge_store(
    path: &Path,
    checkpoint: &Checkpoint,
    tokens: &[u32],
    threads: usize,
    cancel: &CancelToken,
    meter: &mut Meter<'_>,
) -> Result<JudgeReport, ConvertError> {
    let store = Arc::new(Store::open(path)?);
    let sequence_length = SEQUENCE_LENGTH.min(tokens.len().max(2) - 1);
    let levels = LEVELS.into_iter().filter(|level| *level <= store.level());
    let points = levels.map(|level| level_point(&store, level, None));
    let set = JudgeOpenOptions {
        sequence_length,
        kv_dtype: KvDtype::F32,
        paths: JudgePaths::WeightsOnly,
        streaming: None,
        mode: LevelMode::Strict,
        sample: Vec::new(),
        points: points.collect::<Result<Vec<_>, _>>()?,
    };
    let checkpoint = Checkpoint::open(checkpoint.directory())?;
    let backend = || Ok(Cpu::new(threads));
    let mut models = JudgeSet::open(backend, store, checkpoint, &set, cancel, &mut |_, _| {})?;
    let options = JudgeOptions { sequence_length, sequences_max: None };
    let mut begun = false;
    Ok(judge(models.models(), tokens, &options, cancel, &mut |at| {
        if !std::mem::replace(&mut begun, true) {
            meter.begin(ConvertPhase::Judging, at.total as u64);
        }
        meter.advance(1, None);
    })?)
}
