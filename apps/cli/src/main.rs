//! The `nestling` program: command line, terminal output and downloads. The library does the computation.

mod account;
mod args;
mod background;
mod bench;
mod cache;
mod calibration;
mod chat;
mod console;
mod conversation;
mod convert;
mod demo;
mod device;
mod doctor;
mod drivers;
mod explain;
mod failure;
mod freed_memory;
mod hub;
mod in_place;
mod inspect;
mod interrupt;
mod kernels;
mod levels;
mod linux;
mod located;
mod long_text;
mod lost_page;
mod mapped;
mod memory;
mod model_devices;
mod model_folder;
mod observe;
mod opened;
mod output_constraint;
mod perplexity;
mod places;
mod plan;
mod processes;
mod progress;
mod prompt;
mod refused_file;
mod repl;
mod reply;
mod rising;
mod run;
mod serve;
mod settings;
mod single_turn;
mod speed;
mod stats;
mod stores;
mod subject;
mod template_check;
mod upgrade;
mod verify;
mod warnings;
mod welcome;
mod words;
mod wrap;

use args::{Cli, Command, CompletionsArgs, ManArgs};
use clap::CommandFactory;
use console::Console;
use failure::{Exit, Failure, Result};
use interrupt::Interrupt;
use nestling_hub::{bytes, room};
use std::process::ExitCode;

fn main() -> ExitCode {
    drivers::quieten();
    let cli = match Cli::from_command_line(std::env::args_os()) {
        Ok(cli) => cli,
        Err(error) => {
            console::print_usage(&error);
            return ExitCode::from(if error.use_stderr() { Exit::Usage as u8 } else { 0 });
        }
    };
    let console = Console::new(&cli.output);
    log(&console);
    let done = dispatch(cli.command, &console);
    processes::leave();
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.message.is_empty() {
                console.failure(&failure);
            }
            ExitCode::from(failure.exit as u8)
        }
    }
}

fn dispatch(command: Command, console: &Console) -> Result<()> {
    let interrupt = Interrupt::install();
    match command {
        Command::Chat(args) => chat::chat(args, console, &interrupt),
        Command::Run(args) => run::run(args, console, &interrupt),
        Command::Serve(args) => serve::serve(args, console, &interrupt),
        Command::Convert(args) => convert::convert(&args, console, &interrupt),
        Command::Inspect(args) => inspect::inspect(&args, console, &interrupt),
        Command::Verify(args) => verify::verify(&args, console, &interrupt),
        Command::Perplexity(args) => perplexity::perplexity(&args, console, &interrupt),
        Command::Plan(args) => plan::plan(&args, console),
        Command::Upgrade(args) => upgrade::upgrade(&args, console),
        Command::List(args) => cache::list(&args),
        Command::Pull(args) => cache::pull(&args, console, &interrupt),
        Command::Rm(args) => cache::rm(&args, console),
        Command::Gc(args) => cache::gc(&args, console),
        Command::Doctor(args) => doctor::doctor(&args, console, &interrupt),
        Command::Devices(args) => device::list(&args),
        Command::Bench(args) => bench::bench(&args, console, &interrupt),
        Command::Completions(args) => completions(&args),
        Command::Man(args) => manual_pages(&args),
    }
}

/// Prints the library's log on standard error: warnings only, more with `-v`.
fn log(console: &Console) {
    use tracing_subscriber::filter::LevelFilter;
    let level = match console.verbose {
        0 => LevelFilter::WARN,
        1 => LevelFilter::INFO,
        _ => LevelFilter::DEBUG,
    };
    let log = tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(console.colors);
    log.with_max_level(level).without_time().with_target(false).init();
}

fn completions(args: &CompletionsArgs) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "nestling", &mut script);
    console::write_out(&String::from_utf8_lossy(&script))
}

fn manual_pages(args: &ManArgs) -> Result<()> {
    let written = clap_mangen::generate_to(Cli::command(), &args.folder);
    written.map_err(|error| {
        Failure::new(format!("{}: {error}", args.folder.display()))
            .advise("name a folder that exists and can be written")
    })
}
