//! Constraints on a fake model with known outputs.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::fake::*;
use nestling_core::EngineError;
use nestling_runtime::{
    Constraint, ConstraintContext, ConstraintError, ConstraintSource, Event, FinishReason,
    GenerateOptions, Generation, GenerationSummary, Model, SamplingParams, TokenMask,
};

/// Fault injected at the third token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Mask,
    NothingAllowed,
    Accept,
    PanicInMask,
    PanicInAccept,
}

/// A synthetic language: the allowed tokens depend on the whole history.
#[derive(Debug, Clone)]
struct Language {
    /// Divisor: one token in `rarity` is allowed; 1 allows all.
    rarity: u32,
    /// True to report single allowed tokens as forced.
    forces: bool,
    least: usize,
    /// Number of tokens after which the output is done.
    most: usize,
    fault: Option<Fault>,
}

impl Language {
    fn of(rarity: u32) -> Self {
        Self { rarity, forces: false, least: 0, most: usize::MAX, fault: None }
    }

    fn allows(&self, history: &[u32], token: u32) -> bool {
        if self.rarity == 1 {
            return true;
        }
        let sum = history.iter().fold(17_u32, |sum, token| sum.wrapping_mul(31) ^ token);
        // In each run of five tokens, one position leaves a choice.
        match history.len() % 5 {
            0 => token < POISON && token.wrapping_add(sum).is_multiple_of(self.rarity),
            _ => token == sum % 150,
        }
    }
}

struct Reader {
    language: Language,
    history: Vec<u32>,
}

impl ConstraintSource for Language {
    fn constraint(
        &self,
        context: &ConstraintContext<'_>,
    ) -> Result<Box<dyn Constraint>, ConstraintError> {
        assert_eq!(context.vocab_size, VOCAB);
        Ok(Box::new(Reader { language: self.clone(), history: vec![] }))
    }
}

impl Reader {
    fn fails(&self, fault: Fault) -> bool {
        self.history.len() == 2 && self.language.fault == Some(fault)
    }
}

impl Constraint for Reader {
    fn start(&mut self, _: Option<&str>) -> Result<bool, ConstraintError> {
        Ok(true)
    }

    fn mask(&mut self, mask: &mut TokenMask) -> Result<(), ConstraintError> {
        assert!(mask.is_none() && mask.tokens() == VOCAB);
        assert!(!self.fails(Fault::PanicInMask), "as asked");
        if self.fails(Fault::Mask) {
            return Err(ConstraintError::failed("as asked"));
        }
        if self.fails(Fault::NothingAllowed) {
            return Ok(());
        }
        for token in 0..VOCAB as u32 {
            if self.language.allows(&self.history, token) {
                mask.allow(token);
            }
        }
        Ok(())
    }

    fn accept(&mut self, token: u32) -> Result<(), ConstraintError> {
        assert!(!self.fails(Fault::PanicInAccept), "as asked");
        if !self.language.allows(&self.history, token) || self.fails(Fault::Accept) {
            return Err(ConstraintError::Refused { token });
        }
        self.history.push(token);
        Ok(())
    }

    fn forced(&mut self) -> Result<Vec<u32>, ConstraintError> {
        let mut history = self.history.clone();
        while self.language.forces && self.language.rarity > 1 && !history.len().is_multiple_of(5) {
            let only = (0..VOCAB as u32).find(|token| self.language.allows(&history, *token));
            history.extend(only);
        }
        Ok(history.split_off(self.history.len()))
    }

    fn may_end(&mut self) -> Result<bool, ConstraintError> {
        Ok(self.history.len() >= self.language.least)
    }

    fn is_done(&mut self) -> Result<bool, ConstraintError> {
        Ok(self.history.len() >= self.language.most)
    }
}

/// Returns options that exclude the fault tokens of the fake model.
fn options(language: &Language, sampling: SamplingParams, max_tokens: usize) -> GenerateOptions {
    let mut sampling = sampling;
    sampling.logit_bias.extend((POISON..=PANICS_WHEN_READ).map(|token| (token, f32::NEG_INFINITY)));
    let constraint: Arc<dyn ConstraintSource> = Arc::new(language.clone());
    GenerateOptions {
        sampling: sampling.into(),
        max_tokens: Some(max_tokens),
        token_events: true,
        constraint: Some(constraint),
        ..GenerateOptions::default()
    }
}

