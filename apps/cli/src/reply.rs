//! A reply: prints the events of a generation as they arrive.

use crate::console::{Console, write_out};
use crate::explain::explain;
use crate::failure::Result;
use crate::words::printable;
use crate::wrap::Wrap;
use nestling::engine::text::ToolCall;
use nestling::engine::{Event, FinishReason, Generation, GenerationSummary};
use std::io::IsTerminal;

/// Generated output, possibly interrupted.
#[derive(Debug, Default)]
pub struct Reply {
    pub text: String,
    pub reasoning: String,
    pub tool_calls: Vec<ToolCall>,
    pub finished: Option<GenerationSummary>,
}

impl Reply {
    /// Returns the number of generated tokens if the reply ended because the context is full.
    pub fn filled_the_context(&self) -> Option<usize> {
        let finished = self.finished.as_ref()?;
        (finished.reason == FinishReason::ContextFull).then_some(finished.usage.completion_tokens)
    }

    /// Appends the output generated after the context was shifted.
    pub fn append(&mut self, more: Self) {
        self.text += &more.text;
        self.reasoning += &more.reasoning;
        self.tool_calls.extend(more.tool_calls);
        match (&mut self.finished, more.finished) {
            (Some(finished), Some(next)) => finished.append(next),
            (finished, next) => *finished = next,
        }
    }
}

/// Prints a generation to standard output and returns the whole reply. Reasoning is printed to standard
/// error, dimmed.
pub fn write_reply(generation: Generation, console: &Console) -> Result<Reply> {
    let mut reply = Reply::default();
    let terminal = std::io::stdout().is_terminal();
    let mut wrap = Wrap::new(console.columns());
    for event in generation {
        match event.map_err(|error| explain(&error))? {
            Event::Text(text) => {
                if reply.text.is_empty() && !reply.reasoning.is_empty() {
                    console.line("");
                }
                match terminal {
                    true => write_out(&wrap.add(&printable(&text)))?,
                    false => write_out(&text)?,
                }
                reply.text += &text;
            }
            Event::Reasoning(text) => {
                if !console.quiet {
                    console.write_dim(&text);
                }
                reply.reasoning += &text;
            }
            Event::ToolCall(call) => {
                let shown = serde_json::json!({"name": call.name, "arguments": call.arguments});
                // The format is the same for all models.
                write_out(&format!("<tool_call>\n{shown}\n</tool_call>\n"))?;
                reply.tool_calls.push(call);
            }
            Event::Finished(finished) => reply.finished = Some(finished),
            _ => {}
        }
    }
    write_out(&wrap.finish())?;
    Ok(reply)
}
