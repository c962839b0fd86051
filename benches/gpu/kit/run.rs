//! Runs steps in separate processes, so that a step cannot affect others by breaking a device or itself.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::libtest::{self, Case, Verdict};
use crate::plan::{Action, Step};
use crate::process::{self, FinishedProcess, ProcessEnd};
use crate::record::{self, Record};

/// Minimum remaining time for starting a step.
const LEAST: Duration = Duration::from_secs(2);

/// Maximum number of characters stored from the end of a process's output.
const TAIL_CHARS: usize = 2000;

/// Maximum number of bytes stored of a profile.
const PROFILE_BYTES: usize = 400 << 10;

/// Result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Passed,
    Failed,
    Crashed,
    TimedOut,
    Interrupted,
    /// The machine lacks a requirement.
    Absent,
    /// The kit's time was used up.
    OutOfTime,
}

impl Outcome {
    pub fn name(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed => "failed",
            Self::Crashed => "crashed",
            Self::TimedOut => "timed out",
            Self::Interrupted => "interrupted",
            Self::Absent => "absent",
            Self::OutOfTime => "out of time",
        }
    }

    /// Returns whether the step passed or was skipped.
    pub fn is_fine(self) -> bool {
        matches!(self, Self::Passed | Self::Absent)
    }

    fn of(ending: &ProcessEnd) -> Self {
        match ending {
            ProcessEnd::Exited(0) => Self::Passed,
            ProcessEnd::Exited(_) | ProcessEnd::NotStarted(_) => Self::Failed,
            ProcessEnd::Signalled(_) => Self::Crashed,
            ProcessEnd::TimedOut => Self::TimedOut,
            ProcessEnd::Interrupted => Self::Interrupted,
        }
    }
}

/// Runner of steps, with their environment and time budget.
pub struct Runner<'a> {
    pub record: Record,
    /// Folder for files of steps.
    pub work: &'a Path,
    /// Environment variables of every process.
    pub env: Vec<(String, String)>,
    pub started: Instant,
    /// Time budget of all steps together.
    pub budget: Duration,
    pub interrupted: &'a AtomicBool,
}

/// Result of a step with a description.
struct StepResult {
    outcome: Outcome,
    told: String,
    /// End of the output, if the step failed.
    tail: String,
}

