//! Logits to the next token.
//!
//! The order is that of `transformers`: mask, logit bias, repetition penalty, presence and frequency
//! penalties, temperature, top-k, top-p, min-p, draw. (llama.cpp cuts before it applies the
//! temperature; published `generation_config.json` files are tuned for this order.)
//!
//! - a mask makes the logits of tokens that are not allowed minus infinity; one that allows all changes nothing
//! - `logit += bias`
//! - repetition, tokens of prompt and answer: `logit > 0 ? logit / penalty : logit * penalty`
//! - presence and frequency, tokens of the answer, `c` times each: `logit -= frequency * c`, and
//!   `logit -= presence` if `c > 0` (OpenAI's formula)
//! - temperature 0 is greedy: the highest logit, of equal ones the lowest token id
//! - top-k keeps the k highest logits, of equal ones the lowest ids; 0 keeps all
//! - top-p keeps the shortest run of the most probable tokens whose sum reaches p; 1 keeps all
//! - min-p keeps tokens with at least p times the probability of the best; 0 keeps all
//!
//! A draw depends on the seed, the position in the session, the logits and the parameters, and on
//! nothing else: not on the batch, on chunking, or on how often anybody looked.

use std::cmp::Ordering;
use std::collections::HashMap;

use crate::token_mask::TokenMask;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use thiserror::Error;

/// `exp(x)` below this vanishes against a sum of at least 1 in f64, 2^22 times over.
const EXPONENT_MIN: f64 = -60.0;

/// Candidates that are sorted first when it is not known how many top-p will keep.
const SORTED_FIRST: usize = 256;

/// How the next token is chosen. The default is the model's plain distribution.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// Divides the logits; 0 is greedy.
    pub temperature: f32,
    /// Tokens that stay in the draw; 0 is all.
    pub top_k: usize,
    /// Probability that stays in the draw, above 0; 1 is all.
    pub top_p: f32,
    /// Least probability relative to the best token; 0 is none.
    pub min_p: f32,
    /// Above 1 makes tokens of prompt and answer less likely; 1 is off.
    pub repetition_penalty: f32,
    /// Subtracted from the logits of tokens in the answer.
    pub presence_penalty: f32,
    /// Subtracted for each time that a token is in the answer.
    pub frequency_penalty: f32,
    /// Added to the logits of these tokens; minus infinity forbids.
    pub logit_bias: Vec<(u32, f32)>,
    /// Makes draws repeatable; without one, the session chooses one and reports it.
    pub seed: Option<u64>,
    /// Log-probabilities with every token: that of the chosen one, and of so many best ones.
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
    /// Always the most likely token.
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::default() }
    }

    /// Refuses what has no meaning.
    pub fn validate(&self) -> Result<(), SampleError> {
        let in_range = |name, value: f32, expected, good: bool| {
            if good { Ok(()) } else { Err(SampleError::Parameter { name, expected, value }) }
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

/// Why no token could be chosen.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum SampleError {
    /// A parameter that has no meaning.
    #[error("{name}: expected {expected}, found {value}")]
    Parameter {
        /// Its name.
        name: &'static str,
        /// What would have been valid.
        expected: &'static str,
        /// What was given.
        value: f32,
    },
    /// The model computed something that is no number.
    #[error("the logit of token {token} is {value}: the model's output is damaged")]
    NotFinite {
        /// Which token.
        token: usize,
        /// NaN or plus infinity.
        value: f32,
    },
    /// Every token is forbidden.
    #[error("no token is left to choose: all {tokens} have a logit of minus infinity")]
    NothingLeft {
        /// How many tokens there are.
        tokens: usize,
    },
    /// Fewer logits than the vocabulary has tokens.
    #[error("expected logits for {expected} tokens, found {found}")]
    LogitCount {
        /// Tokens of the vocabulary.
        expected: usize,
        /// Logits given.
        found: usize,
    },
}

/// Natural logarithms of probabilities under the model itself: before mask, bias, penalties,
/// temperature and cuts.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprobs {
    /// Of the chosen token.
    pub chosen: f32,
    /// Of the most likely tokens, best first.
    pub top: Vec<(u32, f32)>,
}

/// A chosen token.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampled {
    /// Its id.
    pub token: u32,
    /// On request.
    pub logprobs: Option<TokenLogprobs>,
}

/// Chooses tokens for one sequence, and remembers what the penalties count.
#[derive(Debug, Clone)]
pub struct Sampler {
    params: SamplingParams,
    seed: u64,
    /// Token ids that exist; a model's logits may be padded beyond.
    vocab_size: usize,
    /// Times in the answer; 0 for tokens that are in the prompt only.
    counts: HashMap<u32, u32>,
}

