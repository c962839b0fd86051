use proptest::prelude::*;
use serde_json::Value;

use super::*;

fn sampler(params: SamplingParams, vocab_size: usize) -> Sampler {
    Sampler::new(params, vocab_size, 0).unwrap()
}

/// Distribution that a draw is made from, `[vocab]`.
fn probabilities(sampler: &Sampler, logits: &[f32]) -> Vec<f64> {
    let mut logits = logits.to_vec();
    sampler.apply_bias_and_penalties(&mut logits);
    let best = argmax(&logits).unwrap();
    let kept = sampler.candidates(&logits, best, f64::from(sampler.params.temperature));
    let total: f64 = kept.iter().map(|candidate| candidate.weight).sum();
    let mut out = vec![0.0; logits.len()];
    for candidate in kept {
        out[candidate.token as usize] = candidate.weight / total;
    }
    out
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
}

fn ids(value: &Value) -> Vec<u32> {
    numbers(value).iter().map(|number| *number as u32).collect()
}

fn params(case: &Value) -> SamplingParams {
    let number = |name: &str, default: f32| case[name].as_f64().map_or(default, |n| n as f32);
    let bias = case["logit_bias"].as_array().cloned().unwrap_or_default();
    SamplingParams {
        temperature: number("temperature", 1.0),
        top_k: number("top_k", 0.0) as usize,
        top_p: number("top_p", 1.0),
        min_p: number("min_p", 0.0),
        repetition_penalty: number("repetition_penalty", 1.0),
        presence_penalty: number("presence_penalty", 0.0),
        frequency_penalty: number("frequency_penalty", 0.0),
        logit_bias: bias
            .iter()
            .map(|pair| (pair[0].as_u64().unwrap() as u32, pair[1].as_f64().unwrap() as f32))
            .collect(),
        ..SamplingParams::default()
    }
}

#[test]
fn the_distributions_are_those_of_transformers() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/sampler_goldens.json");
    let goldens: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let cases = goldens["cases"].as_array().unwrap();
    assert!(cases.len() > 10);
    for case in cases {
        let logits: Vec<f32> = numbers(&case["logits"]).iter().map(|l| *l as f32).collect();
        let mut sampler = sampler(params(&case["params"]), logits.len());
        sampler.set_history(&ids(&case["prompt"]), &ids(&case["answer"]));
        let found = probabilities(&sampler, &logits);
        for (token, (found, expected)) in
            found.iter().zip(numbers(&case["probabilities"])).enumerate()
        {
            // transformers computes in f32: logits of up to 30 with 2^-24 relative error each way,
            // a division or two by numbers not below 0.3; the file keeps 7 digits.
            let tolerance = expected * (30.0 / 0.3 * 4.0 * 6e-8 + 1e-6);
            assert!(
                (found - expected).abs() <= tolerance,
                "{}: token {token}: {found}, expected {expected}",
                case["params"]
            );
        }
    }
}

#[test]
fn penalties_by_hand() {
    let params = SamplingParams {
        repetition_penalty: 2.0,
        presence_penalty: 0.5,
        frequency_penalty: 0.25,
        logit_bias: vec![(0, 1.0), (9, 1.0)],
        ..SamplingParams::default()
    };
    let mut sampler = sampler(params, 5);
    sampler.set_history(&[1, 2, 2], &[3, 3, 3, 4]);
    let mut logits = [1.0, 4.0, -4.0, 4.0, -4.0];
    sampler.apply_bias_and_penalties(&mut logits);
    // Bias only; prompt only (twice); answer three times; answer once.
    assert_eq!(logits, [2.0, 2.0, -8.0, 2.0 - 0.75 - 0.5, -8.0 - 0.25 - 0.5]);
    sampler.set_history(&[], &[]);
    let mut logits = [1.0; 5];
    sampler.apply_bias_and_penalties(&mut logits);
    assert_eq!(logits, [2.0, 1.0, 1.0, 1.0, 1.0]);
}

#[test]
fn greedy_takes_the_first_of_the_best() {
    let greedy = sampler(SamplingParams::greedy(), 4);
    let token = |logits: [f32; 4]| greedy.sample(&mut logits.clone(), 0).unwrap().token;
    assert_eq!(token([0.0, 3.0, 3.0, 1.0]), 1);
    assert_eq!(token([-0.0, 0.0, 0.0, -0.0]), 0);
    assert_eq!(token([f32::NEG_INFINITY, f32::NEG_INFINITY, -3e38, f32::NEG_INFINITY]), 2);
}

#[test]
fn top_k_keeps_exactly_k_and_prefers_low_ids_among_equals() {
    let params = SamplingParams { top_k: 3, ..SamplingParams::default() };
    let found = probabilities(&sampler(params, 6), &[1.0, 2.0, 1.0, 1.0, 1.0, 0.0]);
    let kept: Vec<usize> = (0..6).filter(|token| found[*token] > 0.0).collect();
    assert_eq!(kept, [0, 1, 2]);
}

