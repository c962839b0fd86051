//! Samplers of llama.cpp: golden distributions of its code, and a scalar reference over random logits.

use proptest::prelude::*;
use serde_json::Value;

use super::*;
use crate::{EncodeOptions, SamplerKind, SamplingOptions};

fn sampler(params: SamplingParams, vocab_size: usize) -> Sampler {
    Sampler::new(params, vocab_size, 0).unwrap()
}

/// Distribution that a draw is made from, `[vocab]`.
fn probabilities(sampler: &Sampler, logits: &[f32]) -> Vec<f64> {
    let mut logits = logits.to_vec();
    sampler.apply_bias_and_penalties(&mut logits);
    let mut out = vec![0.0; logits.len()];
    match &sampler.chain {
        Some(chain) => {
            for candidate in sampler.chain_candidates(chain, &logits, 0) {
                out[candidate.token as usize] = candidate.p;
            }
        }
        None => {
            let best = argmax(&logits).unwrap();
            let temperature = f64::from(sampler.params.temperature);
            if temperature == 0.0 {
                out[best.token as usize] = 1.0;
                return out;
            }
            let kept = sampler.candidates(&logits, best, temperature);
            let total: f64 = kept.iter().map(|candidate| candidate.weight).sum();
            for candidate in kept {
                out[candidate.token as usize] = candidate.weight / total;
            }
        }
    }
    out
}

fn floats(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap() as f32).collect()
}

fn golden_cases() -> Vec<Value> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/sampler_chain_goldens.json");
    let goldens: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    goldens["cases"].as_array().unwrap().clone()
}

/// Sampler of a golden case, with the case's history.
fn golden_sampler(case: &Value, vocab_size: usize) -> Sampler {
    let mut options = case["params"].clone();
    let breakers = options.as_object_mut().unwrap().remove("breakers");
    let options: SamplingOptions = serde_json::from_value(options).unwrap();
    let mut sampler = sampler(options.over(&SamplingParams::default()), vocab_size);
    if let Some(breakers) = breakers {
        let sequences: Vec<Vec<u32>> = serde_json::from_value(breakers).unwrap();
        sampler.breakers = DryBreakers::of_sequences(&sequences);
    }
    let answer: Vec<u32> = serde_json::from_value(case["answer"].clone()).unwrap();
    sampler.set_history(&[], &answer);
    sampler
}

fn assert_close(found: &[f64], expected: &[f32], case: &Value) {
    for (token, (found, expected)) in found.iter().zip(expected).enumerate() {
        let expected = f64::from(*expected);
        // llama.cpp computes in f32. Logits of up to 40 after the penalties, three roundings, and a temperature
        // of at least 0.4 give 40 / 0.4 * 3 * 2^-24 relative error; the file keeps 6 digits.
        let tolerance = expected * (40.0 / 0.4 * 3.0 * 6e-8 + 1e-5);
        assert!(
            (found - expected).abs() <= tolerance,
            "{}: token {token}: {found}, expected {expected}",
            case["params"]
        );
    }
}

#[test]
fn distributions_are_those_of_llama_cpp() {
    let mut compared = 0;
    for case in golden_cases().iter().filter(|case| case.get("probabilities").is_some()) {
        let logits = floats(&case["logits"]);
        let sampler = golden_sampler(case, logits.len());
        assert_close(&probabilities(&sampler, &logits), &floats(&case["probabilities"]), case);
        compared += 1;
    }
    assert!(compared > 50, "{compared}");
}

#[test]
fn mirostat_adapts_as_in_llama_cpp() {
    let mut compared = 0;
    for case in golden_cases().iter().filter(|case| case.get("draws").is_some()) {
        let logits = floats(&case["logits"]);
        let mut sampler = golden_sampler(case, logits.len());
        let draws = case["draws"].as_array().unwrap();
        for (draw, drawn) in draws.iter().zip(case["drawn"].as_array().unwrap()) {
            let found = probabilities(&sampler, &logits);
            assert_close(&found, &floats(draw), case);
            // The token that llama.cpp drew, with the state that a draw of it leaves.
            let token = drawn.as_u64().unwrap() as u32;
            let error = -found[token as usize].log2() - f64::from(sampler.params.mirostat_tau);
            let mu = sampler.mu - f64::from(sampler.params.mirostat_eta) * error;
            let drawn_here = (0..).map(|at| sampler.sample(&mut logits.clone(), at).unwrap());
            let sampled = drawn_here.take(100_000).find(|sampled| sampled.token == token);
            let sampled = sampled.unwrap();
            assert!((sampled.mu.unwrap() - mu).abs() < 1e-12, "{:?}, {mu}", sampled.mu);
            sampler.adapt(&sampled);
            sampler.accept(token);
            compared += 1;
        }
    }
    assert!(compared > 10, "{compared}");
}

