//! Reading and stopping a generation: as an iterator, a stream, a future.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use futures_util::future::{Either, select};
use futures_util::{FutureExt, Stream, StreamExt};

use super::fake::*;
use nestling_core::driver::block_on;
use nestling_core::{CancelToken, EngineError};
use nestling_runtime::{Event, FinishReason, GenerateOptions, Generation};

fn finish(generation: Generation) -> FinishReason {
    let finished = generation.into_answer().unwrap().1;
    finished.reason
}

/// A waker that counts wake-ups.
struct WakeCounter(AtomicUsize);

impl std::task::Wake for WakeCounter {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn a_stream_wakes_whoever_polls_it() {
    for engine in [engine(), caller_engine()] {
        let mut runner = FakeRunner::new(512, 64, 32);
        runner.step_time = Duration::from_millis(2);
        let model = model(&engine, runner);
        let mut stream =
            model.session().generate(prompt(1, 10), &greedy(20)).unwrap().into_stream();
        let wakes = Arc::new(WakeCounter(AtomicUsize::new(0)));
        let waker = Waker::from(Arc::clone(&wakes));
        let mut context = Context::from_waker(&waker);
        let mut tokens = Vec::new();
        loop {
            let before = wakes.0.load(Ordering::SeqCst);
            match std::pin::Pin::new(&mut stream).poll_next(&mut context) {
                Poll::Ready(None) => break,
                Poll::Ready(Some(Ok(Event::Token(token)))) => tokens.push(token.token),
                Poll::Ready(Some(event)) => drop(event.unwrap()),
                Poll::Pending => {
                    eventually("a wake", || wakes.0.load(Ordering::SeqCst) > before);
                }
            }
        }
        assert_eq!(tokens, expected(&prompt(1, 10), 20));
    }
}

/// Method resolution of the handles with the adaptors of both traits in scope: each handle has one trait.
#[test]
fn iterators_and_streams_are_told_apart() {
    let engine = engine();
    let model = model(&engine, FakeRunner::new(512, 64, 32));
    let start = || model.session().generate(prompt(1, 10), &greedy(20)).unwrap();
    let token = |event: Result<Event, EngineError>| match event.unwrap() {
        Event::Token(token) => Some(token.token),
        _ => None,
    };
    let mut generation = start();
    let first = generation.next().and_then(token);
    let iterated: Vec<u32> = first.into_iter().chain(generation.filter_map(token)).collect();
    let streamed: Vec<u32> = block_on(async {
        let mut stream = start().into_stream();
        let first = stream.next().await.and_then(token);
        let rest = stream.filter_map(|event| std::future::ready(token(event)));
        let rest: Vec<u32> = rest.collect().await;
        first.into_iter().chain(rest).collect()
    });
    assert_eq!(iterated, expected(&prompt(1, 10), 20));
    assert_eq!(streamed, iterated);
}

#[test]
fn a_generation_is_a_future_of_its_answer() {
    for engine in [engine(), caller_engine()] {
        let model = model(&engine, FakeRunner::new(512, 64, 32));
        let start = |token| model.session().generate(vec![1, token], &greedy(20)).unwrap();
        let (text, finished) = block_on(start(2).into_future()).unwrap();
        assert_eq!((text.as_str(), finished.usage.completion_tokens), ("", 20));
        let failed = block_on(async { start(POISON).await }).unwrap_err();
        assert!(matches!(failed, EngineError::NotFinite { .. }), "{failed}");
    }
}

/// Readers compute if the engine has no thread. They yield to other futures after each step.
#[test]
fn a_reader_that_computes_leaves_the_executor_to_others() {
    let engine = caller_engine();
    let runner = FakeRunner::new(512, 64, 32);
    let seen = Arc::clone(&runner.seen);
    let model = model(&engine, runner);
    let mut stream = model.session().generate(prompt(1, 10), &greedy(40)).unwrap().into_stream();
    // Stands for a timer: it becomes ready after 10 polls.
    let mut polls = 0;
    let mut timer = std::future::poll_fn(|context| {
        polls += 1;
        context.waker().wake_by_ref();
        if polls == 10 { Poll::Ready(()) } else { Poll::Pending }
    });
    let ended = block_on(async {
        let read = async { while stream.next().await.is_some() {} };
        // The reader is always polled first.
        select(pin!(read), &mut timer).map(|first| matches!(first, Either::Left(_))).await
    });
    let steps = seen.steps.load(Ordering::Relaxed);
    assert!(!ended, "the answer ended after {steps} steps, the timer was asked {polls} times");
    assert!(steps <= 10, "{steps} steps beside 10 polls of the timer");
}

#[test]
fn options_do_for_another_answer_after_one_was_cancelled() {
    let engine = engine();
    let model = model(&engine, FakeRunner::new(512, 64, 32));
    let options = greedy(30);
    let mut session = model.session();
    let generation = session.generate(vec![1], &options).unwrap();
    generation.cancel_token().cancel();
    drop(generation);
    session.truncate(0).unwrap();
    let again = session.generate(vec![1], &options).unwrap();
    assert_eq!(tokens_of(again), expected(&[1], 30));
}

#[test]
fn a_token_of_the_callers_stops_what_it_was_given_to_alone() {
    let engine = engine();
    let model = model(&engine, FakeRunner::new(4096, 64, 128));
    let cancel = CancelToken::new();
    let options = GenerateOptions { events_max: 2, ..greedy(1000) };
    let mut session = model.session();
    let stopped = session.generate_with_cancel(vec![1], &options, &cancel).unwrap();
    let mut alone = model.session();
    let other = alone.generate(vec![2], &greedy(100)).unwrap();
    // The generation waits for a reader, and the cancellation does not wake the loop.
    std::thread::sleep(Duration::from_millis(20));
    cancel.cancel();
    let start = Instant::now();
    assert!(session.tokens().unwrap().len() < 10);
    assert!(start.elapsed() < Duration::from_millis(250), "{:?}", start.elapsed());
    assert_eq!(finish(stopped), FinishReason::Cancelled);
    assert_eq!(tokens_of(other), expected(&[2], 100));
    let length = session.tokens().unwrap().len();
    let late = session.generate_with_cancel(vec![3], &options, &cancel);
    assert!(matches!(late, Err(EngineError::Cancelled)), "{late:?}");
    assert_eq!(session.tokens().unwrap().len(), length, "nothing was added");
    let options = GenerateOptions { max_tokens: Some(3), ..GenerateOptions::greedy() };
    assert_eq!(finish(session.generate(vec![3], &options).unwrap()), FinishReason::Length);
}
