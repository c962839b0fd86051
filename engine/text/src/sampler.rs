//! Sampling of the next token from logits.
//!
//! The default order is that of `transformers`: mask, logit bias, repetition penalty, presence and frequency
//! penalties, temperature, top-k, top-p, min-p, draw. (llama.cpp truncates before it applies the temperature;
//! published `generation_config.json` files are tuned for this order.) [`SamplingParams::samplers`] selects
//! another order. Typical-p, top-n-sigma, XTC, DRY, dynamic temperature and mirostat 2 have the definitions of
//! llama.cpp. A [`Chain`] applies them; without them, the default path runs.
//!
//! - A mask sets the logits of disallowed tokens to minus infinity.
//! - Logit bias: `logit += bias`.
//! - Repetition penalty, for tokens of prompt and response: `logit > 0 ? logit / penalty : logit * penalty`.
//! - Frequency and presence penalty, for tokens with `c` occurrences in the response:
//!   `logit -= frequency * c`, and `logit -= presence` if `c > 0` (OpenAI's formula).
//! - Temperature 0 is greedy: the highest logit; ties go to the lowest token id.
//! - Top-k keeps the k highest logits; ties go to the lowest ids; 0 keeps all.
//! - Top-p keeps the shortest prefix of the tokens by probability whose sum reaches p; 1 keeps all.
//! - Min-p keeps tokens with at least p times the probability of the best token; 0 keeps all.
//!
//! A draw depends only on the seed, the position in the session, the logits, the parameters and the tokens
//! before it. It does not depend on the batch or on chunking. With mirostat, it also depends on the earlier draws
//! of the same generation.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::HashMap;

use crate::error::TextError;
use crate::sampling_params::{InvalidParameter, SamplingParams};
use crate::token_mask::TokenMask;
use crate::tokenizer::Tokenizer;
use chain::{Chain, ChainCandidate, ChainInput, surprise};
use dry::{DryBreakers, dry_penalties};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use thiserror::Error;

mod chain;
mod dry;

/// Minimum exponent: below it, `exp(x)` is negligible against a sum of at least 1 in f64, even 2^22 times.
const EXPONENT_MIN: f64 = -60.0;

/// Number of candidates that are sorted first, before the number that top-p keeps is known.
const SORTED_FIRST: usize = 256;

/// Difference between the seeds of the draws and of XTC's decisions, which must be independent.
const XTC_STREAM: u64 = 0x5854_4300_0000_0000;

/// An error of sampling.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum SampleError {
    /// A parameter out of range.
    #[error(transparent)]
    Parameter(#[from] InvalidParameter),
    /// A logit that is NaN or plus infinity.
    #[error("the logit of token {token} is {value}: the model's output is damaged")]
    NotFinite {
        /// Index of the logit.
        token: usize,
        /// The value: NaN or plus infinity.
        value: f32,
    },
    /// All tokens are forbidden.
    #[error("all {tokens} tokens have a logit of minus infinity")]
    NothingLeft {
        /// Number of tokens.
        tokens: usize,
    },
    /// The number of logits is below the size of the vocabulary.
    #[error("expected logits for {expected} tokens, found {found}")]
    LogitCount {
        /// Number of tokens in the vocabulary.
        expected: usize,
        /// Number of logits given.
        found: usize,
    },
}

/// Natural log-probabilities of the model's own distribution, before mask, bias, penalties, temperature and
/// truncation.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprobs {
    /// Log-probability of the chosen token.
    pub chosen: f32,
    /// Log-probabilities of the most likely tokens, best first.
    pub top: Vec<(u32, f32)>,
}

/// A chosen token.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampled {
    /// Id of the token.
    pub token: u32,
    /// Log-probabilities, if requested.
    pub logprobs: Option<TokenLogprobs>,
    /// Maximum surprise of the next token in bits, with mirostat. [`Sampler::adapt`] reads this value.
    pub mu: Option<f64>,
}

