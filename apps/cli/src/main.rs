//! The `nestling` program: argument handling, terminals, downloads. The work is the library's.

#![expect(dead_code, reason = "the commands that use the rest arrive one by one")]

mod args;
mod bytes;
mod console;
mod failure;
mod hub;
mod interrupt;
mod places;
mod progress;
mod repl;

use args::{Cli, Command, CompletionsArgs};
use clap::CommandFactory;
use console::Console;
use failure::{Exit, Failure, Result};
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = match Cli::from_command_line(std::env::args_os()) {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { Exit::Usage as u8 } else { 0 });
        }
    };
    let console = Console::new(&cli.output);
    match dispatch(&cli, &console) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.message.is_empty() {
                console.failure(&failure);
            }
            ExitCode::from(failure.exit as u8)
        }
    }
}

fn dispatch(cli: &Cli, _console: &Console) -> Result<()> {
    match &cli.command {
        Command::Completions(args) => completions(args),
        _ => Err(Failure::new("this command is not there yet")),
    }
}

fn completions(args: &CompletionsArgs) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "nestling", &mut script);
    console::write_out(&String::from_utf8_lossy(&script))
}
