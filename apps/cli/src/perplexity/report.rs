//! Formats evaluation results as a table for a terminal, as Markdown and as JSON.

use super::peers::PeerSet;
use crate::bytes::ByteSize;
use crate::failure::{Failure, Result};
use nestling::engine::judge::{JudgeReport, JudgeRow, Mean};
use std::fmt::Write as _;

pub fn json(report: &JudgeReport) -> Result<String> {
    let value = serde_json::to_value(report)
        .map_err(|error| Failure::new(format!("cannot write JSON: {error}")))?;
    Ok(format!("{value:#}\n"))
}

pub fn text(report: &JudgeReport) -> String {
    let mut out = format!(
        "{}; the unquantized model has perplexity {:.3}\n\n",
        judged(report.tokens, report.sequences),
        report.reference_perplexity
    );
    let shipped = report.rows.iter().any(|row| row.shipped.is_some());
    let wide = "weights only";
    out += &format!("{:>14} {:>7} {:>9} {:>9} | {wide:^60}", "", "", "", "");
    out += if shipped { " | as shipped\n" } else { "\n" };
    out += &format!("{:>14} {:>7} {:>9} {:>9} | ", "", "bits", "bytes", "per token");
    out += &format!(
        "{:>10} {:>19} {:>9} {:>9} {:>8}",
        "perplexity", "KL mean", "median", "99%", "top-1"
    );
    out += if shipped { " |             KL mean    top-1\n" } else { "\n" };
    for row in &report.rows {
        let found = &row.weights_only;
        let _ = write!(
            out,
            "{:>14} {:>7.3} {:>9} {:>9} | {:>10.3} {:>19} {:>9.5} {:>9.5} {:>7.2}%",
            row.name,
            row.bits_per_weight,
            ByteSize(row.bytes).to_string(),
            found.expert_bytes_per_token.map_or(String::new(), bytes),
            found.perplexity,
            with_error(&found.kl, 5, " +- "),
            found.kl_median,
            found.kl_p99,
            100.0 * found.top1.mean,
        );
        if let Some(found) = &row.shipped {
            let kl = with_error(&found.kl, 5, " +- ");
            let _ = write!(out, " | {kl:>19} {:>7.2}%", 100.0 * found.top1.mean);
        }
        out.push('\n');
    }
    out + &hashes(report)
}

/// Formats the amount of evaluated text: `2048 tokens in 4 pieces`.
pub fn judged(tokens: usize, pieces: usize) -> String {
    let plural = |count: usize| if count == 1 { "" } else { "s" };
    format!("{tokens} token{} in {pieces} piece{}", plural(tokens), plural(pieces))
}

pub fn bytes(bytes: f64) -> String {
    ByteSize(bytes.round() as u64).to_string()
}

/// Lists the hashes of allocations and the thresholds of dual-routing mixes.
fn hashes(report: &JudgeReport) -> String {
    let rows = report.rows.iter().filter(|row| row.level.is_none());
    let lines = rows.map(|row| match row.threshold {
        Some(threshold) => {
            let served = row.shipped.unwrap_or(row.weights_only).expert_mean_level.unwrap_or(0.0);
            format!("{}: threshold {threshold:e}, {served:.3} served\n", row.name)
        }
        None => format!("{}: allocation {}\n", row.name, row.allocation),
    });
    let lines: Vec<String> = lines.collect();
    if lines.is_empty() { String::new() } else { format!("\n{}", lines.concat()) }
}

/// Formats a mean with the given number of decimals, followed by its standard error if available.
pub fn with_error(mean: &Mean, decimals: usize, between: &str) -> String {
    match mean.standard_error {
        Some(error) => format!("{:.decimals$}{between}{error:.decimals$}", mean.mean),
        None => format!("{:.decimals$}", mean.mean),
    }
}

pub fn markdown(report: &JudgeReport, peers: Option<&PeerSet>) -> String {
    let mut out = format!(
        "{}, mean ± standard error over pieces; unquantized perplexity {:.3}\n\n",
        judged(report.tokens, report.sequences),
        report.reference_perplexity
    );
    out += "| | bits per weight | experts read per token | mean level | perplexity | KL mean | KL median | KL 99 % | top-1 kept | KL \
            mean, as shipped | top-1 kept, as shipped |\n";
    out += "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n";
    let mut rows: Vec<(f64, String)> =
        report.rows.iter().map(|row| (row.bits_per_weight, markdown_row(row))).collect();
    // Default: empty if no peers were given.
    for point in peers.map(|peers| peers.points.as_slice()).unwrap_or_default() {
        let (scheme, bits, kl) = (&point.scheme, point.bits_per_weight, point.kl_mean);
        rows.push((bits, format!("| {scheme} | {bits:.3} | | | | {kl:.5} | | | | | |\n")));
    }
    rows.sort_by(|a, b| a.0.total_cmp(&b.0));
    rows.into_iter().for_each(|(_, row)| out += &row);
    out
}

fn markdown_row(row: &JudgeRow) -> String {
    let found = &row.weights_only;
    let of_levels = row.mean_level.is_some();
    let ratio = &found.ln_perplexity_ratio;
    let percent = |value: f64| 100.0 * value.exp_m1();
    let error = ratio.standard_error.map_or(String::new(), |e| format!(" ± {:.2}", 100.0 * e));
    let mut out = format!(
        "| **{}** | {:.3} | {} | {} | {:.3} ({:+.2}{error} %) | {} | {:.5} | {:.4} | {:.1} % |",
        row.name,
        row.bits_per_weight,
        found.expert_bytes_per_token.map_or(String::new(), bytes),
        // The mean level of an allocation does not include the levels that it assigns, so it is not shown.
        found
            .expert_mean_level
            .filter(|_| of_levels)
            .map_or(String::new(), |mean| format!("{mean:.2}")),
        found.perplexity,
        percent(ratio.mean),
        with_error(&found.kl, 5, " ± "),
        found.kl_median,
        found.kl_p99,
        100.0 * found.top1.mean,
    );
    out += &match &row.shipped {
        Some(found) => {
            format!(" {} | {:.1} % |\n", with_error(&found.kl, 5, " ± "), 100.0 * found.top1.mean)
        }
        None => " | |\n".into(),
    };
    out
}
