//! `nestling perplexity`: evaluates levels and allocations, with or without a reference checkpoint.

mod peers;
mod plain;
mod plot;
mod report;

use crate::args::{PerplexityArgs, ReportFormat};
use crate::console::{Console, write_out};
use crate::conversation::read_text;
use crate::device;
use crate::explain::{explain, explain_import};
use crate::failure::{Failure, Result};
use crate::in_place;
use crate::interrupt::Interrupt;
use crate::kernels::kernels;
use crate::located::{NamedModel, open_store_on};
use crate::long_text;
use crate::progress::Progress;
use nestling::engine::allocation::{ChooseOptions, Counting, budget_of_bits, choose};
use nestling::engine::cpu::Cpu;
use nestling::engine::dual::{LevelMode, SAMPLE_TEXT, SAMPLE_TOKENS};
use nestling::engine::expert::{HostOptions, Prefetch, StreamOptions};
use nestling::engine::judge::{
    JudgeOpenOptions, JudgeOptions, JudgePaths, JudgePoint, JudgeProgress, JudgeSet,
    allocated_point, judge, level_point, mean_level_point,
};
use nestling::engine::reads::ReadOptions;
use nestling::engine::text::{EncodeOptions, SpecialText, Tokenizer};
use nestling::engine::threads::ThreadPool;
use nestling::engine::{Backend, MemoryPlan, PlannedResidence};
use nestling::formats::Level;
use nestling::formats::store::Store;
use nestling::import::{Checkpoint, ModelConfig};
use nestling::{CancelToken, EngineError, ModelOptions, WithBackend};
use std::path::Path;
use std::sync::Arc;

use peers::PeerSet;

pub fn perplexity(args: &PerplexityArgs, console: &Console, interrupt: &Interrupt) -> Result<()> {
    check_flags(args)?;
    let text = read_text(&args.file)?;
    let peers = match &args.peers {
        Some(path) => Some(PeerSet::read(path, args.peer_set.as_deref())?),
        None => None,
    };
    let named = NamedModel::of_files(args.model.as_ref(), &args.hub);
    let path = named.locate(console, interrupt)?.path;
    let store = open_store_on(&path, &args.device, console)?;
    let one_level;
    let args = match store.is_derived() {
        true => {
            one_level = at_one_level(&path, args, console)?;
            &one_level
        }
        false => args,
    };
    check_levels(args, &store)?;
    let points = points(args, &store).map_err(|error| explain(&error))?;
    if let Some(reference) = &args.reference {
        // Errors of the checkpoint are reported before a device is opened.
        Checkpoint::open(reference).map_err(|error| explain_import(&error))?;
    }
    let mut sample = tokens(&store, SAMPLE_TEXT)?;
    sample.truncate(SAMPLE_TOKENS);
    let tokens = tokens(&store, &text)?;
    let options = JudgeOptions {
        sequence_length: args.ctx_size as usize,
        sequences_max: match args.tokens {
            0 => None,
            tokens => Some((tokens / args.ctx_size as usize).max(1)),
        },
    };
    let open_options = open_options(args, &store, points, sample);
    let open_options = open_options.map_err(|error| explain(&error))?;
    let judging = Evaluation {
        args,
        store: &store,
        tokens: &tokens,
        options,
        open_options: &open_options,
        console,
        interrupt,
    };
    match &args.reference {
        Some(reference) => judging.beside(reference, &path, peers.as_ref()),
        None => judging.alone(),
    }
}

/// Adapts the evaluation to a GGUF file in place, which has only one level.
fn at_one_level(path: &Path, args: &PerplexityArgs, console: &Console) -> Result<PerplexityArgs> {
    let refused = [("--bits", !args.bits.is_empty()), ("--budgets", !args.budgets.is_empty())];
    let ignored = [
        ("--levels", !args.levels.is_empty()),
        ("--mean-levels", !args.mean_levels.is_empty()),
        ("--attention-level", args.attention_level.is_some()),
        ("--elastic", args.elastic),
    ];
    in_place::check(path, &refused, &ignored, console)?;
    Ok(PerplexityArgs {
        levels: Vec::new(),
        mean_levels: Vec::new(),
        attention_level: None,
        elastic: false,
        ..args.clone()
    })
}

struct Evaluation<'a> {
    args: &'a PerplexityArgs,
    store: &'a Arc<Store>,
    tokens: &'a [u32],
    options: JudgeOptions,
    open_options: &'a JudgeOpenOptions,
    console: &'a Console,
    interrupt: &'a Interrupt,
}

