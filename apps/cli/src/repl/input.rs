//! Lines from a person: editing, several lines, history, an editor.

use crate::failure::{Failure, Result, plain};
use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;
use rustyline::{
    Behavior, Cmd, ConditionalEventHandler, Config, Editor, Event, EventContext, EventHandler,
    KeyEvent, RepeatCount,
};
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const PROMPT: &str = ">>> ";
const CONTINUED: &str = "... ";
const QUOTES: &str = "\"\"\"";
const HISTORY_LINES: usize = 2000;

/// What the person did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entered {
    /// A message or a slash command; never empty.
    Text(String),
    /// Ctrl-C on a line; the line is dropped.
    Interrupt,
    /// Ctrl-D.
    End,
}

/// The line editor.
pub struct Lines {
    editor: Editor<(), FileHistory>,
    history: Option<PathBuf>,
    edit_outside: Arc<AtomicBool>,
}

/// Puts lines together to messages: `"""` begins and ends a message of several lines.
#[derive(Debug, Default)]
pub struct Assembler {
    lines: Option<String>,
}

impl Assembler {
    pub fn is_open(&self) -> bool {
        self.lines.is_some()
    }

    /// Adds a line; a whole message if the line ends one.
    pub fn add(&mut self, line: &str) -> Option<String> {
        let Some(mut text) = self.lines.take() else {
            let trimmed = line.trim_start();
            // `/set system """` begins several lines, too.
            let open = match (trimmed.starts_with('/'), trimmed.find(QUOTES)) {
                (true, Some(at)) => !trimmed[at + QUOTES.len()..].contains(QUOTES),
                (false, Some(0)) => true,
                _ => return Some(line.into()),
            };
            if !open {
                return Some(line.into());
            }
            if trimmed.starts_with('/') {
                self.lines = Some(format!("{trimmed}\n"));
                return None;
            }
            let rest = &trimmed[QUOTES.len()..];
            if let Some(inside) = rest.trim_end().strip_suffix(QUOTES) {
                return Some(inside.into());
            }
            self.lines = Some(if rest.is_empty() { String::new() } else { format!("{rest}\n") });
            return None;
        };
        let command = text.starts_with('/');
        match line.trim_end().strip_suffix(QUOTES) {
            Some(last) => {
                text.push_str(last);
                let text = text.trim_end_matches('\n');
                Some(if command { format!("{text}{QUOTES}") } else { text.into() })
            }
            None => {
                text.push_str(line);
                text.push('\n');
                self.lines = Some(text);
                None
            }
        }
    }
}

impl Lines {
    /// Opens the editor; `history` is the file that keeps lines between chats, if any.
    pub fn open(history: Option<PathBuf>) -> Result<Self> {
        let failed =
            |error: &ReadlineError| Failure::new(format!("cannot use the terminal: {error}"));
        // The prompt is for the terminal even when the reply goes to a file.
        let elsewhere = !std::io::stdout().is_terminal();
        let behavior = if elsewhere { Behavior::PreferTerm } else { Behavior::Stdio };
        let config = Config::builder()
            .max_history_size(HISTORY_LINES)
            .map(|builder| builder.behavior(behavior).auto_add_history(false))
            .map_err(|error| failed(&error))?;
        let mut editor = Editor::with_config(config.build()).map_err(|error| failed(&error))?;
        let edit_outside = Arc::new(AtomicBool::new(false));
        let handler = EventHandler::Conditional(Box::new(EditOutside(edit_outside.clone())));
        editor.bind_sequence(KeyEvent::ctrl('G'), handler);
        let mut lines = Self { editor, history: None, edit_outside };
        lines.set_history(history);
        Ok(lines)
    }

    /// Keeps what is typed in a file from now on, or no longer.
    pub fn set_history(&mut self, history: Option<PathBuf>) {
        if let Some(path) = &history {
            if let Some(parent) = path.parent() {
                let _ = std::fs::create_dir_all(parent);
            }
            // No history yet is no failure.
            let _ = self.editor.load_history(path);
        }
        self.history = history;
    }

