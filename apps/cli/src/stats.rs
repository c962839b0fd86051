//! Statistics of a reply, in llama.cpp's single line or Ollama's eight.

use crate::background::Background;
use crate::bytes::ByteSize;
use crate::console::Console;
use crate::opened::LoadedModel;
use crate::words::counted;
use nestling::GenerationSummary;
use nestling::engine::StreamStats;
use std::time::Duration;

/// Wall-clock times of a reply.
#[derive(Clone, Copy, Debug)]
pub struct ReplyTimes {
    /// Time to open the model, if it belongs to the reply.
    pub load: Duration,
    pub total: Duration,
}

/// Prints the statistics of a reply: none under `--quiet`, eight lines under `--verbose`.
pub fn print(
    console: &Console,
    opened: &LoadedModel,
    finished: &GenerationSummary,
    took: ReplyTimes,
) {
    if console.quiet {
        return;
    }
    if console.verbose == 0 {
        let parts = parts(opened, finished);
        if !parts.is_empty() {
            console.note(format_args!("[ {} ]", parts.join(" | ")));
        }
        return;
    }
    for (name, value) in table(finished, took) {
        console.note(format_args!("{name:<23} {value}"));
    }
}

/// Returns the parts of the single-line statistics. Speeds are shown only if tokens were computed.
fn parts(opened: &LoadedModel, finished: &GenerationSummary) -> Vec<String> {
    let stats = &finished.stats;
    let mut parts = Vec::new();
    if stats.prompt_tokens > 0 && stats.prompt_seconds > 0.0 {
        parts.push(format!("Prompt: {:.1} t/s", stats.prompt_tokens_per_second()));
    }
    if stats.decode_tokens > 0 {
        parts.push(format!("Generation: {:.1} t/s", stats.decode_tokens_per_second()));
    }
    if parts.is_empty() {
        return parts;
    }
    parts.extend(opened.background.as_ref().and_then(Background::status));
    parts.extend(bits(opened, finished).map(|bits| format!("Bits: {bits}")));
    if let Some(hits) = stats.streaming.hit_rate() {
        let wait = Duration::from_nanos(stats.streaming.wait_ns);
        parts.push(format!("Hits: {:.0} %", 100.0 * hits));
        parts.push(format!("Disk: {}", ByteSize(stats.streaming.read_total())));
        parts.push(format!("Stall: {wait:.1?}"));
        parts.extend(describe_host(&stats.streaming));
    }
    parts
}

/// Describes the mean bits that experts were computed with, and the requested ones.
fn bits(opened: &LoadedModel, finished: &GenerationSummary) -> Option<String> {
    let (model, stats) = (&opened.model, &finished.stats);
    if let Some(mean) = opened.allocated_bits {
        return Some(format!("mixed, {mean:.2} on average"));
    }
    model.limits().level_max?;
    let served = stats.mean_level()?;
    let Some(dual) = model.dual() else { return Some(served.to_string()) };
    let mut text = format!("{served:.2}");
    // Elastic mode skips planes that the routing requested.
    let routed = stats.asked_mean_level().map(|mean| format!("{mean:.2}"));
    if let Some(routed) = routed.filter(|routed| *routed != text) {
        text += &format!(" of {routed} routed");
    }
    if let Some(asked) = dual.requested().mean_level {
        text += &format!(" (asked: {asked})");
    }
    Some(text)
}

/// Describes the expert bytes copied from host memory to the device, and those used by the CPU.
fn describe_host(streaming: &StreamStats) -> Option<String> {
    let brought = ByteSize(streaming.recalled_bytes);
    match (streaming.recalled_bytes, streaming.host_bytes) {
        (0, 0) => None,
        (_, 0) => Some(format!("From host: {brought}")),
        (_, used) => Some(format!("From host: {brought}, used there: {}", ByteSize(used))),
    }
}

/// Formats a duration with three decimals, or as `0 s`.
fn duration(time: Duration) -> String {
    if time.is_zero() { "0 s".into() } else { format!("{time:.3?}") }
}

/// Formats a speed, or `-` if no tokens were computed.
fn rate(tokens_per_s: f64) -> String {
    if tokens_per_s > 0.0 { format!("{tokens_per_s:.2} tokens/s") } else { "-".into() }
}

fn table(finished: &GenerationSummary, took: ReplyTimes) -> Vec<(&'static str, String)> {
    let (usage, stats) = (&finished.usage, &finished.stats);
    let seconds = |seconds: f64| duration(Duration::from_secs_f64(seconds.max(0.0)));
    let mut rows = vec![
        ("total duration:", duration(took.total)),
        ("load duration:", duration(took.load)),
        (
            "prompt eval count:",
            format!(
                "{}, {} more from the session",
                counted(stats.prompt_tokens, "token"),
                usage.cached_tokens
            ),
        ),
        ("prompt eval duration:", seconds(stats.prompt_seconds)),
        ("prompt eval rate:", rate(stats.prompt_tokens_per_second())),
        ("eval count:", counted(usage.completion_tokens, "token")),
        ("eval duration:", seconds(stats.decode_seconds)),
        ("eval rate:", rate(stats.decode_tokens_per_second())),
    ];
    let streaming = &stats.streaming;
    if let Some(hits) = streaming.hit_rate() {
        let by_plane = streaming.read_bytes.map(|bytes| ByteSize(bytes).to_string());
        let stall = Duration::from_nanos(streaming.wait_ns);
        rows.push(("expert bytes in memory:", format!("{:.1} %", 100.0 * hits)));
        rows.push(("read by plane:", by_plane.join(", ")));
        rows.push(("stalled:", duration(stall)));
        if streaming.recalled_bytes + streaming.host_bytes > 0 {
            let (used, uses) = (ByteSize(streaming.host_bytes), streaming.host_uses);
            let took = Duration::from_nanos(streaming.host_ns);
            let uses = counted(usize::try_from(uses).unwrap_or(usize::MAX), "expert use");
            let there = format!("{used}, {uses}, {}", duration(took));
            rows.push(("from host memory:", ByteSize(streaming.recalled_bytes).to_string()));
            rows.push(("computed there:", there));
        }
    }
    rows
}
