//! Runs a process with a time limit. Output goes to files, so that a hanging process, or child processes that
//! keep pipes open, cannot block the kit.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

/// Interval for checking whether a process has ended.
const POLL: Duration = Duration::from_millis(10);

/// Maximum time to wait for a killed process, which may be stuck in a driver.
const DYING: Duration = Duration::from_secs(5);

/// Maximum number of output bytes that are read.
const SAID_BYTES_MAX: u64 = 4 << 20;

/// End of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProcessEnd {
    /// Exit with this code.
    Exited(i32),
    /// End by a signal that the kit did not send.
    Signalled(i32),
    /// Killed after the time limit.
    TimedOut,
    /// Killed because the kit was interrupted.
    Interrupted,
    /// Failure to start, with the reason.
    NotStarted(String),
}

impl ProcessEnd {
    pub fn describe(&self) -> String {
        match self {
            Self::Exited(code) => format!("exit code {code}"),
            Self::Signalled(signal) => format!("ended by signal {signal}{}", named(*signal)),
            Self::TimedOut => "took longer than it may".into(),
            Self::Interrupted => "interrupted".into(),
            Self::NotStarted(why) => format!("was not started: {why}"),
        }
    }
}

fn named(signal: i32) -> &'static str {
    match signal {
        4 => " (SIGILL)",
        6 => " (SIGABRT)",
        7 => " (SIGBUS)",
        8 => " (SIGFPE)",
        9 => " (SIGKILL)",
        11 => " (SIGSEGV)",
        _ => "",
    }
}

/// A process that ended, with its output.
#[derive(Clone, Debug)]
pub struct FinishedProcess {
    pub ending: ProcessEnd,
    pub out: String,
    pub errors: String,
}

/// Runs a process for at most `limit`. Its output is written to two files of the folder `logs`.
///
/// # Errors
/// Returns an error if files cannot be created.
pub fn run(
    command: &mut Command,
    limit: Duration,
    interrupted: &AtomicBool,
    logs: &Path,
) -> io::Result<FinishedProcess> {
    let files = [logs.join("out.txt"), logs.join("errors.txt")];
    let (out, errors) = (File::create(&files[0])?, File::create(&files[1])?);
    // The process gets a separate process group, so that its children are killed too.
    let started = command.stdin(std::process::Stdio::null()).stdout(out).stderr(errors);
    let ending = match started.process_group(0).spawn() {
        Ok(mut child) => wait(&mut child, limit, interrupted)?,
        Err(error) => ProcessEnd::NotStarted(error.to_string()),
    };
    let [out, errors] = [read(&files[0])?, read(&files[1])?];
    Ok(FinishedProcess { ending, out, errors })
}

fn wait(child: &mut Child, limit: Duration, interrupted: &AtomicBool) -> io::Result<ProcessEnd> {
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(ending_of(status));
        }
        let is_interrupted = interrupted.load(Ordering::Relaxed);
        if is_interrupted || started.elapsed() >= limit {
            kill(child)?;
            return Ok(if is_interrupted { ProcessEnd::Interrupted } else { ProcessEnd::TimedOut });
        }
        thread::sleep(POLL);
    }
}

fn ending_of(status: ExitStatus) -> ProcessEnd {
    match (status.code(), status.signal()) {
        (Some(code), _) => ProcessEnd::Exited(code),
        (None, signal) => ProcessEnd::Signalled(signal.unwrap_or_default()),
    }
}

fn kill(child: &mut Child) -> io::Result<()> {
    // The process may have just ended.
    let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
    let killed = Instant::now();
    while child.try_wait()?.is_none() && killed.elapsed() < DYING {
        thread::sleep(POLL);
    }
    Ok(())
}

fn read(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(SAID_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str, seconds: f64) -> FinishedProcess {
        let folder = tempfile::tempdir().unwrap();
        let limit = Duration::from_secs_f64(seconds);
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        run(&mut command, limit, &AtomicBool::new(false), folder.path()).unwrap()
    }

    #[test]
    fn endings_are_told_apart() {
        let done = sh("echo a; echo b >&2; exit 3", 10.0);
        assert_eq!((done.out.as_str(), done.errors.as_str()), ("a\n", "b\n"));
        assert_eq!(done.ending, ProcessEnd::Exited(3));
        assert_eq!(sh("kill -SEGV $$", 10.0).ending, ProcessEnd::Signalled(11));
        let folder = tempfile::tempdir().unwrap();
        let ready = AtomicBool::new(false);
        let limit = Duration::from_secs(1);
        let none = run(&mut Command::new("/no/such"), limit, &ready, folder.path()).unwrap();
        assert!(matches!(none.ending, ProcessEnd::NotStarted(_)));
    }

    #[test]
    fn what_hangs_is_killed_with_all_that_it_started() {
        let started = Instant::now();
        let hung = sh("echo before; (sleep 60; echo after) & wait", 0.2);
        assert_eq!((hung.ending, hung.out.as_str()), (ProcessEnd::TimedOut, "before\n"));
        assert!(started.elapsed() < Duration::from_secs(5));
    }

    #[test]
    fn an_interrupt_ends_it() {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("/bin/sleep");
        let (limit, interrupted) = (Duration::from_secs(60), AtomicBool::new(true));
        let ended = run(command.arg("60"), limit, &interrupted, folder.path()).unwrap();
        assert_eq!(ended.ending, ProcessEnd::Interrupted);
    }
}
