//! Arguments of the program.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::words::parse_size;

/// Text of `--help`.
pub const HELP: &str = "\
Chat with a model file, with a live map of its experts and a memory budget that can change while it writes.

Usage: nestling-desktop [OPTIONS] [MODEL]

MODEL is a .nest store, a GGUF file or the folder of a Hugging Face checkpoint.

  --budget SIZE    memory budget, such as 24M or 6.5GB (default: what is free, at most what the model uses)
  --open           open MODEL without waiting for the button
  --plan           print the plan of MODEL as JSON, with the fields of `nestling plan --format json`, without a window
  --say TEXT       open MODEL and send a message
  --max-tokens N   maximum number of tokens of an answer (default: 512)
  --greedy         always choose the likeliest token
  --self-test      open MODEL (default: the bundled one), send a message, halve the budget, close, without a window
  --window         with --self-test: in the window
  --help           print this text
";

/// Parsed arguments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Arguments {
    /// Path of the model.
    pub model: Option<PathBuf>,
    /// Memory budget in bytes.
    pub budget: Option<u64>,
    /// True if the model is opened without a click.
    pub open: bool,
    /// True if the plan is printed.
    pub plan: bool,
    /// Message to send once the model is open.
    pub say: Option<String>,
    /// Maximum number of tokens of an answer.
    pub max_tokens: Option<usize>,
    /// True if the likeliest token is always chosen.
    pub greedy: bool,
    /// True if the self-test runs.
    pub self_test: bool,
    /// True if the self-test has a window.
    pub window: bool,
    /// True if the help text was requested.
    pub help: bool,
}

impl Arguments {
    /// Parses the arguments after the program's name.
    ///
    /// # Errors
    /// Returns a description of the first argument that is unknown or has an invalid value.
    pub fn parse(arguments: impl Iterator<Item = OsString>) -> Result<Self, String> {
        let mut arguments = arguments;
        let mut parsed = Self::default();
        while let Some(argument) = arguments.next() {
            let mut value = |name: &str| {
                let value = arguments.next().and_then(|value| value.into_string().ok());
                value.ok_or_else(|| format!("{name} needs a value"))
            };
            match argument.to_str() {
                Some("--budget") => {
                    let text = value("--budget")?;
                    let bytes = parse_size(&text);
                    parsed.budget = Some(bytes.ok_or_else(|| format!("`{text}` is not a size"))?);
                }
                Some("--say") => parsed.say = Some(value("--say")?),
                Some("--max-tokens") => {
                    let text = value("--max-tokens")?;
                    let tokens = text.parse().ok().filter(|tokens| *tokens > 0);
                    parsed.max_tokens =
                        Some(tokens.ok_or_else(|| format!("`{text}` is not a number of tokens"))?);
                }
                Some("--plan") => parsed.plan = true,
                Some("--open") => parsed.open = true,
                Some("--greedy") => parsed.greedy = true,
                Some("--self-test") => parsed.self_test = true,
                Some("--window") => parsed.window = true,
                Some("--help" | "-h") => parsed.help = true,
                Some(option) if option.starts_with("--") => {
                    return Err(format!("unknown option {option}"));
                }
                _ if parsed.model.is_none() => parsed.model = Some(argument.into()),
                _ => return Err("more than one model is named".into()),
            }
        }
        Ok(parsed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Arguments, String> {
        Arguments::parse(words.iter().map(OsString::from))
    }

    #[test]
    fn arguments_are_read_in_any_order() {
        let parsed = parse(&["--say", "Hello", "a.nest", "--budget", "24MB", "--greedy"]).unwrap();
        assert_eq!(parsed.model, Some(PathBuf::from("a.nest")));
        assert_eq!((parsed.budget, parsed.say.as_deref()), (Some(24_000_000), Some("Hello")));
        assert!(parsed.greedy && !parsed.self_test);
    }

    #[test]
    fn mistakes_are_named() {
        let error = |words: &[&str]| parse(words).unwrap_err();
        assert_eq!(error(&["--budget"]), "--budget needs a value");
        assert_eq!(error(&["--budget", "much"]), "`much` is not a size");
        assert_eq!(error(&["--max-tokens", "0"]), "`0` is not a number of tokens");
        assert_eq!(error(&["--sai"]), "unknown option --sai");
        assert_eq!(error(&["a", "b"]), "more than one model is named");
    }
}
