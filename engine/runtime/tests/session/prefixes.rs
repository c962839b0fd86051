//! Shared prefixes: pages computed once for several sessions.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::fake::*;
use nestling_formats::Level;
use nestling_runtime::{
    Engine, Event, FinishReason, GenerateOptions, Generation, Input, Model, ModelParts, Prefixes,
    Session, SnapshotContents,
};

/// Returns the output of a new session, with the number of cached prompt tokens.
fn fresh(model: &Model, prompt: &[u32], options: &GenerateOptions) -> (Vec<u32>, usize) {
    let (tokens, finished) = finish(model.session().generate(prompt.to_vec(), options).unwrap());
    (tokens, finished.usage.cached_tokens)
}

#[test]
fn strangers_with_the_same_beginning_compute_the_rest() {
    for engine in [engine(), caller_engine()] {
        let runner = FakeRunner::new(1024, 32, 40);
        let seen = Arc::clone(&runner.seen);
        let model = model(&engine, runner);
        let shared = prompt(1, 300);
        let ask = |end: u32| [&shared[..], &[end]].concat();
        assert_eq!(fresh(&model, &ask(7), &greedy(20)), (expected(&ask(7), 20), 0));
        let rows = seen.rows.load(Ordering::Relaxed);
        // The first session is gone. Its pages are free, but keep their contents.
        assert_eq!(model.free_pages(), 40);
        assert_eq!(fresh(&model, &ask(8), &greedy(20)), (expected(&ask(8), 20), 256));
        assert_eq!(seen.rows.load(Ordering::Relaxed) - rows, 301 - 256 + 19);
        // Outputs are shared as prefixes too.
        let longer = [&ask(8)[..], &expected(&ask(8), 20), &[9]].concat();
        assert_eq!(fresh(&model, &longer, &greedy(5)), (expected(&longer, 5), 320));
        let status = engine.status();
        assert_eq!(status.prefixes.asked_tokens, 256 + 256 + 320);
        assert_eq!(status.prefixes.found_tokens, 256 + 320);
        assert_eq!(
            (status.pages.free, status.pages.idle),
            (40, 6),
            "four that all share, and the fifth of two"
        );
    }
}

/// The last page of a fully cached prompt is recomputed for the logits of the last token.
#[test]
fn a_prompt_of_whole_pages_computes_what_is_asked_of_it() {
    let engine = engine();
    let model = model(&engine, FakeRunner::new(512, 32, 16));
    let history = prompt(2, 128);
    assert_eq!(fresh(&model, &history, &greedy(3)), (expected(&history, 3), 0));
    assert_eq!(fresh(&model, &history, &greedy(3)), (expected(&history, 3), 64));
    assert_eq!(fresh(&model, &history, &greedy(0)), (vec![], 128));
    let scores = GenerateOptions { prompt_logprobs: Some(0), ..greedy(3) };
    assert_eq!(fresh(&model, &history, &scores), (expected(&history, 3), 0));
    assert_eq!(model.free_pages(), 16);
}

#[test]
fn nothing_is_shared_across_salts_levels_or_where_it_is_switched_off() {
    let engine = engine();
    let model = model(&engine, FakeRunner::new(512, 32, 40));
    let history = prompt(3, 200);
    let salted = |salt: &str| GenerateOptions { cache_salt: Some(salt.into()), ..greedy(4) };
    let at_level_4 = GenerateOptions { level: Some(Level::L4), ..greedy(4) };
    for (options, cached) in [
        (greedy(4), 0),
        (salted("a"), 0),
        (salted("b"), 0),
        (salted(""), 0),
        (at_level_4.clone(), 0),
        (greedy(4), 192),
        (salted("b"), 192),
        (at_level_4, 192),
    ] {
        assert_eq!(fresh(&model, &history, &options), (expected(&history, 4), cached));
    }
    let runner = FakeRunner::new(512, 32, 40);
    let alone = alone(&engine, runner);
    for _ in 0..2 {
        assert_eq!(fresh(&alone, &history, &greedy(4)), (expected(&history, 4), 0));
    }
    assert_eq!(engine.status().pages.idle, 15, "five beginnings of three pages");
}

/// Returns a model without shared prefixes.
fn alone(engine: &Engine, runner: FakeRunner) -> Model {
    let parts =
        ModelParts { prefixes: Prefixes::Alone, ..parts_of(runner.limits, Box::new(runner)) };
    Model::from_parts(engine, parts).unwrap()
}

