//! What answers must look like.

use clap::Args;
use clap::builder::FalseyValueParser;
use std::path::PathBuf;

#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Form of answers")]
pub struct FormArgs {
    /// File with a JSON schema that answers keep to, or the schema itself, which begins with {.
    /// One form can be given; reasoning before an answer has none
    #[arg(short = 'j', long, value_name = "SCHEMA", env = "NESTLING_JSON_SCHEMA")]
    pub json_schema: Option<String>,

    /// Answer with a JSON object
    #[arg(long, visible_alias = "json", env = "NESTLING_JSON_OBJECT")]
    #[arg(value_parser = FalseyValueParser::new())]
    pub json_object: bool,

    /// Regular expression that matches the whole of an answer
    #[arg(long, value_name = "PATTERN", env = "NESTLING_REGEX", allow_hyphen_values = true)]
    pub regex: Option<String>,

    /// File with a Lark grammar whose rule `start` is an answer
    #[arg(long, value_name = "FILE", env = "NESTLING_GRAMMAR")]
    pub grammar: Option<PathBuf>,
}