/// Chooses tokens for one sequence, and counts tokens for the penalties.
#[derive(Debug, Clone)]
pub struct Sampler {
    params: SamplingParams,
    seed: u64,
    /// Number of valid token ids; a model's logits may be padded beyond it.
    vocab_size: usize,
    /// Occurrences of each token in the response; 0 for tokens that only occur in the prompt.
    counts: HashMap<u32, u32>,
    /// Samplers beyond the default path, if any.
    chain: Option<Box<Chain>>,
    /// Tokens of prompt and response, retained if DRY or a window of the penalties reads them.
    history: Option<Vec<PastToken>>,
    breakers: DryBreakers,
    /// Mirostat's maximum surprise in bits. The value is stored here rather than recomputed: a preempted
    /// generation retains its sampler, and a clone copies the value.
    mu: f64,
}

#[derive(Debug, Clone, Copy)]
struct PastToken {
    token: u32,
    /// True for a token of the response, false for one of the prompt.
    is_response: bool,
}

#[derive(Debug, Clone, Copy)]
struct Candidate {
    token: u32,
    logit: f32,
    weight: f64,
}

impl Candidate {
    /// Orders by descending logit, then by ascending id.
    fn order(&self, other: &Self) -> Ordering {
        other.logit.total_cmp(&self.logit).then(self.token.cmp(&other.token))
    }
}

impl Sampler {
    /// Creates a sampler over `vocab_size` tokens. `seed` is used if the parameters contain none.
    ///
    /// ```
    /// use nestling_text::{Sampler, SamplingParams};
    ///
    /// let sampler = Sampler::new(SamplingParams::greedy(), 3, 0)?;
    /// assert_eq!(sampler.sample(&mut [0.1, 2.0, 0.3], 0)?.token, 1);
    /// # Ok::<(), nestling_text::SampleError>(())
    /// ```
    pub fn new(params: SamplingParams, vocab_size: usize, seed: u64) -> Result<Self, SampleError> {
        params.validate()?;
        let seed = params.seed.unwrap_or(seed);
        let chain = Chain::new(&params).map(Box::new);
        let is_windowed = params.repeat_last_n > 0 && !params.penalizes_nothing();
        let has_history = is_windowed || chain.as_ref().is_some_and(|chain| chain.reads_history());
        Ok(Self {
            seed,
            vocab_size,
            counts: HashMap::new(),
            chain,
            history: has_history.then(Vec::new),
            breakers: DryBreakers::default(),
            mu: 2.0 * f64::from(params.mirostat_tau),
            params,
        })
    }

    /// Finds the tokens of DRY's sequence breakers. Without this call, sequences have no breakers. Scans the
    /// vocabulary if DRY is active; otherwise does nothing.
    ///
    /// # Errors
    /// Fails if the tokenizer cannot encode a part of a breaker.
    pub fn find_breakers(&mut self, tokenizer: &Tokenizer) -> Result<(), TextError> {
        if self.chain.as_ref().is_some_and(|chain| chain.reads_history()) {
            self.breakers = DryBreakers::new(tokenizer, &self.params.dry_sequence_breakers)?;
        }
        Ok(())
    }

    /// Returns the number of tokens to choose from; valid ids are below it.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// Returns the parameters.
    pub fn params(&self) -> &SamplingParams {
        &self.params
    }

    /// Returns the vocabulary size if the sampler always chooses the highest logit (ties go to the lowest id)
    /// and needs nothing else from the logits. Returns `None` otherwise.
    pub fn takes_best(&self) -> Option<usize> {
        let SamplingParams { temperature, logit_bias, top_logprobs, .. } = &self.params;
        let is_best = *temperature == 0.0
            && self.chain.is_none()
            && self.params.penalizes_nothing()
            && logit_bias.is_empty()
            && top_logprobs.is_none();
        (is_best && self.vocab_size > 0).then_some(self.vocab_size)
    }

    /// Returns the seed in use.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Replaces the history, for example after a truncation or a fork. Mirostat starts anew.
    pub fn set_history(&mut self, prompt: &[u32], answer: &[u32]) {
        self.counts.clear();
        self.history.iter_mut().for_each(Vec::clear);
        self.mu = 2.0 * f64::from(self.params.mirostat_tau);
        self.accept_prompt(prompt);
        for token in answer {
            self.accept(*token);
        }
    }

