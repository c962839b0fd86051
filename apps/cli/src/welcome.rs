//! Welcome screen of a chat.

use crate::bytes::ByteSize;
use crate::console::Console;
use crate::opened::LoadedModel;

/// Prints the model, its device and its settings.
pub fn print(opened: &LoadedModel, console: &Console) {
    if console.quiet {
        return;
    }
    let limits = opened.model.limits();
    let bits = limits.level_max.map_or("unquantized".into(), |level| format!("{level} bits"));
    let title = format!("nestling {} · {}", env!("CARGO_PKG_VERSION"), opened.name());
    let size = ByteSize(opened.model.weight_bytes());
    let context = opened.model.context_length();
    console.title(&title, &format!("{bits}, {size}, context of {context} tokens"));
    if opened.is_bundled {
        console.paragraphs(STORYTELLER);
    }
    if let Some(reason) = &opened.on_cpu {
        console.note(format_args!("Computing on the CPU: {reason}. See `nestling devices`."));
    }
    console.note("/? lists the commands, Ctrl-C stops a reply, Ctrl-D ends.");
    console.line("");
}

const STORYTELLER: &str = "
This is a small storyteller, brought up on old books. It writes period prose, knows no facts \
and loses the thread after a sentence or two. Greet it, or give it an opening:

  Tell me a story about a ship and a storm.
  Continue in the style of Arthur Conan Doyle: Holmes laid down his pipe and went to the window.

A real model instead (61 GB to download, 31 GB as a store). First what it would take:

  nestling plan -hf Qwen/Qwen3-30B-A3B
  nestling -hf Qwen/Qwen3-30B-A3B
";
