//! Many generations: waiting, rejection, priority order and the reported status.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::fake::*;
use super::stalls::letters;
use nestling_core::{EngineError, ErrorClass};
use nestling_runtime::{
    Conversation, Driver, Engine, EngineOptions, FinishReason, GenerateOptions,
};
use nestling_text::{ChatTemplate, Message, ToolSchema};

/// Runs among 16 generations of all priorities, with chunks of various sizes and with preemptions.
#[test]
fn a_generation_says_the_same_whatever_is_decided_of_it() {
    let cases = [(1, 200), (40, 200), (40, 40), (200, 24), (1, 24)];
    // Most of the time is spent waiting.
    let preemptions: u64 = std::thread::scope(|scope| {
        let runs = cases.map(|(gap, pages)| {
            scope.spawn(move || preemptions_of_expected_answers(Duration::from_millis(gap), pages))
        });
        runs.into_iter().map(|run| run.join().unwrap()).sum()
    });
    assert!(preemptions > 0, "nobody lost its pages");
}

/// Runs 17 generations, checks their tokens, and returns how often one was preempted.
fn preemptions_of_expected_answers(gap_target: Duration, pages: usize) -> u64 {
    let engine = Engine::new(EngineOptions { gap_target, ..EngineOptions::default() }).unwrap();
    let mut runner = FakeRunner::new(512, 48, pages);
    runner.step_time = Duration::from_millis(1);
    let model = model(&engine, runner);
    let prompts: Vec<_> = (0..17).map(|seed| prompt(seed, 10 + 17 * seed as usize)).collect();
    let generate = |(index, prompt): (usize, &Vec<u32>)| {
        let options = GenerateOptions {
            priority: index as i8 % 3 - 1,
            group: (index % 2 == 0).then_some(index as u64 % 4),
            deadline: (index % 5 == 0).then_some(Duration::from_millis(20)),
            // More than room is kept for.
            ..greedy(200)
        };
        model.session().generate(prompt.clone(), &options).unwrap()
    };
    let generations: Vec<_> = prompts.iter().enumerate().map(generate).collect();
    let mut preemptions = 0;
    for (prompt, generation) in prompts.iter().zip(generations) {
        let (tokens, finished) = finish(generation);
        assert_eq!(tokens, expected(prompt, 200));
        preemptions += u64::from(finished.stats.preemptions);
    }
    assert_eq!(model.free_pages(), pages);
    preemptions
}

#[test]
fn no_threads_are_one_per_core_and_too_many_are_refused() {
    let engine = |threads| Engine::new(EngineOptions { threads, ..EngineOptions::default() });
    for threads in [None, Some(0), Some(1), Some(7)] {
        assert!(engine(threads).is_ok(), "{threads:?}");
    }
    let error = engine(Some(100_000)).unwrap_err().to_string();
    assert_eq!(error, "number of compute threads: 100000 exceeds the limit of 1024");
}

#[test]
fn what_is_refused_says_why_and_changes_nothing() {
    let options = EngineOptions { waiting_max: 2, ..EngineOptions::default() };
    let engine = Engine::new(EngineOptions { driver: Driver::Caller, ..options }).unwrap();
    let model = model(&engine, FakeRunner::new(256, 64, 4));
    let mut first = model.session().try_generate(prompt(1, 100), &greedy(100)).unwrap();
    first.next().unwrap().unwrap();
    let status = engine.status();
    assert_eq!((status.running, status.waiting, status.pages.total), (1, 0, 4));
    assert_eq!((status.pages.running, status.pages.promised, status.pages.free), (2, 2, 2));
    let mut session = model.session();
    let busy = session.try_generate(prompt(2, 100), &greedy(10)).unwrap_err();
    assert_eq!(busy.class(), ErrorClass::Busy);
    assert!(
        matches!(busy, EngineError::Busy { waiting: 0, pages_wanted: 2, pages_free: 0 }),
        "{busy}"
    );
    assert!(session.tokens().unwrap().is_empty());
    let waiting: Vec<_> = (2..4)
        .map(|seed| model.session().generate(prompt(seed, 100), &greedy(10)).unwrap())
        .collect();
    let refused = session.generate(prompt(4, 10), &greedy(10)).unwrap_err();
    assert!(matches!(refused, EngineError::Busy { waiting: 2, .. }), "{refused}");
    assert!(session.tokens().unwrap().is_empty());
    let refused = session.try_generate(prompt(4, 1), &greedy(10)).unwrap_err();
    assert!(matches!(refused, EngineError::Busy { waiting: 2, .. }), "{refused}");
    first.next().unwrap().unwrap();
    // One of the two running generations ends before the first one needs its third page.
    assert_eq!((engine.status().waiting, engine.status().short.unwrap().wanted), (1, 2));
    assert_eq!(first.by_ref().count() + 2, 101);
    for (seed, generation) in (2..4).zip(waiting) {
        assert_eq!(tokens_of(generation), expected(&prompt(seed, 100), 10));
    }
    let status = engine.status();
    assert_eq!((status.running, status.waiting, status.parked), (0, 0, 0));
    assert_eq!((status.preemptions, status.pages.free), (0, 4));
    assert!(status.steps > 100 && status.last_step.rows == 1, "{status:?}");
    assert_eq!(tokens_of(session.try_generate(vec![1], &greedy(5)).unwrap()), expected(&[1], 5));
}

