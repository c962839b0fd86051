//! Runs a GGUF file in place, and prints the tokens that it generates.

use std::error::Error;
use std::io::Write;
use std::path::Path;

use nestling::{Event, GenerateOptions};

pub fn run(file: &Path, out: &mut dyn Write) -> Result<(), Box<dyn Error>> {
    let model = nestling::open(file)?;
    let options = GenerateOptions {
        max_tokens: Some(8),
        token_events: true,
        ignore_end: true,
        ..GenerateOptions::greedy()
    };
    for event in model.session().generate(vec![3, 1, 4, 1, 5], &options)? {
        if let Event::Token(token) = event? {
            writeln!(out, "{}", token.token)?;
        }
    }
    Ok(())
}
