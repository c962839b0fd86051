//! Single behaviours of sessions and the step loop.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::fake::*;
use nestling_core::EngineError;
use nestling_runtime::{
    Event, FinishReason, GenerateOptions, Generation, GenerationSummary, Input, SamplingOptions,
    SamplingParams, SnapshotContents,
};

fn finish(generation: Generation) -> GenerationSummary {
    for event in generation {
        if let Event::Finished(finished) = event.unwrap() {
            return finished;
        }
    }
    panic!("no last event");
}

#[test]
fn one_generation_is_the_greedy_chain() {
    let engine = engine();
    let model = model(&engine, FakeRunner::new(512, 16, 8));
    let prompt = prompt(1, 100);
    let mut session = model.session();
    let tokens = tokens_of(session.generate(prompt.clone(), &greedy(50)).unwrap());
    assert_eq!(tokens, expected(&prompt, 50));
    let history = session.tokens().unwrap();
    assert_eq!(history.len(), 150);
    assert_eq!(session.computed_tokens().unwrap(), 149, "the last token is not computed yet");
}

#[test]
fn only_the_last_prompt_row_wants_logits() {
    let engine = engine();
    let runner = FakeRunner::new(512, 16, 8);
    let seen = Arc::clone(&runner.seen);
    let model = model(&engine, runner);
    let finished = finish(model.session().generate(prompt(1, 100), &greedy(1)).unwrap());
    assert_eq!(finished.reason, FinishReason::Length);
    assert_eq!(seen.logit_rows.load(Ordering::Relaxed), 1);
    assert_eq!(seen.rows.load(Ordering::Relaxed), 100);
    assert_eq!(seen.steps.load(Ordering::Relaxed), 7, "100 rows, 16 at a time");
    assert_eq!((finished.usage.prompt_tokens, finished.usage.completion_tokens), (100, 1));
}

/// Steps return only tokens if all generations decode greedily. With any other generation they return
/// logits.
#[test]
fn greedy_generations_ask_for_tokens_alone() {
    let engine = caller_engine();
    let runner = FakeRunner::new(512, 16, 16);
    let seen = Arc::clone(&runner.seen);
    let best_rows = || seen.best_rows.load(Ordering::Relaxed);
    let model = model(&engine, runner);
    let prompt = prompt(1, 20);
    let start =
        |options: &GenerateOptions| model.session().generate(prompt.clone(), options).unwrap();
    assert_eq!(tokens_of(start(&greedy(12))), expected(&prompt, 12));
    assert_eq!(best_rows(), 12);
    let sampling = SamplingParams { top_logprobs: Some(1), ..SamplingParams::greedy() };
    let exact = GenerateOptions { sampling: sampling.into(), ..greedy(12) };
    let (wants_logits, wants_best) = (start(&exact), start(&greedy(30)));
    assert_eq!(tokens_of(wants_logits), expected(&prompt, 12));
    assert_eq!(best_rows(), 12);
    assert_eq!(tokens_of(wants_best), expected(&prompt, 30));
    // The other generation ended before.
    assert!((12 + 18..12 + 30).contains(&best_rows()), "{}", best_rows());
}

#[test]
fn many_sessions_share_steps_and_none_sees_another() {
    for engine in [engine(), caller_engine()] {
        let mut runner = FakeRunner::new(256, 8, 64);
        runner.step_time = Duration::from_millis(1);
        let seen = Arc::clone(&runner.seen);
        let model = model(&engine, runner);
        let prompts: Vec<_> = (0..6).map(|seed| prompt(seed, 5 + 13 * seed as usize)).collect();
        let generations: Vec<_> = prompts
            .iter()
            .map(|prompt| model.session().generate(prompt.clone(), &greedy(20)).unwrap())
            .collect();
        for (prompt, generation) in prompts.iter().zip(generations) {
            assert_eq!(tokens_of(generation), expected(prompt, 20));
        }
        assert!(seen.sequences_max.load(Ordering::Relaxed) > 1);
        let steps = seen.steps.load(Ordering::Relaxed);
        assert!(steps < 6 * 20, "{steps} steps are as many as one after the other");
        assert_eq!(model.free_pages(), 64, "the sessions are gone");
    }
}

