//! A process that may take so long and no longer, with what it says in files: one that hangs, or leaves others
//! behind that hold its pipes, keeps nobody waiting.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

/// How often it is looked whether a process has ended.
const POLL: Duration = Duration::from_millis(10);

/// How long a process that was killed may take to end: one that waits within a driver may never do so.
const DYING: Duration = Duration::from_secs(5);

/// Most bytes that are taken of what a process says.
const SAID_BYTES_MAX: u64 = 4 << 20;

/// How a process ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// By itself, with this code.
    Exited(i32),
    /// By a signal that nobody here sent.
    Signalled(i32),
    /// It was killed, since it took too long.
    TimedOut,
    /// It was killed, since the whole kit was interrupted.
    Interrupted,
    /// It was not started.
    NotStarted(String),
}

impl Ending {
    /// In words.
    pub fn told(&self) -> String {
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

/// A process that ended, and what it said.
#[derive(Clone, Debug)]
pub struct Ended {
    pub ending: Ending,
    pub out: String,
    pub errors: String,
}

/// Runs a process for at most so long. What it says goes to two files of a folder on the way.
///
/// # Errors
/// Files that cannot be made.
pub fn run(
    command: &mut Command,
    limit: Duration,
    interrupted: &AtomicBool,
    logs: &Path,
) -> io::Result<Ended> {
    let files = [logs.join("out.txt"), logs.join("errors.txt")];
    let (out, errors) = (File::create(&files[0])?, File::create(&files[1])?);
    // A group of its own: what it starts is killed along with it.
    let started = command.stdin(std::process::Stdio::null()).stdout(out).stderr(errors);
    let ending = match started.process_group(0).spawn() {
        Ok(mut child) => wait(&mut child, limit, interrupted)?,
        Err(error) => Ending::NotStarted(error.to_string()),
    };
    let [out, errors] = [read(&files[0])?, read(&files[1])?];
    Ok(Ended { ending, out, errors })
}

fn wait(child: &mut Child, limit: Duration, interrupted: &AtomicBool) -> io::Result<Ending> {
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(ending_of(status));
        }
        let is_interrupted = interrupted.load(Ordering::Relaxed);
        if is_interrupted || started.elapsed() >= limit {
            kill(child)?;
            return Ok(if is_interrupted { Ending::Interrupted } else { Ending::TimedOut });
        }
        thread::sleep(POLL);
    }
}

fn ending_of(status: ExitStatus) -> Ending {
    match (status.code(), status.signal()) {
        (Some(code), _) => Ending::Exited(code),
        (None, signal) => Ending::Signalled(signal.unwrap_or_default()),
    }
}

fn kill(child: &mut Child) -> io::Result<()> {
    // It may just have ended.
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

    fn sh(script: &str, seconds: f64) -> Ended {
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
        assert_eq!(done.ending, Ending::Exited(3));
        assert_eq!(sh("kill -SEGV $$", 10.0).ending, Ending::Signalled(11));
        let folder = tempfile::tempdir().unwrap();
        let ready = AtomicBool::new(false);
        let limit = Duration::from_secs(1);
        let none = run(&mut Command::new("/no/such"), limit, &ready, folder.path()).unwrap();
        assert!(matches!(none.ending, Ending::NotStarted(_)));
    }

    #[test]
    fn what_hangs_is_killed_with_all_that_it_started() {
        let started = Instant::now();
        let hung = sh("echo before; (sleep 60; echo after) & wait", 0.2);
        assert_eq!((hung.ending, hung.out.as_str()), (Ending::TimedOut, "before\n"));
        assert!(started.elapsed() < Duration::from_secs(5));
    }

    #[test]
    fn an_interrupt_ends_it() {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("/bin/sleep");
        let (limit, interrupted) = (Duration::from_secs(60), AtomicBool::new(true));
        let ended = run(command.arg("60"), limit, &interrupted, folder.path()).unwrap();
        assert_eq!(ended.ending, Ending::Interrupted);
    }
}