/// Scalar reference over `(token, logit)` pairs, written from the formulas. Minus infinity is a removed token.
fn reference(kind: SamplerKind, params: &SamplingParams, l: &mut [f64], answer: &[u32]) {
    let max = l.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = l.iter().map(|l| (l - max).exp()).sum();
    let p: Vec<f64> = l.iter().map(|l| (l - max).exp() / sum).collect();
    let entropy: f64 = p.iter().filter(|p| **p > 0.0).map(|p| -p * p.ln()).sum();
    let left: Vec<usize> = (0..l.len()).filter(|t| l[*t] > f64::NEG_INFINITY).collect();
    let mut order = left.clone();
    order.sort_by(|a, b| l[*b].total_cmp(&l[*a]).then(a.cmp(b)));
    let keep = |l: &mut [f64], kept: &[usize]| {
        (0..l.len()).filter(|t| !kept.contains(t)).for_each(|t| l[t] = f64::NEG_INFINITY);
    };
    // Shortest prefix of an order whose probability is high enough.
    let prefix = |order: &[usize], enough: &dyn Fn(f64) -> bool| {
        let length = (1..order.len()).find(|n| enough(order[..*n].iter().map(|t| p[*t]).sum()));
        order[..length.unwrap_or(order.len())].to_vec()
    };
    match kind {
        SamplerKind::TopK => keep(l, &order[..order.len().min(params.top_k)]),
        SamplerKind::TopP => {
            keep(l, &prefix(&order, &|sum| sum >= f64::from(params.top_p)));
        }
        SamplerKind::MinP => {
            let least = f64::from(params.min_p) * p[order[0]];
            (0..l.len()).filter(|t| p[*t] < least).for_each(|t| l[t] = f64::NEG_INFINITY);
        }
        SamplerKind::TypicalP => {
            let score = |t: usize| (-p[t].ln() - entropy).abs();
            order.sort_by(|a, b| {
                score(*a).total_cmp(&score(*b)).then(l[*b].total_cmp(&l[*a])).then(a.cmp(b))
            });
            keep(l, &prefix(&order, &|sum| sum > f64::from(params.typical_p)));
        }
        SamplerKind::TopNSigma => {
            let mean = left.iter().map(|t| l[*t]).sum::<f64>() / left.len() as f64;
            let variance =
                left.iter().map(|t| (l[*t] - mean).powi(2)).sum::<f64>() / left.len() as f64;
            let least = max - f64::from(params.top_n_sigma) * variance.sqrt();
            l.iter_mut().filter(|l| **l < least).for_each(|l| *l = f64::NEG_INFINITY);
        }
        SamplerKind::Xtc => {
            let top = order.iter().filter(|t| p[**t] >= f64::from(params.xtc_threshold)).count();
            order.iter().take(top.max(1) - 1).for_each(|t| l[*t] = f64::NEG_INFINITY);
        }
        SamplerKind::Temperature => l.iter_mut().for_each(|l| *l /= f64::from(params.temperature)),
        SamplerKind::Penalties => {
            for (t, l) in l.iter_mut().enumerate() {
                let count = answer.iter().filter(|a| **a as usize == t).count() as f64;
                if count > 0.0 {
                    let penalty = f64::from(params.repetition_penalty);
                    *l = if *l > 0.0 { *l / penalty } else { *l * penalty };
                    *l -= count * f64::from(params.frequency_penalty)
                        + f64::from(params.presence_penalty);
                }
            }
        }
        SamplerKind::Dry => {
            for (t, l) in l.iter_mut().enumerate() {
                if let Some(length) = repeated(answer, t as u32, params.dry_allowed_length as usize)
                {
                    let exponent = (length - params.dry_allowed_length as usize) as f64;
                    *l -= f64::from(params.dry_multiplier)
                        * f64::from(params.dry_base).powf(exponent);
                }
            }
        }
    }
}

/// Length of the longest end of `answer` that occurred before and was followed by `token`, if it is long enough.
fn repeated(answer: &[u32], token: u32, allowed: usize) -> Option<usize> {
    let mut longest = None;
    // Nothing precedes the first token.
    for at in (1..answer.len()).filter(|at| answer[*at] == token) {
        let length = (1..=at).take_while(|n| answer[at - n] == answer[answer.len() - n]).count();
        longest = longest.max((length >= allowed).then_some(length));
    }
    longest.filter(|_| answer.len() > allowed)
}