/// A token that may be drawn.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    token: u32,
    logit: f32,
    weight: f64,
}

impl Candidate {
    /// Best first; of equal ones the lower id.
    fn order(&self, other: &Self) -> Ordering {
        other.logit.total_cmp(&self.logit).then(self.token.cmp(&other.token))
    }
}

impl Sampler {
    /// A sampler that chooses among `vocab_size` tokens; `seed` is used where the parameters
    /// name none.
    pub fn new(params: SamplingParams, vocab_size: usize, seed: u64) -> Result<Self, SampleError> {
        params.validate()?;
        let seed = params.seed.unwrap_or(seed);
        Ok(Self { params, seed, vocab_size, counts: HashMap::new() })
    }

    /// Tokens that may be chosen: ids below.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// The parameters.
    pub fn params(&self) -> &SamplingParams {
        &self.params
    }

    /// Among how many first tokens it chooses, where that is always the one with the highest logit, of equal ones the
    /// lowest, and nothing else is asked of logits.
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

    /// The seed in use.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Makes the history what it is: after a prompt, a truncation, a fork.
    pub fn set_history(&mut self, prompt: &[u32], answer: &[u32]) {
        self.counts.clear();
        self.accept_prompt(prompt);
        for token in answer {
            self.accept(*token);
        }
    }

    /// Tokens of the prompt: the repetition penalty counts them, the others do not.
    pub fn accept_prompt(&mut self, prompt: &[u32]) {
        for token in prompt {
            self.counts.entry(*token).or_insert(0);
        }
    }

    /// A token of the answer. `sample` does not call this: a chosen token may yet be refused.
    pub fn accept(&mut self, token: u32) {
        let count = self.counts.entry(token).or_insert(0);
        *count = count.saturating_add(1);
    }

    /// Chooses the token for `position` of the session from its `logits` `[vocab]`, which bias
    /// and penalties change in place.
    pub fn sample(&self, logits: &mut [f32], position: u64) -> Result<Sampled, SampleError> {
        self.sample_masked(logits, position, None)
    }

    /// [`Self::sample`] among the tokens that `mask` allows.
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

    /// What top-k, top-p and min-p leave, with weights `exp((logit - best) / temperature)`.
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

/// Log-probabilities under the model itself: of `chosen`, and of the `count` most likely tokens.
///
/// # Errors
/// [`SampleError::NotFinite`] where a logit is NaN or plus infinity.
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
    // Default: a token that the model does not have has no chance.
    let chosen = logits.get(chosen as usize).map_or(f32::NEG_INFINITY, |logit| logprob(*logit));
    Ok(TokenLogprobs { chosen, top })
}

/// Keeps the `count` best, in no order.
fn keep_best(candidates: &mut Vec<Candidate>, count: usize) {
    if count < candidates.len() {
        if count > 0 {
            candidates.select_nth_unstable_by(count - 1, Candidate::order);
        }
        candidates.truncate(count);
    }
    // The draw walks through them: the order must not depend on how the selection works.
    candidates.sort_unstable_by_key(|candidate| candidate.token);
}

/// Keeps the shortest run of the best whose share of the weight reaches `top_p`, best first.
/// Sorts only as many as it needs.
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

/// The highest logit, of equal ones the lowest id; none if all are forbidden.
fn argmax(logits: &[f32]) -> Option<Candidate> {
    let mut best: Option<Candidate> = None;
    for (token, logit) in (0u32..).zip(logits) {
        if *logit > best.map_or(f32::NEG_INFINITY, |best| best.logit) {
            best = Some(Candidate { token, logit: *logit, weight: 1.0 });
        }
    }
    best
}

/// Minus infinity forbids a token; NaN and plus infinity are damage.
fn check_numbers(logits: &[f32]) -> Result<(), SampleError> {
    match logits.iter().position(|logit| logit.is_nan() || *logit == f32::INFINITY) {
        None => Ok(()),
        Some(token) => {
            let value = logits.get(token).copied().unwrap_or(f32::NAN);
            Err(SampleError::NotFinite { token, value })
        }
    }
}

/// A number from 0 to below 1 that depends on seed and position only.
fn uniform(seed: u64, position: u64) -> f64 {
    // Neighbouring positions and seeds must not give related states: `seed_from_u64` mixes each.
    let mut stream = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(stream.next_u64() ^ position);
    (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests;
