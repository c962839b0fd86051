//! Chat templates of any text are parsed and rendered on a stack of 2 MiB, within a tenth of the
//! bounds, so that many are tried.
#![no_main]

use std::time::{Duration, Instant};

use libfuzzer_sys::fuzz_target;
use nestling_template::{RenderLimits, RenderOptions, Template, TemplateErrorKind};
use rustix::process::{Resource, getrlimit, setrlimit};
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

/// Leaves the thread of the fuzzer no more stack than most threads have: handing each text to another one takes
/// longer than most texts.
fn small_stack() {
    let mut limit = getrlimit(Resource::Stack);
    limit.current = Some(2 << 20);
    setrlimit(Resource::Stack, limit).expect("less than before");
}

fuzz_target!(init: small_stack(), |text: &str| {
    render(text);
});
