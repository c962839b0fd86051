//! Cancels a generation from another thread.

use std::error::Error;
use std::io::Write;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use nestling::{Event, FinishReason, GenerateOptions};

pub fn run(model: &Path, out: &mut dyn Write) -> Result<(), Box<dyn Error>> {
    let model = nestling::open(model)?;
    let mut session = model.session();
    // Without end tokens, the output continues until the context is full.
    let options = GenerateOptions { ignore_end: true, ..GenerateOptions::greedy() };
    let answer = session.generate("The storm came up in the night, and", &options)?;
    let cancel = answer.cancel_token();
    let stopper = thread::spawn(move || {
        thread::sleep(Duration::from_millis(300));
        cancel.cancel();
        Instant::now()
    });
    let mut reason = None;
    for event in answer {
        if let Event::Finished(finished) = event? {
            reason = Some(finished.reason);
        }
    }
    let asked = stopper.join().map_err(|_| "the stopper panicked")?;
    let late = asked.elapsed();
    if reason != Some(FinishReason::Cancelled) || late >= Duration::from_millis(250) {
        return Err(format!("{reason:?}, {late:?} after it was asked").into());
    }
    writeln!(out, "cancelled")?;
    Ok(())
}