    /// Adds tokens of the prompt to the history. Of the penalties, only the repetition penalty counts them. DRY
    /// scans them like those of the response.
    pub fn accept_prompt(&mut self, prompt: &[u32]) {
        for token in prompt {
            self.counts.entry(*token).or_insert(0);
        }
        if let Some(history) = &mut self.history {
            history
                .extend(prompt.iter().map(|token| PastToken { token: *token, is_response: false }));
        }
    }

    /// Adds a token of the response to the history. `sample` does not call this, because a chosen token may
    /// still be rejected.
    pub fn accept(&mut self, token: u32) {
        let count = self.counts.entry(token).or_insert(0);
        *count = count.saturating_add(1);
        if let Some(history) = &mut self.history {
            history.push(PastToken { token, is_response: true });
        }
    }

    /// Updates mirostat's state by a token that is not rejected. Does nothing without mirostat.
    pub fn adapt(&mut self, sampled: &Sampled) {
        // Default: a draw without mirostat leaves the state as it is.
        self.mu = sampled.mu.unwrap_or(self.mu);
    }

    /// Chooses the token for `position` of the session from `logits`, `[vocab]`. Bias and penalties modify
    /// the logits in place.
    pub fn sample(&self, logits: &mut [f32], position: u64) -> Result<Sampled, SampleError> {
        self.sample_masked(logits, position, None)
    }

    /// Does the same as [`Self::sample`], but chooses among the tokens that `mask` allows.
    ///
    /// ```
    /// use nestling_text::{Sampler, SamplingParams, TokenMask};
    ///
    /// let mut mask = TokenMask::all(3);
    /// mask.forbid(1);
    /// let sampler = Sampler::new(SamplingParams::greedy(), 3, 0)?;
    /// assert_eq!(sampler.sample_masked(&mut [0.1, 2.0, 0.3], 0, Some(&mask))?.token, 2);
    /// # Ok::<(), nestling_text::SampleError>(())
    /// ```
    pub fn sample_masked(
        &self,
        logits: &mut [f32],
        position: u64,
        mask: Option<&TokenMask>,
    ) -> Result<Sampled, SampleError> {
        let found = logits.len();
        let logits = logits
            .get_mut(..self.vocab_size)
            .ok_or(SampleError::LogitCount { expected: self.vocab_size, found })?;
        check_numbers(logits)?;
        let raw = self.params.top_logprobs.map(|_| logits.to_vec());
        if let Some(mask) = mask {
            mask.apply(logits);
        }
        self.apply_bias_and_penalties(logits);
        let best = argmax(logits).ok_or(SampleError::NothingLeft { tokens: logits.len() })?;
        let (token, mu) = match (&self.chain, self.params.temperature) {
            (Some(chain), _) => self.draw_from_chain(chain, logits, best.token, position),
            (None, 0.0) => (best.token, None),
            (None, temperature) => (self.draw(logits, best, temperature, position), None),
        };
        let logprobs = match (raw, self.params.top_logprobs) {
            (Some(raw), Some(count)) => Some(logprobs_of(&raw, token, count)?),
            _ => None,
        };
        Ok(Sampled { token, logprobs, mu })
    }

    fn apply_bias_and_penalties(&self, logits: &mut [f32]) {
        let params = &self.params;
        for (token, bias) in &params.logit_bias {
            if let Some(logit) = logits.get_mut(*token as usize) {
                *logit += bias;
            }
        }
        // A chain applies the penalties at their place in its order.
        if params.penalizes_nothing() || self.chain.is_some() {
            return;
        }
        let repetition = params.repetition_penalty;
        for (token, count) in self.penalized().iter() {
            let Some(logit) = logits.get_mut(*token as usize) else { continue };
            *logit = if *logit > 0.0 { *logit / repetition } else { *logit * repetition };
            if *count > 0 {
                *logit -= params.frequency_penalty * *count as f32 + params.presence_penalty;
            }
        }
    }

