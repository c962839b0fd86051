//! Recordings of a run: timelines, routing traces and the cost of every step.

use crate::args::{ObserveArgs, StatsArgs};
use crate::console::{Console, write_out};
use crate::failure::{Failure, Result};
use nestling::engine::RoutingRecorder;
use nestling::engine::record::{RecordOptions, Recorder, StepRecord};
use std::fs::File;
use std::io::{BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Maximum number of activities in a timeline, enough for some hundred tokens of a large model.
const ACTIVITIES_MAX: usize = 400_000;

/// Maximum number of steps whose cost or routing is recorded.
const STEPS_MAX: usize = 20_000;

/// Recorders of a run and their output files.
pub struct Observer {
    recorder: Option<Arc<Recorder>>,
    timeline: Option<PathBuf>,
    trace: Option<PathBuf>,
}

impl Observer {
    /// Creates the recorders. The cost of steps is recorded if `with_steps` is set or a timeline is written.
    pub fn new(args: &ObserveArgs, with_steps: bool) -> Self {
        let timeline = args.timeline.clone();
        let options = RecordOptions {
            activities_max: if timeline.is_some() { ACTIVITIES_MAX } else { 0 },
            steps_max: if timeline.is_some() || with_steps { STEPS_MAX } else { 0 },
        };
        let recorder = (options.steps_max > 0).then(|| Arc::new(Recorder::new(options)));
        Self { recorder, timeline, trace: args.record_trace.clone() }
    }

    /// Returns the recorder of the model's events.
    pub fn recorder(&self) -> Option<Arc<Recorder>> {
        self.recorder.clone()
    }

    /// Starts recording and discards earlier recordings.
    pub fn begin(&self, routing: Option<&Arc<RoutingRecorder>>) {
        if let Some(recorder) = &self.recorder {
            drop(recorder.take());
        }
        if let (Some(_), Some(routing)) = (&self.trace, routing) {
            routing.start(STEPS_MAX);
        }
    }

    /// Writes the recordings to their files and returns the steps.
    pub fn finish(
        &self,
        routing: Option<&Arc<RoutingRecorder>>,
        console: &Console,
    ) -> Result<Vec<StepRecord>> {
        if let Some(path) = &self.trace {
            let trace = routing.map(|routing| routing.stop()).ok_or_else(|| {
                Failure::new("this model sends no token to experts, so there is nothing to trace")
            })?;
            let steps = trace.steps.len();
            write(path, |out| trace.write(out))?;
            console.note(format_args!("{}: routing of {steps} steps", path.display()));
        }
        let Some(recorder) = &self.recorder else { return Ok(Vec::new()) };
        let recording = recorder.take();
        if let Some(path) = &self.timeline {
            write(path, |out| recording.write_chrome_trace(out))?;
            let dropped = match recording.activities_dropped {
                0 => String::new(),
                count => format!("; {count} more had no room"),
            };
            let count = recording.activities.len();
            console.note(format_args!("{}: {count} activities{dropped}", path.display()));
        }
        Ok(recording.steps)
    }
}

/// Returns the output files of a run after checking that they are writable. Existing contents stay until the
/// recordings are written.
///
/// # Errors
/// Returns an error if a file is not writable, or if the trace is directed to standard output.
pub fn checked_files(args: &StatsArgs) -> Result<Vec<PathBuf>> {
    let observe = &args.observe;
    if observe.record_trace.as_deref().is_some_and(is_output) {
        return Err(trace_on_output());
    }
    let files = [&args.stats_json, &observe.timeline, &observe.record_trace];
    let files: Vec<PathBuf> = files.into_iter().flatten().cloned().collect();
    files.iter().try_for_each(|file| check(file))?;
    Ok(files)
}

fn trace_on_output() -> Failure {
    Failure::usage("a trace is binary, and standard output carries the model's text")
        .advise("name a file with --record-trace")
}

fn is_output(path: &Path) -> bool {
    path == Path::new("-")
}

fn check(path: &Path) -> Result<()> {
    let failed = |error| Failure::file("write", path, &error);
    // Other kinds of files, such as pipes, can be opened only once.
    let is_other = std::fs::metadata(path).is_ok_and(|data| !data.is_file() && !data.is_dir());
    if is_output(path) || is_other {
        return Ok(());
    }
    match File::create_new(path) {
        Ok(_) => std::fs::remove_file(path).map_err(failed),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            File::options().append(true).open(path).map(drop).map_err(failed)
        }
        Err(error) => Err(failed(error)),
    }
}

/// Writes a file, or standard output for the path `-`. Errors name the path.
pub fn write(path: &Path, fill: impl FnOnce(&mut dyn Write) -> std::io::Result<()>) -> Result<()> {
    let failed = |error| Failure::file("write", path, &error);
    if is_output(path) {
        let mut text = Vec::new();
        fill(&mut text).map_err(failed)?;
        return match String::from_utf8(text) {
            Ok(text) => write_out(&text),
            Err(_) => Err(trace_on_output()),
        };
    }
    let written = File::create(path).and_then(|file| {
        let mut out = BufWriter::new(file);
        fill(&mut out)?;
        out.flush()
    });
    written.map_err(failed)
}
