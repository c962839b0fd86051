//! Seeded simulation of interrupted conversions.
//!
//! Each attempt stops at a random point, its files are truncated, extended or changed, and the next attempt
//! uses another number of threads. The final store equals that of a single attempt.
#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests may panic")]

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use nestling_convert::convert::{ConvertError, ConvertOptions, convert};
use nestling_core::CancelToken;
use nestling_import::Checkpoint;

/// xorshift64*, the same on all machines.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % limit
    }
}

fn checkpoint(name: &str) -> Checkpoint {
    let families = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/families");
    Checkpoint::open(families.join(name)).unwrap()
}

/// Runs one attempt, cancelled after `pieces` progress reports. Returns true if it completed.
fn attempt(source: &Checkpoint, path: &Path, threads: usize, pieces: usize) -> bool {
    let mut options = ConvertOptions::default();
    (options.threads, options.overwrite) = (threads, true);
    let (cancel, mut left) = (CancelToken::new(), pieces);
    let mut progress = |_| {
        left = left.saturating_sub(1);
        if left == 0 {
            cancel.cancel();
        }
    };
    match convert(source, path, &options, &cancel, &mut progress) {
        Ok(_) => true,
        Err(ConvertError::Cancelled) => false,
        Err(error) => panic!("{error}"),
    }
}

/// Damages one of the unfinished files.
fn damage(folder: &Path, random: &mut Random) {
    let files = ["made.nest.partial", "made.nest.journal"];
    let path = folder.join(files[random.below(2)]);
    let Ok(mut bytes) = fs::read(&path) else { return };
    let at = random.below(bytes.len() + 1);
    match random.below(4) {
        0 => bytes.truncate(at),
        1 => bytes.extend(vec![7; random.below(1000)]),
        2 => drop(fs::remove_file(&path)),
        _ => bytes.get_mut(at).into_iter().for_each(|byte| *byte ^= 1 << random.below(8)),
    }
    if path.exists() {
        fs::write(path, bytes).unwrap();
    }
}

fn simulate(seed: u64, source: &Checkpoint, whole: &[u8]) {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("made.nest");
    for _ in 0..random.below(4) {
        attempt(source, &path, 1 + random.below(2), 1 + random.below(60));
        assert!(!path.exists() || fs::read(&path).unwrap() == whole, "there, and not whole");
        damage(folder.path(), &mut random);
    }
    assert!(attempt(source, &path, 1 + random.below(2), usize::MAX));
    assert!(fs::read(&path).unwrap() == whole, "done, and not the same");
}

/// Runs `NESTLING_SEEDS` seeds starting at `NESTLING_FIRST_SEED`.
#[test]
fn attempts_that_are_stopped_end_in_the_same_bytes_by_seed() {
    let folder = tempfile::tempdir().unwrap();
    let sources = ["granite-moe-bias", "qwen3-next-bias"].map(checkpoint);
    let whole = |source: &Checkpoint| {
        let path = folder.path().join("whole.nest");
        assert!(attempt(source, &path, 1, usize::MAX));
        fs::read(path).unwrap()
    };
    let wholes = sources.each_ref().map(whole);
    let number = |name: &str| std::env::var(name).ok().map(|value| value.parse::<u64>().unwrap());
    let first = number("NESTLING_FIRST_SEED").unwrap_or(0);
    for seed in first..first + number("NESTLING_SEEDS").unwrap_or(10) {
        let kind = (seed % 2) as usize;
        let run = AssertUnwindSafe(|| simulate(seed, &sources[kind], &wholes[kind]));
        assert!(catch_unwind(run).is_ok(), "seed {seed}");
    }
}
