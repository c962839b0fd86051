//! Line input in a chat: editing, messages of several lines, history and external editors.

use crate::console::{Console, error_columns};
use crate::failure::{Failure, Result, plain};
use crate::interrupt::Interrupt;
use crate::words::printable;
use crate::wrap::columns;
use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;
use rustyline::{
    Behavior, Cmd, ConditionalEventHandler, Config, Editor, Event, EventContext, EventHandler,
    KeyEvent, RepeatCount,
};
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const PROMPT: &str = ">>> ";
const CONTINUED: &str = "... ";
const QUOTES: &str = "\"\"\"";
const HISTORY_LINES: usize = 2000;

/// Result of reading input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InputEvent {
    /// A message or a slash command; never empty.
    Text(String),
    /// Ctrl-C on an empty line.
    Interrupt,
    /// Ctrl-C on a started message, which is discarded.
    Dropped,
    /// Ctrl-D.
    End,
}

/// The line editor.
pub struct Lines {
    editor: Editor<(), FileHistory>,
    history: Option<PathBuf>,
    keys: Arc<Keys>,
}

/// Flags set by key bindings that end a line.
#[derive(Debug, Default)]
struct Keys {
    /// Set by Ctrl-G: the message is to be opened in an editor.
    edit_outside: AtomicBool,
    /// Set if the line was not empty when Ctrl-C was pressed.
    cleared: AtomicBool,
}

/// Joins lines into messages. `"""` starts and ends a message of several lines.
#[derive(Debug, Default)]
pub struct Assembler {
    lines: Option<String>,
}

impl Assembler {
    pub fn is_open(&self) -> bool {
        self.lines.is_some()
    }

    /// Returns the message so far plus an unfinished line, as a text to edit.
    fn draft(&self, line: &str) -> String {
        // Default: an empty text if there are no earlier lines.
        self.lines.clone().unwrap_or_default() + line
    }

    /// Interprets an edited draft. Closing quotes are added to a command that spans several lines.
    fn edited(&self, text: &str) -> String {
        let text = text.trim_end();
        let is_command = self.lines.as_ref().is_some_and(|lines| lines.starts_with('/'));
        let is_open = text.trim_start().starts_with('/') && !text.ends_with(QUOTES);
        if is_command && is_open { format!("{text}{QUOTES}") } else { text.into() }
    }

