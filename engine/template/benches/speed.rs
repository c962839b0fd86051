//! Renders a chat template over a conversation of 50 messages, with this interpreter or with minijinja:
//! `speed TEMPLATE ours|minijinja|none COUNT`. `none` only reads the files.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "an example that cannot go on should say where"
)]

use std::time::Instant;

use minijinja::{Environment, syntax::SyntaxConfig};
use nestling_template::{RenderOptions, Template};
use serde_json::{Map, Value, json};

fn variables() -> Map<String, Value> {
    let sentence = "The quick brown fox jumps over the lazy dog, and then it rests for a while. ";
    let messages: Vec<Value> = (0..50)
        .map(|number| {
            let role = if number % 2 == 0 { "user" } else { "assistant" };
            json!({"role": role, "content": sentence.repeat(1 + number % 7)})
        })
        .collect();
    let variables = json!({
        "messages": messages,
        "tools": null,
        "documents": null,
        "add_generation_prompt": true,
        "bos_token": "<s>",
        "eos_token": "</s>",
    });
    variables.as_object().unwrap().clone()
}

/// minijinja configured as `transformers` configures jinja2.
fn environment(source: &str) -> Environment<'static> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.unwrap());
    environment.set_fuel(Some(5_000_000));
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_template_owned("chat", source.to_owned()).unwrap();
    environment
}

fn main() {
    let arguments: Vec<String> =
        std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let [path, engine, count] = arguments.as_slice() else {
        println!("usage: speed TEMPLATE ours|minijinja|none COUNT");
        return;
    };
    let source = std::fs::read_to_string(path).unwrap();
    let (variables, count) = (variables(), count.parse::<u32>().unwrap());
    let (template, environment) = (Template::parse(&source).unwrap(), environment(&source));
    let start = Instant::now();
    let mut bytes = 0;
    for _ in 0..count {
        bytes += match engine.as_str() {
            "ours" => template.render(&variables, &RenderOptions::default()).unwrap().len(),
            "minijinja" => {
                let context = minijinja::Value::from(minijinja::value::Serde(&variables));
                environment.get_template("chat").unwrap().render(context).unwrap().len()
            }
            _ => 0,
        };
    }
    let each = start.elapsed() / count.max(1);
    println!("{engine}: {bytes} bytes in {count} renderings, {each:?} each");
}
