//! Desktop sample of Nestling: chat with a model file, watch its experts, and change its memory while it writes.
//!
//! [`state`] is the model of the application and [`worker`] owns the engine; they exchange [`messages`].
//! [`window`] draws the state. [`self_test`] drives the same state, with or without a window.

mod arguments;
mod expert_cells;
mod messages;
mod meter;
mod plan;
mod self_test;
mod speed;
mod state;
mod window;
mod words;
mod worker;

use std::io::Write;
use std::process::ExitCode;

use arguments::{Arguments, HELP};

fn main() -> ExitCode {
    let arguments = match Arguments::parse(std::env::args_os().skip(1)) {
        Ok(arguments) => arguments,
        Err(reason) => {
            let _ = writeln!(std::io::stderr(), "error: {reason}\n\n{HELP}");
            return ExitCode::from(2);
        }
    };
    if arguments.help {
        let _ = write!(std::io::stdout(), "{HELP}");
        return ExitCode::SUCCESS;
    }
    let result = match &arguments {
        Arguments { plan: true, .. } => print_plan(&arguments),
        Arguments { self_test: true, window: false, .. } => self_test::run(&arguments),
        _ => window::run(&arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            let _ = writeln!(std::io::stderr(), "error: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn print_plan(arguments: &Arguments) -> Result<(), String> {
    let path = arguments.model.as_ref().ok_or("--plan needs a model")?;
    let plan = plan::Subject::read(path).and_then(|subject| subject.plan(arguments.budget));
    let json = plan.map_err(|error| error.to_string())?.as_json();
    writeln!(std::io::stdout(), "{json:#}").map_err(|error| error.to_string())
}