proptest! {
    #[test]
    fn chains_equal_the_reference_in_every_order(
        logits in prop::collection::vec(-6.0f32..6.0, 2..700),
        mut samplers in prop::sample::subsequence(SamplerKind::DEFAULT_ORDER.to_vec(), 1..9),
        turn in 0usize..9,
        answer in prop::collection::vec(0u32..4, 0..40),
        temperature in prop::sample::select(vec![0.4f32, 1.0, 2.0]),
        top_k in prop::sample::select(vec![0usize, 1, 7, 300]),
        shares in prop::array::uniform3(0.05f32..1.0),
        top_n_sigma in prop::sample::select(vec![0.0f32, 0.2, 1.0, 3.0]),
        threshold in prop::sample::select(vec![0.001f32, 0.01, 0.1, 0.5]),
        dry_allowed_length in 0u32..4,
    ) {
        let turn = turn % samplers.len();
        samplers.rotate_left(turn);
        let params = SamplingParams {
            temperature, top_k, top_n_sigma, dry_allowed_length,
            top_p: shares[0], typical_p: shares[1], min_p: shares[2] * 0.1,
            xtc_probability: 1.0, xtc_threshold: threshold,
            dry_multiplier: 0.3, dry_base: 1.2,
            repetition_penalty: 1.2, presence_penalty: 0.3, frequency_penalty: 0.1,
            samplers, ..SamplingParams::default()
        };
        let mut sampler = sampler(params.clone(), logits.len());
        sampler.set_history(&[], &answer);
        let found = probabilities(&sampler, &logits);
        let mut l: Vec<f64> = logits.iter().copied().map(f64::from).collect();
        for kind in params.samplers.iter().filter(|kind| params.is_active(**kind)) {
            reference(*kind, &params, &mut l, &answer);
        }
        let max = l.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = l.iter().map(|l| (l - max).exp()).sum();
        let expected: Vec<f64> = l.iter().map(|l| (l - max).exp() / sum).collect();
        // Another order of summation may move a cutoff by one token, which samplers after it amplify. Both
        // sides then differ in which tokens are left.
        let same = |(found, expected): (&f64, &f64)| (*found > 0.0) == (*expected > 0.0);
        let is_close = |(found, expected): (&f64, &f64)| (found - expected).abs() <= 1e-9 * expected;
        if found.iter().zip(&expected).all(same) {
            // The default path computes penalties in f32.
            let is_default = sampler.chain.is_none();
            prop_assert!(is_default || found.iter().zip(&expected).all(is_close));
        } else {
            prop_assert!(is_near_a_cutoff(&params, &logits, &answer), "{found:?} {expected:?}");
        }
        let drawn = sampler.sample(&mut logits.clone(), 5).unwrap().token as usize;
        prop_assert!(found[drawn] > 0.0);
    }
}

/// Returns true if slightly smaller or larger parameters leave other tokens.
fn is_near_a_cutoff(params: &SamplingParams, logits: &[f32], answer: &[u32]) -> bool {
    let left = |factor: f64| {
        let mut l: Vec<f64> = logits.iter().map(|l| f64::from(*l) * factor).collect();
        for kind in params.samplers.iter().filter(|kind| params.is_active(**kind)) {
            reference(*kind, params, &mut l, answer);
        }
        l.iter().map(|l| *l > f64::NEG_INFINITY).collect::<Vec<bool>>()
    };
    left(1.0 + 1e-6) != left(1.0 - 1e-6)
}

#[test]
fn dynamic_temperature_by_hand() {
    // Two equal tokens have the maximum entropy; four tokens with two impossible ones have half of it.
    let logits = [0.0f32, 0.0, -1e30, -1e30];
    let params = SamplingParams {
        dynatemp_range: 0.5,
        dynatemp_exponent: 2.0,
        samplers: vec![SamplerKind::Temperature, SamplerKind::MinP],
        ..SamplingParams::default()
    };
    let chain_input = |params: &SamplingParams| probabilities(&sampler(params.clone(), 4), &logits);
    assert_eq!(chain_input(&params), [0.5, 0.5, 0.0, 0.0]);
    // Temperature 0.5 + 1 * 0.5^2 = 0.75 makes a distance of 0.75 a distance of 1.
    let logits = [1.0f32, 1.0, f32::NEG_INFINITY, f32::NEG_INFINITY];
    let found = sampler(params, 4);
    let candidates = found.chain_candidates(found.chain.as_ref().unwrap(), &logits, 0);
    assert!((candidates[0].logit - 1.0 / 0.75).abs() < 1e-12, "{candidates:?}");
}