    /// Returns the occurrences in the response of the tokens in the penalties' window.
    fn penalized(&self) -> Cow<'_, HashMap<u32, u32>> {
        let (Some(history), Ok(window)) =
            (&self.history, usize::try_from(self.params.repeat_last_n))
        else {
            return Cow::Borrowed(&self.counts);
        };
        let mut counts = HashMap::new();
        for past in history.iter().rev().take(window) {
            *counts.entry(past.token).or_insert(0) += u32::from(past.is_response);
        }
        Cow::Owned(counts)
    }

    /// Returns the DRY penalties by token.
    fn repetitions(&self) -> HashMap<u32, f64> {
        // Default: without a history, nothing is repeated.
        let Some(history) = &self.history else { return HashMap::new() };
        // Default: -1 scans all tokens.
        let window = usize::try_from(self.params.dry_penalty_last_n).unwrap_or(usize::MAX);
        let latest: Vec<u32> = history.iter().rev().take(window).map(|past| past.token).collect();
        dry_penalties(&self.params, &self.breakers, &latest)
    }

    fn chain_candidates(
        &self,
        chain: &Chain,
        logits: &[f32],
        position: u64,
    ) -> Vec<ChainCandidate> {
        let has_dry = chain.reads_history();
        let input = ChainInput {
            params: &self.params,
            counts: &self.penalized(),
            dry: &if has_dry { self.repetitions() } else { HashMap::new() },
            chance: uniform(self.seed ^ XTC_STREAM, position),
            mu: self.mu,
        };
        chain.run(logits, &input)
    }

    fn draw_from_chain(
        &self,
        chain: &Chain,
        logits: &[f32],
        best: u32,
        position: u64,
    ) -> (u32, Option<f64>) {
        let kept = self.chain_candidates(chain, logits, position);
        let target = uniform(self.seed, position) * kept.iter().map(|c| c.p).sum::<f64>();
        let mut sum = 0.0;
        let found = kept.iter().find(|candidate| {
            sum += candidate.p;
            sum > target
        });
        // Rounding may leave the sum just below the target.
        let last = || kept.iter().rev().find(|candidate| candidate.p > 0.0);
        // Default: the best logit, for a chain that leaves no candidate with a probability.
        let Some(chosen) = found.or_else(last) else { return (best, None) };
        let error = surprise(chosen.p) - f64::from(self.params.mirostat_tau);
        let mu = self.mu - f64::from(self.params.mirostat_eta) * error;
        (chosen.token, (self.params.mirostat == 2).then_some(mu))
    }

    fn draw(&self, logits: &[f32], best: Candidate, temperature: f32, position: u64) -> u32 {
        let kept = self.candidates(logits, best, f64::from(temperature));
        let total: f64 = kept.iter().map(|candidate| candidate.weight).sum();
        let target = uniform(self.seed, position) * total;
        let mut sum = 0.0;
        for candidate in &kept {
            sum += candidate.weight;
            if sum > target {
                return candidate.token;
            }
        }
        // Rounding may leave the sum just below the target.
        kept.last().map_or(best.token, |candidate| candidate.token)
    }

    /// Returns the candidates after top-k, top-p and min-p, with weights `exp((logit - best) / temperature)`.
    fn candidates(&self, logits: &[f32], best: Candidate, temperature: f64) -> Vec<Candidate> {
        let params = &self.params;
        let mut candidates = Vec::new();
        for (token, logit) in (0u32..).zip(logits) {
            let exponent = (f64::from(*logit) - f64::from(best.logit)) / temperature;
            if exponent >= EXPONENT_MIN {
                candidates.push(Candidate { token, logit: *logit, weight: exponent });
            }
        }
        if params.top_k > 0 && params.top_k < candidates.len() {
            keep_best(&mut candidates, params.top_k);
        }
        for candidate in &mut candidates {
            candidate.weight = libm::exp(candidate.weight);
        }
        if params.top_p < 1.0 {
            keep_probable(&mut candidates, f64::from(params.top_p));
        }
        // The best token has weight 1.
        if params.min_p > 0.0 {
            candidates.retain(|candidate| candidate.weight >= f64::from(params.min_p));
        }
        candidates
    }
}

