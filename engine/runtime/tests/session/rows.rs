//! Requested outputs of prompt rows: log-probabilities and hidden rows.

use super::fake::*;
use nestling_core::EngineError;
use nestling_runtime::{
    Event, FinishReason, GenerateOptions, Generation, HiddenRows, Input, SamplingParams,
};

/// Prompt token with its log-probability and the best tokens at its position.
type ScoredToken = (u32, Option<f32>, Vec<(u32, f32)>);

#[derive(Debug, Default, PartialEq)]
struct RowResults {
    scored: Vec<ScoredToken>,
    hidden: Vec<(usize, Vec<f32>)>,
    tokens: Vec<u32>,
    reason: Option<FinishReason>,
    cached: usize,
}

fn told(generation: Generation) -> RowResults {
    let mut told = RowResults::default();
    for event in generation {
        match event.unwrap() {
            Event::PromptToken(token) => {
                assert!(told.tokens.is_empty(), "tokens of the prompt come first");
                told.scored.push((token.token, token.log_prob, token.top));
            }
            Event::Hidden(row) => told.hidden.push((row.position, row.values)),
            Event::Token(token) => told.tokens.push(token.token),
            Event::Finished(finished) => {
                told.reason = Some(finished.reason);
                told.cached = finished.usage.cached_tokens;
            }
            _ => {}
        }
    }
    told
}

/// Returns log-probabilities computed by the formula in f64.
fn scored(prompt: &[u32], top: usize) -> Vec<ScoredToken> {
    let mut all = vec![(prompt[0], None, vec![])];
    for end in 1..prompt.len() {
        let logits: Vec<f64> = logits(&prompt[..end]).into_iter().map(f64::from).collect();
        let sum: f64 = logits.iter().map(|logit| logit.exp()).sum();
        let log_prob = |token: usize| (logits[token] - sum.ln()) as f32;
        let mut order: Vec<usize> = (0..logits.len()).collect();
        order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b)));
        let best = order[..top].iter().map(|&token| (token as u32, log_prob(token))).collect();
        all.push((prompt[end], Some(log_prob(prompt[end] as usize)), best));
    }
    all
}

/// Absolute tolerance for log-probabilities below 10, computed from sums of 211 terms in f64 and rounded once
/// to f32.
const TOLERANCE: f32 = 2e-6;

fn assert_scored(found: &[ScoredToken], expected: &[ScoredToken]) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert_eq!((found.0, found.1.is_some()), (expected.0, expected.1.is_some()));
        let pairs = found.1.iter().zip(&expected.1);
        let pairs = pairs.map(|(found, expected)| (0, *found, 0, *expected));
        let tops = found.2.iter().zip(&expected.2);
        let tops = tops.map(|(found, expected)| (found.0, found.1, expected.0, expected.1));
        assert_eq!(found.2.len(), expected.2.len());
        for (token, found, expected_token, expected) in pairs.chain(tops) {
            assert_eq!(token, expected_token);
            assert!((found - expected).abs() <= TOLERANCE, "{found}, {expected}");
        }
    }
}

fn options(
    max_tokens: usize,
    logprobs: Option<usize>,
    hidden: Option<HiddenRows>,
) -> GenerateOptions {
    GenerateOptions { prompt_logprobs: logprobs, hidden, ..greedy(max_tokens) }
}

#[test]
fn every_token_of_a_prompt_has_its_log_probability() {
    for engine in [engine(), caller_engine()] {
        let model = model(&engine, FakeRunner::new(512, 16, 8));
        let prompt = prompt(1, 100);
        for (top, count) in [(0, 0), (3, 0), (2, 20)] {
            let options = options(count, Some(top), None);
            let mut session = model.session();
            let found = told(session.generate(prompt.clone(), &options).unwrap());
            assert_scored(&found.scored, &scored(&prompt, top));
            assert_eq!(found.tokens, expected(&prompt, count));
            assert_eq!(found.reason, Some(FinishReason::Length));
            // Requested again although all of it is cached.
            let again = told(session.generate(Input::History, &options).unwrap());
            let whole = [&prompt[..], &found.tokens].concat();
            assert_scored(&again.scored, &scored(&whole, top));
            assert_eq!(again.cached, 0);
        }
    }
}

/// Continuations of one context: only rows from the last token of the context on are computed.
#[test]
fn log_probabilities_from_a_token_on_reuse_the_tokens_before() {
    for engine in [engine(), caller_engine()] {
        let model = model(&engine, FakeRunner::new(512, 16, 16));
        let whole = prompt(1, 200);
        let all = scored(&whole, 2);
        let from =
            |from| GenerateOptions { prompt_logprobs_from: from, ..options(0, Some(2), None) };
        for (first, cached) in [(150, 0), (150, 128), (2, 0), (1, 0), (199, 192), (200, 192)] {
            let found = told(model.session().generate(whole.clone(), &from(first)).unwrap());
            // The first token of a prompt has no row before it.
            let reported = if first == 1 { 0 } else { first };
            assert_scored(&found.scored, &all[reported..]);
            assert_eq!(found.cached, cached, "{first}");
        }
        // A session that holds the context.
        let mut session = model.session();
        drop(told(session.generate(whole[..150].to_vec(), &greedy(0)).unwrap()));
        session.replace(whole.clone()).unwrap();
        let found = told(session.generate(Input::History, &from(150)).unwrap());
        assert_scored(&found.scored, &all[150..]);
        assert_eq!(found.cached, 149);
    }
}

