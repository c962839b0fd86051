//! `nestling bench serve`: measures a server of the OpenAI API under load.

mod client;
mod load;
mod plot;
mod report;
mod work;

use crate::args::{Format, LoadArgs, WorkArgs};
use crate::bench::table::csv;
use crate::console::{Console, write_out};
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::serve::keys;
use client::{Client, ServedModel};
use report::{Point, Report, Times};
use serde_json::{Map, Value, json};
use std::fmt::Write as _;
use std::path::Path;

/// Default number of concurrent clients when a request rate is given.
const CLIENTS: usize = 256;

const CLIENTS_MAX: usize = 4096;

pub fn serve(args: &LoadArgs, console: &Console, interrupt: &Interrupt) -> Result<()> {
    let key = args.client_key_file.as_deref().map(key).transpose()?;
    let client = Client::new(&args.url, key);
    let served = served(&client, args)?;
    let vocab_size = args.work.vocab_size.or(served.vocab_size).ok_or_else(|| {
        let failure =
            Failure::new(format!("the server does not say how many tokens {} knows", served.name));
        failure.advise("name a number of tokens with --vocab-size")
    })?;
    let mut reports = Vec::new();
    for (load, point) in points(&args.work)?.into_iter().enumerate() {
        let requests = work::requests(&args.work, load, vocab_size, point.rate);
        console.note(format_args!("{}: {} requests", described(&point), requests.len()));
        let run = interrupt.guard(|cancel| {
            let run = load::run(&client, &served.name, &requests, point.clients, cancel);
            (!cancel.is_cancelled()).then_some(run)
        });
        let run = run.ok_or_else(Failure::interrupted)?;
        if let Some(failure) = run.outcomes.iter().find_map(|outcome| outcome.failure.as_ref()) {
            console.warn(format_args!("a request failed: {failure}"));
        }
        reports.push(Report::new(point, &run, &args.goodput));
    }
    print(args, &served, &reports)?;
    if let Some(path) = &args.svg {
        let title = format!("{} at {}", served.name, args.url);
        let drawn = plot::svg(&title, &reports, &args.percentiles);
        std::fs::write(path, drawn).map_err(|error| Failure::file("write", path, &error))?;
    }
    match reports.iter().all(|report| report.completed == 0) {
        true => Err(Failure::new("no request was answered").advise("look into the server's log")),
        false => Ok(()),
    }
}

fn key(path: &Path) -> Result<String> {
    let text = keys(path)?;
    let key = text.lines().next().map(str::trim).filter(|key| !key.is_empty());
    key.map(str::to_owned)
        .ok_or_else(|| Failure::new(format!("{} has no key in its first line", path.display())))
}

/// Selects the model to send requests to.
fn served(client: &Client, args: &LoadArgs) -> Result<ServedModel> {
    let failed = |error| {
        let failure = Failure::new(format!("{} does not list its models: {error}", args.url));
        failure.advise("start one with `nestling serve`, or name another with --url")
    };
    let models = client.models().map_err(failed)?;
    let wanted = args.served_model.as_ref();
    let found = models.iter().find(|model| wanted.is_none_or(|name| *name == model.name));
    found.cloned().ok_or_else(|| {
        let names: Vec<&str> = models.iter().map(|model| model.name.as_str()).collect();
        let failure = Failure::new(format!("{} does not serve that model", args.url));
        failure.advise(format!("name one of: {}", names.join(", ")))
    })
}

fn points(args: &WorkArgs) -> Result<Vec<Point>> {
    let listed = args.max_concurrency.as_ref().map(|list| list.0.clone());
    // Default: one client, or enough clients to keep the requested rate.
    let unless_told = if args.request_rate.is_empty() { 1 } else { CLIENTS };
    let clients = match listed {
        Some(list) => list.into_iter().map(|count| count as usize).collect(),
        None => vec![unless_told],
    };
    if clients.iter().any(|count| !(1..=CLIENTS_MAX).contains(count)) {
        let message = format!("--max-concurrency takes numbers from 1 to {CLIENTS_MAX}");
        return Err(Failure::usage(message).advise("write numbers such as 1,4,16"));
    }
    let rates: Vec<Option<f64>> = match args.request_rate.is_empty() {
        true => vec![None],
        false => args.request_rate.iter().map(|rate| Some(rate.0)).collect(),
    };
    let of_rate = |rate: Option<f64>| clients.iter().map(move |&clients| Point { rate, clients });
    Ok(rates.into_iter().flat_map(of_rate).collect())
}

fn described(point: &Point) -> String {
    match point.rate {
        Some(rate) => format!("{rate} requests a second, at most {} at a time", point.clients),
        None => format!("{} at a time", point.clients),
    }
}

fn print(args: &LoadArgs, served: &ServedModel, reports: &[Report]) -> Result<()> {
    let fields = |report: &Report| {
        let mut all = Map::new();
        all.insert("model_id".into(), served.name.as_str().into());
        all.insert("num_prompts".into(), args.work.num_prompts.into());
        all.insert("random_output_len".into(), args.work.output_len.into());
        all.insert("random_prefix_len".into(), args.work.prefix_len.into());
        all.insert("seed".into(), args.work.seed.into());
        all.extend(report.fields(&args.percentiles));
        all
    };
    let records: Vec<Map<String, Value>> = reports.iter().map(fields).collect();
    let text = match args.output_format {
        Format::Md => table(args, reports),
        Format::Json => format!("{:#}\n", json!(records)),
        Format::Jsonl => records.iter().map(|record| format!("{}\n", json!(record))).collect(),
        Format::Csv => {
            records.iter().enumerate().map(|(index, record)| csv(record, index == 0)).collect()
        }
    };
    write_out(&text)
}

/// Formats a table with one line per load: percentiles of first-token times and gaps in milliseconds.
fn table(args: &LoadArgs, reports: &[Report]) -> String {
    let percents: Vec<String> =
        args.percentiles.iter().map(|percent| format!("p{percent}")).collect();
    let percents = percents.join(" / ");
    let mut out = format!(
        "| requests/s | clients | done | failed | tokens/s | first token {percents} ms | gaps {percents} ms | \
         cached tokens | goodput/s |\n|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n"
    );
    let cells = |times: &Times| {
        let cell = |percent: &u8| match times.percentile(*percent) {
            Some(time) => format!("{:.1}", 1e3 * time),
            None => "–".to_owned(),
        };
        args.percentiles.iter().map(cell).collect::<Vec<_>>().join(" / ")
    };
    for report in reports {
        let rate = report.point.rate.map_or_else(|| "–".to_owned(), |rate| rate.to_string());
        let cached = match report.prompt_tokens {
            0 => "–".to_owned(),
            all => format!("{:.0} %", 100.0 * report.cached_tokens as f64 / all as f64),
        };
        let good = report.good.map(|good| format!("{:.2}", report.per_second(good as f64)));
        let _ = writeln!(
            out,
            "| {rate} | {} | {} | {} | {:.2} | {} | {} | {cached} | {} |",
            report.point.clients,
            report.completed,
            report.failed,
            report.per_second(report.tokens as f64),
            cells(&report.first),
            cells(&report.gaps),
            good.unwrap_or_else(|| "–".to_owned()),
        );
    }
    out
}