    /// Adds a line. Returns the message if the line completes it.
    pub fn add(&mut self, line: &str) -> Option<String> {
        let Some(mut text) = self.lines.take() else {
            let trimmed = line.trim_start();
            // `/set system """` starts several lines too.
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
    /// Opens the editor. `history` is the file that stores the input history, if any.
    pub fn open(history: Option<PathBuf>) -> Result<Self> {
        let failed =
            |error: &ReadlineError| Failure::new(format!("cannot use the terminal: {error}"));
        // The prompt is shown on the terminal even if standard output is a file.
        let elsewhere = !std::io::stdout().is_terminal();
        let behavior = if elsewhere { Behavior::PreferTerm } else { Behavior::Stdio };
        let config = Config::builder()
            .max_history_size(HISTORY_LINES)
            .map(|builder| builder.behavior(behavior).auto_add_history(false))
            .map_err(|error| failed(&error))?;
        let mut editor = Editor::with_config(config.build()).map_err(|error| failed(&error))?;
        let keys = Arc::new(Keys::default());
        let edit = EventHandler::Conditional(Box::new(EditOutside(keys.clone())));
        editor.bind_sequence(KeyEvent::ctrl('G'), edit);
        let clear = EventHandler::Conditional(Box::new(Clear(keys.clone())));
        editor.bind_sequence(KeyEvent::ctrl('C'), clear);
        let mut lines = Self { editor, history: None, keys };
        lines.set_history(history);
        Ok(lines)
    }

    /// Changes the history file; `None` stops recording.
    pub fn set_history(&mut self, history: Option<PathBuf>) {
        if let Some(path) = &history {
            if let Some(parent) = path.parent() {
                let _ = std::fs::create_dir_all(parent);
            }
            // A missing history file is not an error.
            let _ = self.editor.load_history(path);
        }
        self.history = history;
    }

    /// Waits for a message, a command or the end of input.
    pub fn read(&mut self, console: &Console, interrupt: &Interrupt) -> Result<InputEvent> {
        let mut assembler = Assembler::default();
        // Lines of the message so far, and the initial content of the next line.
        let (mut typed, mut begun): (Vec<String>, String) = (Vec::new(), String::new());
        loop {
            let prompt = if typed.is_empty() { PROMPT } else { CONTINUED };
            let initial = std::mem::take(&mut begun);
            let line = match self.editor.readline_with_initial(prompt, (&initial, "")) {
                Ok(line) => line,
                Err(ReadlineError::Interrupted) => {
                    let dropped = self.keys.cleared.swap(false, Ordering::Relaxed);
                    return Ok(match dropped || assembler.is_open() {
                        true => InputEvent::Dropped,
                        false => InputEvent::Interrupt,
                    });
                }
                Err(ReadlineError::Eof) => return Ok(InputEvent::End),
                Err(error) => {
                    return Err(Failure::new(format!("cannot read the terminal: {error}")));
                }
            };
            typed.push(line.clone());
            let text = if self.keys.edit_outside.swap(false, Ordering::Relaxed) {
                erase(&typed);
                let Some(text) = edited(&assembler.draft(&line), console, interrupt) else {
                    typed.pop();
                    show(&typed);
                    begun = line;
                    continue;
                };
                let text = assembler.edited(&text);
                show(&text.lines().map(String::from).collect::<Vec<_>>());
                assembler = Assembler::default();
                Some(text)
            } else {
                assembler.add(&line)
            };
            if !assembler.is_open() {
                typed.clear();
            }
            if let Some(text) = text.filter(|text| !text.trim().is_empty()) {
                self.remember(&text);
                return Ok(InputEvent::Text(text));
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

/// Makes the history file readable only by its owner, since the input is private.
#[cfg(unix)]
fn restrict(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    let _ = std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600));
}

#[cfg(not(unix))]
fn restrict(_path: &Path) {}

/// Handler of Ctrl-G: accepts the line and requests an external editor.
struct EditOutside(Arc<Keys>);

impl ConditionalEventHandler for EditOutside {
    fn handle(&self, _: &Event, _: RepeatCount, _: bool, _: &EventContext<'_>) -> Option<Cmd> {
        self.0.edit_outside.store(true, Ordering::Relaxed);
        Some(Cmd::AcceptLine)
    }
}

/// Handler of Ctrl-C: records whether the line was non-empty.
struct Clear(Arc<Keys>);

impl ConditionalEventHandler for Clear {
    fn handle(&self, _: &Event, _: RepeatCount, _: bool, at: &EventContext<'_>) -> Option<Cmd> {
        self.0.cleared.store(!at.line().is_empty(), Ordering::Relaxed);
        Some(Cmd::Interrupt)
    }
}

/// Returns the lines with the prompts that precede them on the screen.
fn with_prompts(lines: &[String]) -> impl Iterator<Item = String> {
    let prompts = std::iter::once(PROMPT).chain(std::iter::repeat(CONTINUED));
    prompts.zip(lines).map(|(prompt, line)| format!("{prompt}{line}"))
}

fn show(lines: &[String]) {
    for line in with_prompts(lines) {
        let _ = writeln!(std::io::stderr(), "{}", printable(&line));
    }
}

/// Removes typed lines from the screen; the external editor returns them.
fn erase(lines: &[String]) {
    let width = error_columns();
    if width > 0 {
        let rows_of = |line: String| -> usize {
            line.split('\n').map(|part| 1 + columns(part) / width).sum()
        };
        let rows: usize = with_prompts(lines).map(rows_of).sum();
        let _ = write!(std::io::stderr(), "\x1b[{rows}A\r\x1b[J");
    }
}

enum EditResult {
    Changed(String),
    Unchanged,
    /// The editor exited with an error status.
    Cancelled(ExitStatus),
}

/// Opens the user's editor and returns the edited text. Prints a message and returns `None` if nothing is to
/// be sent.
fn edited(text: &str, console: &Console, interrupt: &Interrupt) -> Option<String> {
    // Ctrl-C is for the editor.
    match interrupt.guard(|_| edit_outside(text)) {
        Ok(EditResult::Changed(text)) => return Some(text),
        Ok(EditResult::Unchanged) => {
            console.say("the message was not changed and not sent; Enter sends it");
        }
        Ok(EditResult::Cancelled(status)) => {
            let how = status.code().map_or("a signal".into(), |code| format!("status {code}"));
            console.say(format_args!("the message was not sent: the editor ended with {how}"));
        }
        Err(failure) => console.failure(&failure),
    }
    None
}

fn edit_outside(text: &str) -> Result<EditResult> {
    let file = tempfile::Builder::new().prefix("nestling-").suffix(".txt").tempfile();
    let folder = std::env::temp_dir();
    // The file is closed while the editor uses it, and removed at the end.
    let path = file.map_err(|error| Failure::file("write to", &folder, &error))?.into_temp_path();
    let written = std::fs::write(&path, format!("{text}\n"));
    written.map_err(|error| Failure::file("write to", &path, &error))?;
    let given = |name| std::env::var(name).ok().filter(|editor| !editor.trim().is_empty());
    let name = ["VISUAL", "EDITOR"].into_iter().find_map(given);
    let name = name.unwrap_or_else(|| if cfg!(windows) { "notepad" } else { "vi" }.into());
    let mut words = name.split_whitespace();
    let mut command = Command::new(words.next().unwrap_or("vi"));
    let status = command.args(words).arg(&path).status().map_err(|error| {
        Failure::new(format!("cannot start the editor `{name}`: {}", plain(&error)))
            .advise("set VISUAL or EDITOR to an editor that is installed")
    })?;
    if !status.success() {
        return Ok(EditResult::Cancelled(status));
    }
    let edited = std::fs::read_to_string(&path);
    let edited = edited.map_err(|error| Failure::file("read", &path, &error))?;
    match edited.trim_end() == text.trim_end() {
        true => Ok(EditResult::Unchanged),
        false => Ok(EditResult::Changed(edited)),
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

    #[test]
    fn an_open_message_is_edited_whole() {
        let q = "\"\"\"";
        let mut assembler = Assembler::default();
        assert_eq!(assembler.draft("one"), "one");
        assert_eq!(assembler.edited("one\n"), "one");
        assembler.add(&format!("{q}one"));
        assert_eq!(assembler.draft("two"), "one\ntwo");
        assert_eq!(assembler.edited("1\n2\n"), "1\n2");
        let mut assembler = Assembler::default();
        assembler.add(&format!("/set system {q}be"));
        let draft = format!("/set system {q}be\nbrief");
        assert_eq!(assembler.draft("brief"), draft);
        assert_eq!(assembler.edited(&format!("{draft}\n")), format!("{draft}{q}"));
        assert_eq!(assembler.edited(&format!("{draft}{q}\n")), format!("{draft}{q}"));
    }
}
