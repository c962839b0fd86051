//! The GPU kit: tests and measurements of a machine with a GPU in ten minutes, collected in one JSON file.
//! See benches/gpu/README.md.
#![expect(clippy::print_stderr, reason = "a program says how far it is")]

mod libtest;
mod plan;
mod process;
mod record;
mod run;

use std::env;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};

use crate::plan::{Action, Machine};
use crate::record::Record;
use crate::run::{Outcome, Runner};

const USAGE: &str = "usage: run [--dry] [--seconds N] [--only WORD] [--out FOLDER]
  --dry        without a GPU: the emulated device and Vulkan in software, small shapes, few cases; its
               figures mean nothing
  --seconds N  stop after so long; 580 by default
  --only WORD  only steps whose names have this in them
  --out FOLDER where result.json goes; gpu-kit-result by default";

#[derive(Debug, PartialEq, Eq)]
struct Options {
    is_dry: bool,
    seconds: u64,
    only: Option<String>,
    out: PathBuf,
}

impl Options {
    fn parse(mut words: impl Iterator<Item = String>) -> Option<Self> {
        let mut options =
            Self { is_dry: false, seconds: 580, only: None, out: "gpu-kit-result".into() };
        while let Some(word) = words.next() {
            match word.as_str() {
                "--dry" => options.is_dry = true,
                "--seconds" => options.seconds = words.next()?.parse().ok()?,
                "--only" => options.only = Some(words.next()?),
                "--out" => options.out = words.next()?.into(),
                _ => return None,
            }
        }
        Some(options)
    }
}

fn main() -> ExitCode {
    let Some(options) = Options::parse(env::args().skip(1)) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    match run(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs all steps. Returns whether all succeeded.
fn run(options: &Options) -> Result<bool, Box<dyn Error>> {
    let program = env::current_exe()?.canonicalize()?;
    let kit = program.parent().and_then(Path::parent).ok_or("the program lies in no kit")?;
    let cases = program.with_file_name("gpu-cases");
    fs::create_dir_all(&options.out)?;
    let out = options.out.canonicalize()?;
    let work = out.join("work");
    fs::create_dir_all(&work)?;
    let interrupted = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&interrupted);
    ctrlc::set_handler(move || flag.store(true, Ordering::Relaxed))?;
    let machine = Machine::detect(cases, options.is_dry);
    let record = Record::new(out.join("result.json"), describe_kit(kit, options.is_dry));
    let mut runner = Runner {
        record,
        work: &work,
        env: environment(kit, &work)?,
        started: Instant::now(),
        budget: Duration::from_secs(options.seconds),
        interrupted: &interrupted,
    };
    let mut outcomes = Vec::new();
    let wanted = |name: &str| options.only.as_ref().is_none_or(|word| name.contains(word.as_str()));
    for step in plan::steps(&machine).iter().filter(|step| wanted(&step.name)) {
        let begun = Instant::now();
        eprint!("{:>4} s left  {} ... ", runner.left().as_secs(), step.name);
        let (outcome, told) = runner.run(step)?;
        eprintln!("{} ({told}; {:.1} s)", outcome.name(), begun.elapsed().as_secs_f64());
        outcomes.push((step.action, outcome));
    }
    let is_fine = verdict(&outcomes);
    runner.record.set("passed", is_fine);
    runner.record.set("finished", true);
    runner.record.write()?;
    fs::remove_dir_all(&work)?;
    let passed = if is_fine { "all passed" } else { "NOT all passed" };
    eprintln!("{passed}: {}", out.join("result.json").display());
    Ok(is_fine)
}

/// Returns true if no step failed and at least one step of cases passed.
fn verdict(outcomes: &[(Action, Outcome)]) -> bool {
    let tested = |(action, outcome): &(Action, Outcome)| {
        matches!(action, Action::Cases(_)) && *outcome == Outcome::Passed
    };
    outcomes.iter().all(|(_, outcome)| outcome.is_fine()) && outcomes.iter().any(tested)
}

/// Returns the environment of every process: the data folder, and writable folders.
fn environment(kit: &Path, work: &Path) -> Result<Vec<(String, String)>, Box<dyn Error>> {
    let mut told = vec![
        ("NESTLING_TEST_ROOT".to_owned(), kit.join("data").to_string_lossy().into_owned()),
        ("RUST_BACKTRACE".to_owned(), "0".to_owned()),
    ];
    let folders = [
        ("NESTLING_KIT_WORK", "store"),
        ("TMPDIR", "tmp"),
        ("XDG_RUNTIME_DIR", "runtime"),
        ("XDG_CACHE_HOME", "cache"),
        ("CUDA_CACHE_PATH", "cache/cuda"),
    ];
    for (name, folder) in folders {
        let folder = work.join(folder);
        fs::create_dir_all(&folder)?;
        told.push((name.to_owned(), folder.to_string_lossy().into_owned()));
    }
    Ok(told)
}

/// Returns the record's initial contents: the kit and the host.
fn describe_kit(kit: &Path, is_dry: bool) -> Map<String, Value> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let packed = fs::read_to_string(kit.join("kit.json")).unwrap_or_default();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let field = |text: &str, name: &str| -> Value {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        line.split_once([':', '='])
            .map_or(Value::Null, |(_, value)| value.trim_matches([' ', '\t', '"']).into())
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut known = Map::new();
    let mut tell = |key: &str, value: Value| known.insert(key.into(), value);
    tell("format", "nestling-gpu-kit 1".into());
    tell("dry_run", is_dry.into());
    tell("started_unix", now.as_secs().into());
    tell("kit", serde_json::from_str(&packed).unwrap_or(Value::Null));
    let host = json!({
        "cpu": field(&read("/proc/cpuinfo"), "model name"),
        "threads": threads,
        "memory": field(&read("/proc/meminfo"), "MemTotal"),
        "kernel": read("/proc/sys/kernel/osrelease").trim(),
        "system": field(&read("/etc/os-release"), "PRETTY_NAME"),
        "nvidia_module": read("/proc/driver/nvidia/version").lines().next(),
    });
    tell("host", host);
    tell("passed", Value::Bool(false));
    tell("finished", Value::Bool(false));
    known
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_taken() {
        let parse = |text: &str| Options::parse(text.split_whitespace().map(str::to_owned));
        let expected =
            Options { is_dry: true, seconds: 9, only: Some("CUDA".into()), out: "x".into() };
        assert_eq!(parse("--dry --seconds 9 --only CUDA --out x"), Some(expected));
        assert_eq!(parse("").unwrap().seconds, 580);
        for wrong in ["--seconds", "--seconds x", "--help", "x"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_kit_that_tested_nothing_did_not_pass() {
        let cases = Action::Cases("cuda");
        assert!(verdict(&[(cases, Outcome::Passed), (Action::Profile, Outcome::Absent)]));
        assert!(!verdict(&[(cases, Outcome::Absent), (Action::Measure, Outcome::Passed)]));
        for outcome in [Outcome::Failed, Outcome::TimedOut, Outcome::OutOfTime, Outcome::Crashed] {
            assert!(!verdict(&[(cases, Outcome::Passed), (Action::Measure, outcome)]));
        }
    }
}
