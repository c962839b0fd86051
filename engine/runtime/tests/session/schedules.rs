//! The step loop, its inbox, sessions and handles under random thread schedules.
//!
//! Built only with `--cfg shuttle`. The primitives in `nestling_core::sync` take part in the schedules.

use std::sync::Arc;

use nestling_core::EngineError;
use nestling_core::sync::thread;
use nestling_runtime::{
    Driver, Engine, EngineOptions, Event, FinishReason, Generation, Input, Session,
};

use crate::fake::{FakeRunner, PANICS, expected, greedy, model, prompt, tokens_of};

/// Returns the number of schedules per test.
fn schedules() -> usize {
    let asked = std::env::var("NESTLING_SCHEDULES").ok();
    asked.map_or(500, |count| count.parse().unwrap())
}

fn check(test: impl Fn() + Send + Sync + 'static) {
    let mut config = shuttle::Config::new();
    // Steps run on the stack of the loop's thread.
    config.stack_size = 1 << 20;
    let scheduler = shuttle::scheduler::RandomScheduler::new(schedules());
    shuttle::Runner::new(scheduler, config).run(test);
}

/// Returns an engine with a step loop and no further compute threads, so that all threads belong to the
/// schedule.
fn engine(driver: Driver) -> Engine {
    Engine::new(EngineOptions { driver, threads: Some(1), ..EngineOptions::default() }).unwrap()
}

fn started(session: &mut Session, prompt: &[u32], tokens: usize) -> Generation {
    session.generate(prompt.to_vec(), &greedy(tokens)).unwrap()
}

/// Returns the tokens of a generation that may end early, with the reason.
fn until_end(generation: Generation) -> (Vec<u32>, Result<FinishReason, EngineError>) {
    let mut tokens = Vec::new();
    for event in generation {
        match event {
            Ok(Event::Token(token)) => tokens.push(token.token),
            Ok(Event::Finished(finished)) => return (tokens, Ok(finished.reason)),
            Ok(_) => {}
            Err(error) => return (tokens, Err(error)),
        }
    }
    panic!("a generation without an end");
}

#[test]
fn sessions_of_several_threads_say_what_each_would_say_alone() {
    for driver in [Driver::Thread, Driver::Caller] {
        check(move || {
            let engine = engine(driver);
            // Enough pages for one session at a time.
            let model = model(&engine, FakeRunner::new(128, 8, 2));
            let threads: Vec<_> = (0..3u32)
                .map(|seed| {
                    let mut session = model.session();
                    thread::spawn(move || {
                        let prompt = prompt(seed, 3 + seed as usize * 20);
                        let tokens = tokens_of(started(&mut session, &prompt, 3));
                        assert_eq!(tokens, expected(&prompt, 3));
                    })
                })
                .collect();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
    }
}

#[test]
fn a_cancelled_generation_ends_and_its_session_goes_on() {
    for driver in [Driver::Thread, Driver::Caller] {
        check(move || {
            let engine = engine(driver);
            let model = model(&engine, FakeRunner::new(128, 8, 8));
            let (mut session, prompt) = (model.session(), prompt(1, 5));
            let generation = started(&mut session, &prompt, 6);
            let cancel = generation.cancel_token();
            let reader = thread::spawn(move || until_end(generation));
            let other = model.session();
            let stopper = thread::spawn(move || {
                cancel.cancel();
                // Dropping a session of the engine wakes an idle loop.
                drop(other);
            });
            stopper.join().unwrap();
            let (tokens, end) = reader.join().unwrap();
            assert!(matches!(end.unwrap(), FinishReason::Cancelled | FinishReason::Length));
            assert_eq!(tokens, expected(&prompt, tokens.len()));
            session.truncate(2).unwrap();
            let left = session.tokens().unwrap();
            let more = tokens_of(session.generate(Input::History, &greedy(2)).unwrap());
            assert_eq!(more, expected(&left, 2));
        });
    }
}

#[test]
fn dropping_a_generation_gives_its_session_back() {
    check(|| {
        let engine = engine(Driver::Thread);
        let model = model(&engine, FakeRunner::new(128, 8, 8));
        let (mut session, prompt) = (model.session(), prompt(4, 5));
        let generation = started(&mut session, &prompt, 9);
        let dropper = thread::spawn(move || drop(generation));
        // Busy, or blocked until the loop has released the session.
        while let Err(error) = session.truncate(1) {
            assert!(matches!(error, EngineError::SessionBusy), "{error}");
            thread::yield_now();
        }
        dropper.join().unwrap();
        assert_eq!(session.tokens().unwrap(), prompt[..1]);
    });
}

#[test]
fn whoever_waits_hears_that_the_engine_closes() {
    for driver in [Driver::Thread, Driver::Caller] {
        check(move || {
            let engine = engine(driver);
            let model = model(&engine, FakeRunner::new(128, 8, 8));
            let readers: Vec<_> = (0..2)
                .map(|seed| {
                    let mut session = model.session();
                    thread::spawn(move || match session.generate(prompt(seed, 4), &greedy(4)) {
                        Ok(generation) => until_end(generation).1.map(drop),
                        Err(error) => Err(error),
                    })
                })
                .collect();
            engine.shutdown();
            for reader in readers {
                let end = reader.join().unwrap();
                assert!(matches!(end, Ok(()) | Err(EngineError::EngineClosed)), "{end:?}");
            }
        });
    }
}

#[test]
fn a_step_that_panics_ends_every_generation_of_its_model_and_no_other() {
    check(|| {
        let engine = engine(Driver::Thread);
        let runner = FakeRunner::new(128, 8, 8);
        let seen = Arc::clone(&runner.seen);
        let broken = model(&engine, runner);
        let other = model(&engine, FakeRunner::new(128, 8, 8));
        let mut sessions = [broken.session(), broken.session(), other.session()];
        let prompts = [vec![1, PANICS], prompt(2, 4), prompt(3, 4)];
        let mut readers = Vec::new();
        for (session, prompt) in sessions.iter_mut().zip(&prompts) {
            match session.generate(prompt.clone(), &greedy(3)) {
                Ok(generation) => readers.push(thread::spawn(move || until_end(generation))),
                // An earlier step has panicked already.
                Err(error) => assert!(matches!(error, EngineError::ModelBroken), "{error}"),
            }
        }
        let ends: Vec<_> = readers.into_iter().map(|reader| reader.join().unwrap()).collect();
        assert!(matches!(ends[0].1, Err(EngineError::ModelBroken)));
        let (tokens, end) = ends.last().unwrap();
        assert!(matches!(end, Ok(FinishReason::Length)), "{end:?}");
        assert_eq!(*tokens, expected(&prompts[2], 3));
        drop((sessions, broken));
        drop(seen);
    });
}
