//! `nestling perplexity`: the judge of levels and allocations.

mod peers;
mod plot;
mod report;

use crate::args::{PerplexityArgs, ReportFormat};
use crate::console::{Console, write_out};
use crate::conversation::read_text;
use crate::device;
use crate::explain::{explain, explain_import};
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::progress::Progress;
use crate::verify::{open_store, store_path};
use nestling::engine::allocation::{ChooseOptions, Counting, budget_of_bits, choose};
use nestling::engine::cpu::Cpu;
use nestling::engine::dual::{LevelMode, SAMPLE_TEXT, SAMPLE_TOKENS};
use nestling::engine::expert::{HostOptions, Prefetch, StreamOptions};
use nestling::engine::judge::{
    JudgeOpenOptions, JudgeOptions, JudgePaths, JudgePoint, JudgeSet, allocated_point, judge,
    level_point, mean_level_point,
};
use nestling::engine::reads::ReadOptions;
use nestling::engine::text::{EncodeOptions, SpecialText, Tokenizer};
use nestling::engine::{Backend, MemoryPlan, PlannedResidence};
use nestling::formats::store::Store;
use nestling::formats::{Checkpoint, ModelConfig};
use nestling::{CancelToken, EngineError, ModelOptions, WithBackend};
use std::path::Path;
use std::sync::Arc;

use peers::PeerSet;

pub fn perplexity(args: &PerplexityArgs, console: &Console, interrupt: &Interrupt) -> Result<()> {
    let text = read_text(&args.file)?;
    let peers = match &args.peers {
        Some(path) => Some(PeerSet::read(path, args.peer_set.as_deref())?),
        None => None,
    };
    let store = Arc::new(open_store(&store_path(args.model.as_ref())?)?);
    check_levels(args, &store)?;
    let points = points(args, &store).map_err(|error| explain(&error))?;
    // What is wrong with it is said before a device is opened.
    Checkpoint::open(&args.reference).map_err(|error| explain_import(&error))?;
    let mut sample = tokens(&store, SAMPLE_TEXT)?;
    sample.truncate(SAMPLE_TOKENS);
    let tokens = tokens(&store, &text)?;
    let mut models = open(args, &store, (points, sample), (console, interrupt))?;
    let report = interrupt.guard(|cancel| {
        let options = JudgeOptions {
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
    if let Some(path) = &args.svg {
        let svg = plot::svg(&report, peers.as_ref());
        std::fs::write(path, svg).map_err(|error| Failure::file("write", path, &error))?;
    }
    let format = if args.json { ReportFormat::Json } else { args.format };
    write_out(&match format {
        ReportFormat::Text => report::text(&report),
        ReportFormat::Md => report::markdown(&report, peers.as_ref()),
        ReportFormat::Json => report::json(&report)?,
    })
}

/// Levels, then allocations by bits and by bytes, then mixes by mean level.
fn points(
    args: &PerplexityArgs,
    store: &Store,
) -> std::result::Result<Vec<JudgePoint>, EngineError> {
    let (index, top, counting) = (store.index(), store.level(), Counting::File);
    let dense = args.attention_level.map(|level| level.0);
    let levels = args.levels.iter().map(|level| level_point(store, level.0, dense));
    let mut points = levels.collect::<std::result::Result<Vec<_>, _>>()?;
    let by_bits = args
        .bits
        .iter()
        .map(|bits| (format!("{bits} bits"), budget_of_bits(index, top, *bits, counting)));
    let by_bytes = args.budgets.iter().map(|size| (size.to_string(), size.0));
    for (name, budget) in by_bits.chain(by_bytes) {
        let allocation = choose(index, &ChooseOptions { top, budget, counting, dense })?;
        points.push(allocated_point(store, name, allocation));
    }
    for asked in &args.mean_levels {
        points.push(mean_level_point(store, asked.mean, asked.highest.unwrap_or(top), dense)?);
    }
    Ok(points)
}

/// All models, on the device that takes them.
fn open(
    args: &PerplexityArgs,
    store: &Arc<Store>,
    (points, sample): (Vec<JudgePoint>, Vec<u32>),
    (console, interrupt): (&Console, &Interrupt),
) -> Result<JudgeSet> {
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    let threads = args.threads.map_or_else(cores, |threads| threads as usize);
    let options = open_options(args, store, (points, sample)).map_err(|error| explain(&error))?;
    let mut device = device::open(&args.device, console)?;
    loop {
        let loaded = interrupt.guard(|cancel| {
            let bar = Progress::parts(console, "loading");
            let (reference, store) = (args.reference.as_path(), Arc::clone(store));
            let judging = Judging { reference, store, options: &options, cancel, bar };
            device.give(|| Cpu::new(threads), judging)
        });
        match loaded {
            Ok(models) => return Ok(models),
            Err(error) => device = device::instead(&args.device, &device, error, console)?,
        }
    }
}

/// The models that are judged, to be opened on whatever device.
struct Judging<'a> {
    reference: &'a Path,
    store: Arc<Store>,
    options: &'a JudgeOpenOptions,
    cancel: &'a CancelToken,
    bar: Progress,
}

impl WithBackend for Judging<'_> {
    type Output = std::result::Result<JudgeSet, EngineError>;

    fn with<B: Backend>(
        self,
        backend: impl FnMut() -> std::result::Result<B, EngineError>,
    ) -> Self::Output {
        let Self { reference, store, options, cancel, mut bar } = self;
        let checkpoint = Checkpoint::open(reference)?;
        JudgeSet::open(backend, store, checkpoint, options, cancel, &mut |done, total| {
            bar.set_total(total as u64);
            bar.set(done as u64);
        })
    }
}

fn open_options(
    args: &PerplexityArgs,
    store: &Store,
    (points, sample): (Vec<JudgePoint>, Vec<u32>),
) -> std::result::Result<JudgeOpenOptions, EngineError> {
    Ok(JudgeOpenOptions {
        sequence_length: args.ctx_size as usize,
        kv_dtype: ModelOptions::default().kv_dtype,
        paths: if args.weights_only { JudgePaths::WeightsOnly } else { JudgePaths::Both },
        streaming: streaming(args, store)?,
        mode: if args.elastic { LevelMode::Elastic } else { LevelMode::Strict },
        sample,
        points,
    })
}

/// How experts are streamed within `--memory`; none where all have room.
fn streaming(
    args: &PerplexityArgs,
    store: &Store,
) -> std::result::Result<Option<StreamOptions>, EngineError> {
    let Some(memory) = args.memory else { return Ok(None) };
    let config = ModelConfig::from_json("config.json", &store.config_json()?)?;
    let options = ModelOptions {
        context_length: Some(args.ctx_size as usize),
        kv_tokens: Some(args.ctx_size as usize),
        ..ModelOptions::default()
    };
    let plan = MemoryPlan::of_store(store, &config, (&options, None), Some(memory.0))?;
    Ok((plan.residence == PlannedResidence::Streamed).then(|| StreamOptions {
        budget_bytes: plan.expert_bytes,
        reads: ReadOptions::default(),
        prefetch: Prefetch::default(),
        host: HostOptions::default(),
    }))
}

fn check_levels(args: &PerplexityArgs, store: &Store) -> Result<()> {
    let held = store.level();
    let asked = args.levels.iter().chain(&args.attention_level).map(|level| level.0);
    let highest = args.mean_levels.iter().filter_map(|asked| asked.highest);
    match asked.chain(highest).find(|level| *level > held) {
        None => Ok(()),
        Some(level) => Err(Failure::new(format!("the store does not hold level {level}"))
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
