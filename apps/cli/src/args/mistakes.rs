//! Clearer messages for errors in a command line than clap's own.

use super::Cli;
use crate::words::printable;
use clap::builder::{OsStr, Resettable};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command};
use std::ffi::OsString;

/// Returns clap's error with three changes. It names the environment variable at fault, drops clap's tip
/// about values that look like flags, and contains no control characters.
pub fn explained(error: clap::Error, line: &[OsString]) -> clap::Error {
    // A file name may contain control characters, and shell completion puts it into the command line.
    let is_hostile = |argument: &OsString| argument.to_string_lossy().contains(char::is_control);
    let mut error = match line.iter().any(is_hostile) {
        true => {
            let clean = line.iter().map(|argument| printable(&argument.to_string_lossy()));
            Cli::shown().try_get_matches_from(clean).err().unwrap_or(error)
        }
        false => error,
    };
    match error.kind() {
        ErrorKind::UnknownArgument => drop(error.remove(ContextKind::Suggested)),
        ErrorKind::InvalidValue | ErrorKind::ValueValidation => name_variable(&mut error, line),
        _ => {}
    }
    error
}

/// Appends the environment variable that supplied the invalid value to the error.
fn name_variable(error: &mut clap::Error, line: &[OsString]) {
    // Default: an error without an argument has no variable to name.
    let Some(ContextValue::String(name)) = error.get(ContextKind::InvalidArg) else { return };
    let name = name.clone();
    // If the command line is wrong in the same argument without any variable, no variable is at fault.
    let alone = without_variables(Cli::shown()).try_get_matches_from(line);
    let typed = alone.err().is_some_and(|alone| {
        alone.get(ContextKind::InvalidArg) == Some(&ContextValue::String(name.clone()))
    });
    if typed {
        return;
    }
    let mut command = Cli::shown();
    command.build();
    let mut words = line.iter().skip(1).filter_map(|argument| argument.to_str());
    let given = words.find_map(|word| command.find_subcommand(word));
    let of_name = |argument: &&Arg| argument.to_string() == name;
    let mut arguments = given.into_iter().chain([&command]).flat_map(Command::get_arguments);
    if let Some(variable) = arguments.find(of_name).and_then(Arg::get_env) {
        let text = format!("{} ({name})", variable.to_string_lossy());
        error.insert(ContextKind::InvalidArg, ContextValue::String(text));
    }
}

/// Returns the command with all environment variables disabled.
fn without_variables(command: Command) -> Command {
    let bare = |argument: Arg| argument.env(Resettable::<OsStr>::Reset);
    command.mut_args(bare).mut_subcommands(|command| command.mut_args(bare))
}

/// Joins values that look like negative numbers to the flags before them (`--flag=-1`). Otherwise clap would
/// parse these values as flags.
pub fn bind_negative(line: Vec<OsString>) -> Vec<OsString> {
    let mut out: Vec<OsString> = Vec::with_capacity(line.len());
    let mut literal = false;
    for argument in line {
        literal |= argument == "--";
        let before = out.last_mut().filter(|before| !literal && is_flag(before));
        match before {
            Some(before) if is_negative(&argument) => {
                before.push("=");
                before.push(argument);
            }
            _ => out.push(argument),
        }
    }
    out
}

/// Returns true if an argument is a flag without an attached value.
fn is_flag(argument: &OsString) -> bool {
    let text = argument.to_string_lossy();
    text.starts_with('-') && !text.contains('=') && !is_negative(argument) && text.len() > 1
}

fn is_negative(argument: &OsString) -> bool {
    let text = argument.to_string_lossy();
    let digits = text.strip_prefix('-').map(|rest| rest.strip_prefix('.').unwrap_or(rest));
    digits.is_some_and(|digits| digits.starts_with(|c: char| c.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn negative_values_belong_to_the_flag_before_them() {
        let bound = |line: &[&str]| bind_negative(line.iter().map(OsString::from).collect());
        for (line, expected) in [
            (&["x", "--temp", "-1"][..], &["x", "--temp=-1"][..]),
            (&["x", "-n", "-1", "-v"], &["x", "-n=-1", "-v"]),
            (&["x", "--memory", "-.5G"], &["x", "--memory=-.5G"]),
            (&["x", "--temp=1", "-1"], &["x", "--temp=1", "-1"]),
            (&["x", "--", "-hf", "-1"], &["x", "--", "-hf", "-1"]),
            (&["x", "-", "-1"], &["x", "-", "-1"]),
        ] {
            assert_eq!(bound(line), expected, "{line:?}");
        }
    }
}
