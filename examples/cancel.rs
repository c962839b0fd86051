//! Cancels a generation from another thread: `cargo run --release --example cancel [MODEL]`.
#![expect(clippy::print_stdout, reason = "the result is printed")]

mod bundled;

use std::time::{Duration, Instant};

use nestling::{Event, GenerateOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = nestling::open(bundled::model_path())?;
    let mut session = model.session();
    // Without end tokens, the output continues until the context is full.
    let options = GenerateOptions { ignore_end: true, ..Default::default() };
    let generation = session.generate("The storm came up in the night, and", &options)?;
    let cancel = generation.cancel_token();
    let stopper = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        cancel.cancel();
        Instant::now()
    });
    let mut ended = None;
    for event in generation {
        match event? {
            Event::Text(text) => print!("{text}"),
            Event::Finished(finished) => ended = Some((finished, Instant::now())),
            _ => {}
        }
    }
    let asked = stopper.join().map_err(|_| "the stopper panicked")?;
    if let Some((finished, at)) = ended {
        let tokens = finished.usage.completion_tokens;
        let late = at.saturating_duration_since(asked);
        println!("\n({:?} after {tokens} tokens, {late:?} after it was asked)", finished.reason);
    }

    // Dropping the handle cancels too, and the session is usable immediately. Options can be reused.
    session.truncate(0)?;
    drop(session.generate("Once more:", &options)?);
    println!("(the session holds {} tokens)", session.tokens()?.len());
    Ok(())
}
