//! Generates tokens for a count of instructions per token, beside `per_token.c`; callgrind counts.
#![expect(clippy::print_stdout, reason = "the result is printed")]

use std::error::Error;

use nestling::{Builder, Event, GenerateOptions};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, model, tokens] = &arguments[..] else { return Err("per_token MODEL TOKENS".into()) };
    let model = Builder::new(model).threads(1).context_length(128).open()?;
    let options = GenerateOptions {
        max_tokens: Some(tokens.parse()?),
        ignore_end: true,
        token_events: true,
        ..GenerateOptions::greedy()
    };
    let (mut bytes, mut tokens) = (0, 0);
    for event in model.session().generate("The captain said", &options)? {
        match event? {
            Event::Text(text) => bytes += text.len(),
            Event::Token(_) => tokens += 1,
            _ => {}
        }
    }
    println!("{bytes} bytes, {tokens} tokens");
    Ok(())
}
