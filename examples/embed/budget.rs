//! Halves the memory of a streamed model while it writes.

use std::error::Error;
use std::io::Write;
use std::path::Path;

use nestling::{Builder, EngineError, Event, GenerateOptions, Residence};

pub fn run(model: &Path, out: &mut dyn Write) -> Result<(), Box<dyn Error>> {
    let model = Builder::new(model)
        .model(|options| options.residence = Residence::Streamed)
        .context_length(256)
        .memory_budget(64 << 20)
        .open()?;
    let used = || model.engine().budget().used_bytes();
    let mut session = model.session();
    let options = GenerateOptions { max_tokens: Some(40), ..GenerateOptions::greedy() };
    let mut half = 0;
    for event in session.generate("The captain said", &options)? {
        let Event::Text(text) = event? else { continue };
        if half == 0 {
            half = used() / 2;
            model.set_memory_budget(half)?;
        }
        write!(out, "{text}")?;
    }
    writeln!(out)?;
    if used() > half {
        return Err(format!("{} bytes in use, {half} were allowed", used()).into());
    }
    // A budget that is too small is rejected, and nothing changes.
    match model.set_memory_budget(1) {
        Err(EngineError::MemoryHeld { .. }) => Ok(()),
        other => Err(format!("1 byte: {other:?}").into()),
    }
}
