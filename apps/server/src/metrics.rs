//! Request metrics in the Prometheus text format.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nestling::{
    EngineError, ErrorClass, FinishReason, GenerationSummary, Level, Model, StreamStats,
};

/// Histogram bounds of the time to the first token, in seconds.
const FIRST_TOKEN: [f64; 22] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
];

/// Histogram bounds of the time between two tokens, in seconds.
const NEXT_TOKEN: [f64; 19] = [
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
];

const REASONS: [&str; 5] = ["stop", "length", "tool_calls", "cancelled", "error"];

#[derive(Debug, Default)]
pub(crate) struct Metrics {
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    prompt_tokens: u64,
    cached_tokens: u64,
    generation_tokens: u64,
    completions: [u64; 5],
    first_token: Histogram<22>,
    next_token: Histogram<19>,
    sources_failed: u64,
    devices_lost: u64,
    ignored_fields: u64,
}

#[derive(Debug)]
struct Histogram<const N: usize> {
    counts: [u64; N],
    over: u64,
    sum: f64,
}

impl<const N: usize> Default for Histogram<N> {
    fn default() -> Self {
        Self { counts: [0; N], over: 0, sum: 0.0 }
    }
}

impl<const N: usize> Histogram<N> {
    fn add(&mut self, bounds: &[f64; N], seconds: f64) {
        self.sum += seconds;
        match bounds.iter().position(|bound| seconds <= *bound) {
            Some(index) => self.counts[index] += 1,
            None => self.over += 1,
        }
    }

    fn write(&self, out: &mut String, bounds: &[f64; N], name: &str, help: &str) {
        head(out, name, "histogram", help);
        let mut below = 0;
        for (bound, count) in bounds.iter().zip(self.counts) {
            below += count;
            let _ = writeln!(out, "nestling_{name}_bucket{{le=\"{bound}\"}} {below}");
        }
        let all = below + self.over;
        let _ = writeln!(out, "nestling_{name}_bucket{{le=\"+Inf\"}} {all}");
        let _ = writeln!(out, "nestling_{name}_sum {}\nnestling_{name}_count {all}", self.sum);
    }
}

fn head(out: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(out, "# HELP nestling_{name} {help}\n# TYPE nestling_{name} {kind}");
}

fn counter(out: &mut String, name: &str, help: &str, value: u64) {
    head(out, name, "counter", help);
    let _ = writeln!(out, "nestling_{name} {value}");
}

fn gauge(out: &mut String, name: &str, help: &str, value: f64) {
    head(out, name, "gauge", help);
    let _ = writeln!(out, "nestling_{name} {value}");
}

fn labelled<'a, T: std::fmt::Display>(
    out: &mut String,
    name: &str,
    label: &str,
    values: impl IntoIterator<Item = (&'a str, T)>,
) {
    for (of, value) in values {
        let _ = writeln!(out, "nestling_{name}{{{label}=\"{of}\"}} {value}");
    }
}

impl Metrics {
    fn lock(&self) -> MutexGuard<'_, Counts> {
        // A panic cannot leave the counters in an inconsistent state.
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a finished generation. The prompt is counted once for several choices.
    pub fn finished(&self, finished: &GenerationSummary, counts_prompt: bool) {
        let mut counts = self.lock();
        let (usage, stats) = (&finished.usage, &finished.stats);
        if counts_prompt {
            counts.prompt_tokens += usage.prompt_tokens as u64;
            counts.cached_tokens += usage.cached_tokens as u64;
        }
        counts.generation_tokens += usage.completion_tokens as u64;
        let reason = match finished.reason {
            FinishReason::Stop => 0,
            FinishReason::ToolCalls => 2,
            FinishReason::Cancelled => 3,
            _ => 1,
        };
        counts.completions[reason] += 1;
        if usage.completion_tokens > 0 {
            counts.first_token.add(&FIRST_TOKEN, stats.time_to_first_token_seconds);
        }
    }

    /// Counts request fields without effect.
    pub fn ignored(&self, fields: usize) {
        self.lock().ignored_fields += fields as u64;
    }

    /// Counts `completions` that were cancelled because their client left.
    pub fn left(&self, completions: usize) {
        self.lock().completions[3] += completions as u64;
    }

    /// Counts the time between two tokens.
    pub fn token_after(&self, time: Duration) {
        self.lock().next_token.add(&NEXT_TOKEN, time.as_secs_f64());
    }

    /// Counts a generation that could not start or ended with an error.
    pub fn failed(&self, error: &EngineError) {
        let mut counts = self.lock();
        match error.class() {
            ErrorClass::Caller | ErrorClass::Busy => {}
            ErrorClass::Stopped => counts.completions[3] += 1,
            class => {
                counts.completions[4] += 1;
                counts.sources_failed += u64::from(class == ErrorClass::Source);
                counts.devices_lost += u64::from(matches!(error, EngineError::DeviceLost(_)));
            }
        }
    }
}