impl Runner<'_> {
    /// Returns the remaining time for all later steps.
    pub fn left(&self) -> Duration {
        self.budget.saturating_sub(self.started.elapsed())
    }

    /// Runs a step and writes the record. Returns the result with a description.
    ///
    /// # Errors
    /// Returns an error if files cannot be written.
    pub fn run(&mut self, step: &Step) -> io::Result<(Outcome, String)> {
        let begun = Instant::now();
        let limit = step.budget.min(self.left());
        let found = match &step.lacks {
            _ if self.interrupted.load(Ordering::Relaxed) => not_run(Outcome::Interrupted, ""),
            Some(lacks) => not_run(Outcome::Absent, lacks),
            None if limit < LEAST => not_run(Outcome::OutOfTime, "no time was left"),
            None => self.act(step, Limit { begun, limit })?,
        };
        self.record.step(json!({
            "name": step.name,
            "outcome": found.outcome.name(),
            "message": found.told,
            "begun_seconds": round((begun - self.started).as_secs_f64()),
            "seconds": round(begun.elapsed().as_secs_f64()),
            "budget_seconds": step.budget.as_secs_f64(),
            "tail": found.tail,
        }));
        self.record.set("seconds", round(self.started.elapsed().as_secs_f64()));
        self.record.write()?;
        Ok((found.outcome, found.told))
    }

    fn act(&mut self, step: &Step, limit: Limit) -> io::Result<StepResult> {
        match step.action {
            Action::Cases(table) => self.cases(step, table, limit),
            Action::Measure => self.measure(step, limit),
            Action::Table(key) => self.table(step, key, limit),
            Action::Sanitize(tool) => self.sanitize(step, tool, limit),
            Action::Profile => self.profile(step, limit),
        }
    }

    fn start(&self, step: &Step, words: &[&str], limit: Duration) -> io::Result<FinishedProcess> {
        let mut command = Command::new(&step.program[0]);
        command.args(&step.program[1..]).args(words);
        for (name, value) in self.env.iter().chain(&step.env) {
            command.env(name, value);
        }
        command.env("NESTLING_KIT_OUT", self.results_file());
        process::run(&mut command, limit, self.interrupted, self.work)
    }

    /// Returns the file to which measurements write lines of JSON.
    fn results_file(&self) -> PathBuf {
        self.work.join("found.jsonl")
    }

    /// Merges the results that measurements wrote, even if they failed. Returns the number of lines.
    fn take_found(&mut self, under: Option<&str>) -> io::Result<usize> {
        let path = self.results_file();
        let Ok(text) = fs::read_to_string(&path) else { return Ok(0) };
        fs::remove_file(path)?;
        let mut count = 0;
        for line in record::lines(&text) {
            self.record.merge(under, line);
            count += 1;
        }
        Ok(count)
    }

    /// Runs all cases in one process. Cases that failed or have no verdict are run again in separate
    /// processes.
    fn cases(&mut self, step: &Step, table: &str, limit: Limit) -> io::Result<StepResult> {
        let listed = self.start(step, &["--list"], limit.left())?;
        let names = libtest::names(&listed.out);
        if names.is_empty() {
            let told = format!("no cases were listed: {}", listed.ending.describe());
            let outcome = Outcome::of(&listed.ending);
            let outcome = if outcome == Outcome::Passed { Outcome::Failed } else { outcome };
            return Ok(step_result(outcome, told, &listed));
        }
        let together = self.start(step, &["--test-threads=1", "--show-output"], limit.left())?;
        let mut cases = libtest::cases(&together.out);
        let missing = names.into_iter().filter(|name| !cases.iter().any(|case| case.name == *name));
        let missing: Vec<String> = missing.collect();
        cases.extend(missing.into_iter().map(|name| Case {
            name,
            verdict: Verdict::Unfinished,
            output: format!("it was not begun: {}", together.ending.describe()),
        }));
        let alone = self.alone(step, &cases, &limit)?;
        let is_settled = |case: &&Case| case.verdict != Verdict::Unfinished;
        // A case that never started with the others takes its separate result.
        let settled = cases.iter().map(|case| {
            let again = alone.iter().find(|one| one.name == case.name).filter(is_settled);
            if is_settled(&case) { case } else { again.unwrap_or(case) }
        });
        let settled: Vec<&Case> = settled.collect();
        let count = |verdict| settled.iter().filter(|case| case.verdict == verdict).count();
        let skipped = settled.iter().filter(|case| case.is_skipped()).count();
        let (failed, unfinished) = (count(Verdict::Failed), count(Verdict::Unfinished));
        let passed = settled.len() - skipped - failed - unfinished;
        self.record.cases(table, &cases, &alone);
        let told = format!(
            "{passed} passed, {failed} failed, {unfinished} unfinished, {skipped} skipped; {}",
            together.ending.describe()
        );
        let outcome = match Outcome::of(&together.ending) {
            Outcome::Passed if failed + unfinished > 0 || passed == 0 => Outcome::Failed,
            outcome => outcome,
        };
        Ok(step_result(outcome, told, &together))
    }

    fn alone(&self, step: &Step, cases: &[Case], limit: &Limit) -> io::Result<Vec<Case>> {
        let mut alone = Vec::new();
        let open = [Verdict::Failed, Verdict::Unfinished];
        for case in cases.iter().filter(|case| open.contains(&case.verdict)) {
            if limit.left() < LEAST || self.interrupted.load(Ordering::Relaxed) {
                break;
            }
            let only = Step { program: vec![step.program[0].clone()], ..step.clone() };
            let words = ["--exact", &case.name, "--test-threads=1", "--show-output"];
            let ended = self.start(&only, &words, limit.left())?;
            let mut again = libtest::cases(&ended.out);
            if let Some(mut again) = again.pop() {
                if again.verdict == Verdict::Unfinished {
                    again.output = format!("{}\n{}", tail(&ended.errors), ended.ending.describe());
                }
                alone.push(again);
            }
        }
        Ok(alone)
    }

    fn measure(&mut self, step: &Step, limit: Limit) -> io::Result<StepResult> {
        let ended = self.start(step, &[], limit.left())?;
        let lines = self.take_found(step.under)?;
        let mut outcome = Outcome::of(&ended.ending);
        if outcome == Outcome::Passed && lines == 0 {
            outcome = Outcome::Failed;
        }
        let results = if lines == 1 { "result" } else { "results" };
        Ok(step_result(outcome, format!("{lines} {results}; {}", ended.ending.describe()), &ended))
    }

    fn table(&mut self, step: &Step, key: &str, limit: Limit) -> io::Result<StepResult> {
        let ended = self.start(step, &[], limit.left())?;
        let rows = table(&ended.out);
        let told = format!("{} rows; {}", rows.len(), ended.ending.describe());
        self.record.merge(step.under, json!({ key: rows }));
        Ok(step_result(Outcome::of(&ended.ending), told, &ended))
    }

    fn sanitize(&mut self, step: &Step, tool: &str, limit: Limit) -> io::Result<StepResult> {
        const LINES_MAX: usize = 80;
        let ended = self.start(step, &[], limit.left())?;
        let said: Vec<&str> =
            ended.out.lines().filter(|line| line.starts_with("=========")).collect();
        let summary = said.iter().find(|line| line.contains("ERROR SUMMARY"));
        let cases = libtest::cases(&ended.out);
        let begun = cases.len();
        let first: Vec<&str> = said.iter().take(LINES_MAX).copied().collect();
        let summary = summary.map_or("no summary", |line| line.trim_matches(['=', ' ']));
        let told = format!("{begun} cases begun, {summary}; {}", ended.ending.describe());
        self.record.merge(
            None,
            json!({ "sanitizer": { tool: {
                "summary": summary, "cases_begun": begun, "ending": ended.ending.describe(), "said": first,
            } } }),
        );
        Ok(step_result(Outcome::of(&ended.ending), told, &ended))
    }

    fn profile(&mut self, step: &Step, limit: Limit) -> io::Result<StepResult> {
        let ended = self.start(step, &[], limit.left())?;
        // Measurements under a profiler are meaningless.
        let _ = fs::remove_file(self.results_file());
        let mut csv = String::new();
        for line in ended.out.lines().filter(|line| line.starts_with('"')) {
            if csv.len() + line.len() < PROFILE_BYTES {
                csv.push_str(line);
                csv.push('\n');
            }
        }
        let told = format!("{} rows; {}", csv.lines().count(), ended.ending.describe());
        let mut outcome = Outcome::of(&ended.ending);
        if outcome == Outcome::Passed && csv.is_empty() {
            outcome = Outcome::Failed;
        }
        self.record.merge(None, json!({ "ncu": { "csv": csv } }));
        Ok(step_result(outcome, told, &ended))
    }
}

