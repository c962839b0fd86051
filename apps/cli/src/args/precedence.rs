//! Mutually exclusive flags. Two of them on the command line are an error. One on the command line overrides
//! the other's environment variable, since arguments take precedence.

use super::{Cli, Command, HubArgs};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory};
use std::path::PathBuf;

/// Groups of argument ids of which at most one may be used, with their spellings for messages.
const EXCLUSIVE: [&[(&str, &str)]; 5] = [
    &[
        ("path", "[MODEL]"),
        ("model", "--model"),
        ("hf_repo", "--hf-repo"),
        ("demo", "--demo"),
        ("models", "--models"),
        ("cached", "--cached"),
    ],
    &[("prompt", "--prompt"), ("file", "--file")],
    &[("history", "--history"), ("no_history", "--no-history")],
    &[
        ("json_schema", "--json-schema"),
        ("json_object", "--json-object"),
        ("regex", "--regex"),
        ("grammar", "--grammar"),
    ],
    &[("verbose", "--verbose"), ("quiet", "--quiet")],
];

pub fn settle(cli: &mut Cli, matches: &ArgMatches) -> Result<(), clap::Error> {
    let Some((_, given)) = matches.subcommand() else { return Ok(()) };
    for group in EXCLUSIVE {
        let typed: Vec<_> = group
            .iter()
            .filter(|(id, _)| source(given, id) == Some(ValueSource::CommandLine))
            .collect();
        if let [(_, first), (_, second), ..] = typed[..] {
            let message = format!("the argument '{first}' cannot be used with '{second}'");
            return Err(Cli::command().error(ErrorKind::ArgumentConflict, message));
        }
        if !typed.is_empty() {
            for (id, _) in group {
                if source(given, id) == Some(ValueSource::EnvVariable) {
                    forget(cli, id);
                }
            }
        }
    }
    Ok(())
}

fn source(matches: &ArgMatches, id: &str) -> Option<ValueSource> {
    matches.try_contains_id(id).ok().filter(|present| *present)?;
    matches.value_source(id)
}

/// Returns the model arguments of a command that opens a model without generating text.
fn looked_at(command: &mut Command) -> Option<(&mut Option<PathBuf>, &mut HubArgs)> {
    match command {
        Command::Plan(args) => Some((&mut args.model, &mut args.hub)),
        Command::Inspect(args) => Some((&mut args.model, &mut args.hub)),
        Command::Verify(args) => Some((&mut args.model, &mut args.hub)),
        Command::Doctor(args) => Some((&mut args.model, &mut args.hub)),
        Command::Bench(args) => Some((&mut args.model, &mut args.hub)),
        Command::Perplexity(args) => Some((&mut args.model, &mut args.hub)),
        _ => None,
    }
}

fn forget(cli: &mut Cli, id: &str) {
    match id {
        "verbose" => cli.output.verbose = 0,
        "quiet" => cli.output.quiet = false,
        _ => {}
    }
    if let Some((model, hub)) = looked_at(&mut cli.command) {
        match id {
            "model" => *model = None,
            "hf_repo" => hub.hf_repo = None,
            _ => {}
        }
    }
    let (model, prompt, history, form) = match &mut cli.command {
        Command::Chat(args) => {
            (&mut args.model, &mut args.prompt, &mut args.history, &mut args.form)
        }
        Command::Run(args) => {
            (&mut args.model, &mut args.prompt, &mut args.history, &mut args.form)
        }
        Command::Serve(args) => {
            match id {
                "model" => args.model.model = None,
                "hf_repo" => args.model.hub.hf_repo = None,
                "demo" => args.model.demo = false,
                "models" => args.several.models = None,
                "cached" => args.several.cached = false,
                _ => {}
            }
            return;
        }
        // The remaining commands consult the positional argument first, so nothing has to be reset.
        _ => return,
    };
    match id {
        "model" => model.model = None,
        "hf_repo" => model.hub.hf_repo = None,
        "demo" => model.demo = false,
        "prompt" => prompt.prompt = None,
        "file" => prompt.file = None,
        "history" => history.history = None,
        "no_history" => history.no_history = false,
        "json_schema" => form.json_schema = None,
        "json_object" => form.json_object = false,
        "regex" => form.regex = None,
        "grammar" => form.grammar = None,
        _ => {}
    }
}
