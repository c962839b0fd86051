//! `nestling list`, `pull`, `rm` and `gc`: management of models on this machine.

use crate::args::{CalibrationArgs, GcArgs, ListArgs, PullArgs, RmArgs};
use crate::bytes::ByteSize;
use crate::console::{Console, write_out};
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::words::counted;
use crate::{convert, hub};
use nestling_hub::{
    CachedKind, CachedModel, ConvertedModel, Inventory, Reference, Removal, Source, SourceState,
    is_gguf, remove, remove_leftover,
};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::io::{IsTerminal, stdin};
use std::time::{SystemTime, UNIX_EPOCH};

/// Number of hexadecimal digits shown of a commit.
const COMMIT_SHOWN: usize = 8;

pub fn list(args: &ListArgs) -> Result<()> {
    let inventory = Inventory::of(&hub::caches()?);
    if args.format.is_json() {
        return write_out(&format!("{:#}\n", as_json(&inventory)));
    }
    write_out(&as_text(&inventory))
}

fn as_text(inventory: &Inventory) -> String {
    if inventory.models.is_empty() && inventory.leftovers.is_empty() {
        return "nothing is cached; `nestling pull OWNER/REPO` fetches a model\n".into();
    }
    let mut text = String::new();
    let width = inventory.models.iter().map(|model| model.name.chars().count()).max();
    // Default: the width is unused without models.
    let width = width.unwrap_or(0).max("name".len());
    if !inventory.models.is_empty() {
        let _ =
            writeln!(text, "{:width$}  {:9}  {:>8}  {:>12}  from", "name", "kind", "size", "used");
    }
    for model in &inventory.models {
        let size = ByteSize(model.bytes).to_string();
        let line = format!(
            "{:width$}  {:9}  {size:>8}  {:>12}  {}",
            model.name,
            model.kind.name(),
            used(model),
            from(model),
        );
        let _ = writeln!(text, "{}", line.trim_end());
    }
    let (caches, others): (Vec<_>, Vec<_>) =
        inventory.models.iter().partition(|model| model.kind != CachedKind::InPlace);
    let beside: u64 = others.iter().map(|model| model.beside_bytes).sum();
    let all: u64 =
        caches.iter().map(|model| model.bytes + model.beside_bytes).sum::<u64>() + beside;
    let _ = writeln!(text, "{} of models in the caches", ByteSize(all));
    let free: u64 = inventory.leftovers.iter().map(|left| left.bytes).sum();
    if !inventory.leftovers.is_empty() {
        let free = ByteSize(free);
        let _ = writeln!(text, "{free} that nothing needs: `nestling gc` removes it");
    }
    text
}

/// Returns the source of a model and notes about it.
fn from(model: &CachedModel) -> String {
    let short = |commit: &str| commit.chars().take(COMMIT_SHOWN).collect::<String>();
    let mut words = Vec::new();
    if let Some(level) = model.level {
        words.push(format!("level {level}"));
    }
    match &model.source {
        Some(Source::Repository { commit, is_here, .. }) => {
            let there = if *is_here { "" } else { ", which is gone" };
            words.push(format!("made of the download {}{there}", short(commit)));
        }
        Some(Source::File { path, state }) => {
            let there = match state {
                SourceState::Here => "",
                SourceState::Changed => ", which has changed",
                SourceState::Gone => ", which is gone",
            };
            words.push(format!("made of {}{there}", path.display()));
        }
        _ => words.extend(model.commits.iter().map(|commit| format!("commit {}", short(commit)))),
    }
    if model.kind == CachedKind::InPlace {
        words.push(model.path.display().to_string());
    }
    if model.is_outdated {
        words.push("outdated".into());
    }
    if model.damage.is_some() {
        words.push("cannot be opened: `nestling verify` says why".into());
    }
    words.join(", ")
}

fn used(model: &CachedModel) -> String {
    if model.is_open {
        return "now".into();
    }
    let age = model.last_used.and_then(|last| SystemTime::now().duration_since(last).ok());
    let Some(age) = age else { return "-".into() };
    match age.as_secs() {
        0..=3599 => format!("{} min ago", age.as_secs() / 60),
        3600..=86_399 => format!("{} h ago", age.as_secs() / 3600),
        seconds => format!("{} ago", counted((seconds / 86_400) as usize, "day")),
    }
}

fn as_json(inventory: &Inventory) -> Value {
    let models: Vec<Value> = inventory.models.iter().map(model_json).collect();
    let leftovers = inventory.leftovers.iter().map(|left| {
        let (path, why) = (left.path.display().to_string(), left.why.name());
        json!({ "path": path, "bytes": left.bytes, "why": why })
    });
    json!({ "models": models, "leftovers": leftovers.collect::<Vec<_>>() })
}

