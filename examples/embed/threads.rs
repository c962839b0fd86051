//! Two sessions in two threads generate the same text as each one alone.

use std::error::Error;
use std::io::Write;
use std::path::Path;
use std::thread;

use nestling::{EngineError, GenerateOptions, Model};

fn story(model: &Model, prompt: &str) -> Result<String, EngineError> {
    let options = GenerateOptions { max_tokens: Some(32), ..GenerateOptions::greedy() };
    model.session().generate(prompt, &options)?.into_text()
}

pub fn run(model: &Path, out: &mut dyn Write) -> Result<(), Box<dyn Error>> {
    let model = nestling::open(model)?;
    let prompts = ["The captain said", "In the morning the wind"];
    let alone = [story(&model, prompts[0])?, story(&model, prompts[1])?];
    let together = thread::scope(|scope| {
        let threads = prompts.map(|prompt| scope.spawn(|| story(&model, prompt)));
        threads.map(|thread| thread.join().map_err(|_| "a thread panicked"))
    });
    for ((prompt, alone), together) in prompts.iter().zip(alone).zip(together) {
        let together = together??;
        writeln!(out, "{prompt}{together}")?;
        if alone != together {
            return Err(format!("alone it wrote {alone:?}").into());
        }
    }
    Ok(())
}