#[test]
fn the_window_limits_the_penalties() {
    let penalized = |repeat_last_n: i32| {
        let params = SamplingParams {
            repetition_penalty: 2.0,
            presence_penalty: 0.5,
            frequency_penalty: 0.25,
            repeat_last_n,
            ..SamplingParams::default()
        };
        let mut sampler = sampler(params, 5);
        sampler.set_history(&[1, 2, 2], &[3, 3, 4]);
        let mut logits = [4.0f32; 5];
        sampler.apply_bias_and_penalties(&mut logits);
        logits
    };
    assert_eq!(penalized(0), [4.0; 5]);
    assert_eq!(penalized(1), [4.0, 4.0, 4.0, 4.0, 1.25]);
    assert_eq!(penalized(2), [4.0, 4.0, 4.0, 1.25, 1.25]);
    // The window reaches the prompt, whose tokens only the repetition penalty counts.
    assert_eq!(penalized(4), [4.0, 4.0, 2.0, 1.0, 1.25]);
    assert_eq!(penalized(6), [4.0, 2.0, 2.0, 1.0, 1.25]);
    assert_eq!(penalized(-1), penalized(6));
}

#[test]
fn neutral_parameters_and_equal_orders_take_the_default_path() {
    let plain = || SamplingParams { temperature: 0.7, top_k: 40, top_p: 0.9, ..Default::default() };
    let neutral = [
        plain(),
        SamplingParams { xtc_probability: 0.5, xtc_threshold: 0.6, ..plain() },
        SamplingParams { dry_multiplier: 0.8, dry_penalty_last_n: 0, ..plain() },
        SamplingParams { dry_multiplier: 0.8, dry_base: 0.5, ..plain() },
        SamplingParams { top_n_sigma: -1.0, ..plain() },
        SamplingParams { mirostat_tau: 1.0, dynatemp_exponent: 3.0, ..plain() },
        SamplingParams { repeat_last_n: 64, ..plain() },
        SamplingParams {
            samplers: vec![SamplerKind::Temperature, SamplerKind::TopK, SamplerKind::TopP],
            ..plain()
        },
    ];
    for params in neutral {
        assert!(sampler(params.clone(), 9).chain.is_none(), "{params:?}");
        assert!(sampler(params.clone(), 9).history.is_none(), "{params:?}");
    }
    let others = [
        SamplingParams { typical_p: 0.99, ..plain() },
        SamplingParams { top_n_sigma: 1.0, ..plain() },
        SamplingParams { xtc_probability: 0.5, ..plain() },
        SamplingParams { dry_multiplier: 0.8, ..plain() },
        SamplingParams { mirostat: 2, ..plain() },
        SamplingParams { dynatemp_range: 0.1, ..plain() },
        SamplingParams { samplers: vec![SamplerKind::TopK], ..plain() },
        SamplingParams { samplers: vec![], ..plain() },
    ];
    for params in others {
        assert!(sampler(params.clone(), 9).chain.is_some(), "{params:?}");
        let greedy = SamplingParams { temperature: 0.0, ..params };
        assert_eq!(sampler(greedy.clone(), 9).takes_best(), None, "{greedy:?}");
    }
}

#[test]
fn temperature_0_is_greedy_in_every_chain() {
    let greedy = |params: SamplingParams| SamplingParams { temperature: 0.0, ..params };
    let base = SamplingParams::default;
    for params in [
        SamplingParams { typical_p: 0.2, ..base() },
        SamplingParams { top_n_sigma: 1.0, ..base() },
        SamplingParams { xtc_probability: 1.0, xtc_threshold: 0.01, ..base() },
        SamplingParams { dry_multiplier: 0.8, ..base() },
        SamplingParams { mirostat: 2, ..base() },
    ] {
        let sampler = sampler(greedy(params), 4);
        for at in 0..20 {
            assert_eq!(sampler.sample(&mut [0.0, 1.5, 1.0, 1.2], at).unwrap().token, 1);
        }
    }
}

