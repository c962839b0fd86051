//! Tokenization and rendering block only their caller.

use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use tracing::span::{Attributes, Id, Record};
use tracing::{Event as TraceEvent, Metadata, Subscriber};

use super::fake::*;
use nestling_core::{CancelToken, EngineError};
use nestling_runtime::{Conversation, Input};
use nestling_text::{ChatTemplate, EncodeOptions, Message, Tokenizer};

/// Timeout of the tests.
const PATIENCE: Duration = Duration::from_secs(120);

/// Stops its thread before a prompt is tokenized, until it is released.
struct Latch {
    reached: Sender<()>,
    go_on: Mutex<Receiver<()>>,
}

impl Subscriber for Latch {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "nestling_runtime::open"
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &TraceEvent<'_>) {
        self.reached.send(()).unwrap();
        self.go_on.lock().unwrap().recv_timeout(PATIENCE).unwrap();
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Length of the longest token in bytes.
const TOKEN_BYTES_MAX: usize = 8;

/// Returns a tokenizer with letters and all single bytes as tokens.
pub fn letters() -> Tokenizer {
    letters_split(None)
}

/// Returns the same tokenizer with a split by a regular expression.
fn letters_split(pattern: Option<&str>) -> Tokenizer {
    let bytes = (0..=u8::MAX).map(|byte| format!("<0x{byte:02X}>"));
    let longest = std::iter::once("z".repeat(TOKEN_BYTES_MAX));
    let words = ('a'..='z').map(String::from).chain(longest).chain(bytes);
    let vocab: serde_json::Map<_, _> = words.zip(0..).map(|(word, id)| (word, id.into())).collect();
    let split = pattern.map(|regex| {
        serde_json::json!({ "type": "Split", "pattern": { "Regex": regex },
            "behavior": "Isolated", "invert": false })
    });
    let json = serde_json::json!({
        "version": "1.0", "added_tokens": [], "pre_tokenizer": split,
        "model": { "type": "BPE", "vocab": vocab, "merges": [], "byte_fallback": true },
    });
    Tokenizer::from_bytes("tokenizer.json", json.to_string().as_bytes()).unwrap()
}

#[test]
fn a_prompt_that_is_being_tokenized_holds_up_no_other_session() {
    let engine = engine();
    let model = model_with(&engine, FakeRunner::new(256, 64, 4), Some(letters()));
    let history = prompt(1, 100);
    let mut session = model.session();
    let mut answer = tokens_of(session.generate(history.clone(), &greedy(1)).unwrap());
    assert_eq!(session.computed_tokens().unwrap(), 100, "two of four pages");
    let (reached, is_reached) = channel();
    let (let_go, go_on) = channel();
    let latch = Latch { reached, go_on: Mutex::new(go_on) };
    std::thread::scope(|scope| {
        let more = scope.spawn(|| {
            tracing::subscriber::with_default(latch, || {
                session.generate("abc", &greedy(5)).map(tokens_of)
            })
        });
        is_reached.recv_timeout(PATIENCE).unwrap();
        // This generation needs all pages, including those of the session being tokenized.
        let mut other = model.session().generate(prompt(2, 90), &greedy(150)).unwrap();
        let mut tokens = Vec::new();
        let (sender, events) = channel();
        scope.spawn(move || other.all(|event| sender.send(event).is_ok()));
        while let Ok(event) = events.recv_timeout(PATIENCE / 2) {
            if let nestling_runtime::Event::Token(token) = event.unwrap() {
                tokens.push(token.token);
            }
        }
        let_go.send(()).unwrap();
        assert_eq!(tokens, expected(&prompt(2, 90), 150), "it waited for another's prompt");
        let added = letters().encode("abc", EncodeOptions::default()).unwrap();
        let whole = [&history[..], &answer, &added].concat();
        answer = more.join().unwrap().unwrap();
        assert_eq!(answer, expected(&whole, 5));
    });
}

#[test]
fn a_text_that_is_too_long_by_its_bytes_is_not_tokenized() {
    let engine = engine();
    let model = model_with(&engine, FakeRunner::new(256, 64, 4), Some(letters()));
    let (reached, is_reached) = channel();
    let (_let_go, go_on) = channel();
    let latch = Latch { reached, go_on: Mutex::new(go_on) };
    let mut session = model.session();
    session.append(&[1, 2, 3]).unwrap();
    let refused = tracing::subscriber::with_default(latch, || {
        session.generate("x".repeat(5 << 20), &greedy(5)).map(tokens_of)
    });
    let Err(EngineError::ContextFull { limit: 256, wanted }) = refused else {
        panic!("{refused:?}")
    };
    assert_eq!(wanted, (5 << 20) / TOKEN_BYTES_MAX as u64 + 3 + 1);
    assert!(is_reached.try_recv().is_err(), "it was tokenized");
    assert_eq!(session.tokens().unwrap(), [1, 2, 3]);
}

/// A cancelled call returns promptly, however slow the template or the tokenizer is.
#[test]
fn a_cancel_ends_what_turns_text_into_tokens() {
    let engine = engine();
    let slow_words = letters_split(Some("a+b|a"));
    let slow_template = "{% for i in range(99999) %}{% for j in range(99999) %}{{ messages[0].content|upper|length }}{% endfor %}{% endfor %}";
    let plain = ChatTemplate::new("{{ messages[0].content }}").unwrap();
    let slow = ChatTemplate::new(slow_template).unwrap();
    let runner = || FakeRunner::new(1 << 20, 64, 1 << 14);
    let text = "a".repeat(400_000);
    let conversation = Conversation::new([Message::user(text.as_str())]);
    let short = Conversation::new([Message::user("abc")]);
    for (tokenizer, template, input) in [
        (letters(), &slow, Input::from(short.clone())),
        (letters(), &slow, Input::from(conversation.clone())),
        (slow_words.clone(), &plain, Input::from(conversation.clone())),
        (slow_words.clone(), &plain, Input::from(text.as_str())),
    ] {
        let model = model_of(&engine, runner(), Some(tokenizer), Some(template.clone()));
        let mut session = model.session();
        let late = cancelled_after(Duration::from_millis(60), |cancel| {
            let stopped = session.generate_with_cancel(input, &greedy(5), cancel);
            assert!(matches!(stopped, Err(EngineError::Cancelled)), "{stopped:?}");
        });
        assert!(late < Duration::from_millis(250), "{late:?}");
        assert!(session.tokens().unwrap().is_empty(), "the history is as it was");
    }
    let model = model_of(&engine, runner(), Some(slow_words), Some(plain));
    let late = cancelled_after(Duration::from_millis(60), |cancel| {
        let fitted = model.fit_with_cancel(&conversation, 1, cancel);
        assert!(matches!(fitted, Err(EngineError::Cancelled)), "{fitted:?}");
        let tokens = model.conversation_tokens_with_cancel(&conversation, cancel);
        assert!(matches!(tokens, Err(EngineError::Cancelled)), "{tokens:?}");
    });
    assert!(late < Duration::from_millis(250), "{late:?}");
    // The abandoned worker ends eventually, and the next text is encoded.
    let model = model_of(&engine, runner(), Some(letters()), None);
    let long = model.session().generate("abc ".repeat(10_000), &greedy(1));
    assert!(matches!(long, Err(EngineError::ContextFull { .. }) | Ok(_)), "{long:?}");
}

/// Returns the time from cancellation to the end of `work`.
fn cancelled_after(time: Duration, work: impl FnOnce(&CancelToken)) -> Duration {
    let cancel = CancelToken::new();
    std::thread::scope(|scope| {
        let told = scope.spawn(|| {
            std::thread::sleep(time);
            cancel.cancel();
            Instant::now()
        });
        work(&cancel);
        let end = Instant::now();
        end.saturating_duration_since(told.join().unwrap())
    })
}
