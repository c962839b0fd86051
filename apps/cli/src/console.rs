//! Everything that is written for people: tokens to standard output, all else to standard error.

use crate::args::{ColorChoice, OutputArgs};
use crate::failure::Failure;
use std::fmt::Display;
use std::io::{self, IsTerminal, Write};

/// How the program speaks, decided once.
#[derive(Clone, Debug)]
pub struct Console {
    /// Colours on standard error.
    pub colors: bool,
    pub verbose: u8,
    pub quiet: bool,
}

#[derive(Clone, Copy, Debug)]
pub enum Paint {
    Error,
    Advice,
    Dim,
    Bold,
}

impl Paint {
    const fn code(self) -> &'static str {
        match self {
            Self::Error => "\x1b[1;31m",
            Self::Advice => "\x1b[36m",
            Self::Dim => "\x1b[2m",
            Self::Bold => "\x1b[1m",
        }
    }
}

impl Console {
    pub fn new(output: &OutputArgs) -> Self {
        let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
            || std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let colors = match output.color {
            ColorChoice::Always => true,
            ColorChoice::Never => false,
            ColorChoice::Auto => !plain && io::stderr().is_terminal(),
        };
        Self { colors, verbose: output.verbose, quiet: output.quiet }
    }

    pub fn paint(&self, paint: Paint, text: impl Display) -> String {
        if self.colors { format!("{}{text}\x1b[0m", paint.code()) } else { text.to_string() }
    }

    /// A line on standard error. A closed standard error is nobody's failure.
    pub fn line(&self, text: impl Display) {
        let _ = writeln!(io::stderr(), "{text}");
    }

    /// Text on standard error, at once and without a line's end.
    pub fn write(&self, text: impl Display) {
        let _ = write!(io::stderr(), "{text}");
    }

    /// A line on standard error that `--quiet` drops.
    pub fn note(&self, text: impl Display) {
        if !self.quiet {
            self.line(self.paint(Paint::Dim, text));
        }
    }

    /// Columns of the terminal behind standard output; 0 where there is none.
    pub fn columns(&self) -> usize {
        if !io::stdout().is_terminal() {
            return 0;
        }
        terminal_size::terminal_size().map_or(0, |(width, _)| width.0.into())
    }

    pub fn failure(&self, failure: &Failure) {
        self.line(format_args!("{} {}", self.paint(Paint::Error, "error:"), failure.message));
        if let Some(advice) = &failure.advice {
            self.line(format_args!("{} {advice}", self.paint(Paint::Advice, "  try:")));
        }
    }
}

/// Writes to standard output at once, so that a person or a pipe sees every token as it comes.
pub fn write_out(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|error| match error.kind() {
        // The reader has seen enough, as in `nestling run | head`: no message.
        io::ErrorKind::BrokenPipe => Failure::output_closed(),
        io::ErrorKind::StorageFull => Failure::new("cannot write the output: the disk is full")
            .advise("free some space or write to another disk"),
        _ => Failure::new(format!("cannot write the output: {}", crate::failure::plain(&error))),
    })
}
