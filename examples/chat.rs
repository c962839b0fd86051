//! A chat in forty lines: `cargo run --release --example chat [MODEL]`, one message per line.
#![expect(clippy::print_stdout, reason = "a conversation is printed")]

mod bundled;

use std::io::{BufRead, Write};

use nestling::{Conversation, Event, FinishReason, GenerateOptions, Message};

/// Tokens that are kept free for an answer.
const ANSWER_TOKENS: usize = 200;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = nestling::open(bundled::model_path())?;
    let mut session = model.session();
    let mut conversation = Conversation::new([]);
    for line in std::io::stdin().lock().lines() {
        conversation.messages.push(Message::user(line?));
        // A conversation that has grown too long loses its oldest turns, and says so.
        let fitted = model.fit(&conversation, ANSWER_TOKENS)?;
        if fitted.dropped_messages > 0 {
            println!("({} old messages are forgotten)", fitted.dropped_messages);
        }
        conversation = fitted.conversation;

        let options = GenerateOptions { max_tokens: Some(ANSWER_TOKENS), ..Default::default() };
        let mut answer = String::new();
        // The session finds by itself what it has computed before: only new tokens cost time.
        for event in session.generate(conversation.clone(), &options)? {
            match event? {
                Event::Text(text) => {
                    print!("{text}");
                    std::io::stdout().flush()?;
                    answer.push_str(&text);
                }
                Event::Finished(finished) => {
                    let cut = finished.reason == FinishReason::Length;
                    let rate = finished.stats.decode_tokens_per_second();
                    println!("{}\n({rate:.1} tokens per second)", if cut { " …" } else { "" });
                }
                _ => {}
            }
        }
        conversation.messages.push(Message::assistant(answer));
    }
    Ok(())
}
