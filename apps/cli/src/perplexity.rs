//! `nestling perplexity`: the judge of levels.

use crate::args::PerplexityArgs;
use crate::console::{Console, write_out};
use crate::conversation::read_text;
use crate::explain::{explain, explain_import};
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::progress::Progress;
use crate::verify::{open_store, store_path};
use nestling::engine::cpu::Cpu;
use nestling::engine::judge::{
    JudgeOpenOptions, JudgeOptions, JudgeReport, JudgeRow, JudgeSet, judge,
};
use nestling::engine::text::{EncodeOptions, SpecialText, Tokenizer};
use nestling::formats::Checkpoint;
use nestling::formats::store::Store;
use nestling::{CancelToken, EngineError, ModelOptions};
use std::fmt::Write as _;
use std::sync::Arc;

pub fn perplexity(args: &PerplexityArgs, console: &Console, interrupt: &Interrupt) -> Result<()> {
    let text = read_text(&args.file)?;
    let store = Arc::new(open_store(&store_path(args.model.as_ref())?)?);
    check_levels(args, &store)?;
    let checkpoint = Checkpoint::open(&args.reference).map_err(|error| explain_import(&error))?;
    let tokens = tokens(&store, &text)?;
    let report = interrupt.guard(|cancel| {
        let mut bar = Progress::parts(console, "loading");
        let mut models = load(args, &store, checkpoint, cancel, &mut bar)?;
        drop(bar);
        let levels: Vec<_> = args.levels.iter().map(|level| level.0).collect();
        let options = JudgeOptions {
            levels: models.levels(&levels)?,
            sequence_length: args.ctx_size as usize,
            sequences_max: match args.tokens {
                0 => None,
                tokens => Some((tokens / args.ctx_size as usize).max(1)),
            },
        };
        let mut bar = Progress::parts(console, "judging");
        judge(models.models(), &tokens, &options, cancel, &mut |at| {
            bar.set_total(at.total as u64);
            bar.set(at.done as u64);
        })
    });
    let report = report.map_err(|error: EngineError| explain(&error))?;
    if args.json {
        let rows = serde_json::to_value(&report.rows)
            .map_err(|error| Failure::new(format!("cannot write JSON: {error}")))?;
        return write_out(&format!("{rows:#}\n"));
    }
    write_out(&table(&report))
}

/// The reference, the store's weights alone, and the store as it is run.
fn load(
    args: &PerplexityArgs,
    store: &Arc<Store>,
    checkpoint: Checkpoint,
    cancel: &CancelToken,
    bar: &mut Progress,
) -> std::result::Result<JudgeSet, EngineError> {
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    let threads = args.threads.map_or_else(cores, |threads| threads as usize);
    let options = JudgeOpenOptions {
        sequence_length: args.ctx_size as usize,
        level_max: args.levels.iter().map(|level| level.0).max(),
        kv_dtype: ModelOptions::default().kv_dtype,
    };
    let store = Arc::clone(store);
    JudgeSet::open(|| Cpu::new(threads), store, checkpoint, &options, cancel, &mut |done, total| {
        bar.set_total(total as u64);
        bar.set(done as u64);
    })
}

fn check_levels(args: &PerplexityArgs, store: &Store) -> Result<()> {
    let held = store.level();
    match args.levels.iter().find(|level| level.0 > held) {
        None => Ok(()),
        Some(level) => Err(Failure::new(format!("the store does not hold level {}", level.0))
            .advise(format!("judge levels up to {held} with --levels"))),
    }
}

fn tokens(store: &Store, text: &str) -> Result<Vec<u32>> {
    let file = "tokenizer.json";
    let bytes = store.asset(file).map_err(|error| crate::explain::explain_store(&error))?;
    let bytes = bytes.ok_or_else(|| {
        Failure::new("the store holds no tokenizer").advise("convert the checkpoint again")
    })?;
    let failed = |error| explain(&EngineError::Text(error));
    let tokenizer = Tokenizer::from_bytes(file, &bytes).map_err(failed)?;
    let options = EncodeOptions { add_special_tokens: false, special_text: SpecialText::Parse };
    tokenizer.encode(text, options).map_err(failed)
}

fn table(report: &JudgeReport) -> String {
    let mut out = format!(
        "{} tokens in {} pieces; the unquantized model has perplexity {:.3}\n\n",
        report.tokens, report.sequences, report.reference_perplexity
    );
    out += "              |             weights only                          |    as shipped\n";
    out +=
        "level    bits | perplexity   KL mean  KL median    KL p99   top-1 |   KL mean   top-1\n";
    for row in &report.rows {
        let JudgeRow { level, bits_per_weight, perplexity, kl_mean, kl_median, kl_p99, .. } = row;
        let _ = writeln!(
            out,
            "{level:>5} {bits_per_weight:>7.3} | {perplexity:>10.3} {kl_mean:>9.5} {kl_median:>10.5} \
             {kl_p99:>9.5} {:>6.2}% | {:>9.5} {:>6.2}%",
            100.0 * row.top1,
            row.kl_mean_int8,
            100.0 * row.top1_int8,
        );
    }
    out
}
