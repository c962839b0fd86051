//! A chat in forty lines: `cargo run --release --example chat [MODEL]`, one message per line.
#![expect(clippy::print_stdout, reason = "a conversation is printed")]

mod bundled;

use std::io::{BufRead, Write};

use nestling::{Chat, Conversation, Event, FinishReason, GenerateOptions};

/// Number of tokens reserved for an answer.
const ANSWER_TOKENS: usize = 200;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = nestling::open(bundled::model_path())?;
    let chat = Chat::new(model.session(), Conversation::default());
    // Once the conversation is too long, its oldest turns are left out of the prompt.
    let mut chat = chat.dropping_old_turns(ANSWER_TOKENS);
    let options = GenerateOptions { max_tokens: Some(ANSWER_TOKENS), ..Default::default() };
    for line in std::io::stdin().lock().lines() {
        // The session reuses what it has computed before: only new tokens cost time.
        let answer = chat.send(line?, &options)?;
        if chat.dropped_messages() > 0 {
            println!("({} old messages are left out)", chat.dropped_messages());
        }
        for event in answer {
            match event? {
                Event::Text(text) => {
                    print!("{text}");
                    std::io::stdout().flush()?;
                }
                Event::Finished(finished) => {
                    let cut = finished.reason == FinishReason::Length;
                    let rate = finished.stats.decode_tokens_per_second();
                    println!("{}\n({rate:.1} tokens per second)", if cut { " …" } else { "" });
                }
                _ => {}
            }
        }
    }
    println!("({} messages in all)", chat.transcript().len());
    Ok(())
}
