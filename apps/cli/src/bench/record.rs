//! One result: llama-bench's fields, followed by Nestling's.

use super::arm::MeasuredCost;
use super::machine::Machine;
use super::{Opening, Test};
use crate::args::{KvTypeArg, LoadModeArg};
use crate::explain::explain_import;
use crate::failure::Result;
use crate::levels::level_sizes;
use nestling::engine::group::GroupCounters;
use nestling::engine::text::TemplateTime;
use nestling::engine::{BackendCounters, StreamStats};
use nestling::formats::Level;
use nestling::formats::store::Store;
use nestling::import::{ModelConfig, ModelShape};
use serde_json::{Map, Value, json};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The measured model.
pub struct Model {
    pub file: String,
    /// Architecture family, or the published shape of a store with random weights.
    pub kind: String,
    pub weights: u64,
    /// Size of the store in bytes up to each level.
    sizes: Vec<(Level, u64)>,
}

impl Model {
    pub fn of(path: &Path, store: &Store) -> Result<Self> {
        let json = store.config_json().map_err(|error| crate::explain::explain_store(&error))?;
        let config = ModelConfig::from_json("config.json", &json);
        let config = config.map_err(|error| explain_import(&error))?;
        let sizes = level_sizes(store).into_iter().map(|size| (size.level, size.bytes));
        Ok(Self {
            file: path.display().to_string(),
            kind: synthetic_shape(store)
                .unwrap_or_else(|| config.architecture.model_type().to_owned()),
            weights: ModelShape::new(&config).weights(),
            sizes: sizes.collect(),
        })
    }

    pub fn bytes_at(&self, level: Level) -> u64 {
        self.sizes.iter().find(|(found, _)| *found == level).map_or(0, |(_, bytes)| *bytes)
    }
}

/// Returns the shape of a store of random weights, or `None` for other stores.
fn synthetic_shape(store: &Store) -> Option<String> {
    let parameters: Value = serde_json::from_str(store.index().parameters_json()).ok()?;
    let shape = parameters.get("synthetic")?.as_str()?;
    Some(format!("{shape} random"))
}

/// Time to open the store.
#[derive(Clone, Copy, Debug)]
pub struct Loaded {
    /// Time until the model was ready to compute.
    pub load: Duration,
    /// Time until the first token was computed.
    pub first_token: Duration,
}

/// One test with its samples.
pub struct Record<'a> {
    pub model: &'a Model,
    pub machine: &'a Machine,
    pub opening: Opening,
    pub test: Test,
    pub rows_max: usize,
    pub kv_type: KvTypeArg,
    /// Memory bandwidth in bytes per second.
    pub bandwidth: Option<f64>,
    pub loaded: Loaded,
    pub peak_memory: Option<u64>,
    pub is_streamed: bool,
    /// Names of the compute devices, joined by ` + `; `None` for the CPU.
    pub device: Option<&'a str>,
    /// Cost of the warm-up tokens, which the samples exclude.
    pub cold: Option<MeasuredCost>,
    pub samples: &'a [MeasuredCost],
}

/// Mean and sample standard deviation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    pub mean: f64,
    pub deviation: f64,
}

impl Spread {
    pub fn of(samples: &[f64]) -> Self {
        let count = samples.len().max(1) as f64;
        let mean = samples.iter().sum::<f64>() / count;
        let squares: f64 = samples.iter().map(|sample| (sample - mean).powi(2)).sum();
        let deviation = if samples.len() > 1 { (squares / (count - 1.0)).sqrt() } else { 0.0 };
        Self { mean, deviation }
    }
}

