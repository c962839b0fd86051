//! Calibrated conversion: reproducibility across threads and interruptions, expert statistics, and texts that
//! are too short.
#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

use std::fs;
use std::path::{Path, PathBuf};

use nestling_convert::calibrate::{CALIBRATION_TOKENS_MIN, CalibrationTokens};
use nestling_convert::convert::{
    Calibration, ConvertError, ConvertOptions, ConvertPhase, ConvertProgress, convert,
};
use nestling_core::{CancelToken, EngineError};
use nestling_formats::store::{GroupId, Store};
use nestling_import::Checkpoint;

fn checkpoint(name: &str) -> Checkpoint {
    Checkpoint::open(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)).unwrap()
}

/// Returns deterministic tokens below `limit`.
fn tokens(limit: u32) -> Calibration {
    let mut state = 1u32;
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) % limit
    };
    let tokens = (0..300).map(next).collect();
    Calibration::Tokens(CalibrationTokens::with_length(tokens, 100).unwrap())
}

fn options(calibration: Calibration, threads: usize) -> ConvertOptions {
    let mut options = ConvertOptions::default();
    (options.calibration, options.threads) = (calibration, threads);
    options
}

fn run(name: &str, path: &Path, options: &ConvertOptions) -> Result<Vec<u8>, ConvertError> {
    convert(&checkpoint(name), path, options, &CancelToken::new(), &mut |_| {})?;
    Ok(fs::read(path).unwrap())
}

#[test]
fn threads_change_no_byte_and_calibration_does() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["tiny-qwen3-moe", "tiny-tied"] {
        let path = |kind: &str| folder.path().join(format!("{name}-{kind}.nest"));
        let one = run(name, &path("one"), &options(tokens(200), 1)).unwrap();
        let three = run(name, &path("three"), &options(tokens(200), 3)).unwrap();
        assert!(one == three, "{name}");
        let plain = run(name, &path("plain"), &options(Calibration::None, 1)).unwrap();
        assert!(one.len() > plain.len(), "what was measured takes room in the index");
        let ids = ["one", "plain"].map(|kind| Store::open(path(kind)).unwrap().id());
        assert_ne!(ids[0], ids[1], "the id covers the calibration");
    }
}

/// Frequencies of a layer sum to the number of experts per token. Experts that no token chose are quantized
/// as well.
#[test]
fn the_store_says_how_experts_are_used() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.nest");
    // A single repeated token: most experts of the first layer are never chosen.
    run("tiny-qwen3-moe", &path, &options(tokens(1), 2)).unwrap();
    let store = Store::open(&path).unwrap();
    let mut layers = std::collections::BTreeMap::<u32, (f32, usize)>::new();
    for group in store.groups() {
        let Some(id) = group.id.expert() else { continue };
        let frequency = group.frequency.unwrap();
        let (sum, unused) = layers.entry(group.id.layer().unwrap()).or_default();
        *sum += frequency;
        *unused += usize::from(frequency == 0.0);
        let square = group.weight_square.unwrap_or(0.0);
        assert!((0.0..=1.0).contains(&square) && (square > 0.0) == (frequency > 0.0), "{id:?}");
    }
    assert!(!layers.is_empty());
    let sums: Vec<f32> = layers.values().map(|(sum, _)| *sum).collect();
    assert!(sums.iter().all(|sum| (sum - sums[0]).abs() < 1e-4 && *sum >= 1.0), "{sums:?}");
    assert!(layers.values().any(|(_, unused)| *unused > 0), "every expert was chosen");
}

/// Dense matrices are measured like experts: all planes of all matrices. The first plane removes most of the
/// error.
#[test]
fn planes_of_dense_matrices_are_measured() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.nest");
    run("tiny-qwen3-moe", &path, &options(tokens(200), 2)).unwrap();
    let store = Store::open(&path).unwrap();
    let mut measured = 0;
    for group in store.groups().iter().filter(|group| matches!(group.id, GroupId::Dense { .. })) {
        assert_eq!(group.error_drops.len(), group.matrices.len());
        for (matrix, drops) in group.matrices.iter().zip(&group.error_drops) {
            let drops = drops.map(Option::unwrap);
            let rest: f32 = drops[1..].iter().sum();
            assert!(drops[0] > rest && rest > 0.0, "{:?} of {}: {drops:?}", matrix.kind, group.id);
            measured += 1;
        }
    }
    assert!(measured >= 4, "{measured}");
}

