//! `nestling run`: one prompt, one completion.

use crate::account::{self, Expected};
use crate::args::{ChatArgs, ModelArgs, PromptArgs, RunArgs};
use crate::chat;
use crate::console::{Console, write_out};
use crate::conversation::{Transcript, read_text};
use crate::explain::explain;
use crate::failure::{Exit, Failure, Result};
use crate::interrupt::Interrupt;
use crate::observe::{self, Observer};
use crate::opened::{self, Opened};
use crate::reply::write_reply;
use crate::settings::Settings;
use crate::stats::{self, Took};
use nestling::engine::text::Message;
use nestling::engine::{Conversation, FinishReason, Finished, GenerateOptions, Input};
use std::io::{IsTerminal, Read};
use std::path::Path;
use std::time::Instant;

pub fn run(args: RunArgs, console: &Console, interrupt: &Interrupt) -> Result<()> {
    expect_model(&args.model, &args.prompt)?;
    let Some(prompt) = prompt_text(&args.prompt)? else {
        return chat::chat(as_chat(args), console, interrupt);
    };
    if args.prompt.system_prompt.is_some() && !args.chat {
        console.warn("--system-prompt has no effect without --chat");
    }
    let files = observe::checked_files(&args.stats)?;
    let place = opened::locate(&args.model, console, interrupt)?;
    let expected = args
        .stats
        .is_wanted()
        .then(|| Expected::find((&args.model, &args.resources), &place.0, console));
    let expected = expected.transpose()?;
    let observer = Observer::new(&args.stats.observe, expected.is_some());
    let settings_of = (&args.model, &args.resources);
    let opened = opened::open_at(place, settings_of, observer.recorder(), console, interrupt)?;
    let settings = Settings::new(&args.generation, opened.model.default_sampling());
    let input = if args.chat {
        let system = args.prompt.system_prompt.clone();
        let transcript = Transcript { system, messages: vec![Message::user(prompt)] };
        Input::Messages(conversation(&transcript, None))
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

/// Generates once, from nothing.
pub fn complete(
    opened: &Opened,
    input: Input,
    settings: &Settings,
    console: &Console,
    interrupt: &Interrupt,
) -> Result<Option<Finished>> {
    let started = Instant::now();
    let reply = interrupt.guard(|cancel| {
        let options = generate_options(settings);
        let generation = opened.model.session().generate_with_cancel(input, &options, cancel);
        write_reply(generation.map_err(|error| explain(&error))?, console)
    })?;
    if !reply.text.ends_with('\n') {
        write_out("\n")?;
    }
    let Some(finished) = reply.finished else { return Ok(None) };
    match finished.reason {
        FinishReason::Cancelled => return Err(Failure::interrupted()),
        FinishReason::ContextFull => console.note(format_args!(
            "the context of {} tokens is full; -c sets another size",
            opened.model.context_length()
        )),
        _ => {}
    }
    let took = Took { load: opened.load, total: opened.load + started.elapsed() };
    stats::print(console, opened, &finished, took);
    Ok(Some(finished))
}

pub fn generate_options(settings: &Settings) -> GenerateOptions {
    GenerateOptions {
        sampling: Some(settings.sampling.clone()),
        max_tokens: settings.tokens_max,
        stop: settings.stop.clone(),
        ..GenerateOptions::default()
    }
}

/// The prompt of a transcript, with what templates may ask for.
pub fn conversation(transcript: &Transcript, think: Option<bool>) -> Conversation {
    let mut conversation = Conversation::new(transcript.all());
    if let Some(think) = think {
        conversation.template_arguments.insert("enable_thinking".into(), think.into());
    }
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    conversation.now = now
        .ok()
        .and_then(|now| i64::try_from(now.as_secs()).ok())
        .map(nestling::engine::text::TemplateTime::from_unix_seconds);
    conversation
}

/// Points text that stands where a model is named, and is none, to where text belongs.
///
/// # Errors
/// A path by position with nothing behind it, where there is no other prompt.
pub fn expect_model(model: &ModelArgs, prompt: &PromptArgs) -> Result<()> {
    match &model.path {
        Some(path) if prompt.prompt.is_none() && prompt.file.is_none() && !path.exists() => {
            Err(Failure::new(format!("cannot open {}: no such file or folder", path.display()))
                .advise("check the path of the model, or give text with -p in front of it"))
        }
        _ => Ok(()),
    }
}

/// The prompt from the command line, a file, or a pipe; none where a person sits at the terminal.
pub fn prompt_text(args: &PromptArgs) -> Result<Option<String>> {
    let text = match (&args.prompt, &args.file) {
        (Some(text), _) => text.clone(),
        (None, Some(path)) if path != Path::new("-") => read_text(path)?,
        (None, None) if std::io::stdin().is_terminal() => return Ok(None),
        _ => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).map_err(|error| {
                Failure::new(format!("cannot read the prompt: {}", crate::failure::plain(&error)))
                    .advise("pipe in text in UTF-8, or give a prompt with -p")
            })?;
            text
        }
    };
    // An editor's last line break is no part of the prompt.
    let text = if args.prompt.is_some() { &text } else { text.trim_end_matches(['\n', '\r']) };
    if text.is_empty() {
        return Err(Failure::usage("the prompt is empty").advise("give some text with -p"));
    }
    Ok(Some(text.into()))
}

fn as_chat(args: RunArgs) -> ChatArgs {
    ChatArgs {
        model: args.model,
        prompt: args.prompt,
        single_turn: false,
        history: args.history,
        generation: args.generation,
        resources: args.resources,
    }
}
