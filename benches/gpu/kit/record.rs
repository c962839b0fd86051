//! The record: a JSON file that is complete at any time.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use crate::libtest::{Case, Verdict};

/// Results collected so far.
pub struct Record {
    path: PathBuf,
    root: Map<String, Value>,
}

impl Record {
    pub fn new(path: PathBuf, root: Map<String, Value>) -> Self {
        Self { path, root }
    }

    pub fn set(&mut self, key: &str, value: impl Into<Value>) {
        self.root.insert(key.into(), value.into());
    }

    #[cfg(test)]
    pub fn get(&self, key: &str) -> &Value {
        self.root.get(key).unwrap_or(&Value::Null)
    }

    /// Merges results: lists are appended, objects are merged, and other values are replaced.
    pub fn merge(&mut self, under: Option<&str>, found: Value) {
        let found = match under {
            Some(under) => json!({ under: found }),
            None => found,
        };
        if let Value::Object(found) = found {
            merge(&mut self.root, found);
        }
    }

    pub fn step(&mut self, step: Value) {
        self.merge(None, json!({ "steps": [step] }));
    }

    /// Adds cases. `alone` contains the results of cases that were run again separately.
    pub fn cases(&mut self, table: &str, cases: &[Case], alone: &[Case]) {
        let told = cases.iter().map(|case| {
            let again = alone.iter().find(|one| one.name == case.name);
            case_json(case, again)
        });
        let told: Vec<Value> = told.collect();
        self.merge(None, json!({ "cases": { table: told } }));
    }

    /// Writes the file atomically.
    ///
    /// # Errors
    /// Returns an error if the folder cannot be written.
    pub fn write(&self) -> io::Result<()> {
        write_whole(&self.path, &format!("{:#}\n", Value::Object(self.root.clone())))
    }
}

fn write_whole(path: &Path, text: &str) -> io::Result<()> {
    let partial = path.with_extension("partial");
    fs::write(&partial, text)?;
    fs::rename(partial, path)
}

fn merge(into: &mut Map<String, Value>, found: Map<String, Value>) {
    for (key, value) in found {
        match (into.get_mut(&key), value) {
            (Some(Value::Object(known)), Value::Object(value)) => merge(known, value),
            (Some(Value::Array(known)), Value::Array(value)) => known.extend(value),
            (_, value) => {
                into.insert(key, value);
            }
        }
    }
}

fn case_json(case: &Case, again: Option<&Case>) -> Value {
    let mut told = json!({ "name": case.name, "outcome": outcome(case) });
    if let Some(message) = case.message() {
        told["message"] = message.into();
    }
    if let Some(again) = again {
        told["alone"] = outcome(again).into();
        if let Some(message) = again.message() {
            told["alone_message"] = message.into();
        }
    }
    told
}

fn outcome(case: &Case) -> &'static str {
    match case.verdict {
        _ if case.is_skipped() => "skipped",
        Verdict::Passed => "passed",
        Verdict::Failed => "failed",
        Verdict::Unfinished => "unfinished",
        Verdict::Ignored => "skipped",
    }
}

/// Parses lines of JSON. Invalid lines, such as an incomplete last line, are ignored.
pub fn lines(text: &str) -> impl Iterator<Item = Value> {
    text.lines().filter_map(|line| serde_json::from_str(line).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_found_is_merged() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("result.json");
        let mut record = Record::new(path.clone(), Map::new());
        let text =
            "{\"bandwidth\":[1],\"card\":{\"a\":1}}\n{\"bandwidth\":[2],\"card\":{\"b\":2}}\n{\"ba";
        lines(text).for_each(|line| record.merge(None, line));
        lines("{\"bandwidth\":[3]}").for_each(|line| record.merge(Some("vulkan"), line));
        record.set("passed", true);
        record.write().unwrap();
        let read: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
        let expected = json!({
            "bandwidth": [1, 2], "card": { "a": 1, "b": 2 }, "vulkan": { "bandwidth": [3] }, "passed": true
        });
        assert_eq!(read, expected);
    }

    #[test]
    fn a_case_that_passes_alone_is_told_so() {
        let case =
            |verdict| Case { name: "a".into(), verdict, output: "thread panicked at".into() };
        let (failed, passed) = (case(Verdict::Failed), case(Verdict::Passed));
        let told = case_json(&failed, Some(&passed));
        assert_eq!((&told["outcome"], &told["alone"]), (&json!("failed"), &json!("passed")));
    }
}
