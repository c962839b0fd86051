use nestling_import::ModelConfig;

use super::*;
use nestling_core::runner::{RunnerLimits, StepFuture, StepOutput, StepStats};
use nestling_levels::dual::LevelMode;

/// A bigram "model": the logits of a row are a function of its token.
struct Table {
    config: ModelConfig,
    vocab_size: usize,
    noise: f32,
    positions: Vec<u32>,
}

impl Table {
    fn new(noise: f32) -> Self {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../runtime/tests/data/tiny-qwen3-moe/config.json"
        );
        let bytes = std::fs::read(path).unwrap();
        let config = ModelConfig::from_json("config.json", &bytes).unwrap();
        Self { config, vocab_size: 7, noise, positions: vec![] }
    }

    fn logits(&self, token: u32) -> Vec<f32> {
        let noise = |v: u32| self.noise * (v % 3) as f32;
        let logit = |v: u32| ((token * 13 + v * 5) % 11) as f32 * 0.4 + noise(v);
        (0..self.vocab_size as u32).map(logit).collect()
    }
}

impl ModelRunner for Table {
    fn config(&self) -> &ModelConfig {
        &self.config
    }

    fn limits(&self) -> RunnerLimits {
        RunnerLimits {
            vocab_size: self.vocab_size,
            context_max: 100,
            rows_max: 3,
            pages: 2,
            page_bytes: 0,
            states: 0,
            state_bytes: 0,
            prompt_steps: nestling_core::runner::PromptSteps::Timed,
            level_max: None,
        }
    }

    fn step<'a>(&'a mut self, batch: &'a Batch, cancel: &'a CancelToken) -> StepFuture<'a> {
        Box::pin(async move {
            if cancel.is_cancelled() {
                return Err(EngineError::Cancelled);
            }
            batch.check(self.vocab_size, 100)?;
            assert!(batch.rows.len() <= 3);
            self.positions.extend(batch.rows.iter().map(|row| row.position));
            let rows = batch.rows.iter();
            let logits = rows.flat_map(|row| self.logits(row.token));
            let logits = logits.collect();
            let stats = StepStats::default();
            let vocab_size = self.vocab_size;
            Ok(StepOutput { logits, vocab_size, stats, ..StepOutput::default() })
        })
    }

    fn copy_page(&mut self, _: PageId, _: PageId) -> Result<(), EngineError> {
        Ok(())
    }

    fn read_page(&mut self, _: PageId) -> Result<Vec<u8>, EngineError> {
        Ok(vec![])
    }

    fn write_page(&mut self, _: PageId, _: &[u8]) -> Result<(), EngineError> {
        Ok(())
    }
}

fn options(sequence_length: usize) -> JudgeOptions {
    JudgeOptions { sequence_length, sequences_max: None }
}

/// A point without a store.
fn point(name: &str) -> JudgePoint {
    JudgePoint {
        name: name.into(),
        level: Level::from_bits(4),
        allocation: Allocation::nothing(),
        dual: None,
        bytes: 12,
        bits_per_weight: 1.5,
    }
}

fn models<'a>(
    reference: &'a mut Table,
    points: Vec<(&'a mut Table, Option<&'a mut Table>)>,
) -> JudgeModels<'a> {
    let points = points.into_iter().map(|(weights_only, shipped)| {
        let shipped = shipped.map(|shipped| shipped as &mut dyn ModelRunner);
        (point("four"), PointModels { weights_only, shipped, dual: None, mode: LevelMode::Strict })
    });
    JudgeModels { reference, points: points.collect() }
}

fn text(length: u32) -> Vec<u32> {
    (0..length).map(|at| (at * at + 3 * at) % 7).collect()
}

fn softmax(logits: &[f32]) -> Vec<f64> {
    let weights: Vec<f64> = logits.iter().map(|logit| f64::from(*logit).exp()).collect();
    let sum: f64 = weights.iter().sum();
    weights.iter().map(|weight| weight / sum).collect()
}