/// The waiting generation with the highest priority starts first and preempts the lowest.
#[test]
fn priorities_decide_who_begins_and_who_leaves() {
    let engine = caller_engine();
    let model = model(&engine, FakeRunner::new(256, 64, 4));
    let with = |priority| GenerateOptions { priority, events_max: 500, ..greedy(60) };
    let start =
        |seed, priority| model.session().generate(prompt(seed, 100), &with(priority)).unwrap();
    let mut low = start(1, -1);
    low.next().unwrap().unwrap();
    let (plain, high) = (start(2, 0), start(3, 1));
    let (tokens, finished) = finish(high);
    assert_eq!(tokens, expected(&prompt(3, 100), 60));
    assert_eq!(finished.reason, FinishReason::Length);
    assert_eq!(finished.stats.preemptions, 0);
    assert_eq!(engine.status().preemptions, 1);
    let (_, of_low) = finish(low);
    let (_, of_plain) = finish(plain);
    assert_eq!((of_low.stats.preemptions, of_plain.stats.preemptions), (1, 0));
}

#[test]
fn a_deadline_that_was_missed_is_told() {
    let engine = engine();
    let mut runner = FakeRunner::new(512, 16, 64);
    runner.step_time = Duration::from_millis(5);
    let model = model(&engine, runner);
    let run = |deadline| {
        let options = GenerateOptions { deadline: Some(deadline), ..greedy(2) };
        finish(model.session().generate(prompt(1, 100), &options).unwrap()).1
    };
    assert!(run(Duration::from_millis(1)).stats.is_late);
    assert_eq!(engine.status().late, 1);
    assert!(!run(Duration::from_secs(60)).stats.is_late);
    assert_eq!(engine.status().late, 1);
}

/// Beside running generations, prompts are split into chunks that meet the gap target.
#[test]
fn prompts_are_cut_where_others_decode() {
    let gap_target = Duration::from_millis(4);
    let engine = Engine::new(EngineOptions { gap_target, ..EngineOptions::default() }).unwrap();
    let mut runner = FakeRunner::new(4096, 1024, 128);
    runner.step_time = Duration::from_millis(5);
    let seen = Arc::clone(&runner.seen);
    let model = model(&engine, runner);
    let mut other = model.session().generate(prompt(1, 10), &greedy(1000)).unwrap();
    for _ in 0..5 {
        other.next().unwrap().unwrap();
    }
    let steps = seen.steps.load(Ordering::Relaxed);
    let long = tokens_of(model.session().generate(prompt(2, 500), &greedy(3)).unwrap());
    assert_eq!(long, expected(&prompt(2, 500), 3));
    let steps = seen.steps.load(Ordering::Relaxed) - steps;
    assert!(steps >= 500 / 64, "{steps} steps");
    let in_force = engine.status().gap_in_force;
    assert!(in_force > 0.004, "steps take longer than the target: {in_force}");
}

#[test]
fn a_model_says_what_can_be_asked_of_it() {
    let engine = engine();
    let bare = model(&engine, FakeRunner::new(256, 64, 4)).capabilities();
    assert_eq!((bare.text, bare.chat, bare.tools, bare.vision), (false, false, false, false));
    assert_eq!((bare.context_trained, bare.context_length), (4096, 256));
    let with = |source: &str| {
        let template = ChatTemplate::new(source).unwrap();
        model_of(&engine, FakeRunner::new(256, 64, 4), Some(letters()), Some(template))
    };
    let (plain, calls) = (
        with("{{ messages[0].content }}"),
        with("{% if tools and not enable_thinking %}t{% endif %}{{ messages[0].content }}<think>"),
    );
    assert!(plain.capabilities().chat && !plain.capabilities().tools);
    assert!(!plain.capabilities().thinking && !plain.capabilities().thinking_is_chosen);
    let found = calls.capabilities();
    assert!(found.tools && found.thinking && found.thinking_is_chosen, "{found:?}");
    let tool = ToolSchema::function("look", "Looks.", serde_json::json!({}));
    let mut conversation = Conversation::new([Message::user("abc")]);
    conversation.tools = vec![tool];
    let refused = plain.session().generate(conversation.clone(), &greedy(1)).unwrap_err();
    assert_eq!(refused.class(), ErrorClass::Caller);
    assert!(refused.to_string().starts_with("1 tools were given"), "{refused}");
    assert!(calls.conversation_tokens(&conversation).is_ok());
}
