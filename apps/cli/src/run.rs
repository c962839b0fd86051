//! `nestling run`: completes one prompt.

use crate::account::{self, Expected};
use crate::args::{ChatArgs, RunArgs};
use crate::chat;
use crate::console::Console;
use crate::conversation::Transcript;
use crate::failure::{Exit, Failure, Result};
use crate::interrupt::Interrupt;
use crate::observe::{self, Observer};
use crate::opened;
use crate::output_constraint::OutputConstraint;
use crate::prompt::{expect_model, prompt_text};
use crate::settings::Settings;
use crate::single_turn::complete;
use nestling::engine::Input;
use nestling::engine::text::Message;

pub fn run(args: RunArgs, console: &Console, interrupt: &Interrupt) -> Result<()> {
    expect_model(&args.model, &args.prompt)?;
    let Some(prompt) = prompt_text(&args.prompt)? else {
        return chat::chat(as_chat(args), console, interrupt);
    };
    if args.prompt.system_prompt.is_some() && !args.chat {
        console.warn("--system-prompt has no effect without --chat");
    }
    let form = OutputConstraint::new(&args.form)?;
    let files = observe::checked_files(&args.stats)?;
    let located = opened::locate(&args.model, console, interrupt)?;
    let expected = args
        .stats
        .is_wanted()
        .then(|| Expected::find(&args.model, &args.resources, &located.path, console));
    let expected = expected.transpose()?;
    let observer = Observer::new(&args.stats.observe, expected.is_some());
    let opened = opened::open_at(
        located,
        &args.model,
        &args.resources,
        observer.recorder(),
        console,
        interrupt,
    )?;
    let settings = Settings::new(&args.generation, opened.model.default_sampling()).with_form(form);
    let input = if args.chat {
        let system = args.prompt.system_prompt.clone();
        let transcript = Transcript { system, messages: vec![Message::user(prompt)] };
        Input::Messages(transcript.conversation(None))
    } else {
        Input::Text(prompt)
    };
    observer.begin(opened.model.routing_recorder());
    let finished = complete(&opened, input, &settings, console, interrupt);
    let finished = finished.map_err(|failure| match (failure.exit, files.first()) {
        (Exit::OutputClosed, Some(file)) => Failure::new(format!(
            "standard output was closed before the end, so {} was not written",
            file.display()
        )),
        _ => failure,
    })?;
    let steps = observer.finish(opened.model.routing_recorder(), console)?;
    let (Some(expected), Some(finished)) = (expected, finished) else { return Ok(()) };
    if args.stats.stats {
        account::print(console, &expected, &steps);
    }
    match &args.stats.stats_json {
        Some(path) => {
            let json = account::as_json(&opened, &finished, &expected, &steps);
            observe::write(path, |out| writeln!(out, "{json:#}"))
        }
        None => Ok(()),
    }
}

fn as_chat(args: RunArgs) -> ChatArgs {
    ChatArgs {
        model: args.model,
        prompt: args.prompt,
        single_turn: false,
        convert_in_background: false,
        history: args.history,
        generation: args.generation,
        form: args.form,
        resources: args.resources,
    }
}
