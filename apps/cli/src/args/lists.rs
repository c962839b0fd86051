//! Arguments shared by the commands that measure: lists of numbers and formats of results.

use clap::ValueEnum;
use std::str::FromStr;

/// Output format of results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    // Markdown table
    Md,
    // CSV, one line with all fields for each test
    Csv,
    // JSON array of objects
    Json,
    // JSON Lines, one object for each test
    Jsonl,
}

/// Maximum number of entries in one list.
const NUMBERS_MAX: usize = 1000;

/// A list in llama-bench's syntax: `512`, `128,512`, `1-4`, `1-8*2` or `128-512+128`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Numbers(pub Vec<u32>);

impl FromStr for Numbers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!("`{text}` is not a list of numbers such as 128,512 or 1-4 or 1-8*2 or 16-64+16")
        };
        let mut numbers = Vec::new();
        for part in text.split(',') {
            let more = range(part.trim()).ok_or_else(wrong)?;
            numbers.extend(more);
            if numbers.len() > NUMBERS_MAX {
                return Err(format!("`{text}` has more than {NUMBERS_MAX} numbers"));
            }
        }
        Ok(Self(numbers))
    }
}

/// Parses one number, or a range with an optional step. Returns `None` if the text is malformed.
fn range(text: &str) -> Option<Vec<u32>> {
    let Some((first, rest)) = text.split_once('-') else { return Some(vec![number(text)?]) };
    let operator = rest.find(['+', '*']);
    let (last, step) = rest.split_at(operator.unwrap_or(rest.len()));
    let (first, last) = (number(first)?, number(last)?);
    let next: Box<dyn Fn(u32) -> Option<u32>> = match step.split_at_checked(1) {
        Some(("*", by)) => {
            let by = number(by).filter(|by| *by > 1 && first > 0)?;
            Box::new(move |at| at.checked_mul(by))
        }
        Some(("+", by)) => {
            let by = number(by).filter(|by| *by > 0)?;
            Box::new(move |at| at.checked_add(by))
        }
        _ => Box::new(|at| at.checked_add(1)),
    };
    let numbers = std::iter::successors(Some(first), |at| next(*at));
    Some(numbers.take_while(|at| *at <= last).take(NUMBERS_MAX + 1).collect())
}

pub(super) fn number(text: &str) -> Option<u32> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| digits)
}