#[test]
fn logits_beyond_the_vocabulary_do_not_exist() {
    let sampler = sampler(SamplingParams::greedy(), 3);
    let mut logits = [0.0, 1.0, 0.5, 100.0, f32::NAN];
    assert_eq!(sampler.sample(&mut logits, 0).unwrap().token, 1);
    let error = sampler.sample(&mut [0.0, 1.0], 0).unwrap_err();
    assert_eq!(error, SampleError::LogitCount { expected: 3, found: 2 });
}

#[test]
fn damage_is_an_error() {
    for params in [SamplingParams::greedy(), SamplingParams::default()] {
        let sampler = sampler(params, 3);
        for bad in [f32::NAN, -f32::NAN, f32::INFINITY] {
            let error = sampler.sample(&mut [0.0, bad, 1.0], 0).unwrap_err();
            assert!(matches!(error, SampleError::NotFinite { token: 1, .. }), "{error}");
        }
        let error = sampler.sample(&mut [f32::NEG_INFINITY; 3], 0).unwrap_err();
        assert_eq!(error, SampleError::NothingLeft { tokens: 3 });
        // Forbidden tokens do not count as damage.
        sampler.sample(&mut [f32::NEG_INFINITY, 0.0, f32::NEG_INFINITY], 0).unwrap();
    }
    let forbid_all = SamplingParams {
        logit_bias: (0..3).map(|token| (token, f32::NEG_INFINITY)).collect(),
        ..SamplingParams::default()
    };
    let error = sampler(forbid_all, 3).sample(&mut [1.0; 3], 0).unwrap_err();
    assert_eq!(error, SampleError::NothingLeft { tokens: 3 });
}

#[test]
fn parameters_without_meaning_are_refused_by_name() {
    let base = SamplingParams::default;
    let bad = [
        ("temperature", SamplingParams { temperature: -0.1, ..base() }),
        ("temperature", SamplingParams { temperature: f32::NAN, ..base() }),
        ("top_p", SamplingParams { top_p: 0.0, ..base() }),
        ("top_p", SamplingParams { top_p: 1.1, ..base() }),
        ("min_p", SamplingParams { min_p: -1.0, ..base() }),
        ("repetition_penalty", SamplingParams { repetition_penalty: 0.0, ..base() }),
        ("presence_penalty", SamplingParams { presence_penalty: f32::INFINITY, ..base() }),
        ("frequency_penalty", SamplingParams { frequency_penalty: f32::NAN, ..base() }),
        ("logit_bias", SamplingParams { logit_bias: vec![(0, f32::NAN)], ..base() }),
    ];
    for (expected, params) in bad {
        let error = params.validate().unwrap_err();
        assert_eq!(error.name, expected);
        assert!(Sampler::new(params, 4, 0).is_err());
    }
}

