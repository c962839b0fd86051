//! Slash commands of the chat.

use crate::settings::Settings;
use std::path::PathBuf;

/// Help text of `/?`, one line for each command.
pub const HELP: &str = "\
/set parameter NAME VALUE   change how tokens are chosen (temp, top_k, top_p, min_p, seed, ...)
/set parameter stop TEXT    end replies before this text; without TEXT, before none
/set system TEXT            say what the model is told before the conversation (also /system TEXT)
/set think | nothink        let the model reason before it answers, where it can
/set verbose | quiet        show timings in full, or no statistics at all
/set history | nohistory    keep what you type for the next time, or not
/show info                  what the model is (also: parameters, system)
/read FILE                  add the text of a file to your next message
/regen                      drop the last reply and write another
/clear                      forget the conversation
/save FILE                  write the conversation to a file; -f FILE: over any other file
/load FILE                  go on from a saved conversation, or open another model
/bye                        end (also /exit, Ctrl-D)
/? or /help                 this list

\"\"\"        begins and ends a message of several lines
Ctrl-C     stops the reply and keeps what was written, clears the line; twice ends the program
Ctrl-G     opens the message in your editor (VISUAL or EDITOR): what was changed and saved is \
sent; without a change, or after an error such as vi's :cq, you are back at the line
Ctrl-A/E   start, end of the line    Ctrl-K/U/W   delete to the end, the start, a word
Ctrl-R     search what you typed     Ctrl-L       clear the screen";

