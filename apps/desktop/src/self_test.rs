//! Self-test: opens a model, sends a message, halves the budget while the answer is written, and closes.

use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::arguments::Arguments;
use crate::expert_cells::Counts;
use crate::messages::Command;
use crate::state::{Application, Phase};
use crate::words::size;
use crate::worker::{Settings, Worker};

/// Maximum duration of a self-test.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Path of the bundled model below the repository.
const BUNDLED: &str = "models/nestling-storyteller.nest";

/// Message of a self-test.
const MESSAGE: &str = "Tell me a story about a ship.";

/// Next action of a self-test.
#[derive(Debug)]
pub enum Next {
    /// Carries out a command.
    Command(Command),
    /// Waits for a report.
    Wait,
    /// Ends the self-test, which has passed.
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Choose,
    Open,
    Send,
    Halve,
    Answer,
    Close,
}

/// Progress of a self-test.
pub struct SelfTest {
    model: PathBuf,
    step: Step,
    started: Instant,
    /// Budget in bytes after it was halved.
    half: u64,
    /// True if the half was in force while the answer was written.
    acted: bool,
    /// Observations, for people.
    pub seen: Vec<String>,
}

impl SelfTest {
    /// Creates a self-test of the model of the arguments, or of the bundled one.
    ///
    /// # Errors
    /// Fails if no model is named and the bundled one is not found above the current folder or the program.
    pub fn new(arguments: &Arguments) -> Result<Self, String> {
        let model = arguments.model.clone().or_else(bundled);
        let model = model.ok_or_else(|| format!("{BUNDLED} was not found; name a model"))?;
        let (step, started) = (Step::Choose, Instant::now());
        Ok(Self { model, step, started, half: 0, acted: false, seen: Vec::new() })
    }

    /// Looks at the state, and returns the next action.
    ///
    /// # Errors
    /// Fails if the state has an error, an observation is wrong, or the test takes too long.
    pub fn next(&mut self, state: &mut Application) -> Result<Next, String> {
        if let Some(error) = &state.error {
            return Err(format!("{:?}: {error}", self.step));
        }
        if self.started.elapsed() > TIMEOUT {
            return Err(format!("{:?}: timeout", self.step));
        }
        let command = match (self.step, &state.phase) {
            (Step::Choose, _) => self.go(Step::Open, state.choose(self.model.clone(), None)),
            (Step::Open, Phase::Planned) => {
                self.see_plan(state);
                self.go(Step::Send, state.open())
            }
            (Step::Send, Phase::Open(opened)) => {
                let context = opened.context_length;
                self.seen.push(format!("open on {}, context {context}", opened.device));
                if !opened.is_streamed {
                    return Err("experts are not streamed".into());
                }
                state.draft = MESSAGE.into();
                self.go(Step::Halve, state.send())
            }
            (Step::Halve, Phase::Open(_)) => self.halve(state)?,
            (Step::Answer, Phase::Open(opened)) if opened.budget == self.half => {
                self.see_answer(state)?
            }
            (Step::Close, Phase::Empty) => {
                self.seen.push("closed".into());
                return Ok(Next::Done);
            }
            _ => None,
        };
        Ok(command.map_or(Next::Wait, Next::Command))
    }

    fn go(&mut self, step: Step, command: Option<Command>) -> Option<Command> {
        self.step = step;
        command
    }

    fn see_plan(&mut self, state: &Application) {
        // Default: without a plan there is nothing to note, and the opening fails.
        let Some(plan) = &state.plan else { return };
        let [budget, total, least] =
            [plan.budget, plan.memory.total_bytes(), plan.least_bytes].map(size);
        self.seen.push(format!("plan: {total} of {budget}, at least {least}"));
    }

    /// Halves the budget once text and experts have arrived.
    fn halve(&mut self, state: &mut Application) -> Result<Option<Command>, String> {
        if !state.is_answering {
            return Err("the answer ended before the budget was halved".into());
        }
        let has_text = state.lines.last().is_some_and(|line| !line.text.is_empty());
        // Default: the next status has both.
        let Some(status) = state.status.as_ref().filter(|_| has_text) else { return Ok(None) };
        let Some(counts) = status.map.as_ref().map(Counts::of).filter(|of| of.resident > 0) else {
            return Ok(None);
        };
        self.half = status.used_bytes / 2;
        let (used, half) = (size(status.used_bytes), size(self.half));
        let Counts { experts, resident, .. } = counts;
        self.seen.push(format!("{used} in use, {resident} of {experts} experts; budget {half}"));
        Ok(self.go(Step::Answer, state.set_budget(self.half)))
    }

    /// Checks the answer and the memory in use at its end.
    fn see_answer(&mut self, state: &mut Application) -> Result<Option<Command>, String> {
        self.acted |= state.is_answering;
        // Default: the answer and its last status are still to come.
        let (false, Some(status)) = (state.is_answering, &state.status) else { return Ok(None) };
        let Some(finished) = &state.finished else { return Ok(None) };
        if status.used_bytes > self.half {
            // The status may be older than the budget.
            return Ok(None);
        }
        if !self.acted {
            return Err("the answer ended before the budget was in force".into());
        }
        let line = state.lines.last().filter(|line| !line.text.is_empty());
        let line = line.ok_or("the answer is empty")?;
        let (tokens, speed) = (finished.answer_tokens, finished.tokens_per_second);
        let hits = finished.hit_rate.ok_or("no hit rate")?;
        let bits = finished.bits.ok_or("no bits")?;
        self.seen.push(format!("answer: {}", line.text.replace('\n', " ")));
        self.seen.push(format!(
            "{tokens} tokens, {speed:.0} tokens/s, {:.0} % hits, {bits:.1} bits, {} in use",
            100.0 * hits,
            size(status.used_bytes)
        ));
        Ok(self.go(Step::Close, state.close()))
    }
}

/// Returns the bundled model, found above the current folder or the program.
fn bundled() -> Option<PathBuf> {
    let starts = [std::env::current_dir().ok(), std::env::current_exe().ok()];
    let mut folders = starts.iter().flatten().flat_map(|start| start.ancestors());
    folders.find_map(|folder| Some(folder.join(BUNDLED)).filter(|path| path.is_file()))
}

/// Runs a self-test without a window, and prints the observations.
///
/// # Errors
/// Returns the reason of the failure.
pub fn run(arguments: &Arguments) -> Result<(), String> {
    let mut test = SelfTest::new(arguments)?;
    let settings = Settings { max_tokens: 200, greedy: true, predict: false };
    let mut worker = Worker::start(settings, || {}).map_err(|error| error.to_string())?;
    let mut state = Application::default();
    let mut printed = 0;
    loop {
        let next = test.next(&mut state)?;
        for line in &test.seen[printed..] {
            writeln!(std::io::stdout(), "{line}").map_err(|error| error.to_string())?;
        }
        printed = test.seen.len();
        match next {
            Next::Command(command) => worker.send(command),
            Next::Done => return Ok(()),
            Next::Wait => {
                let report = worker.wait(Duration::from_millis(100))?;
                if let Some(command) = report.and_then(|report| state.apply(report)) {
                    worker.send(command);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bundled_model_passes() {
        run(&Arguments::default()).unwrap();
    }

    #[test]
    fn a_file_that_is_no_model_fails() {
        let model = Some(PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")));
        assert!(run(&Arguments { model, ..Arguments::default() }).is_err());
    }
}
