//! Statistics after a run: the forecast next to the measurement.

use crate::args::{ModelArgs, ResourceArgs, SpeedArgs};
use crate::bytes::ByteSize;
use crate::console::Console;
use crate::device::planned;
use crate::failure::Result;
use crate::in_place;
use crate::memory::memory_budget;
use crate::opened::{LoadedModel, model_options};
use crate::plan::{Answer, Question, forecast_json};
use crate::speed::Machine;
use crate::stores::open_store_with;
use crate::subject::Subject;
use nestling::engine::record::StepRecord;
use nestling::engine::{FinishReason, GenerationSummary, StreamStats};
use serde_json::{Value, json};
use std::path::Path;

/// Forecast of a run, made before the model was opened.
pub struct Expected(Option<Answer>);

impl Expected {
    /// Computes the forecast. Must run before the model is opened, because measuring memory bandwidth needs
    /// memory. The forecast is empty if the model is not a store.
    pub fn find(
        model: &ModelArgs,
        resources: &ResourceArgs,
        path: &Path,
        console: &Console,
    ) -> Result<Self> {
        if !path.is_file() {
            return Ok(Self(None));
        }
        let mut options = model_options(model, resources);
        // Converted through text: as `f64`, the value has exactly the decimals that the user typed.
        let mut mean = model.mean_level.and_then(|mean| mean.to_string().parse().ok());
        let store = open_store_with(path, model.partial)?;
        if store.is_derived() {
            (options, mean) = (in_place::options(options), None);
        }
        let subject = Subject::of_store(&store)?;
        let (budget, gpu) = planned(&resources.device, memory_budget(resources.memory))?;
        let question = Question::new(subject, options, budget, gpu, mean)?;
        let speeds = SpeedArgs { threads: resources.threads, ..SpeedArgs::default() };
        let machine = Machine::measure_at(&speeds, &question.subject.place, console)?;
        question.answer(&machine, question.level, question.budget).map(Some).map(Self)
    }
}

/// Measured totals of the decode steps.
#[derive(Default)]
struct Fact {
    tokens: u64,
    step_ms: f64,
    streaming: StreamStats,
}

impl Fact {
    fn of(steps: &[StepRecord]) -> Self {
        let mut fact = Self::default();
        // The first step is the prefill; its cache misses do not represent the steady state.
        for step in steps.iter().skip(1).filter(|step| step.rows == 1) {
            fact.tokens += 1;
            fact.step_ms += step.end_ns.saturating_sub(step.start_ns) as f64 / 1e6;
            fact.streaming.add(&step.streaming);
        }
        fact.step_ms /= fact.tokens.max(1) as f64;
        fact
    }

    fn by_token(&self, count: u64) -> f64 {
        count as f64 / self.tokens.max(1) as f64
    }

    fn tokens_per_s(&self) -> f64 {
        if self.step_ms > 0.0 { 1e3 / self.step_ms } else { 0.0 }
    }
}

/// Prints forecast and measurement side by side.
pub fn print(console: &Console, expected: &Expected, steps: &[StepRecord]) {
    let fact = Fact::of(steps);
    let found = expected.0.as_ref().map(|answer| &answer.forecast);
    let bytes = |bytes: f64| ByteSize(bytes as u64).to_string();
    let line = |name: &str, forecast: Option<String>, fact: String| {
        // Default: the cell is empty where there is no forecast.
        let forecast = forecast.unwrap_or_default();
        console.line(format_args!("{name:<26} {forecast:>12} {fact:>12}"));
    };
    line("", Some("forecast".into()), "fact".into());
    let speed = found.map(|found| format!("{:.2}", found.tokens_per_s));
    line("tokens/s, computing alone", speed, format!("{:.2}", fact.tokens_per_s()));
    let hits = fact.streaming.hit_rate().unwrap_or(1.0);
    let forecast = found.map(|found| format!("{:.1} %", 100.0 * found.hit_rate));
    line("bytes found in memory", forecast, format!("{:.1} %", 100.0 * hits));
    let missing = fact.by_token(fact.streaming.missing_total());
    line("missing per token", found.map(|found| bytes(found.missing_bytes)), bytes(missing));
    let read = fact.by_token(fact.streaming.read_total());
    line("read per token", found.map(|found| bytes(found.missing_bytes)), bytes(read));
    let stall = fact.by_token(fact.streaming.wait_ns) / 1e6;
    let idle =
        found.map(|found| format!("{:.1} ms", 1e3 * (found.read_s - found.compute_s).max(0.0)));
    line("stalled per token", idle, format!("{stall:.1} ms"));
}

