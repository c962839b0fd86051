//! `nestling plan`: memory placement and predicted speed for a memory budget.

mod over_ranks;
mod question;
mod replay;
mod topology;

pub use question::{Answer, Question};

use crate::args::PlanArgs;
use crate::bytes::ByteSize;
use crate::console::{Console, write_out};
use crate::device::planned;
use crate::failure::{Failure, Result};
use crate::in_place;
use crate::inspect::weights_words;
use crate::levels::{LevelSize, level_sizes_of_index};
use crate::memory::memory_budget;
use crate::opened::{context_length, kv_dtype};
use crate::speed::Machine;
use crate::subject::Subject;
use crate::words::{DENSE, context_note};
use nestling::engine::{ModelOptions, PlannedResidence};
use nestling::formats::Level;
use nestling_plan::plan::{Demand, Forecast, LevelMix, bytes_for, mean_level_for};
use question::{context_of, dense_bytes, expert_bytes};
use replay::Replay;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

pub fn plan(args: &PlanArgs, console: &Console) -> Result<()> {
    let question = question(args, console)?;
    let machine = Machine::measure_at(&args.machine, &question.subject.place, console)?;
    if let Some(ranks) = args.ranks.filter(|ranks| *ranks > 1) {
        return over_ranks::plan(args, &question, &machine, ranks as usize);
    }
    if args.topology.is_some() {
        return Err(Failure::usage("--topology describes the links between ranks")
            .advise("give their number with --ranks"));
    }
    let answer = question.answer(&machine, question.level, question.budget)?;
    let wanted =
        args.wanted_speed.map(|speed| SpeedTarget::find(&question, &answer, &machine, speed));
    let replay = |path: &PathBuf| Replay::run(path, &question, &answer, &machine);
    let replay = args.trace.as_ref().map(replay).transpose()?;
    if args.format.is_json() {
        let mut json = as_json(&question, &answer, &machine, wanted.as_ref());
        json["trace"] = replay.map_or(Value::Null, |replay| replay.as_json());
        return write_out(&format!("{json:#}\n"));
    }
    let replay = replay.map_or(String::new(), |replay| replay.describe());
    write_out(&(as_text(&question, &answer, &machine, wanted.as_ref()) + &replay))
}

fn question(args: &PlanArgs, console: &Console) -> Result<Question> {
    let (budget, gpu) = planned(&args.device, memory_budget(args.memory))?;
    let subject = Subject::of_arguments(args, console)?;
    let (mut level, mut mean_level) = (args.level.map(|level| level.0), args.mean_level);
    if subject.in_place {
        let ignored = [("--level", level.is_some()), ("--mean-level", mean_level.is_some())];
        in_place::check(Path::new(&subject.name), &[], &ignored, console)?;
        (level, mean_level) = (None, None);
    }
    let options = ModelOptions {
        level,
        kv_dtype: kv_dtype(args.kv_type),
        context_length: context_length(args.ctx_size),
        expert_division: args.experts.into(),
        kv_division: args.kv.of_threads(),
        expert_replicas: args.experts.expert_replicas,
        ..ModelOptions::default()
    };
    Question::new(subject, options, budget, gpu, mean_level)
}

/// Settings that would reach a target speed.
struct SpeedTarget {
    tokens_per_s: f64,
    is_reached: bool,
    /// Highest mean level that reaches the target within the budget.
    mean_level: Option<f64>,
    /// Smallest budget that reaches the target at the level.
    budget: Option<u64>,
}

impl SpeedTarget {
    fn find(question: &Question, answer: &Answer, machine: &Machine, tokens_per_s: f64) -> Self {
        let Answer { memory, demand, forecast, .. } = answer;
        let experts = expert_bytes(memory);
        let mix = question.mean_level.map_or(LevelMix::fixed(question.level), |mean| {
            LevelMix::of_mean(mean, question.level)
        });
        let others = memory.total_bytes().saturating_sub(experts);
        let budget = bytes_for(demand, mix, &machine.speed, tokens_per_s);
        Self {
            tokens_per_s,
            is_reached: forecast.tokens_per_s >= tokens_per_s,
            mean_level: mean_level_for(demand, &machine.speed, experts, tokens_per_s),
            budget: budget.map(|experts| (experts + others).max(answer.least_bytes)),
        }
    }
}