#[test]
fn more_sessions_than_rows_all_get_their_turn() {
    let engine = engine();
    let model = model(&engine, FakeRunner::new(128, 2, 64));
    let prompts: Vec<_> = (0..9).map(|seed| prompt(seed, 3)).collect();
    let generations: Vec<_> = prompts
        .iter()
        .map(|prompt| model.session().generate(prompt.clone(), &greedy(10)).unwrap())
        .collect();
    for (prompt, generation) in prompts.iter().zip(generations) {
        assert_eq!(tokens_of(generation), expected(prompt, 10));
    }
}

#[test]
fn a_longer_history_computes_only_what_is_new() {
    let engine = engine();
    let model = model(&engine, FakeRunner::new(512, 32, 8));
    let mut session = model.session();
    let first = prompt(3, 70);
    let answer = tokens_of(session.generate(first.clone(), &greedy(10)).unwrap());
    let mut history: Vec<u32> = first.iter().chain(&answer).copied().collect();
    history.extend([5, 6, 7]);
    session.replace(history.clone()).unwrap();
    let generation = session.generate(vec![8], &greedy(5)).unwrap();
    history.push(8);
    let mut tokens = Vec::new();
    for event in generation {
        match event.unwrap() {
            Event::Token(token) => tokens.push(token.token),
            Event::Finished(finished) => {
                assert_eq!(finished.usage.cached_tokens, 79);
                assert_eq!(finished.stats.prompt_tokens, 84 - 79);
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(tokens, expected(&history, 5));
}

#[test]
fn the_same_history_again_computes_one_token() {
    let engine = engine();
    let model = model(&engine, FakeRunner::new(512, 32, 8));
    let mut session = model.session();
    let history = prompt(3, 64);
    finish(session.generate(history.clone(), &greedy(0)).unwrap());
    assert_eq!(session.computed_tokens().unwrap(), 64);
    let finished = finish(session.generate(Input::History, &greedy(0)).unwrap());
    assert_eq!(finished.stats.steps, 0);
    let generation = session.generate(Input::History, &greedy(3)).unwrap();
    assert_eq!(tokens_of(generation), expected(&history, 3));
}

#[test]
fn truncating_shifting_and_forking_equal_computing_afresh() {
    let engine = engine();
    let model = model(&engine, FakeRunner::new(512, 32, 32));
    let mut session = model.session();
    let history = prompt(4, 130);
    finish(session.generate(history.clone(), &greedy(0)).unwrap());

    let mut fork = session.fork().unwrap();
    assert_eq!(model.free_pages(), 29, "a fork takes no page");
    let both = (
        session.generate(vec![9], &greedy(30)).unwrap(),
        fork.generate(vec![11], &greedy(30)).unwrap(),
    );
    let with = |last: u32| [history.clone(), vec![last]].concat();
    assert_eq!(tokens_of(both.0), expected(&with(9), 30));
    assert_eq!(tokens_of(both.1), expected(&with(11), 30));

    fork.truncate(100).unwrap();
    let tokens = tokens_of(fork.generate(Input::History, &greedy(9)).unwrap());
    assert_eq!(tokens, expected(&history[..100], 9));

    fork.truncate(100).unwrap();
    fork.shift(10, 50).unwrap();
    let shifted = [&history[..10], &history[60..100]].concat();
    assert_eq!(fork.tokens().unwrap(), shifted);
    assert_eq!(fork.computed_tokens().unwrap(), 10);
    assert_eq!(
        tokens_of(fork.generate(Input::History, &greedy(9)).unwrap()),
        expected(&shifted, 9)
    );

    drop((session, fork));
    eventually("all pages are free again", || model.free_pages() == 32);
}

#[test]
fn a_context_that_is_full_is_an_error_before_and_a_reason_during() {
    let engine = engine();
    let runner = FakeRunner::new(64, 32, 1);
    let seen = Arc::clone(&runner.seen);
    let model = model(&engine, runner);
    let mut session = model.session();
    let error = session.generate(prompt(1, 64), &greedy(1)).unwrap_err();
    assert!(matches!(error, EngineError::ContextFull { limit: 64, wanted: 65 }), "{error}");
    assert!(session.append(&[1; 65]).is_err());
    assert!(session.tokens().unwrap().is_empty());
    assert_eq!(seen.steps.load(Ordering::Relaxed), 0);
    let finished = finish(session.generate(prompt(1, 60), &greedy(100)).unwrap());
    assert_eq!(finished.reason, FinishReason::ContextFull);
    assert_eq!(finished.usage.completion_tokens, 4);
}

#[test]
fn what_makes_no_sense_is_refused_and_changes_nothing() {
    let engine = engine();
    let model = model(&engine, FakeRunner::new(64, 32, 1));
    let mut session = model.session();
    session.append(&[1, 2]).unwrap();
    let outside = session.generate(vec![VOCAB as u32], &greedy(1)).unwrap_err();
    assert!(matches!(outside, EngineError::TokenOutOfRange { .. }), "{outside}");
    assert!(matches!(session.generate("text", &greedy(1)), Err(EngineError::NoTokenizer)));
    let stop_tokens = vec![1, VOCAB as u32];
    let bias =
        SamplingOptions { logit_bias: Some(vec![(VOCAB as u32, 1.0)]), ..Default::default() };
    let stops = GenerateOptions { stop_tokens, ..GenerateOptions::default() };
    let biased = GenerateOptions { sampling: bias, ..GenerateOptions::default() };
    for options in [stops, biased] {
        let outside = session.generate(vec![1], &options).unwrap_err();
        assert!(
            matches!(outside, EngineError::TokenOutOfRange { token, .. } if token as usize == VOCAB)
        );
    }
    let sampling = SamplingParams { top_p: 2.0, ..SamplingParams::greedy() }.into();
    let options = GenerateOptions { sampling, ..GenerateOptions::default() };
    assert!(matches!(session.generate(vec![1], &options), Err(EngineError::Sample(_))));
    assert_eq!(session.tokens().unwrap(), [1, 2]);
    let empty = model.session().generate(Input::History, &greedy(1)).unwrap_err();
    assert!(matches!(empty, EngineError::EmptyPrompt));
}

#[test]
fn cancelling_stops_within_a_layer_and_keeps_what_was_said() {
    let engine = engine();
    let mut runner = FakeRunner::new(4096, 2048, 64);
    runner.step_time = Duration::from_secs(30);
    let model = model(&engine, runner);
    let mut session = model.session();
    let mut generation = session.generate(prompt(1, 2000), &greedy(5)).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    assert!(matches!(session.tokens(), Err(EngineError::SessionBusy)));
    let start = Instant::now();
    generation.cancel_token().cancel();
    let Some(Ok(Event::Finished(finished))) = generation.next() else { panic!("no last event") };
    assert!(start.elapsed() < Duration::from_millis(250), "{:?}", start.elapsed());
    assert_eq!(finished.reason, FinishReason::Cancelled);
    assert!(generation.next().is_none());
    assert_eq!(session.tokens().unwrap().len(), 2000);
    assert_eq!(session.computed_tokens().unwrap(), 0, "the step was not finished");
}

#[test]
fn dropping_the_handle_stops_and_frees_pages() {
    let engine = engine();
    let mut runner = FakeRunner::new(4096, 2048, 64);
    runner.step_time = Duration::from_secs(30);
    let model = model(&engine, runner);
    let mut session = model.session();
    let generation = session.generate(prompt(1, 2000), &greedy(5)).unwrap();
    eventually("pages are taken", || model.free_pages() < 64);
    drop(session);
    let start = Instant::now();
    drop(generation);
    eventually("pages are free again", || model.free_pages() == 64);
    assert!(start.elapsed() < Duration::from_millis(250), "{:?}", start.elapsed());
}

#[test]
fn cancelling_one_of_a_batch_changes_nothing_for_the_others() {
    let engine = engine();
    let mut runner = FakeRunner::new(512, 64, 64);
    runner.step_time = Duration::from_millis(3);
    let model = model(&engine, runner);
    let prompts: Vec<_> = (0..5).map(|seed| prompt(seed, 20)).collect();
    let mut generations: Vec<_> = prompts
        .iter()
        .map(|prompt| model.session().generate(prompt.clone(), &greedy(40)).unwrap())
        .collect();
    std::thread::sleep(Duration::from_millis(30));
    drop(generations.remove(2));
    for (seed, generation) in [0, 1, 3, 4].into_iter().zip(generations) {
        assert_eq!(tokens_of(generation), expected(&prompts[seed], 40));
    }
}

#[test]
fn a_generation_that_fails_fails_alone() {
    let engine = engine();
    let mut runner = FakeRunner::new(512, 64, 64);
    runner.step_time = Duration::from_millis(1);
    let model = model(&engine, runner);
    let good = prompt(1, 20);
    let healthy = model.session().generate(good.clone(), &greedy(30)).unwrap();
    let mut poisoned_session = model.session();
    let poisoned = poisoned_session.generate(vec![1, POISON, 2], &greedy(30)).unwrap();
    let breaking = model.session().generate(vec![1, BREAKS_STEP], &greedy(30)).unwrap();
    let errors: Vec<_> = poisoned.filter_map(Result::err).collect();
    assert!(matches!(errors[..], [EngineError::NotFinite { .. }]), "{errors:?}");
    assert_eq!(poisoned_session.computed_tokens().unwrap(), 0);
    let errors: Vec<_> = breaking.filter_map(Result::err).collect();
    assert!(matches!(errors[..], [EngineError::Mismatch { .. }]), "{errors:?}");
    assert_eq!(tokens_of(healthy), expected(&good, 30));
    poisoned_session.truncate(1).unwrap();
    let again = poisoned_session.generate(Input::History, &greedy(5)).unwrap();
    assert_eq!(tokens_of(again), expected(&[1], 5));
}

#[test]
fn a_panic_in_a_step_or_a_lost_device_breaks_its_model_and_nothing_else() {
    let engine = engine();
    let whole = model(&engine, FakeRunner::new(512, 64, 64));
    for token in [PANICS, LOSES_DEVICE] {
        let broken = model(&engine, FakeRunner::new(512, 64, 64));
        let generation = broken.session().generate(vec![token], &greedy(3)).unwrap();
        let errors: Vec<_> = generation.filter_map(Result::err).collect();
        assert!(
            matches!(errors[..], [EngineError::ModelBroken | EngineError::DeviceLost(_)]),
            "{errors:?}"
        );
        let refused = broken.session().generate(vec![1], &greedy(3));
        assert!(matches!(refused, Err(EngineError::ModelBroken)));
    }
    let tokens = tokens_of(whole.session().generate(vec![1], &greedy(3)).unwrap());
    assert_eq!(tokens, expected(&[1], 3));
}

#[test]
fn a_reader_that_does_not_read_pauses_only_itself() {
    let engine = engine();
    let runner = FakeRunner::new(4096, 64, 128);
    let seen = Arc::clone(&runner.seen);
    let model = model(&engine, runner);
    let options = GenerateOptions { events_max: 4, ..greedy(1000) };
    let slow = model.session().generate(vec![1], &options).unwrap();
    let other = tokens_of(model.session().generate(vec![2], &greedy(200)).unwrap());
    assert_eq!(other, expected(&[2], 200));
    let steps = seen.steps.load(Ordering::Relaxed);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(seen.steps.load(Ordering::Relaxed), steps, "it went on with a full buffer");
    assert_eq!(tokens_of(slow), expected(&[1], 1000));
}

#[test]
fn sessions_at_rest_give_up_pages_and_compute_them_again() {
    let engine = engine();
    let model = model(&engine, FakeRunner::new(256, 64, 4));
    let histories: Vec<_> = (0..3).map(|seed| prompt(seed, 100)).collect();
    let mut sessions: Vec<_> = histories
        .iter()
        .map(|history| {
            let mut session = model.session();
            finish(session.generate(history.clone(), &greedy(0)).unwrap());
            session
        })
        .collect();
    assert_eq!(sessions[0].computed_tokens().unwrap(), 0, "its pages went to the third");
    for (history, session) in histories.iter().zip(&mut sessions) {
        let tokens = tokens_of(session.generate(Input::History, &greedy(20)).unwrap());
        assert_eq!(tokens, expected(history, 20));
    }
}

#[test]
fn generations_that_do_not_fit_together_take_turns() {
    for engine in [engine(), caller_engine()] {
        let model = model(&engine, FakeRunner::new(256, 64, 4));
        let prompts: Vec<_> = (0..4).map(|seed| prompt(seed, 90)).collect();
        let generations: Vec<_> = prompts
            .iter()
            .map(|prompt| model.session().generate(prompt.clone(), &greedy(120)).unwrap())
            .collect();
        // Read in an order in which they would starve each other.
        for (prompt, generation) in prompts.iter().zip(generations).rev() {
            assert_eq!(tokens_of(generation), expected(prompt, 120));
        }
        assert_eq!(model.free_pages(), 4);
    }
}

#[test]
fn snapshots_come_back_and_damage_is_refused() {
    let engine = engine();
    let model = model(&engine, FakeRunner::new(512, 64, 32));
    let mut session = model.session();
    let history = prompt(8, 150);
    finish(session.generate(history.clone(), &greedy(0)).unwrap());
    for (contents, computed) in
        [(SnapshotContents::Tokens, 0), (SnapshotContents::TokensAndPages, 150)]
    {
        let bytes = session.snapshot(contents).unwrap();
        let mut restored = model.restore(&bytes).unwrap();
        assert_eq!(restored.computed_tokens().unwrap(), computed);
        let tokens = tokens_of(restored.generate(vec![5], &greedy(9)).unwrap());
        assert_eq!(tokens, expected(&[history.clone(), vec![5]].concat(), 9));
        for length in 0..bytes.len() {
            assert!(matches!(model.restore(&bytes[..length]), Err(EngineError::Snapshot { .. })));
        }
        for index in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[index] ^= 1 << (index % 8);
            assert!(matches!(model.restore(&damaged), Err(EngineError::Snapshot { .. })));
        }
    }
    assert_eq!(model.free_pages(), 32 - 3);
}

#[test]
fn a_snapshot_is_written_and_read_where_it_lies() {
    let engine = engine();
    let model = model(&engine, FakeRunner::new(512, 64, 32));
    let mut session = model.session();
    let history = prompt(8, 150);
    finish(session.generate(history.clone(), &greedy(0)).unwrap());
    for contents in [SnapshotContents::Tokens, SnapshotContents::TokensAndPages] {
        let bytes = session.snapshot(contents).unwrap();
        let mut file = vec![];
        session.write_snapshot(contents, &mut file).unwrap();
        session.write_snapshot(contents, &mut file).unwrap();
        assert_eq!(file, bytes.repeat(2), "the same bytes, one after the other");
        let mut file = &file[..];
        for left in [bytes.len(), 0] {
            let mut restored = model.read_snapshot(&mut file).unwrap();
            assert_eq!(file.len(), left);
            let tokens = tokens_of(restored.generate(vec![5], &greedy(9)).unwrap());
            assert_eq!(tokens, expected(&[history.clone(), vec![5]].concat(), 9));
        }
        for length in [0, 5, 80, bytes.len() - 1] {
            let cut = model.read_snapshot(&mut &bytes[..length]).unwrap_err();
            let is_said =
                matches!(cut, EngineError::Snapshot { .. } | EngineError::SnapshotFile(_));
            assert!(is_said, "{cut}");
        }
        // A token count that no session of the model can have is rejected before the rest is read.
        let mut long = bytes.clone();
        long[72..80].copy_from_slice(&(1_u64 << 40).to_le_bytes());
        long[80..88].copy_from_slice(&(1_u64 << 40).to_le_bytes());
        long[12..16].copy_from_slice(&[8, 8, 0, 0]);
        let mut rest = &long[..];
        let error = model.read_snapshot(&mut rest).unwrap_err();
        assert!(matches!(error, EngineError::ContextFull { .. }), "{error}");
        assert_eq!(rest.len(), long.len() - 108, "the header alone was read");
        // A failing writer is reported.
        let mut full = &mut [0_u8; 30][..];
        let error = session.write_snapshot(contents, &mut full).unwrap_err();
        assert!(matches!(error, EngineError::SnapshotFile(_)), "{error}");
    }
    assert_eq!(model.free_pages(), 32 - 3);
}

#[test]
fn handles_may_be_dropped_in_any_order() {
    let runner = FakeRunner::new(512, 64, 32);
    let seen = Arc::clone(&runner.seen);
    let engine = engine();
    let model = model(&engine, runner);
    let mut session = model.session();
    let generation = session.generate(prompt(1, 10), &greedy(200)).unwrap();
    drop(engine);
    drop(model);
    drop(session);
    assert_eq!(tokens_of(generation), expected(&prompt(1, 10), 200));
    assert_eq!(seen.dropped.load(Ordering::Relaxed), 1, "the thread has been joined");
}

#[test]
fn shutting_down_ends_everything_at_once() {
    let engine = engine();
    let mut runner = FakeRunner::new(4096, 2048, 64);
    runner.step_time = Duration::from_secs(30);
    let model = model(&engine, runner);
    let mut session = model.session();
    let generation = session.generate(prompt(1, 2000), &greedy(5)).unwrap();
    std::thread::sleep(Duration::from_millis(10));
    let start = Instant::now();
    engine.shutdown();
    assert!(start.elapsed() < Duration::from_millis(250), "{:?}", start.elapsed());
    let errors: Vec<_> = generation.filter_map(Result::err).collect();
    assert!(matches!(errors[..], [EngineError::EngineClosed]), "{errors:?}");
    assert!(matches!(session.generate(vec![1], &greedy(1)), Err(EngineError::EngineClosed)));
}

#[test]
fn a_seed_repeats_and_positions_matter() {
    let engine = engine();
    let model = model(&engine, FakeRunner::new(512, 64, 32));
    let sampling = |seed| {
        let logit_bias = (POISON..VOCAB as u32).map(|token| (token, f32::NEG_INFINITY)).collect();
        let plain = SamplingParams::default();
        let sampling = SamplingParams { temperature: 5.0, seed, logit_bias, ..plain };
        GenerateOptions { sampling: sampling.into(), ..greedy(40) }
    };
    let run = |options: &GenerateOptions| {
        tokens_of(model.session().generate(prompt(1, 10), options).unwrap())
    };
    assert_eq!(run(&sampling(Some(1))), run(&sampling(Some(1))));
    assert_ne!(run(&sampling(Some(1))), run(&sampling(Some(2))));
    assert_ne!(run(&sampling(None)), run(&sampling(None)));
}

#[test]
fn handles_move_between_threads() {
    fn send_and_static<T: Send + 'static>() {}
    fn shared<T: Send + Sync + 'static>() {}
    shared::<nestling_runtime::Engine>();
    shared::<nestling_runtime::Model>();
    shared::<nestling_core::CancelToken>();
    send_and_static::<nestling_runtime::Session>();
    send_and_static::<Generation>();
    send_and_static::<EngineError>();
}
