//! Continues one prefix in several ways: `cargo run --release --example fork_session [MODEL]`.
//!
//! Forks share computed pages until they diverge, so the prefix is computed once.
#![expect(clippy::print_stdout, reason = "the result is printed")]

mod bundled;

use nestling::{GenerateOptions, Input, SamplingOptions, SnapshotContents};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = nestling::open(bundled::model_path())?;
    let mut session = model.session();
    let beginning = "It was a dark night when the captain came on deck and";
    let compute = GenerateOptions { max_tokens: Some(0), ..Default::default() };
    session.generate(beginning, &compute)?.into_text()?;
    println!("{beginning} … ({} tokens are computed)", session.computed_tokens()?);

    let ends = (1..=3).map(|seed| {
        let seed = Some(seed);
        let sampling = SamplingOptions { seed, ..SamplingOptions::default() };
        let options = GenerateOptions { sampling, max_tokens: Some(30), ..Default::default() };
        session.fork()?.generate(Input::History, &options)
    });
    // All three are started before the first is read, so that they share all steps.
    for end in ends.collect::<Result<Vec<_>, _>>()? {
        let (text, finished) = end.into_answer()?;
        println!("…{text}\n  ({} of its prompt was computed)", finished.stats.prompt_tokens);
    }

    let snapshot = session.snapshot(SnapshotContents::TokensAndPages)?;
    let restored = model.restore(&snapshot)?;
    println!(
        "a snapshot of {} bytes gave {} tokens back",
        snapshot.len(),
        restored.tokens()?.len()
    );
    Ok(())
}