#[test]
fn draws_repeat_and_depend_on_seed_and_position_only() {
    let logits: Vec<f32> = (0..50).map(|token| (token as f32 * 0.7).sin()).collect();
    let run = |seed| -> Vec<u32> {
        let sampler = Sampler::new(SamplingParams::default(), 50, seed).unwrap();
        (0..200).map(|at| sampler.sample(&mut logits.clone(), at).unwrap().token).collect()
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
    // Draws out of order, or repeated, give the same tokens.
    let sampler = Sampler::new(SamplingParams::default(), 50, 1).unwrap();
    for at in [150u64, 3, 3, 0] {
        let token = sampler.sample(&mut logits.clone(), at).unwrap().token;
        assert_eq!(token, run(1)[at as usize]);
    }
    // The parameters' seed takes precedence over the session's.
    let fixed = SamplingParams { seed: Some(1), ..SamplingParams::default() };
    assert_eq!(Sampler::new(fixed, 50, 99).unwrap().seed(), 1);
    // Computed with an independent Python implementation of xoshiro256++ with splitmix64 seeding.
    let first: Vec<u64> = (0..4).map(|at| (uniform(42, at) * 1e9) as u64).collect();
    assert_eq!(first, UNIFORM_OF_SEED_42);
}

const UNIFORM_OF_SEED_42: [u64; 4] = [311_459_103, 729_562_359, 845_766_262, 338_684_520];

#[test]
fn draws_follow_the_distribution() {
    let logits = [0.0f32, 1.0, -1.0, 2.0, 0.5];
    let params = SamplingParams { temperature: 0.8, top_p: 0.97, ..SamplingParams::default() };
    let sampler = sampler(params, 5);
    let expected = probabilities(&sampler, &logits);
    let draws = 20_000u64;
    let mut counts = [0.0f64; 5];
    for position in 0..draws {
        counts[sampler.sample(&mut logits.clone(), position).unwrap().token as usize] += 1.0;
    }
    let mut chi_squared = 0.0;
    for (count, p) in counts.iter().zip(&expected) {
        if *p == 0.0 {
            assert_eq!(*count, 0.0);
        } else {
            chi_squared += (count - p * draws as f64).powi(2) / (p * draws as f64);
        }
    }
    // With at most four degrees of freedom, one seed in a thousand exceeds 18.5.
    assert!(chi_squared < 18.5, "{chi_squared}: {counts:?}, {expected:?}");
}

#[test]
fn logprobs_are_the_models_own() {
    let params = SamplingParams {
        temperature: 0.0,
        top_logprobs: Some(2),
        logit_bias: vec![(2, 100.0)],
        ..SamplingParams::default()
    };
    let logits = [1.0f32, 3.0, 2.0, f32::NEG_INFINITY];
    let sampled = sampler(params, 4).sample(&mut logits.clone(), 0).unwrap();
    assert_eq!(sampled.token, 2);
    let logprobs = sampled.logprobs.unwrap();
    let sum: f64 = [1.0f64, 3.0, 2.0].iter().map(|logit| logit.exp()).sum();
    let expected = |logit: f64| (logit - sum.ln()) as f32;
    assert!((logprobs.chosen - expected(2.0)).abs() < 1e-6);
    assert_eq!(logprobs.top.iter().map(|(token, _)| *token).collect::<Vec<_>>(), [1, 2]);
    assert!((logprobs.top[0].1 - expected(3.0)).abs() < 1e-6);
}

/// Reference implementation: sorts all tokens.
fn naive(params: &SamplingParams, logits: &[f32]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b)));
    let best = f64::from(logits[order[0]]);
    let weight = |t: &usize| ((f64::from(logits[*t]) - best) / f64::from(params.temperature)).exp();
    order.retain(|t| weight(t) > 8.7e-27);
    if params.top_k > 0 {
        order.truncate(params.top_k);
    }
    let total: f64 = order.iter().map(weight).sum();
    let mut sum = 0.0;
    let mut length = 0;
    while length < order.len() && (length == 0 || sum < f64::from(params.top_p) * total) {
        sum += weight(&order[length]);
        length += 1;
    }
    if params.top_p < 1.0 {
        order.truncate(length);
    }
    order.retain(|t| weight(t) >= f64::from(params.min_p));
    order.sort_unstable();
    order
}

proptest! {
    #[test]
    fn kept_sets_equal_the_naive_ones(
        // Few distinct values make many ties; few candidates or thousands.
        values in prop::collection::vec(-12i8..12, 1..3000),
        temperature in prop::sample::select(vec![0.25f32, 1.0, 3.0]),
        top_k in prop::sample::select(vec![0usize, 1, 2, 40, 1000, 5000]),
        top_p in prop::sample::select(vec![1.0f32, 0.999, 0.9, 0.5, 0.01]),
        min_p in prop::sample::select(vec![0.0f32, 0.001, 0.2, 1.0]),
    ) {
        let logits: Vec<f32> = values.iter().map(|value| f32::from(*value) * 0.7).collect();
        let params = SamplingParams { temperature, top_k, top_p, min_p, ..Default::default() };
        let sampler = sampler(params.clone(), logits.len());
        let found = probabilities(&sampler, &logits);
        let kept: Vec<usize> = (0..logits.len()).filter(|token| found[*token] > 0.0).collect();
        let expected = naive(&params, &logits);
        // Another order of summation may shift the cutoff by one token.
        let difference = kept.len().abs_diff(expected.len());
        prop_assert!(difference <= usize::from(top_p < 1.0), "{kept:?} {expected:?}");
        if difference == 0 {
            prop_assert_eq!(&kept, &expected);
        }
        prop_assert!((found.iter().sum::<f64>() - 1.0).abs() < 1e-9);
        let drawn = sampler.sample(&mut logits.clone(), 5).unwrap().token as usize;
        prop_assert!(kept.contains(&drawn));
    }
}

#[test]
fn nothing_but_the_best_is_taken_without_anything_else_that_logits_are_asked() {
    let greedy = SamplingParams::greedy();
    assert_eq!(sampler(greedy.clone(), 9).takes_best(), Some(9));
    // Truncation keeps the best token.
    let cut = SamplingParams { top_k: 3, top_p: 0.5, min_p: 0.5, ..greedy.clone() };
    assert_eq!(sampler(cut, 9).takes_best(), Some(9));
    let others = [
        SamplingParams { temperature: 1e-6, ..greedy.clone() },
        SamplingParams { repetition_penalty: 1.1, ..greedy.clone() },
        SamplingParams { presence_penalty: -0.1, ..greedy.clone() },
        SamplingParams { frequency_penalty: 0.1, ..greedy.clone() },
        SamplingParams { logit_bias: vec![(1, 1.0)], ..greedy.clone() },
        SamplingParams { top_logprobs: Some(0), ..greedy.clone() },
    ];
    for params in others {
        assert_eq!(sampler(params.clone(), 9).takes_best(), None, "{params:?}");
    }
    assert_eq!(sampler(greedy, 0).takes_best(), None);
}
