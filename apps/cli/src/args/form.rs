//! Arguments that constrain the output.

use clap::Args;
use clap::builder::FalseyValueParser;
use std::path::PathBuf;

#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Form of answers")]
pub struct FormArgs {
    /// JSON schema of the output: a file, or the schema itself, starting with {. Only one constraint can be
    /// given; reasoning before the answer is unconstrained
    #[arg(short = 'j', long, value_name = "SCHEMA", env = "NESTLING_JSON_SCHEMA")]
    pub json_schema: Option<String>,

    /// Constrain the output to a JSON object
    #[arg(long, visible_alias = "json", env = "NESTLING_JSON_OBJECT")]
    #[arg(value_parser = FalseyValueParser::new())]
    pub json_object: bool,

    /// Regular expression that the whole output must match
    #[arg(long, value_name = "PATTERN", env = "NESTLING_REGEX", allow_hyphen_values = true)]
    pub regex: Option<String>,

    /// File with a grammar in Lark's syntax or in GBNF, llama.cpp's format; the output matches its rule `start` or
    /// `root`
    #[arg(long, value_name = "FILE", env = "NESTLING_GRAMMAR")]
    pub grammar: Option<PathBuf>,
}