    /// Waits for a message, a command or the end.
    pub fn read(&mut self) -> Result<Entered> {
        let mut assembler = Assembler::default();
        loop {
            let prompt = if assembler.is_open() { CONTINUED } else { PROMPT };
            let line = match self.editor.readline(prompt) {
                Ok(line) => line,
                Err(ReadlineError::Interrupted) => return Ok(Entered::Interrupt),
                Err(ReadlineError::Eof) => return Ok(Entered::End),
                Err(error) => {
                    return Err(Failure::new(format!("cannot read the terminal: {error}")));
                }
            };
            let text = if self.edit_outside.swap(false, Ordering::Relaxed) {
                let text = edit_outside(&line)?;
                let shown = text.trim_end().replace('\n', &format!("\n{CONTINUED}"));
                let _ = writeln!(std::io::stderr(), "{PROMPT}{shown}");
                Some(text.trim_end().into())
            } else {
                assembler.add(&line)
            };
            if let Some(text) = text.filter(|text| !text.trim().is_empty()) {
                self.remember(&text);
                return Ok(Entered::Text(text));
            }
        }
    }

    fn remember(&mut self, text: &str) {
        let _ = self.editor.add_history_entry(text);
        if let Some(path) = &self.history {
            let _ = self.editor.append_history(path);
            restrict(path);
        }
    }
}

/// What was typed is nobody else's business.
#[cfg(unix)]
fn restrict(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    let _ = std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600));
}

#[cfg(not(unix))]
fn restrict(_path: &Path) {}

/// Ctrl-G: accepts the line and notes that it goes to an editor first.
struct EditOutside(Arc<AtomicBool>);

impl ConditionalEventHandler for EditOutside {
    fn handle(&self, _: &Event, _: RepeatCount, _: bool, _: &EventContext<'_>) -> Option<Cmd> {
        self.0.store(true, Ordering::Relaxed);
        Some(Cmd::AcceptLine)
    }
}

/// Opens a text in the person's editor and gives back what was saved.
fn edit_outside(text: &str) -> Result<String> {
    let path = std::env::temp_dir().join(format!("nestling-{}.txt", std::process::id()));
    std::fs::write(&path, text).map_err(|error| Failure::file("write to", &path, &error))?;
    restrict(&path);
    let name = ["VISUAL", "EDITOR"].iter().find_map(|name| std::env::var(name).ok());
    let name = name.unwrap_or_else(|| if cfg!(windows) { "notepad" } else { "vi" }.into());
    let mut words = name.split_whitespace();
    let mut command = Command::new(words.next().unwrap_or("vi"));
    let status = command.args(words).arg(&path).status();
    let edited = std::fs::read_to_string(&path);
    let _ = std::fs::remove_file(&path);
    match status {
        Ok(status) if status.success() => {
            edited.map_err(|error| Failure::file("read", &path, &error))
        }
        // The text is not lost: it goes on as typed.
        Ok(_) => Ok(text.into()),
        Err(error) => {
            Err(Failure::new(format!("cannot start the editor `{name}`: {}", plain(&error)))
                .advise("set VISUAL or EDITOR to an editor that is installed"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Assembler;

    fn messages(lines: &[&str]) -> (Vec<String>, bool) {
        let mut assembler = Assembler::default();
        let out = lines.iter().filter_map(|line| assembler.add(line)).collect();
        (out, assembler.is_open())
    }

    #[test]
    fn quotes_hold_lines_together() {
        let q = "\"\"\"";
        for (lines, expected) in [
            (vec!["one", "two"], vec!["one", "two"]),
            (vec![q, "one", "two", q], vec!["one\ntwo"]),
            (vec!["\"\"\"one", "", "two\"\"\"", "three"], vec!["one\n\ntwo", "three"]),
            (vec!["\"\"\"one\"\"\""], vec!["one"]),
            (vec!["say \"\"\" twice"], vec!["say \"\"\" twice"]),
            (vec!["/set system \"\"\"a", "b\"\"\""], vec!["/set system \"\"\"a\nb\"\"\""]),
            (vec!["/set system \"\"\"a\"\"\""], vec!["/set system \"\"\"a\"\"\""]),
        ] {
            assert_eq!(messages(&lines), (expected.iter().map(|&s| s.into()).collect(), false));
        }
        assert_eq!(messages(&[q, "one"]), (vec![], true));
    }
}