/// Start time and time limit of a step.
struct Limit {
    begun: Instant,
    limit: Duration,
}

impl Limit {
    fn left(&self) -> Duration {
        self.limit.saturating_sub(self.begun.elapsed())
    }
}

fn not_run(outcome: Outcome, why: &str) -> StepResult {
    StepResult { outcome, told: why.into(), tail: String::new() }
}

fn step_result(outcome: Outcome, told: String, ended: &FinishedProcess) -> StepResult {
    let said = if ended.errors.trim().is_empty() { &ended.out } else { &ended.errors };
    let tail = if outcome.is_fine() { String::new() } else { tail(said) };
    StepResult { outcome, told, tail }
}

fn tail(text: &str) -> String {
    let count = text.chars().count();
    text.chars().skip(count.saturating_sub(TAIL_CHARS)).collect()
}

/// Parses a table with a heading, in the format of nvidia-smi. Numeric cells become numbers.
fn table(csv: &str) -> Vec<Value> {
    let mut lines = csv.lines().map(|line| line.split(", "));
    let Some(heading) = lines.next() else { return Vec::new() };
    let heading: Vec<&str> = heading.collect();
    let row = |cells: std::str::Split<'_, &str>| -> Value {
        let value = |cell: &str| match cell.parse::<f64>() {
            Ok(number) if number.is_finite() => json!(number),
            _ => json!(cell),
        };
        heading.iter().zip(cells).map(|(name, cell)| ((*name).to_owned(), value(cell))).collect()
    };
    lines.map(row).collect()
}

fn round(seconds: f64) -> f64 {
    (seconds * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests;
