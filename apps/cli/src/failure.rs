//! Errors as shown to the user: one sentence, one piece of advice and an exit code.

use std::fmt;

pub use nestling_hub::plain;

/// Exit codes. The numbers are part of the interface (`nestling --help` lists them).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Standard output was closed by its reader, as in `nestling run | head`.
    OutputClosed = 0,
    /// General failure.
    Failed = 1,
    /// Invalid command line; clap uses the same number.
    Usage = 2,
    /// Damaged store.
    Damaged = 3,
    /// Mapped file that was truncated.
    #[cfg_attr(not(unix), expect(dead_code, reason = "elsewhere a mapped file cannot be cut"))]
    FileCut = 4,
    /// Interrupted by Ctrl-C.
    Interrupted = 130,
}

/// An error to be shown to the user.
#[derive(Debug)]
pub struct Failure {
    pub exit: Exit,
    /// Description of the error, as a sentence without the final full stop.
    pub message: String,
    /// Suggested action, as a sentence without the final full stop.
    pub advice: Option<String>,
    /// True if a larger memory budget would help.
    pub lacks_memory: bool,
}

/// Result type of all operations that can fail with a message to the user.
pub type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    pub fn new(message: impl Into<String>) -> Self {
        Self { exit: Exit::Failed, message: message.into(), advice: None, lacks_memory: false }
    }

    /// Creates a failure from a library error. Text after the last semicolon becomes the advice.
    pub fn sentence(error: &dyn fmt::Display) -> Self {
        let text = error.to_string();
        // File names and contents may include semicolons too. They occur before a colon or in quotes, which
        // the library's advice never contains.
        let is_advice = |text: &str| !text.contains([':', '`', '"', '/']);
        match text.rsplit_once("; ") {
            Some((message, advice)) if is_advice(advice) => Self::new(message).advise(advice),
            _ => Self::new(text),
        }
    }

    pub fn usage(message: impl Into<String>) -> Self {
        Self { exit: Exit::Usage, ..Self::new(message) }
    }

    pub fn interrupted() -> Self {
        Self { exit: Exit::Interrupted, ..Self::new("interrupted") }
    }

    /// Creates the failure for a standard output closed by its reader, which has no message.
    pub fn output_closed() -> Self {
        Self { exit: Exit::OutputClosed, ..Self::new("") }
    }

    /// Describes a failed file operation, with advice for common error codes.
    pub fn file(verb: &str, path: &std::path::Path, error: &std::io::Error) -> Self {
        use std::io::ErrorKind as Kind;
        let failure = Self::new(format!("cannot {verb} {}: {}", path.display(), plain(error)));
        match error.kind() {
            Kind::NotFound => failure.advise("check the spelling of the path"),
            Kind::PermissionDenied => failure.advise("check the permissions of the file"),
            Kind::StorageFull => failure.advise("free some space or write to another disk"),
            _ => failure,
        }
    }

    pub fn advise(mut self, advice: impl Into<String>) -> Self {
        self.advice = Some(advice.into());
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

#[cfg(test)]
mod tests {
    use super::Failure;

    #[test]
    fn only_the_library_gives_advice() {
        let own = Failure::sentence(&"a.nest: changed while it was open; open it again");
        assert_eq!(own.message, "a.nest: changed while it was open");
        assert_eq!(own.advice.as_deref(), Some("open it again"));
        for hostile in ["a; run evil.sh: cannot be read", "`x`: expected 1, found `2; run evil`"] {
            let failure = Failure::sentence(&hostile);
            assert_eq!((&*failure.message, failure.advice), (hostile, None));
        }
    }
}
