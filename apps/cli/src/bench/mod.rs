//! `nestling bench`: speed relative to the machine's limits, in llama-bench's format.

mod arm;
mod machine;
mod record;
mod serve;
mod synth;
mod table;

use crate::args::{BenchArgs, BenchTool, LoadModeArg, Numbers, RanksArg};
use crate::console::Console;
use crate::explain::explain;
use crate::failure::{Failure, Result};
use crate::in_place;
use crate::interrupt::Interrupt;
use crate::located::{NamedModel, open_store_on};
use crate::model_devices::ModelDevices;
use crate::observe::Observer;
use crate::speed::read_options;
use arm::{Arm, ArmOptions, MeasuredCost};
use machine::Machine;
use nestling::engine::dual::LevelMode;
use nestling::engine::group::ExpertDivision;
use nestling::engine::kv_heads::KvDivision;
use nestling::engine::reads::ReadOptions;
use nestling::formats::Level;
use nestling::formats::store::Store;
use nestling::ranks::RANKS_MAX;
use nestling::{CancelToken, EngineError};
use record::{Loaded, Model, Record};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use table::Printer;

/// Options that require reopening the store. Everything else varies within one opening.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Opening {
    pub level: Level,
    /// Mean level of experts under dual routing, at most `level`.
    pub mean_level: Option<f32>,
    pub mode: LevelMode,
    pub load_mode: LoadModeArg,
    pub threads: usize,
    /// Number of ranks, which share the threads.
    pub ranks: usize,
    /// Division of the experts over the ranks.
    pub expert_division: ExpertDivision,
    /// Division of keys and values over the ranks.
    pub kv_division: KvDivision,
    /// Number of experts of each layer that every rank holds.
    pub expert_replicas: usize,
}

impl Opening {
    /// Returns true if late planes are skipped.
    pub fn is_elastic(&self) -> bool {
        self.mode == LevelMode::Elastic
    }
}

/// A test, shown as one line of the results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Test {
    pub sessions: usize,
    pub depth: usize,
    pub prompt: usize,
    pub generated: usize,
}

pub fn bench(args: &BenchArgs, console: &Console, interrupt: &Interrupt) -> Result<()> {
    match &args.tool {
        Some(BenchTool::Synth(args)) => synth::synth(args, console, interrupt),
        Some(BenchTool::Serve(args)) => serve::serve(args, console, interrupt),
        None => measure(args, console, interrupt),
    }
}

fn measure(args: &BenchArgs, console: &Console, interrupt: &Interrupt) -> Result<()> {
    let named = NamedModel::of_files(args.model.as_ref(), &args.hub);
    let path = named.locate(console, interrupt)?.path;
    let store = open_store_on(&path, &args.run.device, console)?;
    let tests = tests(args);
    if tests.is_empty() {
        return Err(Failure::usage("there is nothing to measure")
            .advise("give tokens of a prompt with -p or tokens to generate with -n"));
    }
    if store.is_derived() {
        tell_of_one_level(&path, args, console)?;
    }
    if let Some(ranks) = flat(&args.tests.ranks).find(|ranks| !(1..=RANKS_MAX).contains(ranks)) {
        return Err(Failure::usage(format!("a model cannot be divided over {ranks} ranks"))
            .advise(format!("give --ranks 1 to {RANKS_MAX}")));
    }
    let openings = openings(args, &store)?;
    let model = Model::of(&path, &store)?;
    let mut machine = Machine::new(args.run.no_bandwidth)?;
    for opening in &openings {
        // Measured before the first line of the table, so that no message interrupts the table.
        machine.bandwidth(opening.threads, console);
    }
    let mut printer = Printer::new(&args.format, console)?;
    let count = openings.len() * tests.len();
    let said = Console { quiet: true, ..console.clone() };
    let mut session = Bench {
        args,
        console,
        device_console: console,
        tests: &tests,
        count,
        number: 0,
        warmup_tokens: 0,
    };
    for opening in openings {
        session.warmup_tokens = args.run.warmup_tokens as usize;
        let records = interrupt.guard(|cancel| {
            session.open(&store, &model, opening, &mut machine, &mut printer, cancel)
        });
        records?;
        // The device is announced only once.
        session.device_console = &said;
    }
    printer.finish()
}

fn flat(lists: &[Numbers]) -> impl Iterator<Item = usize> + Clone {
    lists.iter().flat_map(|list| list.0.iter().map(|number| *number as usize))
}

