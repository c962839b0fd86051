//! Sampler chain for parameters beyond temperature, top-k, top-p and min-p in the default order.
//!
//! Definitions are those of llama.cpp (`src/llama-sampler.cpp`), in f64. Candidates stay in the order of their
//! ids, so that a draw does not depend on a selection algorithm. Forbidden tokens stay candidates with
//! probability 0: the dynamic temperature counts them, as in llama.cpp.

use std::cmp::Ordering;
use std::collections::HashMap;

use crate::sampling_params::{SamplerKind, SamplingParams};

/// Number of candidates that are sorted first, before the number that is kept is known.
const SORTED_FIRST: usize = 256;

/// Samplers to apply, without those that change nothing. Mirostat takes no other samplers.
#[derive(Debug, Clone)]
pub(super) struct Chain {
    samplers: Vec<SamplerKind>,
}

/// History and random number that the samplers of one draw depend on.
#[derive(Debug)]
pub(super) struct ChainInput<'a> {
    pub params: &'a SamplingParams,
    /// Occurrences in the response of the tokens that are penalized.
    pub counts: &'a HashMap<u32, u32>,
    /// DRY penalties by token.
    pub dry: &'a HashMap<u32, f64>,
    /// Random number in [0, 1) that decides whether XTC applies.
    pub chance: f64,
    /// Maximum surprise of mirostat in bits.
    pub mu: f64,
}

/// Token with its logit, and its probability once computed.
#[derive(Debug, Clone, Copy)]
pub(super) struct ChainCandidate {
    pub token: u32,
    pub logit: f64,
    pub p: f64,
    /// Rank criterion of a selection; lower is kept first.
    key: f64,
}

impl ChainCandidate {
    /// Orders by ascending key, then descending logit, then ascending id.
    fn order(&self, other: &Self) -> Ordering {
        let logits = other.logit.total_cmp(&self.logit);
        self.key.total_cmp(&other.key).then(logits).then(self.token.cmp(&other.token))
    }
}

impl Chain {
    /// Returns `None` if the default path computes the same.
    pub(super) fn new(params: &SamplingParams) -> Option<Self> {
        let active = |order: &[SamplerKind]| -> Vec<SamplerKind> {
            order.iter().copied().filter(|kind| params.is_active(*kind)).collect()
        };
        if params.mirostat == 2 {
            return Some(Self { samplers: Vec::new() });
        }
        let samplers = active(&params.samplers);
        let is_plain = |kind: &SamplerKind| {
            !matches!(
                kind,
                SamplerKind::Dry
                    | SamplerKind::TopNSigma
                    | SamplerKind::TypicalP
                    | SamplerKind::Xtc
            )
        };
        let is_default = params.dynatemp_range <= 0.0
            && samplers.iter().all(is_plain)
            && samplers == active(&SamplerKind::DEFAULT_ORDER);
        (!is_default).then_some(Self { samplers })
    }

    /// Returns true if the chain contains DRY, which reads the tokens before a draw.
    pub(super) fn reads_history(&self) -> bool {
        self.samplers.contains(&SamplerKind::Dry)
    }

    /// Returns the candidates that are left of `logits` with their probabilities, in the order of their ids. At
    /// least one logit must be above minus infinity.
    pub(super) fn run(&self, logits: &[f32], input: &ChainInput<'_>) -> Vec<ChainCandidate> {
        // A finite logit plus a finite bias may overflow to infinity, which has no probability.
        let finite = |logit: &f32| f64::from(logit.min(f32::MAX));
        let mut all: Vec<ChainCandidate> = (0u32..)
            .zip(logits)
            .map(|(token, logit)| ChainCandidate { token, logit: finite(logit), p: 0.0, key: 0.0 })
            .collect();
        if input.params.mirostat == 2 {
            divide(&mut all, f64::from(input.params.temperature));
            keep_expected(&mut all, input.mu);
        } else {
            self.samplers.iter().for_each(|kind| apply(*kind, &mut all, input));
        }
        softmax(&mut all);
        all
    }
}

fn apply(kind: SamplerKind, all: &mut Vec<ChainCandidate>, input: &ChainInput<'_>) {
    let params = input.params;
    match kind {
        SamplerKind::Penalties => penalize(all, input),
        SamplerKind::Dry => {
            for candidate in all {
                // Default: a token that extends no repetition has no penalty.
                candidate.logit -= input.dry.get(&candidate.token).copied().unwrap_or(0.0);
            }
        }
        SamplerKind::TopNSigma => forbid_distant(all, f64::from(params.top_n_sigma)),
        SamplerKind::Temperature => heat(all, params),
        SamplerKind::TopK => keep_best(all, params.top_k),
        SamplerKind::TypicalP => keep_typical(all, f64::from(params.typical_p)),
        SamplerKind::TopP => {
            softmax(all);
            let top_p = f64::from(params.top_p);
            keep_until(all, |sum| sum >= top_p);
        }
        SamplerKind::MinP => {
            let least = best_logit(all) + libm::log(f64::from(params.min_p));
            all.retain(|candidate| candidate.logit >= least);
        }
        SamplerKind::Xtc => {
            if input.chance < f64::from(params.xtc_probability) {
                exclude_top(all, f64::from(params.xtc_threshold));
            }
        }
    }
}

fn penalize(all: &mut [ChainCandidate], input: &ChainInput<'_>) {
    let params = input.params;
    let repetition = f64::from(params.repetition_penalty);
    for candidate in all {
        let Some(count) = input.counts.get(&candidate.token) else { continue };
        let logit = candidate.logit;
        candidate.logit = if logit > 0.0 { logit / repetition } else { logit * repetition };
        if *count > 0 {
            let frequency = f64::from(params.frequency_penalty) * f64::from(*count);
            candidate.logit -= frequency + f64::from(params.presence_penalty);
        }
    }
}

