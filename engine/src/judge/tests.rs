use nestling_formats::ModelConfig;

use super::*;
use crate::runner::{RunnerLimits, StepFuture, StepOutput, StepStats};

/// A bigram "model": the logits of a row are a function of its token, position and level.
struct Table {
    config: ModelConfig,
    vocab_size: usize,
    noise: f32,
    positions: Vec<u32>,
}

impl Table {
    fn new(noise: f32) -> Self {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/tiny-qwen3-moe/config.json");
        let bytes = std::fs::read(path).unwrap();
        let config = ModelConfig::from_json("config.json", &bytes).unwrap();
        Self { config, vocab_size: 7, noise, positions: vec![] }
    }

    fn logits(&self, token: u32, level: Level) -> Vec<f32> {
        let noise = self.noise / f32::from(level.bits());
        let logit = |v: u32| ((token * 13 + v * 5) % 11) as f32 * 0.4 + noise * (v % 3) as f32;
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
            let logits = rows.flat_map(|row| self.logits(row.token, row.levels.level_max()));
            let logits = logits.collect();
            let stats = StepStats::default();
            Ok(StepOutput { logits, vocab_size: self.vocab_size, failures: vec![], stats })
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

fn options(levels: &[Level], sequence_length: usize) -> JudgeOptions {
    let levels = levels.iter().map(|level| JudgeLevel { level: *level, bits_per_weight: 1.5 });
    JudgeOptions { levels: levels.collect(), sequence_length, sequences_max: None }
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
    let (mut reference, mut float, mut int8) = (Table::new(0.0), Table::new(1.5), Table::new(9.0));
    let models =
        JudgeModels { reference: &mut reference, weights_only: &mut float, shipped: &mut int8 };
    let tokens = text(18);
    let mut seen = Vec::new();
    let report = judge(
        models,
        &tokens,
        &options(&[Level::L2, Level::L8], 8),
        &CancelToken::new(),
        &mut |progress| seen.push(progress),
    )
    .unwrap();
    // 18 tokens: two sequences of 8 predictions, the last token is nobody's target.
    assert_eq!((report.sequences, report.tokens), (2, 16));
    assert_eq!(seen.len(), 10);
    assert_eq!(seen.last(), Some(&JudgeProgress { done: 10, total: 10 }));
    let positions: Vec<u32> = (0..8).chain(0..8).collect();
    assert_eq!(reference.positions, positions);

    for (row, level) in report.rows.iter().zip([Level::L2, Level::L8]) {
        let judged = |table: &Table| {
            let mut divergences = Vec::new();
            let (mut nll, mut kept) = (0.0, 0.0);
            for (token, target) in tokens.iter().zip(&tokens[1..]).take(16) {
                let p = softmax(&reference.logits(*token, level));
                let q = softmax(&table.logits(*token, level));
                divergences.push(p.iter().zip(&q).map(|(p, q)| p * (p / q).ln()).sum::<f64>());
                nll -= q[*target as usize].ln();
                let best = |p: &[f64]| (0..7).rev().max_by(|a, b| p[*a].total_cmp(&p[*b]));
                kept += f64::from(best(&p) == best(&q));
            }
            divergences.sort_by(f64::total_cmp);
            (divergences, nll / 16.0, kept / 16.0)
        };
        let close = |found: f64, expected: f64| {
            // f32 probabilities: 16 * 7 products of logits below 20 with 2^-24 relative error.
            assert!((found - expected).abs() < 20.0 * 6e-8, "{found}, expected {expected}");
        };
        let (divergences, nll, top1) = judged(&float);
        assert_eq!(row.level, level);
        close(row.perplexity.ln(), nll);
        close(row.kl_mean, divergences.iter().sum::<f64>() / 16.0);
        close(row.kl_median, (divergences[7] + divergences[8]) / 2.0);
        close(row.kl_p99, divergences[14] + (divergences[15] - divergences[14]) * 0.85);
        close(row.top1, top1);
        let (divergences, _, top1) = judged(&int8);
        close(row.kl_mean_int8, divergences.iter().sum::<f64>() / 16.0);
        close(row.top1_int8, top1);
        assert!(row.kl_mean_int8 > row.kl_mean && row.kl_mean > 0.0);
    }
    assert!(report.rows[0].kl_mean > report.rows[1].kl_mean);
}

#[test]
fn equal_models_have_no_divergence() {
    let mut tables = [Table::new(0.0), Table::new(0.0), Table::new(0.0)];
    let [reference, weights_only, shipped] = &mut tables;
    let models = JudgeModels { reference, weights_only, shipped };
    let options = options(&[Level::L4], 512);
    let report = judge(models, &text(40), &options, &CancelToken::new(), &mut |_| {}).unwrap();
    // Shorter than a sequence: one that is as long as the text.
    assert_eq!((report.sequences, report.tokens), (1, 39));
    let row = report.rows[0];
    assert!(row.kl_mean.abs() < 1e-12 && row.kl_p99.abs() < 1e-12);
    assert_eq!((row.top1, row.top1_int8), (1.0, 1.0));
    assert!((row.perplexity - report.reference_perplexity).abs() < 1e-9);
    let json = serde_json::to_value(row).unwrap();
    let names: Vec<&str> = json.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(
        names,
        [
            "level",
            "bits_per_weight",
            "perplexity",
            "kl_mean",
            "kl_median",
            "kl_p99",
            "top1",
            "kl_mean_int8",
            "top1_int8"
        ]
    );
    assert_eq!(json["level"], 4);
}

#[test]
fn what_cannot_be_judged_is_an_error() {
    let judged = |vocab_size, tokens: &[u32], cancel: &CancelToken| {
        let (mut reference, mut float, mut int8) =
            (Table::new(0.0), Table::new(0.0), Table::new(0.0));
        int8.vocab_size = vocab_size;
        let models =
            JudgeModels { reference: &mut reference, weights_only: &mut float, shipped: &mut int8 };
        judge(models, tokens, &options(&[Level::L2], 8), cancel, &mut |_| {}).unwrap_err()
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
