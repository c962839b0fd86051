//! Sessions of a model with recurrent layers, whose state cannot be truncated.
//!
//! Outputs are unchanged, and at most the tokens since the last retained state are recomputed.

use std::sync::atomic::Ordering;

use super::fake::*;
use nestling_runtime::{Input, SnapshotContents};

/// More pages than these tests need.
const PAGES: usize = 64;

#[test]
fn a_regenerated_answer_is_the_same_and_computes_little_again() {
    let engine = engine();
    let model = model(&engine, FakeRunner::recurrent(1024, 48, PAGES, 8));
    let mut session = model.session();
    let history = prompt(3, 300);
    let (first, _) = finish(session.generate(history.clone(), &greedy(40)).unwrap());
    assert_eq!(first, expected(&history, 40));
    session.truncate(300).unwrap();
    let (again, finished) = finish(session.generate(Input::History, &greedy(40)).unwrap());
    assert_eq!(again, first);
    assert_eq!(finished.usage.cached_tokens, 256, "the end of the page before the prompt's end");

    // The text after the end of the prompt has changed.
    let turn: Vec<u32> = [&history[..290], &[1, 2, 3], &first[..], &[9; 60]].concat();
    session.replace(turn.clone()).unwrap();
    let (answer, finished) = finish(session.generate(Input::History, &greedy(5)).unwrap());
    assert_eq!((answer, finished.usage.cached_tokens), (expected(&turn, 5), 256));

    // Before the oldest retained state, everything is recomputed.
    session.truncate(200).unwrap();
    assert_eq!(session.computed_tokens().unwrap(), 0);
    let (answer, _) = finish(session.generate(Input::History, &greedy(5)).unwrap());
    assert_eq!(answer, expected(&history[..200], 5));
}

#[test]
fn a_longer_history_computes_only_what_is_new() {
    let engine = engine();
    let model = model(&engine, FakeRunner::recurrent(512, 32, PAGES, 8));
    let mut session = model.session();
    let mut history = prompt(5, 70);
    let (answer, _) = finish(session.generate(history.clone(), &greedy(10)).unwrap());
    history.extend(answer);
    history.push(8);
    let (answer, finished) = finish(session.generate(vec![8], &greedy(5)).unwrap());
    assert_eq!(answer, expected(&history, 5));
    assert_eq!((finished.usage.cached_tokens, finished.stats.prompt_tokens), (79, 2));
}

#[test]
fn forks_go_their_own_ways() {
    let engine = engine();
    let model = model(&engine, FakeRunner::recurrent(512, 32, PAGES, 12));
    let mut session = model.session();
    let history = prompt(4, 150);
    finish(session.generate(history.clone(), &greedy(0)).unwrap());
    let held = model.free_states();
    let mut forks = [session.fork().unwrap(), session.fork().unwrap()];
    assert_eq!(model.free_states(), held, "a fork takes no state");
    let running: Vec<_> = (20u32..)
        .zip(forks.iter_mut().chain([&mut session]))
        .map(|(token, session)| (token, session.generate(vec![token], &greedy(30)).unwrap()))
        .collect();
    for (token, generation) in running {
        let with = [history.clone(), vec![token]].concat();
        assert_eq!(tokens_of(generation), expected(&with, 30));
    }
    forks[0].truncate(140).unwrap();
    let (answer, finished) = finish(forks[0].generate(Input::History, &greedy(9)).unwrap());
    assert_eq!((answer, finished.usage.cached_tokens), (expected(&history[..140], 9), 128));
    drop((session, forks));
    eventually("all states are free again", || model.free_states() == 12);
}

#[test]
fn a_snapshot_carries_the_state() {
    let engine = engine();
    let model = model(&engine, FakeRunner::recurrent(512, 64, PAGES, 6));
    let mut session = model.session();
    let history = prompt(6, 100);
    let (answer, _) = finish(session.generate(history.clone(), &greedy(7)).unwrap());
    let history = [history, answer].concat();
    let bytes = session.snapshot(SnapshotContents::TokensAndPages).unwrap();
    drop(session);
    let mut restored = model.restore(&bytes).unwrap();
    assert_eq!(restored.computed_tokens().unwrap(), 106);
    let (answer, finished) = finish(restored.generate(Input::History, &greedy(8)).unwrap());
    assert_eq!((answer, finished.usage.cached_tokens), (expected(&history, 8), 106));
    // The snapshot has no state of an earlier position.
    restored.truncate(90).unwrap();
    assert_eq!(restored.computed_tokens().unwrap(), 0);
    let (answer, _) = finish(restored.generate(Input::History, &greedy(8)).unwrap());
    assert_eq!(answer, expected(&history[..90], 8));
}

#[test]
fn more_sessions_than_states_take_turns() {
    let engine = engine();
    let runner = FakeRunner::recurrent(256, 64, PAGES, 4);
    let seen = std::sync::Arc::clone(&runner.seen);
    let model = model(&engine, runner);
    let mut sessions: Vec<_> = (0..6).map(|_| model.session()).collect();
    let running: Vec<_> = (1u32..)
        .zip(&mut sessions)
        .map(|(seed, session)| (seed, session.generate(prompt(seed, 90), &greedy(20)).unwrap()))
        .collect();
    for (seed, generation) in running {
        assert_eq!(tokens_of(generation), expected(&prompt(seed, 90), 20), "session {seed}");
    }
    assert!(seen.sequences_max.load(Ordering::Relaxed) > 1, "no two shared a step");
}

#[test]
fn a_step_that_failed_leaves_the_state_that_it_read() {
    let engine = engine();
    let model = model(&engine, FakeRunner::recurrent(512, 64, PAGES, 8));
    let mut session = model.session();
    let history = prompt(8, 200);
    finish(session.generate(history.clone(), &greedy(0)).unwrap());
    let failed = session.generate(vec![BREAKS_STEP], &greedy(3)).unwrap();
    assert!(failed.last().is_some_and(|event| event.is_err()));
    assert_eq!(session.computed_tokens().unwrap(), 200);
    session.truncate(200).unwrap();
    let (answer, _) = finish(session.generate(vec![3], &greedy(9)).unwrap());
    assert_eq!(answer, expected(&[history, vec![3]].concat(), 9));
}

/// Steps have one row: the scheduler chooses the short prompt, which lacks a state held by the long one.
#[test]
fn one_that_lacks_a_state_does_not_hold_up_those_who_have_theirs() {
    let engine = caller_engine();
    let model = model(&engine, FakeRunner::recurrent(384, 1, 16, 4));
    let mut long = model.session();
    let history = prompt(3, 190);
    let (first, _) = finish(long.generate(history.clone(), &greedy(4)).unwrap());
    let more = prompt(4, 60);
    let whole = [&history[..], &first, &more].concat();
    let slow = long.generate(more, &greedy(3)).unwrap();
    let short = prompt(5, 38);
    let fast = model.session().generate(short.clone(), &greedy(3)).unwrap();
    assert_eq!(finish(fast).0, expected(&short, 3));
    assert_eq!(finish(slow).0, expected(&whole, 3));
}
