//! Sampling of the next token from logits.
//!
//! The order is that of `transformers`: mask, logit bias, repetition penalty, presence and frequency
//! penalties, temperature, top-k, top-p, min-p, draw. (llama.cpp truncates before it applies the temperature;
//! published `generation_config.json` files are tuned for this order.)
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
//! A draw depends only on the seed, the position in the session, the logits and the parameters. It does not
//! depend on the batch, on chunking or on earlier draws.

use std::cmp::Ordering;
use std::collections::HashMap;

use crate::token_mask::TokenMask;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use thiserror::Error;

/// Minimum exponent: below it, `exp(x)` is negligible against a sum of at least 1 in f64, even 2^22 times.
const EXPONENT_MIN: f64 = -60.0;

/// Number of candidates that are sorted first, before the number that top-p keeps is known.
const SORTED_FIRST: usize = 256;

/// Sampling parameters. The default is the model's unmodified distribution.
///
/// ```
/// use nestling_text::SamplingParams;
///
/// let params = SamplingParams { temperature: 0.7, top_p: 0.9, ..SamplingParams::default() };
/// assert!(params.validate().is_ok());
/// let error = SamplingParams { top_p: 0.0, ..params }.validate().err();
/// assert_eq!(error.map(|error| error.name), Some("top_p"));
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// Divisor of the logits; 0 is greedy.
    pub temperature: f32,
    /// Maximum number of tokens to draw from; 0 is unlimited.
    pub top_k: usize,
    /// Probability mass to draw from, in (0, 1]; 1 keeps all tokens.
    pub top_p: f32,
    /// Minimum probability relative to the best token; 0 keeps all tokens.
    pub min_p: f32,
    /// Penalty of tokens in prompt and response: above 1 makes them less likely; 1 is off.
    pub repetition_penalty: f32,
    /// Penalty subtracted from the logits of tokens in the response.
    pub presence_penalty: f32,
    /// Penalty subtracted once per occurrence of a token in the response.
    pub frequency_penalty: f32,
    /// Values added to the logits of these tokens; minus infinity forbids a token.
    pub logit_bias: Vec<(u32, f32)>,
    /// Seed of the draws. Without one, the session chooses a seed and reports it.
    pub seed: Option<u64>,
    /// Number of best tokens whose log-probabilities are reported, in addition to the chosen one's. `None`
    /// reports none.
    pub top_logprobs: Option<usize>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: vec![],
            seed: None,
            top_logprobs: None,
        }
    }
}

impl SamplingParams {
    /// Returns parameters that always choose the most likely token.
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::default() }
    }

    /// Returns an error if a parameter is out of range.
    pub fn validate(&self) -> Result<(), InvalidParameter> {
        let in_range = |name, value: f32, expected, good: bool| {
            if good { Ok(()) } else { Err(InvalidParameter { name, expected, value }) }
        };
        let t = self.temperature;
        in_range("temperature", t, "a number from 0 on", t.is_finite() && t >= 0.0)?;
        let p = self.top_p;
        in_range("top_p", p, "a number above 0, at most 1", p > 0.0 && p <= 1.0)?;
        let p = self.min_p;
        in_range("min_p", p, "a number from 0 to 1", (0.0..=1.0).contains(&p))?;
        let r = self.repetition_penalty;
        in_range("repetition_penalty", r, "a number above 0", r.is_finite() && r > 0.0)?;
        let p = self.presence_penalty;
        in_range("presence_penalty", p, "a number", p.is_finite())?;
        let f = self.frequency_penalty;
        in_range("frequency_penalty", f, "a number", f.is_finite())?;
        for (_, bias) in &self.logit_bias {
            let good = bias.is_finite() || *bias == f32::NEG_INFINITY;
            in_range("logit_bias", *bias, "a number or minus infinity", good)?;
        }
        Ok(())
    }
}

/// A sampling parameter out of range.
#[derive(Debug, Clone, PartialEq, Error)]
#[error("{name}: expected {expected}, found {value}")]
pub struct InvalidParameter {
    /// Name of the field of [`SamplingParams`].
    pub name: &'static str,
    /// Description of a valid value.
    pub expected: &'static str,
    /// The value given.
    pub value: f32,
}

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
        Ok(Self { params, seed, vocab_size, counts: HashMap::new() })
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
            && self.penalizes_nothing()
            && logit_bias.is_empty()
            && top_logprobs.is_none();
        (is_best && self.vocab_size > 0).then_some(self.vocab_size)
    }

    fn penalizes_nothing(&self) -> bool {
        let params = &self.params;
        params.repetition_penalty == 1.0
            && params.presence_penalty == 0.0
            && params.frequency_penalty == 0.0
    }

    /// Returns the seed in use.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Replaces the history, for example after a truncation or a fork.
    pub fn set_history(&mut self, prompt: &[u32], answer: &[u32]) {
        self.counts.clear();
        self.accept_prompt(prompt);
        for token in answer {
            self.accept(*token);
        }
    }

    /// Adds tokens of the prompt to the history. Only the repetition penalty counts them.
    pub fn accept_prompt(&mut self, prompt: &[u32]) {
        for token in prompt {
            self.counts.entry(*token).or_insert(0);
        }
    }

    /// Adds a token of the response to the history. `sample` does not call this, because a chosen token may
    /// still be rejected.
    pub fn accept(&mut self, token: u32) {
        let count = self.counts.entry(token).or_insert(0);
        *count = count.saturating_add(1);
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
        let token = match self.params.temperature {
            0.0 => best.token,
            temperature => self.draw(logits, best, temperature, position),
        };
        let logprobs = match (raw, self.params.top_logprobs) {
            (Some(raw), Some(count)) => Some(logprobs_of(&raw, token, count)?),
            _ => None,
        };
        Ok(Sampled { token, logprobs })
    }

    fn apply_bias_and_penalties(&self, logits: &mut [f32]) {
        let params = &self.params;
        for (token, bias) in &params.logit_bias {
            if let Some(logit) = logits.get_mut(*token as usize) {
                *logit += bias;
            }
        }
        if self.penalizes_nothing() {
            return;
        }
        let repetition = params.repetition_penalty;
        for (token, count) in &self.counts {
            let Some(logit) = logits.get_mut(*token as usize) else { continue };
            *logit = if *logit > 0.0 { *logit / repetition } else { *logit * repetition };
            if *count > 0 {
                *logit -= params.frequency_penalty * *count as f32 + params.presence_penalty;
            }
        }
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
mod tests;