fn hidden_file(folder: &Path) -> PathBuf {
    folder.join("b.nest.hidden")
}

#[test]
fn an_interrupted_calibration_goes_on_to_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let expected =
        run("tiny-qwen3-moe", &folder.path().join("whole.nest"), &options(tokens(200), 2)).unwrap();
    let checkpoint = checkpoint("tiny-qwen3-moe");
    let path = folder.path().join("b.nest");
    let (mut attempts, mut kept) = (0, 0);
    let report = loop {
        let token = CancelToken::new();
        let mut coded = 0;
        let mut progress = |at: ConvertProgress| {
            coded += usize::from(at.phase == ConvertPhase::Quantizing);
            if coded > 2 + attempts % 2 {
                token.cancel();
            }
        };
        let result = convert(&checkpoint, &path, &options(tokens(200), 1), &token, &mut progress);
        attempts += 1;
        assert!(attempts < 100, "it never ends");
        match result {
            Err(ConvertError::Cancelled) => {}
            result => break result.unwrap(),
        }
        let hidden = hidden_file(folder.path());
        if hidden.exists() {
            kept += 1;
            // A damaged or missing file only costs time.
            let mut bytes = fs::read(&hidden).unwrap();
            bytes[40] ^= 1;
            match kept % 3 {
                1 => fs::write(&hidden, bytes).unwrap(),
                2 => fs::remove_file(&hidden).unwrap(),
                _ => {}
            }
        }
    };
    assert!(attempts > 3 && kept > 2, "{attempts} attempts, {kept} with a file");
    assert!(fs::read(&path).unwrap() == expected);
    let left: Vec<_> =
        fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "nothing else is left: {left:?}");
    let mut seen: Vec<ConvertProgress> = Vec::new();
    let other = folder.path().join("c.nest");
    let uninterrupted =
        convert(&checkpoint, &other, &options(tokens(200), 2), &CancelToken::new(), &mut |at| {
            seen.push(at);
        });
    let uninterrupted = uninterrupted.unwrap();
    // The outputs of the matrices are closer to the source than the weights are.
    assert_eq!(report.errors, uninterrupted.errors);
    let (weighted, plain) = (report.errors.weighted().unwrap(), report.errors.overall().unwrap());
    assert!(weighted < plain, "{weighted} {plain}");
    // Progress counts the bytes of the checkpoint, each once.
    let mut counted = seen.iter().filter(|at| at.phase == ConvertPhase::Quantizing);
    assert!(counted.clone().is_sorted_by_key(|at| at.done_bytes));
    let last = counted.next_back().unwrap();
    assert!(last.total_bytes <= checkpoint.weight_bytes(), "{last:?}");
    assert_eq!(last.done_bytes, last.total_bytes);
}

#[test]
fn texts_that_say_nothing_are_refused() {
    let few = CalibrationTokens::new(vec![1; CALIBRATION_TOKENS_MIN - 1]).unwrap_err();
    assert!(
        matches!(few, EngineError::TooFewTokens { found, .. } if found + 1 == CALIBRATION_TOKENS_MIN)
    );
    assert!(CalibrationTokens::new(Vec::new()).is_err());
    let folder = tempfile::tempdir().unwrap();
    let beyond = CalibrationTokens::new(vec![1_000_000; 300]).unwrap();
    let beyond = options(Calibration::Tokens(beyond), 1);
    let error = run("tiny-tied", &folder.path().join("c.nest"), &beyond).unwrap_err();
    let out = matches!(error, ConvertError::Calibrate(EngineError::TokenOutOfRange { .. }));
    assert!(out, "{error}");
}