/// Returns forecast, totals and all steps as JSON.
pub fn as_json(
    opened: &LoadedModel,
    finished: &GenerationSummary,
    expected: &Expected,
    steps: &[StepRecord],
) -> Value {
    let (fact, stats) = (Fact::of(steps), &finished.stats);
    let each = steps.iter().map(|step| {
        let mut fields = streaming_json(&step.streaming);
        fields["rows"] = json!(step.rows);
        fields["ms"] = json!(step.end_ns.saturating_sub(step.start_ns) as f64 / 1e6);
        fields
    });
    json!({
        "store": opened.path.display().to_string(),
        "prompt_tokens": finished.usage.prompt_tokens,
        "completion_tokens": finished.usage.completion_tokens,
        "prompt_tokens_per_s": stats.prompt_tokens_per_second(),
        "decode_tokens_per_s": stats.decode_tokens_per_second(),
        "finish_reason": finish_reason(&finished.reason),
        "mean_level": stats.mean_level(),
        "streamed": opened.model.expert_bytes().is_some(),
        "expert_bytes": opened.model.expert_bytes(),
        "streaming": streaming_json(&stats.streaming),
        "forecast": expected.0.as_ref().map(|answer| forecast_json(&answer.forecast)),
        "fact": {
            "tokens": fact.tokens,
            "tokens_per_s": fact.tokens_per_s(),
            "hit_rate": fact.streaming.hit_rate().unwrap_or(1.0),
            "missing_bytes_per_token": fact.by_token(fact.streaming.missing_total()),
            "read_bytes_per_token": fact.by_token(fact.streaming.read_total()),
            "stall_ms_per_token": fact.by_token(fact.streaming.wait_ns) / 1e6,
        },
        "steps": each.collect::<Vec<_>>(),
    })
}

/// Returns the finish reason in the OpenAI API's wording, with additional values for reasons that the API
/// lacks.
fn finish_reason(reason: &FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
        FinishReason::ContextFull => "context_full",
        FinishReason::ToolCalls => "tool_calls",
        FinishReason::Cancelled => "cancelled",
        _ => "other",
    }
}

fn streaming_json(streaming: &StreamStats) -> Value {
    let asked = streaming.asked_bits;
    json!({
        // A model that is not streamed is entirely in memory.
        "hit_rate": streaming.hit_rate().unwrap_or(1.0),
        "experts_hit": streaming.expert_hits,
        "experts_missed": streaming.expert_misses,
        "ahead_bytes": streaming.ahead_bytes,
        "missing_bytes_by_plane": streaming.missing_bytes,
        "read_bytes_by_plane": streaming.read_bytes,
        "recalled_bytes": streaming.recalled_bytes,
        "host_experts": streaming.host_experts,
        "promoted_experts": streaming.promoted_experts,
        "host_uses": streaming.host_uses,
        "host_bytes": streaming.host_bytes,
        "host_ms": streaming.host_ns as f64 / 1e6,
        "prefetched_bytes": streaming.prefetched_bytes,
        "prefetch_used_bytes": streaming.prefetch_used_bytes,
        "stall_ms": streaming.wait_ns as f64 / 1e6,
        "served_share_of_asked_bits":
            (asked > 0).then(|| streaming.served_bits as f64 / asked as f64),
    })
}