fn as_text(
    question: &Question,
    answer: &Answer,
    machine: &Machine,
    wanted: Option<&SpeedTarget>,
) -> String {
    let (memory, found) = (&answer.memory, &answer.forecast);
    let mut text = String::new();
    let budget = question.budget.map_or("no limit".into(), |bytes| ByteSize(bytes).to_string());
    let level = question.mean_level.map_or(format!("level {}", question.level), |mean| {
        format!("mean level {mean} of at most {}", question.level)
    });
    let subject = &question.subject;
    let weights =
        subject.weights.map_or(String::new(), |weights| format!(", {}", weights_words(weights)));
    let _ = writeln!(text, "{}{weights}, {level}, {} threads", subject.name, machine.threads);
    let on = question.gpu.as_ref().map_or(String::new(), |gpu| format!(" on {gpu}"));
    let _ = writeln!(text, "memory budget {budget}{on}\n");
    if subject.in_place || !subject.is_here() {
        text += &(subject.describe() + "\n");
    }
    let line = |what: &str, memory: u64, disk: u64, more: String| {
        let disk = if disk == 0 { String::new() } else { ByteSize(disk).to_string() };
        let line = format!("{what:<26} {:>9} {disk:>9}  {more}", ByteSize(memory).to_string());
        line.trim_end().to_owned() + "\n"
    };
    text += &format!("{:<26} {:>9} {:>9}\n", "", "memory", "disk");
    text += &line("weights of every token", dense_bytes(memory), 0, String::new());
    if subject.config.has_experts() {
        let share = found.resident_expert_bytes as f64 / answer.demand.expert_bytes().max(1) as f64;
        let share = format!("{:.0} % in memory", 100.0 * share);
        text += &line("experts", expert_bytes(memory), found.disk_expert_bytes, share);
    }
    let context = format!("context of {} tokens", memory.context_length);
    text += &line("keys and values", memory.kv_bytes, 0, context);
    text += &line("scratch", memory.scratch_bytes, 0, String::new());
    text += &line("program", memory.program_bytes, 0, String::new());
    text += &line("in all", memory.total_bytes(), 0, String::new());
    text += "\n";
    if let Some(note) = context_note(&subject.config) {
        text += &(note + "\n\n");
    }
    text += &machine_text(machine, &answer.demand);
    if question.gpu.is_some() {
        text +=
            "          computed with the processor's memory: give the GPU's with --memory-speed\n";
    }
    text += &match subject.config.has_experts() {
        true => forecast_text(answer),
        false => dense_forecast_text(answer),
    };
    text += &levels_text(question, machine);
    if !subject.is_here() {
        text += &conclusion(question, answer, machine);
    }
    if let Some(wanted) = wanted {
        text += &wanted.describe(question.level);
    }
    text
}

/// Describes the assumed speed of memory and disk in one line.
fn machine_text(machine: &Machine, demand: &Demand) -> String {
    let planes = demand.layers.iter().flat_map(|layer| &layer.experts);
    let planes = planes.flat_map(|expert| expert.plane_bytes).filter(|bytes| *bytes > 0);
    let (count, sum) = planes.fold((0u64, 0u64), |(n, sum), bytes| (n + 1, sum + bytes));
    let read = sum / count.max(1);
    let how = machine
        .disk
        .as_ref()
        .map_or(String::new(), |disk| format!(" ({}, {} at a time)", disk.method, disk.depth));
    format!(
        "machine   memory {}, disk {:.2} GB/s at reads of {}{how}\n",
        machine.memory_words(),
        machine.speed.disk_at(read) / 1e9,
        ByteSize(read)
    )
}

fn forecast_text(answer: &Answer) -> String {
    let found = &answer.forecast;
    let mut text = String::new();
    let _ = writeln!(
        text,
        "forecast  {:.1} tokens/s: {:.1} ms to compute a token, {:.1} ms to read what is missing, at a \
         context of {} tokens",
        found.tokens_per_s,
        1e3 * found.compute_s,
        1e3 * found.read_s,
        context_of(&answer.memory),
    );
    let _ = writeln!(
        text,
        "          a token uses {} of experts: {:.0} % from memory, {} from disk",
        ByteSize(answer.token_expert_bytes()),
        100.0 * found.hit_rate,
        ByteSize(found.missing_bytes as u64),
    );
    if !answer.demand.is_measured && !found.is_whole() {
        text += "          the use of each expert is assumed: the store has no measurement\n";
    }
    let _ = writeln!(
        text,
        "budgets   {} is the minimum; with {} all experts are in memory\n",
        ByteSize(answer.least_bytes),
        ByteSize(answer.whole_bytes()),
    );
    text
}

/// Formats the forecast of a dense model.
fn dense_forecast_text(answer: &Answer) -> String {
    format!(
        "forecast  {:.1} tokens/s: {:.1} ms to compute a token, at a context of {} tokens\n\
         budgets   {} is the minimum; {DENSE}, so streaming them would be as slow as reading the \
         file each time\n\n",
        answer.forecast.tokens_per_s,
        1e3 * answer.forecast.compute_s,
        context_of(&answer.memory),
        ByteSize(answer.least_bytes),
    )
}

/// Formats the forecast for every level of the store at the same budget.
fn levels_text(question: &Question, machine: &Machine) -> String {
    // Only experts are cached and read during a run.
    let has_experts = question.subject.config.has_experts();
    let mut text = format!("{:>5} {:>9} {:>9}", "level", "size", "tokens/s");
    text +=
        &if has_experts { format!(" {:>6} {:>13}\n", "hits", "read/token") } else { "\n".into() };
    for size in levels(question) {
        let (level, bytes) = (size.level, ByteSize(size.bytes).to_string());
        let Some(found) = at_level(question, machine, level) else {
            let _ = writeln!(text, "{level:>5} {bytes:>9} does not fit");
            continue;
        };
        let _ = write!(text, "{level:>5} {bytes:>9} {:>9.1}", found.tokens_per_s);
        if has_experts {
            let missing = ByteSize(found.missing_bytes as u64).to_string();
            let _ = write!(text, " {:>4.0} % {missing:>13}", 100.0 * found.hit_rate);
        }
        text.push('\n');
    }
    text
}