/// Forbids tokens more than `n` standard deviations below the best one.
fn forbid_distant(all: &mut [ChainCandidate], n: f64) {
    let finite = || all.iter().map(|c| c.logit).filter(|logit| *logit > f64::NEG_INFINITY);
    let count = finite().count() as f64;
    let mean = finite().sum::<f64>() / count;
    let variance = finite().map(|logit| (logit - mean) * (logit - mean)).sum::<f64>() / count;
    let least = best_logit(all) - n * libm::sqrt(variance);
    for candidate in all {
        if candidate.logit < least {
            candidate.logit = f64::NEG_INFINITY;
        }
    }
}

/// Applies the temperature, which depends on the entropy if it is dynamic.
fn heat(all: &mut Vec<ChainCandidate>, params: &SamplingParams) {
    let (temperature, range) = (f64::from(params.temperature), f64::from(params.dynatemp_range));
    if range <= 0.0 {
        return divide(all, temperature);
    }
    if all.len() < 2 {
        return;
    }
    let (low, high) = ((temperature - range).max(0.0), temperature + range);
    softmax(all);
    let normalized = entropy(all) / libm::log(all.len() as f64);
    divide(all, low + (high - low) * libm::pow(normalized, f64::from(params.dynatemp_exponent)));
}

/// Divides the logits by a temperature. 0 keeps only the best token.
fn divide(all: &mut Vec<ChainCandidate>, temperature: f64) {
    if temperature <= 0.0 {
        return keep_best(all, 1);
    }
    all.iter_mut().for_each(|candidate| candidate.logit /= temperature);
}

fn keep_best(all: &mut Vec<ChainCandidate>, count: usize) {
    if count < all.len() {
        all.iter_mut().for_each(|candidate| candidate.key = -candidate.logit);
        all.select_nth_unstable_by(count - 1, ChainCandidate::order);
        all.truncate(count);
        all.sort_unstable_by_key(|candidate| candidate.token);
    }
}

fn keep_typical(all: &mut Vec<ChainCandidate>, typical_p: f64) {
    softmax(all);
    let entropy = entropy(all);
    for candidate in all.iter_mut() {
        candidate.key = libm::fabs(-libm::log(candidate.p) - entropy);
    }
    keep_prefix(all, |sum| sum > typical_p);
}

/// Removes all tokens with a probability of at least `threshold` except the least likely of them.
fn exclude_top(all: &mut Vec<ChainCandidate>, threshold: f64) {
    softmax(all);
    let top = all.iter().filter(|candidate| candidate.p >= threshold);
    let kept = top.min_by(|a, b| a.logit.total_cmp(&b.logit).then(b.token.cmp(&a.token)));
    // Default: no token is likely enough, so that none is removed.
    let Some(kept) = kept.map(|candidate| candidate.token) else { return };
    all.retain(|candidate| candidate.p < threshold || candidate.token == kept);
}

/// Mirostat 2: keeps the tokens with a surprise of at most `mu` bits, or the best one if there are none.
fn keep_expected(all: &mut Vec<ChainCandidate>, mu: f64) {
    softmax(all);
    if all.iter().any(|candidate| surprise(candidate.p) <= mu) {
        all.retain(|candidate| surprise(candidate.p) <= mu);
    } else {
        keep_best(all, 1);
    }
}

/// Returns the surprise of an event in bits.
pub(super) fn surprise(p: f64) -> f64 {
    -libm::log2(p)
}

/// Keeps the shortest prefix by descending logit whose probability satisfies `reached`.
fn keep_until(all: &mut Vec<ChainCandidate>, reached: impl Fn(f64) -> bool) {
    all.iter_mut().for_each(|candidate| candidate.key = -candidate.logit);
    keep_prefix(all, reached);
}

/// Keeps the shortest prefix by key whose probability satisfies `reached`. Sorts only as many candidates as
/// needed.
fn keep_prefix(all: &mut Vec<ChainCandidate>, reached: impl Fn(f64) -> bool) {
    let (mut sorted, mut length, mut sum) = (0, SORTED_FIRST, 0.0);
    'all: while sorted < all.len() {
        let end = length.min(all.len());
        if end < all.len() {
            all[sorted..].select_nth_unstable_by(end - sorted, ChainCandidate::order);
        }
        all[sorted..end].sort_unstable_by(ChainCandidate::order);
        for at in sorted..end {
            sum += all[at].p;
            if reached(sum) {
                all.truncate(at + 1);
                break 'all;
            }
        }
        sorted = end;
        length *= 8;
    }
    all.sort_unstable_by_key(|candidate| candidate.token);
}

fn softmax(all: &mut [ChainCandidate]) {
    let best = best_logit(all);
    let mut sum = 0.0;
    for candidate in all.iter_mut() {
        candidate.p = libm::exp(candidate.logit - best);
        sum += candidate.p;
    }
    all.iter_mut().for_each(|candidate| candidate.p /= sum);
}

/// Returns the entropy in nats.
fn entropy(all: &[ChainCandidate]) -> f64 {
    let terms = all.iter().filter(|c| c.p > 0.0).map(|c| c.p * libm::log(c.p));
    -terms.sum::<f64>()
}

fn best_logit(all: &[ChainCandidate]) -> f64 {
    all.iter().map(|candidate| candidate.logit).fold(f64::NEG_INFINITY, f64::max)
}