/// Returns all combinations of temperatures, cuts, penalties, biases and log-probabilities.
fn all_sampling() -> Vec<SamplingParams> {
    let mut all = vec![];
    for temperature in [0.0, 1.0, 2.0] {
        for cut in 0..4 {
            for penalty in 0..3 {
                for (bias, logprobs) in [(false, false), (true, false), (false, true)] {
                    let mut params = SamplingParams { temperature, ..SamplingParams::default() };
                    params.seed = Some(all.len() as u64);
                    match cut {
                        1 => params.top_k = 3,
                        2 => params.top_p = 0.5,
                        3 => params.min_p = 0.9,
                        _ => {}
                    }
                    match penalty {
                        1 => params.repetition_penalty = 1.5,
                        2 => (params.presence_penalty, params.frequency_penalty) = (0.5, 0.25),
                        _ => {}
                    }
                    if bias {
                        params.logit_bias = vec![(3, 50.0), (4, 50.0), (5, -3.0)];
                    }
                    params.top_logprobs = logprobs.then_some(2);
                    all.push(params);
                }
            }
        }
    }
    all
}

type Tokens = Vec<(u32, Option<f32>)>;

/// Returns the tokens with their log-probabilities, and the end of the generation.
fn run(generation: Generation) -> Result<(Tokens, GenerationSummary), EngineError> {
    let mut tokens = vec![];
    for event in generation {
        match event? {
            Event::Token(token) => tokens.push((token.token, token.log_prob)),
            Event::Finished(finished) => return Ok((tokens, finished)),
            _ => {}
        }
    }
    panic!("no last event");
}

fn answer(model: &Model, prompt: &[u32], options: &GenerateOptions) -> Vec<u32> {
    let (tokens, _) = run(model.session().generate(prompt, options).unwrap()).unwrap();
    tokens.into_iter().map(|(token, _)| token).collect()
}

#[test]
fn a_mask_that_allows_everything_changes_nothing() {
    let engine = caller_engine();
    let model = model(&engine, FakeRunner::new(512, 16, 16));
    let prompt = prompt(3, 20);
    for sampling in all_sampling() {
        let constrained = options(&Language::of(1), sampling, 30);
        let free = GenerateOptions { constraint: None, ..constrained.clone() };
        let run = |options| run(model.session().generate(&prompt[..], options).unwrap()).unwrap();
        let (with, finished) = run(&constrained);
        assert_eq!(with, run(&free).0, "{:?}", constrained.sampling);
        assert_eq!(finished.usage.completion_tokens, 30);
    }
}

#[test]
fn whatever_the_sampling_only_what_is_allowed_comes() {
    let engine = caller_engine();
    let model = model(&engine, FakeRunner::new(512, 16, 16));
    let prompt = prompt(4, 20);
    for sampling in all_sampling() {
        let language = Language::of(40);
        let asks = sampling.top_logprobs.is_some();
        let options = options(&language, sampling, 30);
        let (tokens, _) = run(model.session().generate(&prompt[..], &options).unwrap()).unwrap();
        assert_eq!(tokens.len(), 30);
        let mut history = vec![];
        for (token, log_prob) in tokens {
            assert!(language.allows(&history, token), "{token} after {history:?}");
            assert_eq!(log_prob.is_some(), asks);
            history.push(token);
        }
    }
}

/// Includes log-probabilities, which require a separate step per token.
#[test]
fn forced_tokens_are_the_same_in_fewer_steps() {
    let engine = caller_engine();
    let runner = FakeRunner::new(512, 16, 16);
    let seen = Arc::clone(&runner.seen);
    let model = model(&engine, runner);
    let prompt = prompt(5, 20);
    for sampling in all_sampling() {
        let steps = |forces| {
            let before = seen.steps.load(Ordering::Relaxed);
            let language = Language { forces, ..Language::of(40) };
            let tokens = answer(&model, &prompt, &options(&language, sampling.clone(), 53));
            (tokens, seen.steps.load(Ordering::Relaxed) - before)
        };
        let ((unforced, many), (forced, few)) = (steps(false), steps(true));
        assert_eq!(unforced, forced);
        let asks = sampling.top_logprobs.is_some();
        assert_eq!((many, few), (2 + 52, if asks { 2 + 52 } else { 2 + 10 }));
    }
}

#[test]
fn a_run_of_forced_tokens_ends_at_every_limit() {
    let engine = caller_engine();
    let model = model(&engine, FakeRunner::new(64, 16, 16));
    let language = Language { forces: true, ..Language::of(40) };
    for most in 1..12 {
        let options = options(&language, SamplingParams::greedy(), most);
        let mut session = model.session();
        let (tokens, finished) = run(session.generate(prompt(6, 20), &options).unwrap()).unwrap();
        assert_eq!((tokens.len(), finished.reason), (most, FinishReason::Length));
        assert_eq!(finished.usage.completion_tokens, most);
        assert_eq!(session.tokens().unwrap().len(), 20 + most);
    }
    for length in 52..64 {
        let options = options(&language, SamplingParams::greedy(), 100);
        let mut session = model.session();
        let (tokens, end) = run(session.generate(prompt(6, length), &options).unwrap()).unwrap();
        assert_eq!((tokens.len(), end.reason), (64 - length, FinishReason::ContextFull));
    }
}