#[test]
fn the_figures_are_those_of_the_definitions() {
    let mut reference = Table::new(0.0);
    let (mut coarse, mut fine, mut int8) = (Table::new(3.0), Table::new(0.5), Table::new(4.0));
    let tokens = text(18);
    let mut seen = Vec::new();
    let report = judge(
        models(&mut reference, vec![(&mut coarse, Some(&mut int8)), (&mut fine, None)]),
        &tokens,
        &options(8),
        &CancelToken::new(),
        &mut |progress| seen.push(progress),
    )
    .unwrap();
    // 18 tokens give two sequences of 8 predictions; the last token is unused.
    assert_eq!((report.sequences, report.tokens), (2, 16));
    assert_eq!(seen.len(), 8);
    assert_eq!(seen.last(), Some(&JudgeProgress { done: 8, total: 8 }));
    let positions: Vec<u32> = (0..8).chain(0..8).collect();
    assert_eq!(reference.positions, positions, "once, whatever the points are");

    let found = [
        (report.rows[0].weights_only, &coarse),
        (report.rows[0].shipped.unwrap(), &int8),
        (report.rows[1].weights_only, &fine),
    ];
    for (found, table) in found {
        let (mut divergences, mut ratios, mut nll, mut kept) = (vec![], vec![], 0.0, 0.0);
        for (token, target) in tokens.iter().zip(&tokens[1..]).take(16) {
            let p = softmax(&reference.logits(*token));
            let q = softmax(&table.logits(*token));
            divergences.push(p.iter().zip(&q).map(|(p, q)| p * (p / q).ln()).sum::<f64>());
            ratios.push((p[*target as usize] / q[*target as usize]).ln());
            nll -= q[*target as usize].ln();
            let best = |p: &[f64]| (0..7).rev().max_by(|a, b| p[*a].total_cmp(&p[*b]));
            kept += f64::from(best(&p) == best(&q));
        }
        let close = |found: f64, expected: f64| {
            // f32 probabilities: 16 * 7 products of logits below 20 with 2^-24 relative error.
            assert!((found - expected).abs() < 20.0 * 6e-8, "{found}, expected {expected}");
        };
        // With two sequences, the standard error is half of their difference.
        let halves = |values: &[f64]| {
            let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
            let (first, second) = (mean(&values[..8]), mean(&values[8..]));
            ((first + second) / 2.0, (first - second).abs() / 2.0)
        };
        for (found, values) in [(found.kl, &divergences), (found.ln_perplexity_ratio, &ratios)] {
            let (mean, error) = halves(values);
            close(found.mean, mean);
            close(found.standard_error.unwrap(), error);
        }
        divergences.sort_by(f64::total_cmp);
        close(found.perplexity.ln(), nll / 16.0);
        close(found.kl_median, (divergences[7] + divergences[8]) / 2.0);
        close(found.kl_p99, divergences[14] + (divergences[15] - divergences[14]) * 0.85);
        close(found.top1.mean, kept / 16.0);
    }
    assert!(report.rows[0].weights_only.kl.mean > report.rows[1].weights_only.kl.mean);
    assert_eq!(report.rows[1].shipped, None);
}

#[test]
fn equal_models_have_no_divergence() {
    let mut tables = [Table::new(0.0), Table::new(0.0), Table::new(0.0)];
    let [reference, float, int8] = &mut tables;
    let models = models(reference, vec![(float, Some(int8))]);
    let report = judge(models, &text(40), &options(512), &CancelToken::new(), &mut |_| {}).unwrap();
    // The text is shorter than a sequence, so that there is one sequence of the length of the text.
    assert_eq!((report.sequences, report.tokens), (1, 39));
    let row = &report.rows[0];
    let (float, int8) = (row.weights_only, row.shipped.unwrap());
    assert!(float.kl.mean.abs() < 1e-12 && float.kl_p99.abs() < 1e-12);
    assert_eq!(float.kl.standard_error, None);
    assert_eq!((float.top1.mean, int8.top1.mean), (1.0, 1.0));
    assert!((float.perplexity - report.reference_perplexity).abs() < 1e-9);
    let json = serde_json::to_value(row).unwrap();
    let names: Vec<&str> = json.as_object().unwrap().keys().map(String::as_str).collect();
    let expected = [
        "name",
        "level",
        "mean_level",
        "threshold",
        "allocation",
        "bytes",
        "bits_per_weight",
        "perplexity",
        "ln_perplexity_ratio",
        "kl",
        "kl_median",
        "kl_p99",
        "top1",
        "expert_bytes_per_token",
        "expert_mean_level",
        "shipped",
    ];
    assert_eq!(names, expected);
    assert_eq!((&json["level"], &json["name"]), (&4.into(), &"four".into()));
    assert_eq!(json["allocation"].as_str().unwrap().len(), 32);
}

#[test]
fn what_cannot_be_judged_is_an_error() {
    let judged = |vocab_size, tokens: &[u32], cancel: &CancelToken| {
        let (mut reference, mut float, mut int8) =
            (Table::new(0.0), Table::new(0.0), Table::new(0.0));
        int8.vocab_size = vocab_size;
        let models = models(&mut reference, vec![(&mut float, Some(&mut int8))]);
        judge(models, tokens, &options(8), cancel, &mut |_| {}).unwrap_err()
    };
    let go = CancelToken::new();
    assert!(matches!(judged(7, &[1], &go), EngineError::Mismatch { .. }));
    assert!(matches!(judged(7, &[], &go), EngineError::Mismatch { .. }));
    assert!(matches!(judged(8, &text(9), &go), EngineError::Mismatch { .. }));
    assert!(matches!(judged(7, &[1, 2, 7], &go), EngineError::TokenOutOfRange { token: 7, .. }));
    let stopped = CancelToken::new();
    stopped.cancel();
    assert!(matches!(judged(7, &text(9), &stopped), EngineError::Cancelled));
}

#[test]
fn divergence_is_that_of_the_definition() {
    // p = (1/4, 3/4) and q = (1/2, 1/2), then the same twice.
    let mut expected = Predictions::with_capacity(2, 2).unwrap();
    expected.push(&[0.0, 3f32.ln()]);
    expected.push(&[5.0, 1.0]);
    let found = |row, logits: &[f32]| expected.divergence(row, logits, log_sum_exp(logits));
    let exact = 0.25 * (0.25f64 / 0.5).ln() + 0.75 * (0.75f64 / 0.5).ln();
    assert!((found(0, &[7.0, 7.0]) - exact).abs() < 1e-6);
    assert!(found(1, &[5.0, 1.0]).abs() < 1e-6);
}
