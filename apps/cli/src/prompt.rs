//! The prompt given on the command line.

use crate::args::{ModelArgs, PromptArgs};
use crate::conversation::read_text;
use crate::failure::{Failure, Result, plain};
use nestling_hub::StoreAddress;
use std::io::{IsTerminal, Read};
use std::path::Path;

/// Detects a prompt that was given in the position of the model and advises `-p`.
///
/// # Errors
/// Returns an error if the positional path does not exist and there is no other prompt.
pub fn expect_model(model: &ModelArgs, prompt: &PromptArgs) -> Result<()> {
    match &model.path {
        Some(path)
            if prompt.prompt.is_none()
                && prompt.file.is_none()
                && !path.exists()
                && !path.to_str().is_some_and(StoreAddress::is_address) =>
        {
            Err(Failure::new(format!("cannot open {}: no such file or folder", path.display()))
                .advise("check the path of the model, or give text with -p in front of it"))
        }
        _ => Ok(()),
    }
}

/// Returns the prompt from the command line, a file or a pipe. Returns `None` if standard input is a
/// terminal.
pub fn prompt_text(args: &PromptArgs) -> Result<Option<String>> {
    let text = match (&args.prompt, &args.file) {
        (Some(text), _) => text.clone(),
        (None, Some(path)) if path != Path::new("-") => read_text(path)?,
        (None, None) if std::io::stdin().is_terminal() => return Ok(None),
        _ => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).map_err(|error| {
                Failure::new(format!("cannot read the prompt: {}", plain(&error)))
                    .advise("pipe in text in UTF-8, or give a prompt with -p")
            })?;
            text
        }
    };
    // A final newline in a file is not part of the prompt.
    let text = if args.prompt.is_some() { &text } else { text.trim_end_matches(['\n', '\r']) };
    if text.is_empty() {
        return Err(Failure::usage("the prompt is empty")
            .advise("give a prompt with -p or on standard input, or chat at a terminal"));
    }
    Ok(Some(text.into()))
}
