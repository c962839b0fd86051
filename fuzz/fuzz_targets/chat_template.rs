//! Chat templates of any text are parsed and rendered on a stack of 2 MiB, within a tenth of the
//! bounds, so that many are tried.
#![no_main]

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use libfuzzer_sys::fuzz_target;
use nestling_template::{RenderLimits, RenderOptions, Template, TemplateErrorKind};
use serde_json::json;

fn render(source: &str) {
    let Ok(template) = Template::parse(source) else { return };
    let variables = json!({
        "messages": [{"role": "user", "content": "a b"}, {"role": "assistant", "content": null}],
        "tools": [{"function": {"name": "f", "parameters": {"x": [1, 2.5, true]}}}],
        "add_generation_prompt": true,
    });
    let limits =
        RenderLimits { memory_bytes: 8 << 20, work: 20_000_000, ..RenderLimits::default() };
    let date = |format: &str| Ok(format.to_owned());
    let options = RenderOptions { limits, strftime_now: Some(&date), ..Default::default() };
    let start = Instant::now();
    let Some(variables) = variables.as_object() else { return };
    if let Err(error) = template.render(variables, &options) {
        if let TemplateErrorKind::Failed(why) = &error.kind {
            assert!(!why.starts_with("internal"), "{why}");
        }
    }
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
}

/// The thread with the small stack: texts go to it, and word comes back that one is done.
fn worker() -> &'static Mutex<(Sender<String>, Receiver<()>)> {
    static WORKER: OnceLock<Mutex<(Sender<String>, Receiver<()>)>> = OnceLock::new();
    WORKER.get_or_init(|| {
        let (texts, inbox) = channel::<String>();
        let (outbox, done) = channel();
        let body = move || {
            for text in inbox {
                render(&text);
                let _ = outbox.send(());
            }
        };
        thread::Builder::new().stack_size(2 << 20).spawn(body).expect("a thread");
        Mutex::new((texts, done))
    })
}

fuzz_target!(|text: &str| {
    let worker = worker().lock().expect("one at a time");
    worker.0.send(text.to_owned()).expect("the worker lives");
    worker.1.recv().expect("the worker lives");
});
