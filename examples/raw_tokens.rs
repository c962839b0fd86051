//! Token ids as input, token ids and log-probabilities as output:
//! `cargo run --release --example raw_tokens [MODEL]`.
#![expect(clippy::print_stdout, reason = "the result is printed")]

mod bundled;

use nestling::{Event, GenerateOptions, Input, SamplingOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = nestling::open(bundled::model_path())?;
    let tokenizer = model.tokenizer().ok_or("this model has no tokenizer")?;
    let prompt = tokenizer.encode("Once upon a time", Default::default())?;
    println!("prompt: {prompt:?}");

    let sampling = SamplingOptions { top_logprobs: Some(3), ..SamplingOptions::greedy() };
    let options = GenerateOptions { sampling, max_tokens: Some(12), ..Default::default() };
    let mut session = model.session();
    for event in session.generate(Input::Tokens(prompt), &options)? {
        if let Event::Token(token) = event? {
            let text = |id| tokenizer.decode(&[id], true).unwrap_or_default();
            let others: Vec<_> = token.top.iter().map(|(id, p)| (text(*id), p.exp())).collect();
            println!(
                "{:>6} {:?} {:?} {others:.3?}",
                token.token,
                text(token.token),
                token.log_prob
            );
        }
    }
    println!("history: {:?}", session.tokens()?);
    Ok(())
}