fn model_json(model: &CachedModel) -> Value {
    let source = model.source.as_ref().map(|source| match source {
        Source::Repository { id, commit, is_here } => {
            json!({ "repository": id, "commit": commit, "is_here": is_here })
        }
        Source::File { path, state } => json!({
            "path": path.display().to_string(),
            "is_here": *state == SourceState::Here,
            "has_changed": *state == SourceState::Changed,
        }),
        _ => Value::Null,
    });
    let seconds = model.last_used.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    json!({
        "name": model.name,
        "kind": model.kind.name(),
        "path": model.path.display().to_string(),
        "bytes": model.bytes,
        "beside_bytes": model.beside_bytes,
        "level": model.level,
        "commits": model.commits,
        "made_of": source,
        "last_used": seconds.map(|time| time.as_secs()),
        "is_open": model.is_open,
        "is_outdated": model.is_outdated,
        "damage": model.damage,
    })
}

pub fn pull(args: &PullArgs, console: &Console, interrupt: &Interrupt) -> Result<()> {
    let Some(name) = args.path.as_ref().or(args.hub.hf_repo.as_ref()) else {
        return Err(Failure::usage("nothing to fetch was named")
            .advise("name a repository, for example `nestling pull Qwen/Qwen3-30B-A3B`"));
    };
    let reference = Reference::parse(name, &args.hub.hf_revision)?;
    let calibration = CalibrationArgs::default();
    let mut options = hub::options(&args.hub, &calibration)?;
    options.in_place = true;
    let level = args.level.map(|level| level.0);
    let obtained = nestling_hub::obtain(&reference, level, &options, console)?;
    let ConvertedModel { checkpoint, store } = &obtained;
    if obtained.is_converted() {
        return write_out(&format!("{}\n", store.display()));
    }
    if args.convert {
        convert::once(&options.stores, &obtained, &calibration, console, interrupt)?;
        return write_out(&format!("{}\n", store.display()));
    }
    console.note(match is_gguf(checkpoint) {
        true => format!("it runs in place: `nestling chat -hf {name}`"),
        false => format!("its store is made at first use: `nestling chat -hf {name}`"),
    });
    write_out(&format!("{}\n", checkpoint.display()))
}

pub fn rm(args: &RmArgs, console: &Console) -> Result<()> {
    let caches = hub::caches()?;
    let inventory = Inventory::of(&caches);
    let mut chosen: Vec<&CachedModel> = Vec::new();
    for name in &args.names {
        let called = inventory.called(name);
        if called.is_empty() {
            return Err(Failure::new(format!("no model called `{name}` is in the caches"))
                .advise("choose one that `nestling list` shows"));
        }
        for model in called {
            if !chosen.iter().any(|other| other.path == model.path) {
                chosen.push(model);
            }
        }
    }
    let mut all = 0;
    for model in &chosen {
        let removal = Removal::of(model, &caches);
        all += removal.bytes;
        let what = match model.kind {
            CachedKind::InPlace => "what is kept of",
            kind => kind.name(),
        };
        let bytes = ByteSize(removal.bytes);
        console.line(format_args!("{what} {}: {bytes}, {}", model.name, model.path.display()));
    }
    if let Some(model) = chosen.iter().find(|model| model.is_open) {
        return Err(Failure::new(format!("{} is in use: a process has it open", model.name))
            .advise("end that process first"));
    }
    if !args.yes && !agrees(console, all)? {
        return Err(Failure::new("nothing was removed").advise("answer y, or give --yes"));
    }
    let mut freed = 0;
    for model in chosen {
        freed += remove(model, &caches)?;
    }
    write_out(&format!("{} are free now\n", ByteSize(freed)))
}

/// Asks the user for confirmation. Fails if standard input is not a terminal.
fn agrees(console: &Console, bytes: u64) -> Result<bool> {
    if !stdin().is_terminal() {
        return Err(Failure::usage("confirmation needs a terminal")
            .advise("give --yes to remove it without a question"));
    }
    console.write(format_args!("remove {}? [y/N] ", ByteSize(bytes)));
    let mut answer = String::new();
    let read = stdin().read_line(&mut answer);
    Ok(read.is_ok() && matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}

pub fn gc(args: &GcArgs, console: &Console) -> Result<()> {
    let caches = hub::caches()?;
    let inventory = Inventory::of(&caches);
    let mut freed = 0;
    for left in &inventory.leftovers {
        let removed = match args.dry_run {
            true => Some(left.bytes),
            false => remove_leftover(left, &caches)?,
        };
        if let Some(bytes) = removed {
            freed += bytes;
            let (why, bytes) = (left.why.name(), ByteSize(bytes));
            console.note(format_args!("{why}: {bytes}, {}", left.path.display()));
        }
    }
    let words = if args.dry_run { "would be free" } else { "are free now" };
    write_out(&format!("{} {words}\n", ByteSize(freed)))
}