#[test]
fn xtc_applies_with_its_probability_independently_of_the_draw() {
    let params =
        SamplingParams { xtc_probability: 0.3, xtc_threshold: 0.1, ..SamplingParams::default() };
    let sampler = sampler(params, 3);
    // Probabilities 0.5, 0.3 and 0.2: XTC leaves the last one. It is drawn with 0.3 + 0.7 * 0.2.
    let logits = [0.5f32.ln(), 0.3f32.ln(), 0.2f32.ln()];
    let mut counts = [0.0f64; 3];
    for at in 0..20_000 {
        counts[sampler.sample(&mut logits.clone(), at).unwrap().token as usize] += 1.0;
    }
    for (count, expected) in counts.iter().zip([0.35, 0.21, 0.44]) {
        // Five standard deviations of a binomial distribution of 20,000 trials are at most 0.018.
        assert!((count / 20_000.0 - expected).abs() < 0.018, "{counts:?}");
    }
}

#[test]
fn a_clone_continues_mirostat_and_a_new_history_restarts_it() {
    let params =
        SamplingParams { mirostat: 2, mirostat_tau: 1.5, seed: Some(3), ..Default::default() };
    let logits: Vec<f32> = (0..50).map(|token| (token as f32 * 0.7).sin() * 3.0).collect();
    let run = |sampler: &mut Sampler, positions: std::ops::Range<u64>| -> Vec<u32> {
        let step = |at| {
            let sampled = sampler.sample(&mut logits.clone(), at).unwrap();
            sampler.adapt(&sampled);
            sampler.accept(sampled.token);
            sampled.token
        };
        positions.map(step).collect()
    };
    let mut whole = sampler(params.clone(), 50);
    let expected = run(&mut whole, 0..40);
    let mut first = sampler(params.clone(), 50);
    let mut tokens = run(&mut first, 0..17);
    tokens.extend(run(&mut first.clone(), 17..40));
    assert_eq!(tokens, expected);
    assert_ne!(whole.mu, 3.0);
    whole.set_history(&[], &[]);
    assert_eq!(whole.mu, 3.0);
    // A draw that is not adapted to, such as a rejected one, changes nothing.
    let sampled = whole.sample(&mut logits.clone(), 3).unwrap();
    assert_eq!(whole.sample(&mut logits.clone(), 3).unwrap(), sampled);
}

#[test]
fn breakers_are_found_in_tokens_and_across_them() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/demo_tokenizer.json");
    let tokenizer = Tokenizer::from_bytes(path, &std::fs::read(path).unwrap()).unwrap();
    let params = SamplingParams { dry_multiplier: 1.0, ..SamplingParams::default() };
    let mut sampler = sampler(params, tokenizer.vocab_size());
    let encode = |text: &str| tokenizer.encode(text, EncodeOptions::default()).unwrap();
    let penalties = |sampler: &mut Sampler, text: &str| {
        sampler.set_history(&encode(text), &[]);
        sampler.repetitions()
    };
    let next = encode(" upon a time").first().copied().unwrap();
    // Without breakers the whole sequence counts, with them only the tokens after the last newline.
    let text = "the little cat sat\nOnce upon a time, the little cat sat\nOnce";
    let long = penalties(&mut sampler, text);
    assert!(long[&next] > 1.0, "{long:?}");
    sampler.find_breakers(&tokenizer).unwrap();
    let short = penalties(&mut sampler, text);
    assert!(short.get(&next).is_none_or(|penalty| *penalty <= 1.0), "{short:?}");
    // A breaker that no token contains is found across tokens.
    let of = |breaker: &str| DryBreakers::new(&tokenizer, &[breaker.into()]).unwrap();
    sampler.breakers = of("sat\nOnce");
    assert_eq!(penalties(&mut sampler, text).get(&next), None);
    sampler.breakers = of("sat\nTwice");
    assert_eq!(penalties(&mut sampler, text), long);
}