impl Record<'_> {
    fn nanoseconds(&self) -> Vec<f64> {
        self.samples.iter().map(|sample| sample.time.as_nanos() as f64).collect()
    }

    fn rates(&self) -> Vec<f64> {
        let rate = |sample: &MeasuredCost| sample.tokens as f64 / seconds(sample.time);
        self.samples.iter().map(rate).collect()
    }

    /// Returns tokens per second, summed over all sessions.
    pub fn speed(&self) -> Spread {
        Spread::of(&self.rates())
    }

    /// Returns the bytes of weights read per token.
    pub fn token_bytes(&self) -> f64 {
        let bytes: u64 = self.samples.iter().map(|sample| sample.weight_bytes).sum();
        let tokens: u64 = self.samples.iter().map(|sample| sample.tokens).sum();
        bytes as f64 / tokens.max(1) as f64
    }

    /// Returns the bytes of weights read per second.
    pub fn read_speed(&self) -> f64 {
        self.token_bytes() * self.speed().mean
    }

    /// Returns the share of memory bandwidth used for reading weights.
    pub fn bandwidth_share(&self) -> Option<f64> {
        self.bandwidth.filter(|bandwidth| *bandwidth > 0.0).map(|all| self.read_speed() / all)
    }

    /// Returns the backend: the kernels of the CPU, or the API of the GPU, taken from the end of the device's
    /// name.
    pub fn backend(&self) -> String {
        let api = self.device.and_then(|device| device.rsplit(", ").next());
        api.map_or_else(|| format!("CPU {}", self.machine.kernels.name()), str::to_owned)
    }

    /// Returns the device's work per token: dispatches, submissions, waits, uploaded bytes of weights, and
    /// the part of them that passed through a staging buffer.
    pub fn device_work(&self) -> [f64; 5] {
        let mut all = BackendCounters::default();
        self.samples.iter().for_each(|sample| all += sample.device);
        let BackendCounters { dispatches, submissions, waits, upload_bytes, staged_bytes } = all;
        let each = [dispatches, submissions, waits, upload_bytes, staged_bytes];
        each.map(|count| count as f64 / self.tokens() as f64)
    }

    /// Returns the device's work per token as named fields; null for the CPU.
    fn device_fields(&self) -> [(&'static str, Value); 5] {
        let [dispatches, submissions, waits, upload_bytes, staged_bytes] =
            self.device_work().map(|count| json!(self.device.map(|_| count)));
        [
            ("dispatches_per_token", dispatches),
            ("submissions_per_token", submissions),
            ("waits_per_token", waits),
            ("upload_bytes_per_token", upload_bytes),
            ("staged_bytes_per_token", staged_bytes),
        ]
    }

    /// Returns the number of ranks, and for several what each holds and the messages of rank 0 per token.
    fn rank_fields(&self) -> [(&'static str, Value); 6] {
        let of_ranks = (self.opening.ranks > 1).then_some(&self.opening);
        let division = of_ranks.map(|opening| opening.expert_division);
        let kv = of_ranks.map(|opening| opening.kv_division);
        let replicas = of_ranks.map(|opening| opening.expert_replicas);
        [
            ("n_ranks", json!(self.opening.ranks)),
            ("experts_over_ranks", json!(division)),
            ("kv_over_ranks", json!(kv)),
            ("expert_replicas", json!(replicas)),
            ("exchanges_per_token", json!(self.traffic(|group| group.exchanges))),
            ("rank_sent_bytes_per_token", json!(self.traffic(|group| group.sent_bytes))),
        ]
    }

    /// Returns a counter of rank 0's messages per token; `None` for one rank.
    fn traffic(&self, of: impl Fn(&GroupCounters) -> u64) -> Option<f64> {
        let sum: u64 = self.samples.iter().map(|sample| of(&sample.messages)).sum();
        (self.opening.ranks > 1).then(|| sum as f64 / self.tokens() as f64)
    }

    fn streaming(&self) -> StreamStats {
        let mut all = StreamStats::default();
        self.samples.iter().for_each(|sample| all.add(&sample.streaming));
        all
    }

    fn tokens(&self) -> u64 {
        self.samples.iter().map(|sample| sample.tokens).sum::<u64>().max(1)
    }

    /// Returns the share of requested expert bytes that were in memory: 1 if the model is resident.
    pub fn hit_rate(&self) -> f64 {
        self.streaming().hit_rate().unwrap_or(1.0)
    }

    /// Returns the bytes of experts read from disk per token.
    pub fn disk_bytes(&self) -> f64 {
        self.streaming().read_total() as f64 / self.tokens() as f64
    }

    /// Returns the time per token in which computation waited for reads.
    pub fn stall(&self) -> Duration {
        Duration::from_nanos(self.streaming().wait_ns / self.tokens())
    }

    /// Returns the storage of the weights, as printed in the results.
    pub fn load_name(&self) -> &'static str {
        if self.is_streamed { "stream" } else { load_name(self.opening.load_mode) }
    }

    /// Returns the streaming statistics, or `None` if experts are resident.
    fn streaming_json(&self) -> Option<Value> {
        let all = self.streaming();
        let tokens = self.tokens() as f64;
        let by_token = |bytes: u64| (bytes as f64 / tokens).round();
        let pairs: u64 = all.asked_bits;
        self.is_streamed.then(|| {
            json!({
                "experts_hit": all.expert_hits,
                "experts_missed": all.expert_misses,
                "missing_bytes_per_token": by_token(all.missing_total()),
                "ahead_bytes_per_token": by_token(all.ahead_bytes),
                "read_bytes_per_token": by_token(all.read_total()),
                "read_bytes_per_token_by_plane": all.read_bytes.map(by_token),
                "recalled_bytes_per_token": by_token(all.recalled_bytes),
                "host_experts": all.host_experts,
                "promoted_experts": all.promoted_experts,
                "host_uses": all.host_uses,
                "host_bytes_per_token": by_token(all.host_bytes),
                "host_ns_per_token": by_token(all.host_ns),
                "prefetched_bytes_per_token": by_token(all.prefetched_bytes),
                "prefetch_used_bytes_per_token": by_token(all.prefetch_used_bytes),
                "stall_ns_per_token": by_token(all.wait_ns),
                "served_share_of_asked_bits": (pairs > 0).then(|| all.served_bits as f64 / pairs as f64),
            })
        })
    }

    /// Returns the name of the test: `pp512`, `tg128 @ d4096` or `pp512+tg128`.
    pub fn name(&self) -> String {
        let Test { depth, prompt, generated, .. } = self.test;
        let mut name = match (prompt, generated) {
            (prompt, 0) => format!("pp{prompt}"),
            (0, generated) => format!("tg{generated}"),
            (prompt, generated) => format!("pp{prompt}+tg{generated}"),
        };
        if depth > 0 {
            name += &format!(" @ d{depth}");
        }
        name
    }

    pub fn model_type(&self) -> String {
        let weights = match self.model.weights as f64 {
            weights if weights < 1e9 => format!("{:.2}M", weights / 1e6),
            weights => format!("{:.2}B", weights / 1e9),
        };
        let mean = self.opening.mean_level.map(|mean| format!(", mean {mean}"));
        // Default: the name has no mean level unless one was requested.
        let mean =
            mean.unwrap_or_default() + if self.opening.is_elastic() { ", elastic" } else { "" };
        format!("{} {weights} level {}{mean}", self.model.kind, self.opening.level)
    }

    /// Returns all fields in the order in which they are printed.
    pub fn fields(&self) -> Map<String, Value> {
        let Test { sessions, depth, prompt, generated } = self.test;
        let (speed, time) = (self.speed(), Spread::of(&self.nanoseconds()));
        let nanoseconds = |time: Duration| time.as_nanos() as u64;
        let samples_ns: Vec<u64> = self.samples.iter().map(|one| nanoseconds(one.time)).collect();
        // Default: an empty name, as llama-bench prints without a GPU.
        let gpu = self.device.unwrap_or_default();
        let fields = json!({
            "build_commit": env!("NESTLING_COMMIT"),
            "build_number": 0,
            "cpu_info": self.machine.cpu,
            "gpu_info": gpu,
            "backends": self.backend(),
            "model_filename": self.model.file,
            "model_type": self.model_type(),
            "model_size": self.model.bytes_at(self.opening.level),
            "model_n_params": self.model.weights,
            "n_batch": self.rows_max,
            "n_ubatch": self.rows_max,
            "n_threads": self.opening.threads,
            "type_k": kv_name(self.kv_type),
            "type_v": kv_name(self.kv_type),
            "load_mode": self.load_name(),
            "n_prompt": prompt,
            "n_gen": generated,
            "n_depth": depth,
            "test_time": now().to_string(),
            "avg_ns": time.mean.round() as u64,
            "stddev_ns": time.deviation.round() as u64,
            "avg_ts": speed.mean,
            "stddev_ts": speed.deviation,
            "level": self.opening.level.bits(),
            "mean_level": self.opening.mean_level,
            "elastic": self.opening.is_elastic(),
            "n_sessions": sessions,
            "token_bytes": self.token_bytes().round() as u64,
            "read_gb_per_s": self.read_speed() / 1e9,
            "memory_gb_per_s": self.bandwidth.map(|bandwidth| bandwidth / 1e9),
            "memory_share": self.bandwidth_share(),
            "hit_rate": self.hit_rate(),
            "streaming": self.streaming_json(),
            "cold_tokens": self.cold.map(|cold| cold.tokens),
            "cold_ts": self.cold.map(|cold| cold.tokens as f64 / seconds(cold.time)),
            "cold_read_bytes": self.cold.map(|cold| cold.streaming.read_total()),
            "peak_memory_bytes": self.peak_memory,
            "load_ns": nanoseconds(self.loaded.load),
            "first_token_ns": nanoseconds(self.loaded.first_token),
            "samples_ns": samples_ns,
            "samples_ts": self.rates(),
        });
        let mut fields = match fields {
            Value::Object(fields) => fields,
            _ => Map::new(),
        };
        let more = self.device_fields().into_iter().chain(self.rank_fields());
        fields.extend(more.map(|(name, value)| (name.to_owned(), value)));
        fields
    }
}

/// Returns a duration in seconds, at least 1e-9, so that it can be a divisor.
fn seconds(time: Duration) -> f64 {
    time.as_secs_f64().max(1e-9)
}

fn kv_name(kind: KvTypeArg) -> &'static str {
    match kind {
        KvTypeArg::F16 => "f16",
        KvTypeArg::F32 => "f32",
        KvTypeArg::Int8 => "int8",
    }
}

pub fn load_name(mode: LoadModeArg) -> &'static str {
    match mode {
        LoadModeArg::Owned => "owned",
        LoadModeArg::Mmap => "mmap",
    }
}

fn now() -> TemplateTime {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    TemplateTime::from_unix_seconds(i64::try_from(seconds).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_is_that_of_a_sample() {
        let spread = Spread::of(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]);
        assert_eq!(spread.mean, 5.0);
        assert!((spread.deviation - (32.0f64 / 7.0).sqrt()).abs() < 1e-12);
        assert_eq!(Spread::of(&[3.0]), Spread { mean: 3.0, deviation: 0.0 });
        assert_eq!(Spread::of(&[]), Spread { mean: 0.0, deviation: 0.0 });
    }
}