/// Returns all tests of one opening, in llama-bench's order.
fn tests(args: &BenchArgs) -> Vec<Test> {
    let mut tests = Vec::new();
    for sessions in flat(&args.tests.sessions).filter(|sessions| *sessions > 0) {
        for depth in flat(&args.tests.n_depth) {
            let test = |prompt, generated| Test { sessions, depth, prompt, generated };
            let prompts = flat(&args.tests.n_prompt).map(|prompt| test(prompt, 0));
            let generations = flat(&args.tests.n_gen).map(|generated| test(0, generated));
            let pairs = args.tests.pairs.iter();
            let pairs = pairs.map(|pair| test(pair.prompt as usize, pair.generated as usize));
            let all = prompts.chain(generations).chain(pairs);
            tests.extend(all.filter(|test| test.prompt + test.generated > 0));
        }
    }
    tests
}

/// Warns about options that are ignored because a GGUF file in place has only one level.
fn tell_of_one_level(path: &Path, args: &BenchArgs, console: &Console) -> Result<()> {
    let tests = &args.tests;
    let is_mapped = tests.load_mode.contains(&LoadModeArg::Mmap);
    let ignored = [
        ("--level", !tests.level.is_empty()),
        ("--mean-level", tests.mean_level.is_some()),
        ("--elastic", tests.elastic),
    ];
    in_place::check(path, &[("--load-mode mmap", is_mapped)], &ignored, console)
}

fn openings(args: &BenchArgs, store: &Store) -> Result<Vec<Opening>> {
    let held = store.level();
    if store.is_derived() {
        return Ok(combined(args, &[held], None, LevelMode::Strict));
    }
    if let Some(level) = args.tests.level.iter().find(|level| level.0 > held) {
        return Err(Failure::new(format!("the store does not hold level {}", level.0))
            .advise(format!("measure levels up to {held} with --level")));
    }
    let levels: Vec<Level> = match args.tests.level.as_slice() {
        [] => vec![held],
        levels => levels.iter().map(|level| level.0).collect(),
    };
    let mode = if args.tests.elastic { LevelMode::Elastic } else { LevelMode::Strict };
    Ok(combined(args, &levels, args.tests.mean_level, mode))
}

/// Returns all combinations of levels, load modes, thread counts and ranks.
fn combined(
    args: &BenchArgs,
    levels: &[Level],
    mean_level: Option<f32>,
    mode: LevelMode,
) -> Vec<Opening> {
    let threads: Vec<usize> = match args.tests.threads.as_slice() {
        [] => vec![std::thread::available_parallelism().map_or(1, usize::from)],
        lists => flat(lists).filter(|threads| (1..=1024).contains(threads)).collect(),
    };
    let mut openings = Vec::new();
    for &level in levels {
        for &load_mode in &args.tests.load_mode {
            for &threads in &threads {
                let ranks = flat(&args.tests.ranks);
                openings.extend(ranks.map(|ranks| Opening {
                    level,
                    mean_level,
                    mode,
                    load_mode,
                    threads,
                    ranks,
                    expert_division: args.run.experts.into(),
                    kv_division: args.run.kv.of_threads(),
                    expert_replicas: args.run.experts.expert_replicas,
                }));
            }
        }
    }
    openings
}

struct Bench<'a> {
    args: &'a BenchArgs,
    console: &'a Console,
    /// Console on which the compute device is announced.
    device_console: &'a Console,
    tests: &'a [Test],
    count: usize,
    /// Number of the current test, starting at 1.
    number: usize,
    /// Number of warm-up tokens still to be generated before the first measurement.
    warmup_tokens: usize,
}

