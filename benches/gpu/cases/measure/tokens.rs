//! Measures tokens per second of a synthetic store with OLMoE's shape and random weights.

use std::env;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use nestling_core::EngineError;
use nestling_core::batch::{Batch, LevelPolicy, Row, SequenceRef, StepOutputKind};
use nestling_core::cancel::CancelToken;
use nestling_core::kv_cache::{KvDtype, PageId, pages_for};
use nestling_core::runner::ModelRunner;
use nestling_experts::expert::{
    ExpertSource, HostExperts, HostOptions, Prefetch, StoreSource, StreamOptions,
};
use nestling_experts::reads::ReadOptions;
use nestling_experts::residency::ExpertTable;
use nestling_formats::Level;
use nestling_formats::store::Store;
use nestling_plan::synthetic::{SyntheticOptions, SyntheticShape, write_synthetic_store};
use nestling_runtime::model::{Runner, RunnerOptions};
use serde_json::{Value, json};

use super::device::{Measurement, TimedBackend, is_dry, median, name, tell};

const LEVEL: Level = Level::L4;

/// Numbers of prompt tokens and of generated tokens.
const PROMPT: usize = 512;
const GENERATED: usize = 64;

/// Measurement with all experts on the device.
pub struct Resident;

/// Measurement with a quarter of the experts on the device. The others are in host memory or on disk.
pub struct QuarterOnDevice;

fn lengths() -> (usize, usize) {
    if is_dry() { (20, 3) } else { (PROMPT, GENERATED) }
}

/// Opens the store, creating it if it does not exist.
fn store() -> Result<Arc<Store>, EngineError> {
    let folder = env::var_os("NESTLING_KIT_WORK").map_or_else(env::temp_dir, PathBuf::from);
    let shape = if is_dry() { SyntheticShape::TINY } else { SyntheticShape::OLMOE_1B_7B };
    let path = folder.join(format!("{}.nest", shape.name));
    if !path.is_file() {
        let options = SyntheticOptions { shape, top_level: LEVEL, router_skew: 0.5, seed: 1 };
        let begun = Instant::now();
        let report = write_synthetic_store(&path, &options, &CancelToken::new(), &mut |_, _| {})?;
        tell(&json!({ "synth": {
            "shape": options.shape.name, "level": LEVEL.bits(), "bytes": report.store_bytes,
            "expert_bytes": report.expert_bytes, "token_bytes": report.token_bytes,
            "seconds": begun.elapsed().as_secs_f64(),
        } }));
    }
    Ok(Arc::new(Store::open(&path)?))
}

fn runner<B: TimedBackend>(
    device: B,
    store: &Arc<Store>,
    streaming: Option<StreamOptions>,
) -> Result<Runner<B>, EngineError> {
    let (prompt, generated) = lengths();
    let positions = prompt + generated;
    let source: Arc<dyn ExpertSource> =
        Arc::new(StoreSource::owned(Arc::clone(store), Some(LEVEL))?);
    let options = RunnerOptions {
        rows_max: prompt,
        kv_pages: Some(pages_for(positions)),
        kv_dtype: KvDtype::F16,
        context_max: Some(positions),
        streaming,
        ..RunnerOptions::default()
    };
    Runner::load(device, source, &options, &CancelToken::new(), &mut |_, _| {})
}

/// A model whose steps are timed.
struct Speed<B: TimedBackend> {
    runner: Runner<B>,
    tokens: u64,
    counters: Value,
}

impl<B: TimedBackend> Speed<B> {
    fn new(runner: Runner<B>) -> Self {
        Self { runner, tokens: 0, counters: Value::Null }
    }

    /// Returns the duration of one step of random tokens in seconds.
    fn step(
        &mut self,
        first: usize,
        count: usize,
        wanted: StepOutputKind,
    ) -> Result<f64, EngineError> {
        let vocabulary = self.runner.limits().vocab_size as u64;
        let rows = (first..first + count).map(|position| {
            self.tokens += 1;
            Row {
                token: (self.tokens * 7919 % vocabulary) as u32,
                position: position as u32,
                sequence: 0,
                wants_logits: position + 1 == first + count,
                levels: LevelPolicy::Fixed(LEVEL),
            }
        });
        let pages = (0..pages_for(first + count) as u32).map(PageId).collect();
        let mut batch = Batch::new(rows.collect(), vec![SequenceRef::of_pages(pages)]);
        batch.own_states();
        batch.output = wanted;
        let begun = Instant::now();
        let output = self.runner.step_blocking(&batch, &CancelToken::new())?;
        let seconds = begun.elapsed().as_secs_f64();
        let (device, streaming) = (output.stats.device, &output.stats.streaming);
        self.counters = json!({
            "dispatches": device.dispatches, "submissions": device.submissions, "waits": device.waits,
            "upload_bytes": device.upload_bytes, "missing_bytes": streaming.missing_total(),
            "read_bytes": streaming.read_total(), "recalled_bytes": streaming.recalled_bytes,
            "host_bytes": streaming.host_bytes, "promoted_experts": streaming.promoted_experts,
        });
        Ok(seconds)
    }

