//! Prints, as Markdown, the weight error of the nested code compared with emulated block quantizations and
//! D²MoE's matryoshka quantization.
//!
//! Uses seeded random weights. If `NESTLING_WEIGHTS` names a safetensors file, it also uses the attention and
//! expert matrices of a Qwen3-MoE model in bf16, with one codec per layer and kind.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::Write;
use std::time::{Duration, Instant};

use nestling_formats::Level;

use super::kquants::KQuant;
use super::mwq;
use super::samples::{Distribution, NestedResult, fit, measure, quantize};

const ROWS: usize = 512;
const COLS: usize = 1024;

#[test]
#[ignore = "a table to look at: `--ignored --nocapture` prints it"]
fn weight_error_table() -> Result<(), Box<dyn Error>> {
    let mut out = std::io::stdout().lock();
    match std::env::var_os("NESTLING_WEIGHTS") {
        None => random_weights(&mut out),
        Some(path) => model_weights(&mut out, &std::fs::read(path)?),
    }
}

fn random_weights(out: &mut impl Write) -> Result<(), Box<dyn Error>> {
    writeln!(out, "dB + 6.02 * bits per weight, {ROWS} x {COLS} weights, lower is better\n")?;
    let names: Vec<&str> = Distribution::ALL.into_iter().map(Distribution::name).collect();
    writeln!(out, "| scheme | bits per weight | {} |", names.join(" | "))?;
    writeln!(out, "|---|---:|---:|---:|---:|")?;
    let mut results = Vec::new();
    let mut samples = Vec::new();
    for distribution in Distribution::ALL {
        let weights = distribution.sample(1, ROWS * COLS);
        let codec = fit(&[(&weights, ROWS, COLS)])?;
        let matrix = quantize(&weights, ROWS, COLS, &codec)?;
        let mut result = measure(&weights, &matrix, &codec)?;
        for bytes in &mut result.bytes {
            *bytes += codec.to_bytes().len();
        }
        results.push(result);
        samples.push(weights);
    }
    for (level, peer) in Level::ALL.into_iter().zip(KQuant::ALL) {
        let bits = results[0].bits_per_weight(level);
        write!(out, "| nested, level {level} | {bits:.3} |")?;
        for result in &results {
            write!(out, " {:.2} |", result.gap(level))?;
        }
        write!(out, "\n| {} | {:.3} |", peer.name(), peer.bits_per_weight())?;
        for weights in &samples {
            let decibels = 10.0 * peer.relative_error(weights).log10();
            write!(out, " {:.2} |", decibels + 6.02 * peer.bits_per_weight())?;
        }
        writeln!(out)?;
    }
    for (index, bits) in mwq::BITS.into_iter().enumerate() {
        let rate = mwq::bits_per_weight(bits);
        write!(out, "| D²MoE, {bits} bits | {rate:.3} |")?;
        for weights in &samples {
            let decibels = 10.0 * mwq::relative_errors(weights)[index].log10();
            write!(out, " {:.2} |", decibels + 6.02 * rate)?;
        }
        writeln!(out)?;
    }
    Ok(())
}

/// A matrix of the model: rows, columns, weights.
type Matrix = (usize, usize, Vec<f32>);