/// A parsed slash command.
#[derive(Clone, Debug, PartialEq)]
pub enum SlashCommand {
    Help,
    Bye,
    Clear,
    Regenerate,
    Read(PathBuf),
    Save {
        path: PathBuf,
        /// Set to overwrite any existing file.
        force: bool,
    },
    Load(PathBuf),
    /// `None` shows the system prompt, and an empty text removes it.
    System(Option<String>),
    Parameter {
        name: String,
        /// `None` removes all stop strings.
        value: Option<String>,
    },
    Think(bool),
    Verbosity(Verbosity),
    History(bool),
    ShowInfo,
    ShowParameters,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verbosity {
    Quiet,
    Verbose,
}

/// Parses a line that begins with `/`. The error is a sentence for the user.
pub fn parse(line: &str) -> Result<SlashCommand, String> {
    let line = line.trim();
    let (word, rest) = split_word(line);
    let path = || match unquote(rest) {
        "" => Err(format!("{word} needs the path of a file")),
        path => Ok(PathBuf::from(path)),
    };
    match word {
        "/set" => return parse_set(rest),
        "/show" => return parse_show(rest),
        "/system" => return Ok(SlashCommand::System(text(rest))),
        "/read" => return path().map(SlashCommand::Read),
        "/save" => return parse_save(rest),
        "/load" => return path().map(SlashCommand::Load),
        _ => {}
    }
    let command = match word {
        "/?" | "/help" => SlashCommand::Help,
        "/bye" | "/exit" | "/quit" => SlashCommand::Bye,
        "/clear" => SlashCommand::Clear,
        "/regen" => SlashCommand::Regenerate,
        _ => return Err(format!("unknown command {word}; /? lists the commands")),
    };
    if rest.is_empty() || command == SlashCommand::Help {
        Ok(command)
    } else {
        Err(format!("{word} takes nothing after it; /? lists the commands"))
    }
}

fn parse_save(rest: &str) -> Result<SlashCommand, String> {
    let (force, path) = match split_word(rest) {
        ("-f", path) => (true, path),
        _ => (false, rest),
    };
    match unquote(path) {
        "" => Err("/save needs the path of a file".into()),
        path => Ok(SlashCommand::Save { path: path.into(), force }),
    }
}

fn parse_set(rest: &str) -> Result<SlashCommand, String> {
    let (word, value) = split_word(rest);
    match word {
        "parameter" => {
            let (name, value) = split_word(value);
            if name.is_empty() {
                return Err("write for example: /set parameter temp 0.7".into());
            }
            let value = (!value.is_empty()).then(|| unquote(value).into());
            Ok(SlashCommand::Parameter { name: name.into(), value })
        }
        "system" => Ok(SlashCommand::System(text(value))),
        "think" => Ok(SlashCommand::Think(true)),
        "nothink" => Ok(SlashCommand::Think(false)),
        "verbose" => Ok(SlashCommand::Verbosity(Verbosity::Verbose)),
        "quiet" => Ok(SlashCommand::Verbosity(Verbosity::Quiet)),
        "history" => Ok(SlashCommand::History(true)),
        "nohistory" => Ok(SlashCommand::History(false)),
        "" => Err("/set what? parameter, system, think, nothink, verbose, quiet, history or \
                   nohistory"
            .into()),
        name if Settings::knows(name) => {
            let value = if value.is_empty() { "VALUE" } else { value };
            Err(format!("{name} is a parameter: write /set parameter {name} {value}"))
        }
        other => Err(format!("unknown setting {other}; /? lists the commands")),
    }
}

fn parse_show(rest: &str) -> Result<SlashCommand, String> {
    match rest {
        "" | "info" => Ok(SlashCommand::ShowInfo),
        "parameters" => Ok(SlashCommand::ShowParameters),
        "system" => Ok(SlashCommand::System(None)),
        other => Err(format!("/show knows info, parameters and system, not {other}")),
    }
}

/// Returns the text after `/system` without quotes: `None` to show the prompt, an empty text to remove it.
fn text(rest: &str) -> Option<String> {
    (!rest.is_empty()).then(|| unquote(rest).into())
}

fn split_word(line: &str) -> (&str, &str) {
    let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    (word, rest.trim())
}

fn unquote(text: &str) -> &str {
    let inside = |quote| text.strip_prefix(quote).and_then(|text| text.strip_suffix(quote));
    inside("\"\"\"").or_else(|| inside("\"")).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_documented_command_parses() {
        for (line, command) in [
            ("/?", SlashCommand::Help),
            ("/help set", SlashCommand::Help),
            ("/bye", SlashCommand::Bye),
            (" /exit ", SlashCommand::Bye),
            ("/clear", SlashCommand::Clear),
            ("/regen", SlashCommand::Regenerate),
            ("/read a file.txt", SlashCommand::Read("a file.txt".into())),
            ("/save \"b c.json\"", SlashCommand::Save { path: "b c.json".into(), force: false }),
            ("/save -f b.txt", SlashCommand::Save { path: "b.txt".into(), force: true }),
            ("/save -file", SlashCommand::Save { path: "-file".into(), force: false }),
            ("/load x.nest", SlashCommand::Load("x.nest".into())),
            ("/system Be brief.", SlashCommand::System(Some("Be brief.".into()))),
            ("/set system \"\"", SlashCommand::System(Some(String::new()))),
            ("/set system \"\"\"two\nlines\"\"\"", SlashCommand::System(Some("two\nlines".into()))),
            ("/system", SlashCommand::System(None)),
            ("/show system", SlashCommand::System(None)),
            ("/show info", SlashCommand::ShowInfo),
            ("/show parameters", SlashCommand::ShowParameters),
            ("/set think", SlashCommand::Think(true)),
            ("/set nothink", SlashCommand::Think(false)),
            ("/set verbose", SlashCommand::Verbosity(Verbosity::Verbose)),
            ("/set quiet", SlashCommand::Verbosity(Verbosity::Quiet)),
            ("/set nohistory", SlashCommand::History(false)),
            (
                "/set parameter  temp   0.5",
                SlashCommand::Parameter { name: "temp".into(), value: Some("0.5".into()) },
            ),
            (
                "/set parameter stop \"\"",
                SlashCommand::Parameter { name: "stop".into(), value: Some(String::new()) },
            ),
            ("/set parameter stop", SlashCommand::Parameter { name: "stop".into(), value: None }),
        ] {
            assert_eq!(parse(line), Ok(command), "{line}");
        }
    }

    #[test]
    fn what_is_not_known_is_an_error_and_no_prompt() {
        for line in
            ["/", "/foo", "/set", "/set foo", "/set parameter", "/show x", "/clear all", "/save -f"]
        {
            assert!(parse(line).is_err(), "{line}");
        }
        assert!(parse("/foo").unwrap_err().contains("/foo"));
        assert!(parse("/read").unwrap_err().contains("path"));
        assert!(parse("/set temp 0").unwrap_err().contains("/set parameter temp 0"));
    }
}
