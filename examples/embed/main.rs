//! Seven programs that use the library, also available in C and C++:
//! `cargo run --release -p nestling --features convert,guide --example embed -- PROGRAM MODEL [...]`.

mod budget;
mod cancel;
mod chat;
mod gguf;
mod snapshot;
mod threads;
mod tool;

use std::error::Error;
use std::io::stdout;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let out = &mut stdout();
    match arguments[..] {
        ["chat", model] => chat::run(Path::new(model), out),
        ["cancel", model] => cancel::run(Path::new(model), out),
        ["tool", model] => tool::run(Path::new(model), out),
        ["threads", model] => threads::run(Path::new(model), out),
        ["budget", model] => budget::run(Path::new(model), out),
        ["snapshot", model, "save", file] => snapshot::save(Path::new(model), Path::new(file), out),
        ["snapshot", model, "restore", file] => {
            snapshot::restore(Path::new(model), Path::new(file), out)
        }
        ["gguf", file] => gguf::run(Path::new(file), out),
        _ => Err("PROGRAM MODEL: chat, cancel, tool, threads, budget, snapshot MODEL save|restore FILE, gguf".into()),
    }
}