    /// Generates tokens one at a time. Returns tokens per second and other results as JSON.
    fn generate(&mut self, first: usize, wanted: StepOutputKind) -> Result<Value, EngineError> {
        let (_, count) = lengths();
        let mut seconds = Vec::new();
        for position in first..first + count {
            seconds.push(self.step(position, 1, wanted)?);
        }
        let total: f64 = seconds.iter().sum();
        Ok(json!({
            "tokens_per_second": count as f64 / total,
            "median_milliseconds": 1e3 * median(seconds),
            "last_step": self.counters,
        }))
    }

    /// Writes a row of the table.
    fn tell(&self, how: &str, what: &str, mut row: Value) {
        row["experts"] = how.into();
        row["test"] = what.into();
        tell(&json!({ "tokens": [row] }));
    }
}

impl Measurement for Resident {
    fn on<B: TimedBackend>(&self, device: B) -> Result<(), EngineError> {
        let store = store()?;
        let begun = Instant::now();
        let mut speed = Speed::new(runner(device, &store, None)?);
        tell(&json!({ "load_seconds": begun.elapsed().as_secs_f64() }));
        let (prompt, generated) = lengths();
        let vocabulary = speed.runner.limits().vocab_size;
        let mut seconds = Vec::new();
        for _ in 0..4 {
            seconds.push(speed.step(0, prompt, StepOutputKind::Logits)?);
        }
        // The first run is a warm-up.
        let prompt_seconds = median(seconds.split_off(1));
        let row = json!({ "tokens_per_second": prompt as f64 / prompt_seconds, "last_step": speed.counters });
        speed.tell("resident", &format!("pp{prompt}"), row);
        for (what, first, wanted) in [
            ("logits", 0, StepOutputKind::Logits),
            ("argmax", 0, StepOutputKind::Argmax(vocabulary)),
            ("argmax, after the prompt", prompt, StepOutputKind::Argmax(vocabulary)),
        ] {
            if first > 0 {
                speed.step(0, first, StepOutputKind::Logits)?;
            } else {
                speed.generate(0, wanted)?;
            }
            let row = speed.generate(first, wanted)?;
            speed.tell("resident", &format!("tg{generated}, {what}"), row);
        }
        Ok(())
    }
}

impl Measurement for QuarterOnDevice {
    fn on<B: TimedBackend>(&self, device: B) -> Result<(), EngineError> {
        let store = store()?;
        let all = ExpertTable::of_store(&store, LEVEL)?.total_bytes();
        let generated = lengths().1;
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let ways = [
            ("a quarter, the rest in memory of the host", all, HostExperts::Never),
            ("a quarter, the host computes when faster", all, HostExperts::WhenFaster),
            ("a quarter, the host computes always", all, HostExperts::Always),
            ("a quarter, the rest on the disk", 0, HostExperts::Never),
        ];
        // Only CUDA supports experts in host memory.
        let ways = ways.into_iter().filter(|(_, bytes, _)| *bytes == 0 || name() != "vulkan");
        for (how, host_bytes, experts) in ways {
            let streaming = StreamOptions {
                budget_bytes: all / 4,
                reads: ReadOptions::default(),
                prefetch: Prefetch::default(),
                host: HostOptions { experts, threads },
            };
            let mut speed =
                Speed::new(runner(device.with_host(host_bytes)?, &store, Some(streaming))?);
            // Warm-up: the most used experts become resident.
            speed.generate(0, StepOutputKind::Logits)?;
            let row = speed.generate(0, StepOutputKind::Logits)?;
            speed.tell(how, &format!("tg{generated}, logits"), row);
        }
        Ok(())
    }
}
