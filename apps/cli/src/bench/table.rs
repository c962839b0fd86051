//! Formats results as Markdown, CSV and JSON.

use super::record::Record;
use crate::args::{Format, FormatArgs};
use crate::console::{Console, write_out};
use crate::failure::Result;
use serde_json::{Map, Value};

/// Prints each result as soon as it is measured, to standard output and optionally to standard error.
pub struct Printer<'a> {
    console: &'a Console,
    out: FormattedOutput,
    error: Option<FormattedOutput>,
}

/// An output format and the number of results printed in it.
struct FormattedOutput {
    format: Format,
    printed: usize,
}

impl<'a> Printer<'a> {
    pub fn new(args: &FormatArgs, console: &'a Console) -> Result<Self> {
        let form = |format| FormattedOutput { format, printed: 0 };
        let error = args.output_err.map(form);
        Ok(Self { console, out: form(args.output_format), error })
    }

    pub fn print(&mut self, record: &Record<'_>) -> Result<()> {
        if let Some(error) = &mut self.error {
            self.console.write(error.next(record));
        }
        write_out(&self.out.next(record))
    }

    pub fn finish(&mut self) -> Result<()> {
        if let Some(error) = &self.error {
            self.console.write(error.end());
        }
        write_out(self.out.end())
    }
}

impl FormattedOutput {
    /// Returns the text that one more result adds.
    fn next(&mut self, record: &Record<'_>) -> String {
        let first = self.printed == 0;
        self.printed += 1;
        match self.format {
            Format::Md if first => header(cells(record).len()) + &row(&cells(record)),
            Format::Md => row(&cells(record)),
            Format::Csv => csv(&record.fields(), first),
            Format::Json => {
                let start = if first { "[\n" } else { ",\n" };
                format!("{start}{}", indented(record.fields()))
            }
            Format::Jsonl => format!("{}\n", Value::Object(record.fields())),
        }
    }

    fn end(&self) -> &'static str {
        match (self.format, self.printed) {
            (Format::Json, 0) => "[]\n",
            (Format::Json, _) => "\n]\n",
            _ => "",
        }
    }
}

/// Column names and widths; a negative width means left-aligned.
const COLUMNS: [(&str, i32); 18] = [
    ("model", -40),
    ("size", 10),
    ("params", 9),
    ("backend", -16),
    ("threads", 7),
    ("ranks", 5),
    ("level", 5),
    ("lm", -6),
    ("sessions", 8),
    ("test", 16),
    ("t/s", 18),
    ("GB/s", 6),
    ("of memory", 9),
    ("MB/token", 8),
    ("hits", 5),
    ("disk MB/token", 13),
    ("stall ms", 8),
    ("peak memory", 11),
];

/// Columns for a device, with values per token.
const DEVICE_COLUMNS: [(&str, i32); 4] =
    [("dispatches", 10), ("submissions", 11), ("waits", 5), ("upload MB", 9)];

fn columns() -> impl Iterator<Item = (&'static str, i32)> {
    COLUMNS.into_iter().chain(DEVICE_COLUMNS)
}

fn header(count: usize) -> String {
    let names: Vec<String> = columns().take(count).map(|(name, _)| name.to_owned()).collect();
    let lines = columns().take(count).map(|(_, width)| {
        let dashes = "-".repeat(width.unsigned_abs() as usize - 1);
        if width < 0 { format!("{dashes}-") } else { format!("{dashes}:") }
    });
    row(&names) + &row(&lines.collect::<Vec<_>>())
}

fn row(cells: &[String]) -> String {
    let cells = cells.iter().zip(columns()).map(|(cell, (_, width))| {
        let chars = width.unsigned_abs() as usize;
        if width < 0 { format!(" {cell:<chars$} |") } else { format!(" {cell:>chars$} |") }
    });
    format!("|{}\n", cells.collect::<String>())
}

/// Returns the cells of a row. The columns of a device are present only if there is one.
fn cells(record: &Record<'_>) -> Vec<String> {
    let opening = record.opening;
    let gibibytes = |bytes: u64| match bytes as f64 / f64::from(1u32 << 30) {
        size if size < 1.0 => format!("{:.2} MiB", size * 1024.0),
        size => format!("{size:.2} GiB"),
    };
    let speed = record.speed();
    let share = record.bandwidth_share().map(|share| format!("{:.1} %", 100.0 * share));
    let mut cells = vec![
        record.model_type(),
        gibibytes(record.model.bytes_at(opening.level)),
        match record.model.weights as f64 {
            weights if weights < 1e9 => format!("{:.2} M", weights / 1e6),
            weights => format!("{:.2} B", weights / 1e9),
        },
        record.backend(),
        opening.threads.to_string(),
        opening.ranks.to_string(),
        opening.level.to_string(),
        record.load_name().into(),
        record.test.sessions.to_string(),
        record.name(),
        format!("{:.2} ± {:.2}", speed.mean, speed.deviation),
        format!("{:.2}", record.read_speed() / 1e9),
        // Default: an empty cell.
        share.unwrap_or_default(),
        format!("{:.2}", record.token_bytes() / 1e6),
        format!("{:.0} %", 100.0 * record.hit_rate()),
        format!("{:.2}", record.disk_bytes() / 1e6),
        format!("{:.2}", 1e3 * record.stall().as_secs_f64()),
        // Default: an empty cell.
        record.peak_memory.map(gibibytes).unwrap_or_default(),
    ];
    if record.device.is_some() {
        let [dispatches, submissions, waits, upload_bytes, _] = record.device_work();
        cells.push(format!("{dispatches:.1}"));
        cells.push(format!("{submissions:.2}"));
        cells.push(format!("{waits:.2}"));
        cells.push(format!("{:.2}", upload_bytes / 1e6));
    }
    cells
}

/// Returns fields as CSV, each in quotes as in llama-bench. The samples are left out.
pub fn csv(fields: &Map<String, Value>, with_header: bool) -> String {
    let fields: Vec<_> = fields.iter().filter(|(_, value)| !value.is_array()).collect();
    let mut out = String::new();
    if with_header {
        let names: Vec<&str> = fields.iter().map(|(name, _)| name.as_str()).collect();
        out = names.join(",") + "\n";
    }
    let quoted = |value: &Value| match value {
        Value::String(text) => in_quotes(text),
        Value::Null => in_quotes(""),
        other => in_quotes(&other.to_string()),
    };
    let values: Vec<String> = fields.iter().map(|(_, value)| quoted(value)).collect();
    out + &values.join(",") + "\n"
}

fn in_quotes(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}

/// Returns a JSON object with one field on each line.
fn indented(fields: Map<String, Value>) -> String {
    let lines: Vec<String> = fields
        .into_iter()
        .map(|(name, value)| format!("    {}: {value}", Value::String(name)))
        .collect();
    format!("  {{\n{}\n  }}", lines.join(",\n"))
}