/// Returns the model's own log-probabilities of `chosen` and of the `count` most likely tokens.
///
/// # Errors
/// Fails with [`SampleError::NotFinite`] if a logit is NaN or plus infinity.
pub fn logprobs_of(
    logits: &[f32],
    chosen: u32,
    count: usize,
) -> Result<TokenLogprobs, SampleError> {
    check_numbers(logits)?;
    let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|l| libm::exp(f64::from(*l) - f64::from(best))).sum();
    let log_sum = f64::from(best) + libm::log(sum);
    let logprob = |logit: f32| (f64::from(logit) - log_sum) as f32;
    let mut top = Vec::new();
    if count > 0 {
        let candidates = (0u32..).zip(logits);
        let mut candidates: Vec<Candidate> =
            candidates.map(|(token, l)| Candidate { token, logit: *l, weight: 0.0 }).collect();
        keep_best(&mut candidates, count);
        candidates.sort_unstable_by(Candidate::order);
        top.extend(candidates.iter().map(|c| (c.token, logprob(c.logit))));
    }
    // Default: a token outside the vocabulary has probability 0.
    let chosen = logits.get(chosen as usize).map_or(f32::NEG_INFINITY, |logit| logprob(*logit));
    Ok(TokenLogprobs { chosen, top })
}

/// Keeps the `count` best candidates, sorted by token id.
fn keep_best(candidates: &mut Vec<Candidate>, count: usize) {
    if count < candidates.len() {
        if count > 0 {
            candidates.select_nth_unstable_by(count - 1, Candidate::order);
        }
        candidates.truncate(count);
    }
    // The draw iterates over the candidates, so that their order must not depend on the selection algorithm.
    candidates.sort_unstable_by_key(|candidate| candidate.token);
}

/// Keeps the shortest prefix, best first, whose share of the total weight reaches `top_p`. Sorts only as many
/// candidates as needed.
fn keep_probable(candidates: &mut Vec<Candidate>, top_p: f64) {
    let total: f64 = candidates.iter().map(|candidate| candidate.weight).sum();
    let mut sorted = 0;
    let mut sum = 0.0;
    let mut length = SORTED_FIRST;
    while sorted < candidates.len() {
        let end = length.min(candidates.len());
        let rest = &mut candidates[sorted..];
        if end < sorted + rest.len() {
            rest.select_nth_unstable_by(end - sorted, Candidate::order);
        }
        let run = &mut candidates[sorted..end];
        run.sort_unstable_by(Candidate::order);
        for (index, candidate) in run.iter().enumerate() {
            sum += candidate.weight;
            if sum >= top_p * total {
                candidates.truncate(sorted + index + 1);
                return;
            }
        }
        sorted = end;
        length *= 8;
    }
}

/// Returns the highest logit; ties go to the lowest id. Returns `None` if all tokens are forbidden.
fn argmax(logits: &[f32]) -> Option<Candidate> {
    let mut best: Option<Candidate> = None;
    for (token, logit) in (0u32..).zip(logits) {
        if *logit > best.map_or(f32::NEG_INFINITY, |best| best.logit) {
            best = Some(Candidate { token, logit: *logit, weight: 1.0 });
        }
    }
    best
}

/// Returns an error if a logit is NaN or plus infinity. Minus infinity is valid and forbids a token.
fn check_numbers(logits: &[f32]) -> Result<(), SampleError> {
    match logits.iter().position(|logit| logit.is_nan() || *logit == f32::INFINITY) {
        None => Ok(()),
        Some(token) => {
            let value = logits.get(token).copied().unwrap_or(f32::NAN);
            Err(SampleError::NotFinite { token, value })
        }
    }
}

/// Returns a number in `[0, 1)` that depends only on `seed` and `position`.
fn uniform(seed: u64, position: u64) -> f64 {
    // Neighbouring positions and seeds must not give correlated states, so `seed_from_u64` mixes both.
    let mut stream = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(stream.next_u64() ^ position);
    (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod chain_tests;
#[cfg(test)]
mod tests;