#[test]
fn parameters_out_of_range_are_refused_by_name() {
    let base = SamplingParams::default;
    let bad = [
        ("typical_p", SamplingParams { typical_p: 0.0, ..base() }),
        ("typical_p", SamplingParams { typical_p: 1.5, ..base() }),
        ("top_n_sigma", SamplingParams { top_n_sigma: f32::NAN, ..base() }),
        ("xtc_probability", SamplingParams { xtc_probability: 1.1, ..base() }),
        ("xtc_threshold", SamplingParams { xtc_threshold: -0.1, ..base() }),
        ("dry_multiplier", SamplingParams { dry_multiplier: -1.0, ..base() }),
        ("dry_base", SamplingParams { dry_base: f32::INFINITY, ..base() }),
        ("dry_penalty_last_n", SamplingParams { dry_penalty_last_n: -2, ..base() }),
        (
            "dry_sequence_breakers",
            SamplingParams { dry_sequence_breakers: vec!["".into()], ..base() },
        ),
        (
            "dry_sequence_breakers",
            SamplingParams { dry_sequence_breakers: vec!["x".repeat(41)], ..base() },
        ),
        (
            "dry_sequence_breakers",
            SamplingParams { dry_sequence_breakers: vec!["x".into(); 33], ..base() },
        ),
        ("mirostat", SamplingParams { mirostat: 1, ..base() }),
        ("mirostat", SamplingParams { mirostat: 3, ..base() }),
        ("mirostat_tau", SamplingParams { mirostat_tau: -1.0, ..base() }),
        ("mirostat_eta", SamplingParams { mirostat_eta: f32::NAN, ..base() }),
        ("dynatemp_range", SamplingParams { dynatemp_range: -0.5, ..base() }),
        ("dynatemp_exponent", SamplingParams { dynatemp_exponent: -1.0, ..base() }),
        ("repeat_last_n", SamplingParams { repeat_last_n: -2, ..base() }),
        ("samplers", SamplingParams { samplers: vec![SamplerKind::TopK; 33], ..base() }),
    ];
    for (expected, params) in bad {
        assert_eq!(params.validate().unwrap_err().name, expected);
    }
    let text = SamplingParams { mirostat: 1, ..base() }.validate().unwrap_err().to_string();
    assert_eq!(text, "mirostat: expected 0 or 2; version 1 is not supported, found 1");
}

#[test]
fn names_of_samplers_are_those_of_llama_cpp() {
    for kind in SamplerKind::DEFAULT_ORDER {
        assert_eq!(kind.name().parse(), Ok(kind));
    }
    for (alias, kind) in [
        ("temp", SamplerKind::Temperature),
        ("typical", SamplerKind::TypicalP),
        ("top-n-sigma", SamplerKind::TopNSigma),
        ("min-p", SamplerKind::MinP),
    ] {
        assert_eq!(alias.parse(), Ok(kind));
    }
    let list = SamplerKind::parse_list("top_k; temp");
    assert_eq!(list, Ok(vec![SamplerKind::TopK, SamplerKind::Temperature]));
    assert_eq!(SamplerKind::parse_list(""), Ok(vec![]));
    assert!(SamplerKind::parse_list("top_k;;temp").is_err());
    let json = r#"{"samplers": ["top_k", "typical_p"], "dry_sequence_breakers": []}"#;
    let options: SamplingOptions = serde_json::from_str(json).unwrap();
    assert_eq!(options.samplers, Some(vec![SamplerKind::TopK, SamplerKind::TypicalP]));
    let written = serde_json::to_string(&options).unwrap();
    assert!(written.contains(r#""samplers":["top_k","typ_p"]"#), "{written}");
    let error = serde_json::from_str::<SamplingOptions>(r#"{"samplers": ["infill"]}"#);
    assert!(error.unwrap_err().to_string().contains("unknown name \"infill\""));
}

/// Hash of the draws of the default path, and of the logits that it leaves, computed before there were chains.
const DEFAULT_DRAWS: u64 = 4_125_389_343_370_325_963;

#[test]
fn draws_of_the_default_path_are_unchanged() {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    let mut add = |value: u32| hash = (hash ^ u64::from(value)).wrapping_mul(0x100_0000_01b3);
    let base = SamplingParams::default;
    for params in [
        base(),
        SamplingParams::greedy(),
        SamplingParams { temperature: 0.6, top_k: 40, top_p: 0.9, min_p: 0.02, ..base() },
        SamplingParams { repetition_penalty: 1.2, logit_bias: vec![(3, 1.0)], ..base() },
        SamplingParams {
            temperature: 1.5,
            top_p: 0.95,
            presence_penalty: 0.4,
            frequency_penalty: 0.1,
            ..base()
        },
    ] {
        let mut sampler = Sampler::new(params, 400, 42).unwrap();
        sampler.accept_prompt(&[1, 2, 3, 300]);
        for at in 0..200u64 {
            let value = |token: u64| (token * 7919 + at * 104_729) % 2003;
            let mut logits: Vec<f32> =
                (0..400).map(|token| value(token) as f32 / 250.0 - 4.0).collect();
            let token = sampler.sample(&mut logits, at).unwrap().token;
            sampler.accept(token);
            add(token);
            logits.iter().for_each(|logit| add(logit.to_bits()));
        }
    }
    assert_eq!(hash, DEFAULT_DRAWS);
}
