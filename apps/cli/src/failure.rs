//! What went wrong, said to a person: one sentence, one piece of advice, one exit code.

use std::fmt;

pub use nestling_hub::plain;

/// How the program ends. The numbers are part of the interface (`nestling --help` lists them).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Whoever read standard output has seen enough, as in `nestling run | head`.
    OutputClosed = 0,
    /// Something failed.
    Failed = 1,
    /// The command line is wrong; clap uses the same number.
    Usage = 2,
    /// A store is damaged.
    Damaged = 3,
    /// A file was cut while it was mapped.
    #[cfg_attr(not(unix), expect(dead_code, reason = "elsewhere a mapped file cannot be cut"))]
    FileCut = 4,
    /// Ctrl-C.
    Interrupted = 130,
}

/// An error on its way to the person at the keyboard.
#[derive(Debug)]
pub struct Failure {
    pub exit: Exit,
    /// What happened, as a sentence without the final stop.
    pub message: String,
    /// What to do about it, as a sentence without the final stop.
    pub advice: Option<String>,
    /// Whether more memory would help.
    pub lacks_memory: bool,
}

/// The result of everything that can fail in front of a person.
pub type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    pub fn new(message: impl Into<String>) -> Self {
        Self { exit: Exit::Failed, message: message.into(), advice: None, lacks_memory: false }
    }

    /// A library's own sentence; what follows its last semicolon is what to do.
    pub fn sentence(error: &dyn fmt::Display) -> Self {
        let text = error.to_string();
        // A file's name or what is in it may have a semicolon, too, but advises nobody. It stands
        // before a colon or in quotes, and the library's own advice has neither.
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

    /// Standard output was closed by its reader: end without a word.
    pub fn output_closed() -> Self {
        Self { exit: Exit::OutputClosed, ..Self::new("") }
    }

    /// A failed operation on a file, with advice where the operating system's code tells enough.
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