#[test]
fn a_prompt_of_one_token_has_nothing_before_it() {
    let engine = engine();
    let model = model(&engine, FakeRunner::new(64, 16, 8));
    let found = told(model.session().generate(vec![5], &options(0, Some(1), None)).unwrap());
    assert_eq!(found.scored, [(5, None, vec![])]);
}

#[test]
fn hidden_rows_are_those_of_their_tokens() {
    let engine = engine();
    let model = model(&engine, FakeRunner::new(512, 16, 8));
    let prompt = prompt(2, 70);
    let all: Vec<_> = (0..70).map(|at| (at, hidden(&prompt[..=at]))).collect();
    for count in [0, 5] {
        let found = |hidden| {
            let mut session = model.session();
            // Most of the prompt is cached already.
            drop(told(session.generate(prompt[..66].to_vec(), &greedy(0)).unwrap()));
            session.replace(prompt.clone()).unwrap();
            told(session.generate(Input::History, &options(count, None, Some(hidden))).unwrap())
        };
        let last = found(HiddenRows::Last);
        assert_eq!((last.hidden, last.cached), (all[69..].to_vec(), 66));
        let whole = found(HiddenRows::All);
        assert_eq!((whole.hidden, whole.cached), (all.clone(), 0));
        assert_eq!(
            (last.tokens, whole.tokens),
            (expected(&prompt, count), expected(&prompt, count))
        );
    }
}

/// Greedy, sampled, scored and hidden-row generations share steps, and each has the same output as alone.
#[test]
fn those_that_want_other_things_share_steps() {
    for engine in [engine(), caller_engine()] {
        let model = model(&engine, FakeRunner::new(512, 24, 32));
        let sampling =
            SamplingParams { temperature: 1.5, seed: Some(3), ..SamplingParams::default() };
        let all = [
            greedy(60),
            GenerateOptions { sampling: sampling.into(), ..greedy(50) },
            options(9, Some(2), None),
            options(0, None, Some(HiddenRows::All)),
            options(0, Some(0), Some(HiddenRows::Last)),
        ];
        let prompts: Vec<_> = (0..5).map(|seed| prompt(seed, 40 + 9 * seed as usize)).collect();
        let start = |at: usize| model.session().generate(prompts[at].clone(), &all[at]).unwrap();
        let alone: Vec<RowResults> = (0..5).map(|at| told(start(at))).collect();
        let together: Vec<Generation> = (0..5).map(start).collect();
        let together: Vec<RowResults> = together.into_iter().map(told).collect();
        assert_eq!(together, alone);
        assert_scored(&alone[2].scored, &scored(&prompts[2], 2));
        assert_eq!(alone[3].hidden.len(), prompts[3].len());
    }
}

/// A preempted generation recomputes its prompt, but sends the prompt events once.
#[test]
fn a_preempted_generation_does_not_repeat_itself() {
    let engine = caller_engine();
    let model = model(&engine, FakeRunner::new(384, 16, 6));
    let (first, second) = (prompt(3, 100), prompt(4, 100));
    let urgent = GenerateOptions { priority: 9, ..greedy(120) };
    let mut scores = model.session();
    let mut generation = scores.generate(first.clone(), &options(200, Some(1), None)).unwrap();
    let mut early = Vec::new();
    for event in generation.by_ref().take(130) {
        early.push(event.unwrap());
    }
    let other = model.session().generate(second.clone(), &urgent).unwrap();
    assert_eq!(told(other).tokens, expected(&second, 120));
    let late = generation.map(|event| event.unwrap());
    let (mut found, mut tokens, mut preempted) = (Vec::new(), Vec::new(), 0);
    for event in early.into_iter().chain(late) {
        match event {
            Event::PromptToken(token) => found.push((token.token, token.log_prob, token.top)),
            Event::Token(token) => tokens.push(token.token),
            Event::Finished(finished) => preempted = finished.stats.preemptions,
            _ => {}
        }
    }
    assert!(preempted > 0, "it was to lose its pages");
    assert_scored(&found, &scored(&first, 1));
    assert_eq!(tokens, expected(&first, 200));
}

#[test]
fn damaged_rows_fail_their_generation_alone() {
    let engine = engine();
    let model = model(&engine, FakeRunner::new(512, 64, 32));
    let good = prompt(5, 50);
    let bad = [&good[..20], &[POISON], &good[20..]].concat();
    for hidden in [None, Some(HiddenRows::All)] {
        let logprobs = hidden.is_none().then_some(0);
        let failing = model.session().generate(bad.clone(), &options(0, logprobs, hidden)).unwrap();
        let other = model.session().generate(good.clone(), &greedy(10)).unwrap();
        let error = failing.filter_map(Result::err).next();
        assert!(matches!(error, Some(EngineError::NotFinite { .. })), "{error:?}");
        assert_eq!(told(other).tokens, expected(&good, 10));
    }
}
