//! Evaluation of perplexity without a reference checkpoint.

use super::report::{bytes, with_error};
use crate::args::ReportFormat;
use crate::bytes::ByteSize;
use crate::failure::{Failure, Result};
use crate::progress::Progress;
use nestling::engine::Backend;
use nestling::engine::judge::{JudgeOpenOptions, PlainReport, PlainSet};
use nestling::formats::store::Store;
use nestling::{CancelToken, EngineError, WithBackend};
use std::fmt::Write as _;
use std::sync::Arc;

/// Inputs for opening the evaluated models on any backend.
pub struct Opening<'a> {
    pub store: Arc<Store>,
    pub options: &'a JudgeOpenOptions,
    pub cancel: CancelToken,
    pub bar: Progress,
}

impl WithBackend for Opening<'_> {
    type Output = std::result::Result<PlainSet, EngineError>;

    fn with<B: Backend>(
        self,
        backend: impl FnMut() -> std::result::Result<B, EngineError>,
    ) -> Self::Output {
        let Self { store, options, cancel, mut bar } = self;
        PlainSet::open(backend, &store, options, &cancel, &mut |done, total| {
            bar.set_of(done, total)
        })
    }
}

pub fn print(report: &PlainReport, format: ReportFormat) -> Result<String> {
    Ok(match format {
        ReportFormat::Text => text(report),
        ReportFormat::Md => markdown(report),
        ReportFormat::Json => {
            let value = serde_json::to_value(report)
                .map_err(|error| Failure::new(format!("cannot write JSON: {error}")))?;
            format!("{value:#}\n")
        }
    })
}

fn text(report: &PlainReport) -> String {
    let mut out = super::report::judged(report.tokens, report.sequences);
    out += "; for the cost of quantization, compare with the checkpoint: --reference HF_DIR\n\n";
    out += &format!(
        "{:>14} {:>7} {:>9} {:>9} {:>21}\n",
        "", "bits", "bytes", "per token", "perplexity"
    );
    for row in &report.rows {
        let _ = writeln!(
            out,
            "{:>14} {:>7.3} {:>9} {:>9} {:>21}",
            row.name,
            row.bits_per_weight,
            ByteSize(row.bytes).to_string(),
            row.expert_bytes_per_token.map_or(String::new(), bytes),
            with_error(&row.perplexity, 4, " +- "),
        );
    }
    out
}

fn markdown(report: &PlainReport) -> String {
    let mut out = super::report::judged(report.tokens, report.sequences);
    out += ", mean ± standard error over pieces\n\n";
    out += "| | bits per weight | experts read per token | perplexity |\n|---|---:|---:|---:|\n";
    for row in &report.rows {
        let _ = writeln!(
            out,
            "| **{}** | {:.3} | {} | {} |",
            row.name,
            row.bits_per_weight,
            row.expert_bytes_per_token.map_or(String::new(), bytes),
            with_error(&row.perplexity, 4, " ± "),
        );
    }
    out
}
