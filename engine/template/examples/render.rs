//! Renders a template with variables from a JSON file.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "an example that cannot go on should say where"
)]

use nestling_template::{RenderOptions, Template};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut read = || std::fs::read_to_string(arguments.next().unwrap()).unwrap();
    let (template, variables) = (read(), read());
    let variables = serde_json::from_str(&variables).unwrap();
    match Template::parse(&template).and_then(|t| t.render(&variables, &RenderOptions::default())) {
        Ok(text) => print!("{text}"),
        Err(error) => print!("error: {error}"),
    }
}