#[test]
fn what_was_unused_for_longest_is_taken_first_from_its_end() {
    let engine = engine();
    let model = model(&engine, FakeRunner::new(512, 64, 10));
    let (old, new) = (prompt(4, 260), prompt(5, 260));
    fresh(&model, &old, &greedy(1));
    fresh(&model, &new, &greedy(1));
    assert_eq!(engine.status().pages.idle, 8);
    // Five more pages: two were empty, three come from the end of the older history.
    let other = prompt(6, 300);
    assert_eq!(fresh(&model, &other, &greedy(1)).1, 0);
    assert_eq!(fresh(&model, &new, &greedy(1)), (expected(&new, 1), 256));
    assert_eq!(fresh(&model, &old, &greedy(1)), (expected(&old, 1), 64));
}

#[test]
fn a_page_that_others_may_find_is_not_written() {
    let engine = engine();
    let model = model(&engine, FakeRunner::new(512, 32, 16));
    let history = prompt(7, 130);
    let mut session = model.session();
    finish(session.generate(history.clone(), &greedy(2)).unwrap());
    // It diverges in the middle of a page that no other session holds.
    session.truncate(100).unwrap();
    let other = [&history[..100], &prompt(8, 50)[..]].concat();
    let (answer, _) = finish(session.generate(prompt(8, 50), &greedy(9)).unwrap());
    assert_eq!(answer, expected(&other, 9));
    assert_eq!(fresh(&model, &history, &greedy(9)), (expected(&history, 9), 128));
    assert_eq!(fresh(&model, &other, &greedy(9)), (expected(&other, 9), 128));
    // Without a free page for the copy, the kept page is overwritten.
    let small = alone_in_its_pool(&engine);
    let mut session = small.session();
    finish(session.generate(prompt(7, 128), &greedy(0)).unwrap());
    session.truncate(100).unwrap();
    let (answer, _) = finish(session.generate(prompt(8, 20), &greedy(1)).unwrap());
    let other = [&history[..100], &prompt(8, 20)[..]].concat();
    assert_eq!(answer, expected(&other, 1));
}

/// Returns a model with only two pages.
fn alone_in_its_pool(engine: &Engine) -> Model {
    model(engine, FakeRunner::new(128, 32, 2))
}

#[test]
fn recurrent_models_go_on_where_a_state_was_kept() {
    let engine = engine();
    let model = model(&engine, FakeRunner::recurrent(1024, 48, 64, 12));
    let shared = prompt(1, 300);
    let ask = |end: &[u32]| [&shared[..], end].concat();
    let first = ask(&[7]);
    assert_eq!(fresh(&model, &first, &greedy(20)), (expected(&first, 20), 0));
    // A state is kept after the last page that ends at least 16 tokens before the end of the prompt.
    let second = ask(&[8, 9]);
    assert_eq!(fresh(&model, &second, &greedy(20)), (expected(&second, 20), 256));
    let short = &shared[..200];
    assert_eq!(fresh(&model, short, &greedy(5)), (expected(short, 5), 0));
    assert_eq!(fresh(&model, short, &greedy(5)), (expected(short, 5), 128));
    // States are few: other histories take the kept ones.
    for seed in 20..40 {
        let other = prompt(seed, 150);
        assert_eq!(fresh(&model, &other, &greedy(3)).0, expected(&other, 3));
    }
    assert_eq!(fresh(&model, &first, &greedy(5)), (expected(&first, 5), 0));
    assert_eq!((model.free_pages(), model.free_states()), (64, 12));
}

#[test]
fn what_is_damaged_or_came_from_outside_is_not_found() {
    let engine = engine();
    let model = model(&engine, FakeRunner::new(512, 32, 24));
    let good = prompt(9, 140);
    let bad = [&good[..], &[POISON], &good[..60]].concat();
    let failed = model.session().generate(bad.clone(), &greedy(3)).unwrap();
    assert!(failed.filter_map(Result::err).next().is_some());
    assert_eq!(fresh(&model, &good, &greedy(3)), (expected(&good, 3), 0));
    let mut session = model.session();
    finish(session.generate(good.clone(), &greedy(1)).unwrap());
    let saved = session.snapshot(SnapshotContents::TokensAndPages).unwrap();
    // Another model of the same identity, with an empty cache.
    let other = self::model(&engine, FakeRunner::new(512, 32, 24));
    let mut restored = other.restore(&saved).unwrap();
    let (_, finished) = finish(restored.generate(prompt(10, 80), &greedy(5)).unwrap());
    assert!(finished.usage.cached_tokens >= 140);
    drop(restored);
    assert_eq!(engine.status().pages.idle, 0, "the session of the first model holds its pages");
    assert_eq!(fresh(&other, &good, &greedy(3)), (expected(&good, 3), 0));
}