fn model_weights(out: &mut impl Write, file: &[u8]) -> Result<(), Box<dyn Error>> {
    let mut total = NestedResult::default();
    let matrices = linear_matrices(file)?;
    let weights: usize = matrices.values().flatten().map(|(rows, cols, _)| rows * cols).sum();
    let (mut fit_time, mut quantize_time) = (Duration::ZERO, Duration::ZERO);
    for group in matrices.values() {
        let borrowed: Vec<_> = group.iter().map(|(r, c, w)| (w.as_slice(), *r, *c)).collect();
        let start = Instant::now();
        let codec = fit(&borrowed)?;
        fit_time += start.elapsed();
        for (rows, cols, weights) in group {
            let start = Instant::now();
            let matrix = quantize(weights, *rows, *cols, &codec)?;
            quantize_time += start.elapsed();
            total.add(&measure(weights, &matrix, &codec)?);
        }
        for bytes in &mut total.bytes {
            *bytes += codec.to_bytes().len();
        }
    }
    let mut peers = [0.0; 5];
    for (peer, error) in KQuant::ALL.into_iter().zip(&mut peers) {
        for (_, _, weights) in matrices.values().flatten() {
            let energy: f64 = weights.iter().map(|weight| f64::from(*weight).powi(2)).sum();
            *error += peer.relative_error(weights) * energy / total.energy;
        }
    }
    let (fit, quantize) = (fit_time.as_secs_f64(), quantize_time.as_secs_f64());
    writeln!(out, "{weights} weights; fitted in {fit:.1} s, coded in {quantize:.1} s, 1 thread\n")?;
    writeln!(out, "| scheme | bits per weight | error, dB | dB + 6.02 * bits |")?;
    writeln!(out, "|---|---:|---:|---:|")?;
    for ((level, peer), error) in Level::ALL.into_iter().zip(KQuant::ALL).zip(peers) {
        let (bits, decibels) = (total.bits_per_weight(level), total.decibels(level));
        let gap = total.gap(level);
        writeln!(out, "| nested, level {level} | {bits:.3} | {decibels:.2} | {gap:.2} |")?;
        let (bits, decibels) = (peer.bits_per_weight(), 10.0 * error.log10());
        let gap = decibels + 6.02 * bits;
        writeln!(out, "| {} | {bits:.3} | {decibels:.2} | {gap:.2} |", peer.name())?;
    }
    let mut errors = [0.0; 3];
    for (_, _, weights) in matrices.values().flatten() {
        let energy: f64 = weights.iter().map(|weight| f64::from(*weight).powi(2)).sum();
        for (error, relative) in errors.iter_mut().zip(mwq::relative_errors(weights)) {
            *error += relative * energy / total.energy;
        }
    }
    for (bits, error) in mwq::BITS.into_iter().zip(errors) {
        let (rate, decibels) = (mwq::bits_per_weight(bits), 10.0 * error.log10());
        let gap = decibels + 6.02 * rate;
        writeln!(out, "| D²MoE, {bits} bits | {rate:.3} | {decibels:.2} | {gap:.2} |")?;
    }
    Ok(())
}

/// Reads the projections, keyed by name without the expert number, so that a layer's experts share one codec
/// per kind.
fn linear_matrices(file: &[u8]) -> Result<BTreeMap<String, Vec<Matrix>>, Box<dyn Error>> {
    let (length, rest) = file.split_first_chunk::<8>().ok_or("the file has no header")?;
    let length = usize::try_from(u64::from_le_bytes(*length))?;
    let header = rest.get(..length).ok_or("the header is cut off")?;
    let header: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(header)?;
    let mut matrices = BTreeMap::<String, Vec<Matrix>>::new();
    for (name, tensor) in header.iter().filter(|(name, _)| name.ends_with("_proj.weight")) {
        if tensor["dtype"] != "BF16" {
            return Err(format!("{name} is not bf16").into());
        }
        let numbers = |field: &str| -> Result<[usize; 2], Box<dyn Error>> {
            Ok(serde_json::from_value(tensor[field].clone())?)
        };
        let ([rows, cols], [from, to]) = (numbers("shape")?, numbers("data_offsets")?);
        let bytes = rest.get(length + from..length + to).ok_or("a tensor is cut off")?;
        let (bytes, _) = bytes.as_chunks::<2>();
        let weights = bytes.iter().map(|bytes| half::bf16::from_le_bytes(*bytes).to_f32());
        let key: Vec<&str> =
            name.split('.').enumerate().filter(|(at, _)| *at != 5).map(|(_, part)| part).collect();
        matrices.entry(key.join(".")).or_default().push((rows, cols, weights.collect()));
    }
    Ok(matrices)
}
