//! Console output: generated text on standard output, everything else on standard error.

use crate::args::{ColorChoice, OutputArgs};
use crate::failure::Failure;
use crate::words::printable;
use crate::wrap;
use std::borrow::Cow;
use std::fmt::Display;
use std::io::{self, IsTerminal, Write};

/// Maximum line width of running text in columns, for readability.
const TEXT_COLUMNS: usize = 90;

/// Output settings, determined once at the start.
#[derive(Clone, Debug)]
pub struct Console {
    /// True if standard error is coloured.
    pub colors: bool,
    pub verbose: u8,
    pub quiet: bool,
}

#[derive(Clone, Copy, Debug)]
enum Paint {
    Error,
    Warning,
    Advice,
    Dim,
    Bold,
}

impl Paint {
    const fn code(self) -> &'static str {
        match self {
            Self::Error => "\x1b[1;31m",
            Self::Warning => "\x1b[1;33m",
            Self::Advice => "\x1b[36m",
            Self::Dim => "\x1b[2m",
            Self::Bold => "\x1b[1m",
        }
    }
}

impl Console {
    pub fn new(output: &OutputArgs) -> Self {
        let colors = match output.color {
            ColorChoice::Always => true,
            ColorChoice::Never => false,
            ColorChoice::Auto => has_colors(),
        };
        Self { colors, verbose: output.verbose, quiet: output.quiet }
    }

    /// Wraps text in a colour after removing control characters.
    fn paint(&self, paint: Paint, text: impl Display) -> String {
        let text = printable(&text.to_string());
        if self.colors { format!("{}{text}\x1b[0m", paint.code()) } else { text }
    }

    /// Prints lines on standard error, wrapped at words for the terminal's width. A closed standard error is
    /// ignored.
    pub fn line(&self, text: impl Display) {
        let text = wrap::lines(&printable(&text.to_string()), error_columns());
        let _ = writeln!(io::stderr(), "{text}");
    }

    /// Prints running text on standard error, wrapped at [`TEXT_COLUMNS`] even on wider terminals.
    pub fn paragraphs(&self, text: &str) {
        let columns = match error_columns() {
            0 => TEXT_COLUMNS,
            columns => columns.min(TEXT_COLUMNS),
        };
        let _ = writeln!(io::stderr(), "{}", wrap::lines(&printable(text), columns));
    }

    /// Prints text on standard error without a final newline.
    pub fn write(&self, text: impl Display) {
        let _ = write!(io::stderr(), "{}", printable(&text.to_string()));
    }

    /// Prints dimmed text on standard error without a final newline.
    pub fn write_dim(&self, text: &str) {
        let _ = write!(io::stderr(), "{}", self.paint(Paint::Dim, text));
    }

    /// Prints a title followed by dimmed details.
    pub fn title(&self, title: &str, details: &str) {
        let whole = wrap::lines(&printable(&format!("{title}  {details}")), error_columns());
        let end = title.len().min(whole.len());
        // If the title itself was wrapped, the end of the title in the text is unknown.
        let shown = match whole.starts_with(title) {
            true => self.paint(Paint::Bold, title) + &self.paint(Paint::Dim, &whole[end..]),
            false => self.paint(Paint::Bold, whole),
        };
        let _ = writeln!(io::stderr(), "{shown}");
    }

    /// Prints a line on standard error unless `--quiet` is set.
    pub fn note(&self, text: impl Display) {
        if !self.quiet {
            self.say(text);
        }
    }

    /// Prints a reply to the user on standard error, even if `--quiet` is set.
    pub fn say(&self, text: impl Display) {
        let text = wrap::lines(&printable(&text.to_string()), error_columns());
        let _ = writeln!(io::stderr(), "{}", self.paint(Paint::Dim, text));
    }

    /// Prints a warning about an option or request without effect, even if `--quiet` is set.
    pub fn warn(&self, text: impl Display) {
        self.labelled(Paint::Warning, "warning:", &text.to_string());
    }

    /// Returns the width of the terminal on standard output in columns, or 0 if it is not a terminal.
    pub fn columns(&self) -> usize {
        columns_of(io::stdout())
    }

    pub fn failure(&self, failure: &Failure) {
        self.labelled(Paint::Error, "error:", &failure.message);
        if let Some(advice) = &failure.advice {
            self.labelled(Paint::Advice, "  try:", advice);
        }
    }

    fn labelled(&self, paint: Paint, label: &str, text: &str) {
        let text = wrap::labelled(label.len() + 1, &printable(text), error_columns());
        let _ = writeln!(io::stderr(), "{} {text}", self.paint(paint, label));
    }
}

fn has_colors() -> bool {
    let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
        || std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    !plain && io::stderr().is_terminal()
}

/// Prints clap's message: help unchanged, errors wrapped at words.
pub fn print_usage(error: &clap::Error) {
    if !error.use_stderr() {
        let _ = error.print();
        return;
    }
    let text = match has_colors() {
        true => error.render().ansi().to_string(),
        false => error.render().to_string(),
    };
    let _ = write!(io::stderr(), "{}", wrap::lines(&text, error_columns()));
}

/// Returns the width of the terminal on standard error in columns, or 0 if it is not a terminal.
pub fn error_columns() -> usize {
    columns_of(io::stderr())
}

#[cfg(unix)]
fn columns_of(stream: impl std::os::fd::AsFd) -> usize {
    terminal_size::terminal_size_of(stream).map_or(0, |(width, _)| width.0.into())
}

#[cfg(windows)]
fn columns_of(stream: impl std::os::windows::io::AsHandle) -> usize {
    terminal_size::terminal_size_of(stream).map_or(0, |(width, _)| width.0.into())
}

/// Writes to standard output and flushes it, so that every token is visible immediately. Control characters
/// are removed if standard output is a terminal.
pub fn write_out(text: &str) -> Result<(), Failure> {
    let shown = match io::stdout().is_terminal() {
        true => Cow::Owned(printable(text)),
        false => Cow::Borrowed(text),
    };
    let mut out = io::stdout().lock();
    out.write_all(shown.as_bytes()).and_then(|()| out.flush()).map_err(|error| match error.kind() {
        // The reader closed the pipe, as in `nestling run | head`: no message.
        io::ErrorKind::BrokenPipe => Failure::output_closed(),
        io::ErrorKind::StorageFull => Failure::new("cannot write the output: the disk is full")
            .advise("free some space or write to another disk"),
        _ => Failure::new(format!("cannot write the output: {}", crate::failure::plain(&error))),
    })
}
