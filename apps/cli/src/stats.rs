//! What a reply cost, in llama.cpp's one line or Ollama's eight.

use crate::bytes::ByteSize;
use crate::console::Console;
use nestling::engine::StreamStats;
use nestling::{Finished, Model};
use std::time::Duration;

/// Wall-clock time of a reply.
#[derive(Clone, Copy, Debug)]
pub struct Took {
    /// Opening the model, where that belongs to the reply.
    pub load: Duration,
    pub total: Duration,
}

/// Prints the statistics of a reply: none under `--quiet`, eight lines under `--verbose`.
pub fn print(console: &Console, model: &Model, finished: &Finished, took: Took) {
    if console.quiet {
        return;
    }
    if console.verbose == 0 {
        console.note(line(model, finished));
        return;
    }
    for (name, value) in table(finished, took) {
        console.note(format_args!("{name:<23} {value}"));
    }
}

fn line(model: &Model, finished: &Finished) -> String {
    let stats = &finished.stats;
    let mut line = format!(
        "[ Prompt: {:.1} t/s | Generation: {:.1} t/s",
        stats.prompt_tokens_per_second(),
        stats.decode_tokens_per_second(),
    );
    let quantized = model.limits().level_max.is_some();
    if let Some(allocation) = model.allocation() {
        line += &format!(" | Bits: mixed, allocation {}", allocation.hash());
    } else if let Some(bits) = stats.mean_level().filter(|_| quantized) {
        line += &match (model.dual(), stats.asked_mean_level()) {
            (Some(_), Some(asked)) => format!(" | Bits: {bits:.2} of {asked:.2} asked"),
            _ => format!(" | Bits: {bits}"),
        };
    }
    if let Some(hits) = stats.streaming.hit_rate() {
        let read = ByteSize(stats.streaming.read_total());
        let wait = Duration::from_nanos(stats.streaming.wait_ns);
        line += &format!(" | Hits: {:.0} % | Disk: {read} | Stall: {wait:.1?}", 100.0 * hits);
        line += &of_host(&stats.streaming);
    }
    line + " ]"
}

/// What came from memory of the host, or was computed there, beside a device.
fn of_host(streaming: &StreamStats) -> String {
    let brought = ByteSize(streaming.recalled_bytes);
    match (streaming.recalled_bytes, streaming.host_bytes) {
        (0, 0) => String::new(),
        (_, 0) => format!(" | From host: {brought}"),
        (_, used) => format!(" | From host: {brought}, used there: {}", ByteSize(used)),
    }
}

fn table(finished: &Finished, took: Took) -> Vec<(&'static str, String)> {
    let (usage, stats) = (&finished.usage, &finished.stats);
    let seconds = |seconds: f64| format!("{:.3?}", Duration::from_secs_f64(seconds.max(0.0)));
    let mut rows = vec![
        ("total duration:", format!("{:.3?}", took.total)),
        ("load duration:", format!("{:.3?}", took.load)),
        (
            "prompt eval count:",
            format!(
                "{} token(s), {} more from the session",
                stats.prompt_tokens, usage.cached_tokens
            ),
        ),
        ("prompt eval duration:", seconds(stats.prompt_seconds)),
        ("prompt eval rate:", format!("{:.2} tokens/s", stats.prompt_tokens_per_second())),
        ("eval count:", format!("{} token(s)", usage.completion_tokens)),
        ("eval duration:", seconds(stats.decode_seconds)),
        ("eval rate:", format!("{:.2} tokens/s", stats.decode_tokens_per_second())),
    ];
    let streaming = &stats.streaming;
    if let Some(hits) = streaming.hit_rate() {
        let by_plane = streaming.read_bytes.map(|bytes| ByteSize(bytes).to_string());
        let stall = Duration::from_nanos(streaming.wait_ns);
        rows.push(("expert bytes in memory:", format!("{:.1} %", 100.0 * hits)));
        rows.push(("read by plane:", by_plane.join(", ")));
        rows.push(("stalled:", format!("{stall:.3?}")));
        if streaming.recalled_bytes + streaming.host_bytes > 0 {
            let (used, uses) = (ByteSize(streaming.host_bytes), streaming.host_uses);
            let took = Duration::from_nanos(streaming.host_ns);
            let there = format!("{used}, {uses} expert use(s), {took:.3?}");
            rows.push(("from host memory:", ByteSize(streaming.recalled_bytes).to_string()));
            rows.push(("computed there:", there));
        }
    }
    rows
}
