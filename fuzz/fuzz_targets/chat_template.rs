//! Chat templates of arbitrary text, parsed and rendered on a 2 MiB stack. The limits are a tenth of the real
//! ones, for more executions per second.
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

/// Limits the stack of the fuzzer's thread to that of ordinary threads. Running each text on another thread
/// would take longer than most executions.
fn small_stack() {
    let mut limit = getrlimit(Resource::Stack);
    limit.current = Some(2 << 20);
    setrlimit(Resource::Stack, limit).expect("less than before");
}

fuzz_target!(init: small_stack(), |text: &str| {
    render(text);
});