/// Returns all metrics as text. `open` is the model, if it is open, and its number of idle sessions.
pub(crate) fn write(metrics: &Metrics, open: Option<(&Model, usize)>) -> String {
    let mut out = String::new();
    if let Some((model, idle_sessions)) = open {
        engine(&mut out, model);
        let help = "Idle sessions kept for continuation.";
        gauge(&mut out, "idle_sessions", help, idle_sessions as f64);
    }
    let counts = metrics.lock();
    let out_of = &mut out;
    counter(out_of, "prompt_tokens_total", "Tokens of prompts.", counts.prompt_tokens);
    let help = "Tokens of prompts that were there from earlier requests.";
    counter(out_of, "prompt_tokens_cached_total", help, counts.cached_tokens);
    counter(out_of, "generation_tokens_total", "Tokens generated.", counts.generation_tokens);
    head(out_of, "completions_total", "counter", "Answers by why they ended.");
    labelled(out_of, "completions_total", "reason", REASONS.into_iter().zip(counts.completions));
    let help = "Seconds from a request to its first token.";
    counts.first_token.write(out_of, &FIRST_TOKEN, "time_to_first_token_seconds", help);
    let help = "Seconds from one token of an answer to the next.";
    counts.next_token.write(out_of, &NEXT_TOKEN, "inter_token_latency_seconds", help);
    let help = "Answers that failed because the store could not be read or was damaged.";
    counter(out_of, "checksum_failures_total", help, counts.sources_failed);
    let help = "Answers that failed because their device was gone.";
    counter(out_of, "device_lost_total", help, counts.devices_lost);
    let help = "Fields of requests that had no effect.";
    counter(out_of, "ignored_fields_total", help, counts.ignored_fields);
    drop(counts);
    out
}

fn engine(out: &mut String, model: &Model) {
    let status = model.engine().status();
    let pages = status.pages;
    let waiting = (status.waiting + status.parked) as f64;
    gauge(out, "requests_running", "Answers being computed.", status.running as f64);
    gauge(out, "requests_waiting", "Answers that wait for room.", waiting);
    let used = pages.total.saturating_sub(pages.free + pages.resting);
    let prefixes = status.prefixes;
    let share = used as f64 / pages.total.max(1) as f64;
    let help = "Share of the pages of keys and values that answers under way hold.";
    gauge(out, "kv_cache_usage_ratio", help, share);
    head(out, "kv_pages", "gauge", "Pages of keys and values by what they are held for.");
    let by_state = [
        ("empty", pages.free.saturating_sub(pages.idle)),
        ("idle", pages.idle),
        ("running", pages.running),
        ("waiting", pages.waiting),
        ("resting", pages.resting),
    ];
    labelled(out, "kv_pages", "state", by_state);
    counter(out, "preemptions_total", "Answers that lost their pages.", status.preemptions);
    counter(out, "steps_total", "Steps computed.", status.steps);
    let help = "Ranks that were lost and replaced.";
    counter(out, "ranks_replaced_total", help, status.ranks_replaced);
    let help = "Tokens of prompts in whole pages that were looked for among those computed before.";
    counter(out, "prefix_tokens_asked_total", help, prefixes.asked_tokens);
    counter(out, "prefix_tokens_found_total", "Of these, found.", prefixes.found_tokens);
    experts(out, &status.experts.streaming);
}

fn experts(out: &mut String, streaming: &StreamStats) {
    head(out, "expert_hits_total", "counter", "Expert requests served from memory.");
    labelled(out, "expert_hits_total", "tier", [("memory", streaming.expert_hits)]);
    head(
        out,
        "expert_misses_total",
        "counter",
        "Expert requests with a missing or only prefetched plane.",
    );
    labelled(out, "expert_misses_total", "tier", [("memory", streaming.expert_misses)]);
    head(out, "expert_read_bytes_total", "counter", "Bytes of experts that were read, by level.");
    let levels = Level::ALL.map(|level| level.bits().to_string());
    let read = levels.iter().map(String::as_str).zip(streaming.read_bytes);
    labelled(out, "expert_read_bytes_total", "bits", read);
    let help = "Seconds in which steps waited for reads.";
    head(out, "expert_stall_seconds_total", "counter", help);
    let _ = writeln!(out, "nestling_expert_stall_seconds_total {}", streaming.wait_ns as f64 / 1e9);
}

/// Appends the metrics of the stored responses.
pub(crate) fn add_responses(out: &mut String, count: usize, bytes: usize) {
    gauge(out, "stored_responses", "Responses that can be continued by their id.", count as f64);
    gauge(out, "stored_response_bytes", "Bytes of these responses.", bytes as f64);
}

/// Number of model loads of a pool.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Loads {
    pub opened: u64,
    /// Failed loads.
    pub failed: u64,
}

/// Merges the metrics of several models. A label `model` is added to each value.
pub(crate) fn joined(texts: &[(String, String)], loads: Loads) -> String {
    let mut families: BTreeMap<&str, Family<'_>> = BTreeMap::new();
    for (model, text) in texts {
        let mut of = "";
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# ") {
                // A comment consists of a keyword, the name of the metric and a text.
                of = rest.split(' ').nth(1).unwrap_or(of);
                let family = families.entry(of).or_default();
                if family.heads.len() < 2 {
                    family.heads.push(line);
                }
            } else {
                families.entry(of).or_default().values.push(with_model(line, model));
            }
        }
    }
    let mut out = String::new();
    counter(&mut out, "model_loads_total", "Models that were opened.", loads.opened);
    let help = "Models that could not be opened.";
    counter(&mut out, "model_load_failures_total", help, loads.failed);
    for family in families.values() {
        let lines = family.heads.iter().copied().chain(family.values.iter().map(String::as_str));
        lines.for_each(|line| {
            let _ = writeln!(out, "{line}");
        });
    }
    out
}

#[derive(Debug, Default)]
struct Family<'a> {
    heads: Vec<&'a str>,
    values: Vec<String>,
}

fn with_model(line: &str, model: &str) -> String {
    let model = model.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    match line.split_once('{') {
        Some((name, rest)) => format!("{name}{{model=\"{model}\",{rest}"),
        None => match line.split_once(' ') {
            Some((name, value)) => format!("{name}{{model=\"{model}\"}} {value}"),
            None => line.to_owned(),
        },
    }
}
