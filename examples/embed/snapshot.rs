//! A session that continues in another process.

use std::error::Error;
use std::fs;
use std::io::Write;
use std::path::Path;

use nestling::{GenerateOptions, SnapshotContents};

fn options() -> GenerateOptions {
    GenerateOptions { max_tokens: Some(16), ..GenerateOptions::greedy() }
}

pub fn save(model: &Path, file: &Path, out: &mut dyn Write) -> Result<(), Box<dyn Error>> {
    let mut session = nestling::open(model)?.session();
    let begun = session.generate("The captain said", &options())?.into_text()?;
    writeln!(out, "{begun}")?;
    fs::write(file, session.snapshot(SnapshotContents::TokensAndPages)?)?;
    Ok(())
}

pub fn restore(model: &Path, file: &Path, out: &mut dyn Write) -> Result<(), Box<dyn Error>> {
    let mut session = nestling::open(model)?.restore(&fs::read(file)?)?;
    let rest = session.generate(Vec::<u32>::new(), &options())?.into_text()?;
    writeln!(out, "{rest}")?;
    Ok(())
}