impl Bench<'_> {
    fn open(
        &mut self,
        store: &Arc<Store>,
        model: &Model,
        opening: Opening,
        machine: &mut Machine,
        printer: &mut Printer,
        cancel: &CancelToken,
    ) -> Result<()> {
        let args = &self.args.run.device;
        let ranks = match opening.ranks {
            0 | 1 => RanksArg::One,
            ranks => RanksArg::Threads(ranks),
        };
        let mut devices = ModelDevices::open(args, ranks, self.device_console)?;
        let bandwidth = machine.bandwidth(opening.threads, self.console);
        machine::forget_peak_memory();
        let observer = Observer::new(&self.args.observe, false);
        let (mut arm, loaded, rows_max) = loop {
            let options = ArmOptions::new(opening, self.tests, &self.args.run, &devices);
            let options = options.on(machine.kernels);
            match self.load(store, options, &observer, &devices, cancel) {
                Ok(loaded) => break loaded,
                Err(error) => {
                    devices = devices.instead(args, error, self.console)?;
                }
            }
        };
        for test in self.tests {
            self.number += 1;
            std::thread::sleep(Duration::from_secs(self.args.run.delay.into()));
            let cold = self.warm_up(&mut arm, *test, cancel).map_err(|error| explain(&error))?;
            observer.begin(arm.routing().as_ref());
            let spent = self.repeat(&mut arm, *test, cancel).map_err(|error| explain(&error))?;
            observer.finish(arm.routing().as_ref(), self.console)?;
            let record = Record {
                model,
                machine: &*machine,
                opening,
                test: *test,
                rows_max,
                kv_type: self.args.run.kv_type,
                // The bandwidth of host memory is meaningless for a GPU.
                bandwidth: bandwidth.filter(|_| arm.device.is_none()),
                loaded,
                peak_memory: machine::peak_memory(),
                is_streamed: arm.is_streamed,
                device: arm.device.as_deref(),
                cold,
                samples: &spent,
            };
            printer.print(&record)?;
        }
        Ok(())
    }

    /// Opens a store and computes its first token. Also returns the maximum number of rows in a step.
    fn load(
        &self,
        store: &Arc<Store>,
        options: ArmOptions,
        observer: &Observer,
        devices: &ModelDevices,
        cancel: &CancelToken,
    ) -> std::result::Result<(Arm, Loaded, usize), EngineError> {
        let reads = match options.is_streamed(store) {
            true => read_options(store, self.console),
            false => ReadOptions::default(),
        };
        // As when a model is opened: a second copy in the page cache would take the memory of experts.
        store.storage().pass_page_cache(options.is_streamed(store) && reads.direct);
        let options = options.with(reads, observer.recorder());
        let started = Instant::now();
        let mut arm = Arm::open(store, &options, devices, cancel)?;
        let load = started.elapsed();
        arm.first_token(cancel)?;
        let loaded = Loaded { load, first_token: started.elapsed() };
        Ok((arm, loaded, options.rows_max))
    }

    /// Generates the warm-up tokens before the first generation test and returns their cost.
    fn warm_up(
        &mut self,
        arm: &mut Arm,
        test: Test,
        cancel: &CancelToken,
    ) -> std::result::Result<Option<MeasuredCost>, EngineError> {
        let mut left = std::mem::take(&mut self.warmup_tokens);
        if left == 0 || test.generated == 0 {
            self.warmup_tokens = left;
            return Ok(None);
        }
        self.say(&format!("warmup of {left} tokens"));
        let mut spent = MeasuredCost::default();
        while left > 0 {
            // One context of the test's length at a time.
            let now = left.min(test.generated);
            spent += arm.generate(1, 0, now, cancel)?;
            left -= now;
        }
        Ok(Some(spent))
    }

    /// Warms up, then runs one test for the requested number of repetitions.
    fn repeat(
        &self,
        arm: &mut Arm,
        test: Test,
        cancel: &CancelToken,
    ) -> std::result::Result<Vec<MeasuredCost>, EngineError> {
        let Test { sessions, depth, prompt, generated } = test;
        if !self.args.run.no_warmup {
            if prompt > 0 {
                self.say("warmup prompt run");
                arm.prompt(sessions, 0, prompt, cancel)?;
            }
            if generated > 0 {
                self.say("warmup generation run");
                arm.generate(sessions, 0, 1, cancel)?;
            }
        }
        let repetitions = self.args.run.repetitions;
        let mut samples = Vec::new();
        for run in 1..=repetitions {
            if depth > 0 && run == 1 {
                self.say(&format!("depth run {run}/{repetitions}"));
                arm.prompt(sessions, 0, depth, cancel)?;
            }
            let mut spent = MeasuredCost::default();
            if prompt > 0 {
                self.say(&format!("prompt run {run}/{repetitions}"));
                spent += arm.prompt(sessions, depth, prompt, cancel)?;
            }
            if generated > 0 {
                self.say(&format!("generation run {run}/{repetitions}"));
                spent += arm.generate(sessions, depth + prompt, generated, cancel)?;
            }
            samples.push(spent);
        }
        Ok(samples)
    }

    /// Prints a progress line in llama-bench's format; scripts depend on these lines.
    fn say(&self, what: &str) {
        if self.args.format.progress {
            let (number, count) = (self.number, self.count);
            self.console.line(format_args!("nestling bench: benchmark {number}/{count}: {what}"));
        }
    }
}

#[cfg(test)]
mod tests_of_order {
    use super::*;
    use crate::args::{Cli, Command};

    fn parse(line: &[&str]) -> BenchArgs {
        let line = ["nestling", "bench"].iter().chain(line).map(Into::into);
        match Cli::from_command_line(line).unwrap().command {
            Command::Bench(args) => args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn prompts_come_before_generations_and_pairs() {
        let args = parse(&["-p", "8,16", "-n", "4", "-pg", "8,4", "-d", "0,32"]);
        let found: Vec<_> =
            tests(&args).iter().map(|test| (test.depth, test.prompt, test.generated)).collect();
        let at = |depth| [(depth, 8, 0), (depth, 16, 0), (depth, 0, 4), (depth, 8, 4)];
        assert_eq!(found, [at(0), at(32)].concat());
    }

    #[test]
    fn nothing_is_measured_for_zero() {
        assert!(tests(&parse(&["-p", "0", "-n", "0"])).is_empty());
        assert_eq!(tests(&parse(&["-p", "0", "-n", "1", "--sessions", "1,8"])).len(), 2);
    }
}
