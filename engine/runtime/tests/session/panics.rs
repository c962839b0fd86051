//! Panics while a lock is held: the guarded state is abandoned, and no caller waits forever.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};

use futures_util::Stream;
use nestling_core::EngineError;
use nestling_runtime::SnapshotContents;

use crate::fake::{
    FakeRunner, PANICS_WHEN_READ, caller_engine, engine, expected, greedy, model, prompt, tokens_of,
};

#[test]
fn a_runner_that_panics_outside_of_a_step_computes_no_more() {
    let engine = engine();
    let broken = model(&engine, FakeRunner::new(256, 16, 16));
    let whole = model(&engine, FakeRunner::new(256, 16, 16));
    let (mut session, mut other) = (broken.session(), broken.session());
    let history = [1, 2, PANICS_WHEN_READ];
    assert_eq!(tokens_of(session.generate(history.to_vec(), &greedy(1)).unwrap()).len(), 1);
    let read = || session.snapshot(SnapshotContents::TokensAndPages);
    assert!(catch_unwind(AssertUnwindSafe(read)).is_err());
    let refused = |error: Option<EngineError>| matches!(error, Some(EngineError::ModelBroken));
    assert!(refused(read().err()));
    let started = other.generate(prompt(1, 3), &greedy(1));
    let ended = started.and_then(|generation| generation.into_text());
    assert!(refused(ended.err()));
    // A snapshot of tokens needs no runner, and other models have separate runners.
    let tokens = session.snapshot(SnapshotContents::Tokens);
    assert!(tokens.is_ok() || refused(tokens.err()));
    let answer = whole.session().generate(prompt(1, 3), &greedy(2)).unwrap();
    assert_eq!(tokens_of(answer), expected(&prompt(1, 3), 2));
}

/// A waker that panics once it is armed.
#[derive(Default)]
struct Explosive(AtomicBool);

impl Wake for Explosive {
    fn wake(self: Arc<Self>) {
        assert!(!self.0.load(Ordering::Relaxed), "as asked");
    }
}

#[test]
fn a_loop_in_calls_that_a_waker_panics_in_ends_its_generations() {
    let engine = caller_engine();
    let model = model(&engine, FakeRunner::new(256, 16, 16));
    let (mut first, mut second) = (model.session(), model.session());
    // Prompts longer than a step, so that the first one produces no output yet.
    let mut watched = first.generate(prompt(1, 40), &greedy(5)).unwrap().into_stream();
    let mut other = second.generate(prompt(2, 40), &greedy(5)).unwrap();
    let explosive = Arc::new(Explosive::default());
    let waker = Waker::from(Arc::clone(&explosive));
    let polled = Pin::new(&mut watched).poll_next(&mut Context::from_waker(&waker));
    assert!(polled.is_pending());
    explosive.0.store(true, Ordering::Relaxed);
    // Cancellation sends the last event, which triggers the waker.
    assert!(catch_unwind(AssertUnwindSafe(|| watched.cancel())).is_err());
    let ends: Vec<_> = other.by_ref().filter_map(Result::err).collect();
    assert!(matches!(ends[..], [EngineError::EngineClosed]), "{ends:?}");
    drop((watched, other));
    assert!(matches!(first.generate(prompt(1, 3), &greedy(1)), Err(EngineError::EngineClosed)));
}
