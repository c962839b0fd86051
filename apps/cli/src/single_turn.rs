//! A single completion without a chat session.

use crate::console::{Console, write_out};
use crate::explain::explain;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::opened::LoadedModel;
use crate::reply::write_reply;
use crate::settings::Settings;
use crate::stats::{self, ReplyTimes};
use nestling::engine::{FinishReason, GenerationSummary, Input};
use std::time::Instant;

/// Generates one completion from an empty context.
pub fn complete(
    opened: &LoadedModel,
    input: Input,
    settings: &Settings,
    console: &Console,
    interrupt: &Interrupt,
) -> Result<Option<GenerationSummary>> {
    let started = Instant::now();
    let reply = interrupt.guard(|cancel| {
        let options = settings.generate_options();
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
    settings.form.warn_if_cut(&reply.text, &finished.reason, console);
    let took = ReplyTimes { load: opened.load, total: opened.load + started.elapsed() };
    stats::print(console, opened, &finished, took);
    Ok(Some(finished))
}