#[test]
fn an_answer_ends_only_where_it_may() {
    let engine = caller_engine();
    let model = model(&engine, FakeRunner::new(512, 16, 16));
    for seed in 0..40 {
        let sampling =
            SamplingParams { temperature: 3.0, seed: Some(seed), ..SamplingParams::default() };
        let language = Language { least: 12, ..Language::of(1) };
        let mut options = options(&language, sampling, 400);
        options.stop_tokens = (0..40).collect();
        let (tokens, end) = run(model.session().generate(prompt(7, 9), &options).unwrap()).unwrap();
        assert_eq!(end.reason, FinishReason::Stop);
        assert!(tokens.len() > 12, "{} tokens", tokens.len());
        assert!(tokens[..tokens.len() - 1].iter().all(|(token, _)| *token >= 40));
    }
    let language = Language { most: 7, ..Language::of(40) };
    let options = options(&language, SamplingParams::greedy(), 400);
    let (tokens, end) = run(model.session().generate(prompt(7, 9), &options).unwrap()).unwrap();
    assert_eq!((tokens.len(), end.reason), (7, FinishReason::Stop), "nothing may follow");
}

#[test]
fn constrained_rows_have_logits_on_devices_that_choose() {
    let engine = caller_engine();
    let runner = FakeRunner::new(512, 16, 16);
    let seen = Arc::clone(&runner.seen);
    let model = model(&engine, runner);
    answer(&model, &prompt(8, 20), &options(&Language::of(40), SamplingParams::greedy(), 10));
    assert_eq!(seen.best_rows.load(Ordering::Relaxed), 0);
}

/// Runs beside unconstrained generations, with so few pages that some are preempted.
#[test]
fn among_others_it_is_the_same_text() {
    let engine = engine();
    let model = model(&engine, FakeRunner::new(512, 16, 12));
    let prompt_of = |index: usize| prompt(index as u32 % 5, 30 + index * 7);
    let options_of = |index: usize| {
        let sampling = SamplingParams { seed: Some(index as u64), ..SamplingParams::default() };
        let language = Language { forces: index.is_multiple_of(2), ..Language::of(40) };
        let options = options(&language, sampling, 120);
        match index % 3 {
            0 => GenerateOptions { constraint: None, ..options },
            _ => options,
        }
    };
    let alone: Vec<_> =
        (0..9).map(|index| answer(&model, &prompt_of(index), &options_of(index))).collect();
    let together: Vec<_> = std::thread::scope(|scope| {
        let start = |index| {
            let (model, prompt, options) = (&model, prompt_of(index), options_of(index));
            scope.spawn(move || answer(model, &prompt, &options))
        };
        let threads: Vec<_> = (0..9).map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(alone, together);
}

#[test]
fn what_goes_wrong_ends_this_generation_and_no_other() {
    use Fault::*;
    let engine = engine();
    let model = model(&engine, FakeRunner::new(512, 16, 32));
    let free = options(&Language::of(1), SamplingParams::greedy(), 60);
    let wanted = answer(&model, &prompt(1, 20), &free);
    for fault in [Mask, NothingAllowed, Accept, PanicInMask, PanicInAccept] {
        let mut beside = model.session();
        let beside = beside.generate(prompt(1, 20), &free).unwrap();
        let language = Language { fault: Some(fault), ..Language::of(1) };
        let faulty = options(&language, SamplingParams::greedy(), 60);
        let error = run(model.session().generate(prompt(2, 20), &faulty).unwrap()).unwrap_err();
        let is_panic = matches!(error, EngineError::Panicked { .. });
        let is_typed = matches!(error, EngineError::Constraint(_));
        assert!(if fault == PanicInAccept { is_panic } else { is_typed }, "{fault:?}: {error}");
        let tokens: Vec<u32> = run(beside).unwrap().0.into_iter().map(|(token, _)| token).collect();
        assert_eq!(tokens, wanted);
    }
    assert_eq!(model.free_pages(), 32);
}

#[test]
fn it_can_be_cancelled_and_dropped_at_any_time() {
    let engine = engine();
    let model = model(&engine, FakeRunner::new(4096, 16, 128));
    let language = Language { forces: true, ..Language::of(40) };
    for count in 0..30 {
        let options = options(&language, SamplingParams::greedy(), 4000);
        let mut generation = model.session().generate(prompt(1, 20), &options).unwrap();
        for _ in 0..count {
            generation.next().unwrap().unwrap();
        }
        if count % 2 == 0 {
            generation.cancel();
            let (_, end) = run(generation).unwrap();
            assert_eq!(end.reason, FinishReason::Cancelled);
        }
    }
    engine.shutdown();
}