#[test]
fn one_that_loses_its_pages_finds_what_is_left_of_them() {
    let engine = caller_engine();
    let runner = FakeRunner::new(384, 64, 8);
    let seen = Arc::clone(&runner.seen);
    let model = model(&engine, runner);
    let (first, second) = (prompt(11, 190), prompt(12, 190));
    let urgent = GenerateOptions { priority: 9, ..greedy(150) };
    let mut slow = model.session().generate(first.clone(), &greedy(190)).unwrap();
    let early = slow.next().unwrap().unwrap();
    assert!(matches!(early, Event::Token(_)));
    let fast = model.session().generate(second.clone(), &urgent).unwrap();
    let (answer, _) = finish(fast);
    assert_eq!(answer, expected(&second, 150));
    let (answer, finished) = finish(slow);
    assert_eq!(answer, expected(&first, 190)[1..]);
    assert_eq!(finished.reason, FinishReason::Length);
    assert!(finished.stats.preemptions > 0);
    let rows = seen.rows.load(Ordering::Relaxed);
    let least = 190 + 189 + 190 + 149;
    assert!((least..least + 190).contains(&rows), "{rows} rows of at least {least}");
}

/// Random sessions with common prefixes: each has the same output as alone, and all pages and states are free
/// at the end.
#[test]
fn sessions_that_begin_alike_say_what_they_would_say_alone() {
    for seed in 0..30u64 {
        let mut random = seed;
        let mut next = |below: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(seed | 1);
            (random >> 33) as usize % below
        };
        let engine = caller_engine();
        let (pages, states) = (9 + next(12), 8 + next(8));
        let runner = match seed % 2 {
            0 => FakeRunner::new(512, 1 + next(90), pages),
            _ => FakeRunner::recurrent(512, 1 + next(90), pages, states),
        };
        let model = model(&engine, runner);
        let mut sessions: Vec<Session> = Vec::new();
        let mut running: Vec<(Vec<u32>, usize, Generation)> = Vec::new();
        for _ in 0..60 {
            match next(8) {
                0..=2 => {
                    let mut text = prompt(next(2) as u32, 64 * next(4) + next(70));
                    text.extend(prompt(next(5) as u32, 1 + next(60)));
                    let salt = (next(4) == 0).then(|| "other".to_owned());
                    let options = GenerateOptions { cache_salt: salt, ..greedy(next(40)) };
                    let mut session = model.session();
                    let generation = session.generate(text.clone(), &options).unwrap();
                    running.push((text, options.max_tokens.unwrap(), generation));
                    sessions.push(session);
                }
                3 if !running.is_empty() => drop(running.swap_remove(next(running.len()))),
                4 if !sessions.is_empty() => drop(sessions.swap_remove(next(sessions.len()))),
                5 if !sessions.is_empty() => {
                    let index = next(sessions.len());
                    let session = &mut sessions[index];
                    // Busy sessions are unchanged.
                    let length = session.tokens().map_or(0, |tokens| tokens.len());
                    if session.truncate(next(length + 1)).is_ok()
                        && let Ok(history) = session.tokens()
                    {
                        let text = [&history[..], &[3, 5]].concat();
                        let generation = session.generate(vec![3, 5], &greedy(9)).unwrap();
                        running.push((text, 9, generation));
                    }
                }
                6 if !sessions.is_empty() => {
                    let fork = sessions[next(sessions.len())].fork();
                    sessions.extend(fork);
                }
                _ if !running.is_empty() => {
                    let (text, count, generation) = running.swap_remove(next(running.len()));
                    let (tokens, finished) = finish(generation);
                    let wanted = expected(&text, count);
                    assert!(wanted.starts_with(&tokens), "seed {seed}");
                    assert!(tokens.len() == count || finished.reason == FinishReason::ContextFull);
                }
                _ => {}
            }
            let status = engine.status();
            assert!(status.pages.idle <= status.pages.free && status.pages.free <= pages);
        }
        drop((running, sessions));
        let _ = finish(model.session().generate(Input::Tokens(vec![1]), &greedy(1)).unwrap());
        assert_eq!(model.free_pages(), pages, "seed {seed}");
        if seed % 2 == 1 {
            assert_eq!(model.free_states(), states, "seed {seed}");
        }
    }
}
