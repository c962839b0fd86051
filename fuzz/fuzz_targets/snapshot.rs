//! Arbitrary snapshots, and sealed ones with arbitrary changes. They are rejected, or restore a session with
//! the same tokens that can be snapshotted, forked and continued.

#![no_main]

use std::cell::OnceCell;

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use nestling_runtime::{Engine, Input, Model, SnapshotContents};
use xxhash_rust::xxh3::xxh3_128;

#[path = "../../engine/runtime/tests/session/fake.rs"]
#[expect(dead_code, reason = "the tests of sessions use more of it")]
mod fake;

use fake::{FakeRunner, PANICS, PANICS_WHEN_READ, VOCAB, caller_engine, greedy, model, prompt};

#[derive(Arbitrary, Debug)]
struct Edit {
    at: u16,
    bytes: Vec<u8>,
}

#[derive(Arbitrary, Debug)]
enum Bytes {
    Any(Vec<u8>),
    Changed {
        recurrent: bool,
        /// Index of the original valid snapshot.
        of: u8,
        edits: Vec<Edit>,
        length: Option<u16>,
        sealed: bool,
        more: Vec<u8>,
    },
}

/// Two models, without and with recurrent states, and valid snapshots of each.
struct Models {
    engine: Engine,
    models: [Model; 2],
    sound: [Vec<Vec<u8>>; 2],
}

impl Models {
    fn new() -> Self {
        let engine = caller_engine();
        let models = [
            model(&engine, FakeRunner::new(512, 16, 16)),
            model(&engine, FakeRunner::recurrent(512, 16, 16, 6)),
        ];
        let sound = models.each_ref().map(snapshots);
        Self { engine, models, sound }
    }
}

fn snapshots(model: &Model) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for length in [0, 1, 63, 64, 65, 130] {
        let mut session = model.session();
        session.append(&prompt(3, length)).unwrap();
        all.push(session.snapshot(SnapshotContents::Tokens).unwrap());
        if length > 0 {
            session.generate(Input::History, &greedy(2)).unwrap().for_each(drop);
            all.push(session.snapshot(SnapshotContents::TokensAndPages).unwrap());
        }
    }
    all
}

fn seal(bytes: &mut Vec<u8>) {
    let end = bytes.len().saturating_sub(16);
    bytes.truncate(end);
    let hash = xxh3_128(bytes);
    bytes.extend(hash.to_le_bytes());
}

fn restore(models: &Models, number: usize, bytes: &[u8]) {
    // The stand-in model panics when it reads a page with this token.
    if bytes.windows(4).any(|token| *token == PANICS_WHEN_READ.to_le_bytes()) {
        return;
    }
    let Ok(mut session) = models.models[number].restore(bytes) else { return };
    let tokens = session.tokens().unwrap();
    assert!(tokens.iter().all(|token| (*token as usize) < VOCAB));
    assert!(session.computed_tokens().unwrap() <= tokens.len());
    let again = session.snapshot(SnapshotContents::TokensAndPages).unwrap();
    let twin = models.models[number].restore(&again).unwrap();
    assert_eq!(twin.tokens().unwrap(), tokens);
    assert_eq!(twin.snapshot(SnapshotContents::TokensAndPages).unwrap(), again);
    drop(twin);
    let fork = session.fork().unwrap();
    // The stand-in model panics at this token, and if states do not match their tokens.
    if number == 0 && !tokens.contains(&PANICS) && !tokens.is_empty() {
        if let Ok(generation) = session.generate(Input::History, &greedy(2)) {
            generation.for_each(drop);
        }
    }
    session.truncate(tokens.len() / 2).unwrap();
    assert_eq!(fork.tokens().unwrap(), tokens);
}

fn run(models: &Models, input: &Bytes) {
    match input {
        Bytes::Any(bytes) => (0..2).for_each(|number| restore(models, number, bytes)),
        Bytes::Changed { recurrent, of, edits, length, sealed, more } => {
            let number = usize::from(*recurrent);
            let sound = &models.sound[number];
            let mut bytes = sound[usize::from(*of) % sound.len()].clone();
            for edit in edits.iter().take(16) {
                let at = usize::from(edit.at) % bytes.len();
                let count = edit.bytes.len().min(bytes.len() - at);
                bytes[at..at + count].copy_from_slice(&edit.bytes[..count]);
            }
            if let Some(length) = length {
                bytes.truncate(usize::from(*length));
            }
            bytes.extend(more);
            if *sealed {
                seal(&mut bytes);
            }
            // The snapshot is restored with its own kind of model and with the other.
            (0..2).for_each(|number| restore(models, number, &bytes));
        }
    }
    // Dropped sessions must have released all memory.
    assert_eq!(models.engine.budget().used_bytes(), 0);
}

thread_local! {
    static MODELS: OnceCell<Models> = const { OnceCell::new() };
}

fuzz_target!(|input: Bytes| {
    MODELS.with(|models| run(models.get_or_init(Models::new), &input));
});