impl Evaluation<'_> {
    /// Evaluates the perplexity of the store without a reference.
    fn alone(&self) -> Result<()> {
        let mut models = self.open(|cancel, bar| plain::Opening {
            store: Arc::clone(self.store),
            options: self.open_options,
            cancel,
            bar,
        })?;
        let report = self.interrupt.guard(|cancel| {
            let mut bar = Progress::parts(self.console, "judging");
            let mut progress = |at: JudgeProgress| bar.set_of(at.done, at.total);
            models.perplexity(self.tokens, &self.options, cancel, &mut progress)
        });
        let report = report.map_err(|error: EngineError| explain(&error))?;
        write_out(&plain::print(&report, self.format())?)
    }

    /// Evaluates the divergence of the store from the unquantized model.
    fn beside(&self, reference: &Path, store: &Path, peers: Option<&PeerSet>) -> Result<()> {
        let mut models = self.open(|cancel, bar| Opening {
            reference,
            store: Arc::clone(self.store),
            options: self.open_options,
            cancel,
            bar,
        })?;
        let report = self.interrupt.guard(|cancel| {
            let mut bar = Progress::parts(self.console, "judging");
            let mut progress = |at: JudgeProgress| bar.set_of(at.done, at.total);
            judge(models.models(), self.tokens, &self.options, cancel, &mut progress)
        });
        let report = report.map_err(|error: EngineError| explain(&error))?;
        if let Some(path) = &self.args.svg {
            let model = store.file_stem().unwrap_or(store.as_os_str()).to_string_lossy();
            let svg = plot::svg(&report, &model, peers);
            std::fs::write(path, svg).map_err(|error| Failure::file("write", path, &error))?;
            self.console.note(format_args!("{}: the plot", path.display()));
        }
        write_out(&match self.format() {
            ReportFormat::Text => report::text(&report),
            ReportFormat::Md => report::markdown(&report, peers),
            ReportFormat::Json => report::json(&report)?,
        })
    }

    fn format(&self) -> ReportFormat {
        if self.args.json { ReportFormat::Json } else { self.args.format }
    }

    /// Opens all models on the selected device, or on the CPU if a GPU chosen automatically refuses them.
    fn open<Set, Opening>(&self, opening: impl Fn(CancelToken, Progress) -> Opening) -> Result<Set>
    where
        Opening: WithBackend<Output = std::result::Result<Set, EngineError>>,
    {
        let Self { args, console, interrupt, .. } = self;
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        let threads = args.threads.map_or_else(cores, |threads| threads as usize);
        let kernels = kernels()?;
        let mut device = device::open(&args.device, console)?;
        loop {
            let loaded = interrupt.guard(|cancel| {
                let bar = Progress::parts(console, "loading");
                let cpu = || Cpu::with(Arc::new(ThreadPool::new(threads)), kernels);
                device.give(cpu, opening(cancel.clone(), bar))
            });
            match loaded {
                Ok(models) => return Ok(models),
                Err(error) => device = device::instead(&args.device, &device, error, console)?,
            }
        }
    }
}

/// Returns the points to evaluate: levels, then allocations by bits and by bytes, then dual-routing mixes.
fn points(
    args: &PerplexityArgs,
    store: &Store,
) -> std::result::Result<Vec<JudgePoint>, EngineError> {
    let (index, top, counting) = (store.index(), store.level(), Counting::File);
    let dense = args.attention_level.map(|level| level.0);
    let is_held = |level: &Level| *level == top || *level < top && !store.is_derived();
    let held = Level::ALL.into_iter().filter(|level| args.levels.is_empty() && is_held(level));
    let levels = args.levels.iter().map(|level| level.0).chain(held);
    let levels = levels.map(|level| level_point(store, level, dense));
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

/// Inputs for opening the evaluated models on any backend.
struct Opening<'a> {
    reference: &'a Path,
    store: Arc<Store>,
    options: &'a JudgeOpenOptions,
    cancel: CancelToken,
    bar: Progress,
}

impl WithBackend for Opening<'_> {
    type Output = std::result::Result<JudgeSet, EngineError>;

    fn with<B: Backend>(
        self,
        backend: impl FnMut() -> std::result::Result<B, EngineError>,
    ) -> Self::Output {
        let Self { reference, store, options, cancel, mut bar } = self;
        let checkpoint = Checkpoint::open(reference)?;
        JudgeSet::open(backend, store, checkpoint, options, &cancel, &mut |done, total| {
            bar.set_of(done, total);
        })
    }
}

fn open_options(
    args: &PerplexityArgs,
    store: &Store,
    points: Vec<JudgePoint>,
    sample: Vec<u32>,
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

/// Returns the streaming options for `--memory`, or `None` if all experts fit.
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
    let plan = MemoryPlan::of_store(store, &config, &options, None, Some(memory.0))?;
    Ok((plan.residence == PlannedResidence::Streamed).then(|| StreamOptions {
        budget_bytes: plan.expert_bytes,
        reads: ReadOptions::default(),
        prefetch: Prefetch::default(),
        host: HostOptions::default(),
    }))
}

/// Fails if flags that apply to a comparison are used without a reference.
fn check_flags(args: &PerplexityArgs) -> Result<()> {
    let flags = [
        ("--weights-only", args.weights_only),
        ("--svg", args.svg.is_some()),
        ("--peers", args.peers.is_some()),
    ];
    match flags.into_iter().find(|(_, is_given)| *is_given && args.reference.is_none()) {
        None => Ok(()),
        Some((flag, _)) => Err(Failure::usage(format!("{flag} compares, and needs --reference"))
            .advise("give the checkpoint's folder with --reference, or omit it")),
    }
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
    let failed = |error| explain(&EngineError::text(error));
    let tokenizer = Tokenizer::from_bytes(file, &bytes).map_err(failed)?;
    let options = EncodeOptions { add_special_tokens: false, special_text: SpecialText::Parse };
    long_text::encode(&tokenizer, text, options, usize::MAX).map_err(failed)
}