/// Summarizes in a sentence whether and how fast the model would run on this machine.
fn conclusion(question: &Question, answer: &Answer, machine: &Machine) -> String {
    let lacking = question.subject.lacking();
    let speed = answer.forecast.tokens_per_s;
    let mut text = match lacking {
        0 => format!("\nit would run here: {speed:.1} tokens/s at level {}", question.level),
        lacking => format!(
            "\nit would run here at {speed:.1} tokens/s at level {}, but {} of disk are lacking",
            question.level,
            ByteSize(lacking)
        ),
    };
    let whole = |level| at_level(question, machine, level).filter(Forecast::is_whole);
    let best = levels(question).rev().find_map(|size| Some((size.level, whole(size.level)?)));
    match best {
        _ if answer.forecast.is_whole() => text += ", with everything in memory",
        Some((level, found)) => {
            let speed = found.tokens_per_s;
            let _ = write!(text, "; level {level} fits in memory as a whole: {speed:.1} tokens/s");
        }
        None => text += "; at no level does it fit in memory as a whole",
    }
    text + "\n"
}

fn levels(question: &Question) -> impl DoubleEndedIterator<Item = LevelSize> + use<> {
    let (held, only) = (question.subject.held, question.subject.in_place);
    let sizes = level_sizes_of_index(&question.subject.index).into_iter();
    sizes.filter(move |size| size.level <= held && (!only || size.level == held))
}

fn at_level(question: &Question, machine: &Machine, level: Level) -> Option<Forecast> {
    let answer = question.at(machine, level, None, question.budget).ok()?;
    Some(answer.forecast)
}

impl SpeedTarget {
    fn describe(&self, level: Level) -> String {
        let speed = self.tokens_per_s;
        if self.is_reached {
            return format!("\n{speed} tokens/s are reached\n");
        }
        let mut ways = Vec::new();
        if let Some(mean) = self.mean_level {
            ways.push(format!("a mean level of {mean:.1} within this budget"));
        }
        if let Some(budget) = self.budget {
            ways.push(format!("{} of memory at level {level}", ByteSize(budget)));
        }
        match ways.is_empty() {
            true => format!("\nthis machine cannot reach {speed} tokens/s at any level\n"),
            false => format!("\n{speed} tokens/s need {}\n", ways.join(", or ")),
        }
    }
}

fn as_json(
    question: &Question,
    answer: &Answer,
    machine: &Machine,
    wanted: Option<&SpeedTarget>,
) -> Value {
    let memory = &answer.memory;
    let levels = levels(question).map(|size| match at_level(question, machine, size.level) {
        Some(found) => {
            let mut fields = forecast_json(&found);
            fields["level"] = json!(size.level.bits());
            fields["bytes"] = json!(size.bytes);
            fields
        }
        None => json!({"level": size.level.bits(), "bytes": size.bytes, "fits": false}),
    });
    json!({
        "store": question.subject.name,
        // A planned store has no id.
        "id": question.subject.weights.is_none().then(|| question.subject.index.id().to_string()),
        "arrival": question.subject.as_json(),
        "level": question.level.bits(),
        "dense": !question.subject.config.has_experts(),
        "mean_level": question.mean_level,
        "memory_bytes": question.budget,
        "gpu": question.gpu,
        "least_memory_bytes": answer.least_bytes,
        "whole_memory_bytes": answer.whole_bytes(),
        "placement": {
            "streamed": memory.residence == PlannedResidence::Streamed,
            "dense_bytes": dense_bytes(memory),
            "expert_bytes": expert_bytes(memory),
            "expert_bytes_total": memory.expert_bytes_total,
            "disk_expert_bytes": answer.forecast.disk_expert_bytes,
            "kv_bytes": memory.kv_bytes,
            "scratch_bytes": memory.scratch_bytes,
            "program_bytes": memory.program_bytes,
            "total_bytes": memory.total_bytes(),
            "context_length": memory.context_length,
            "context_note": context_note(&question.subject.config),
        },
        "machine": machine.as_json(),
        "experts_measured": answer.demand.is_measured,
        "forecast": forecast_json(&answer.forecast),
        "levels": levels.collect::<Vec<_>>(),
        "wanted": wanted.map(|wanted| json!({
            "tokens_per_s": wanted.tokens_per_s,
            "reached": wanted.is_reached,
            "mean_level": wanted.mean_level,
            "memory_bytes": wanted.budget,
        })),
    })
}

pub fn forecast_json(found: &Forecast) -> Value {
    json!({
        "tokens_per_s": found.tokens_per_s,
        "hit_rate": found.hit_rate,
        "token_bytes": found.token_bytes.round(),
        "missing_bytes_per_token": found.missing_bytes.round(),
        "best_missing_bytes_per_token": found.best_missing_bytes.round(),
        "compute_ms": 1e3 * found.compute_s,
        "read_ms": 1e3 * found.read_s,
    })
}
