//! Long-running test of streamed experts: `cargo run --release --example soak [MINUTES] [STORE]`.
//!
//! The experts of the model do not fit in memory. While it generates, its budget grows and shrinks, experts
//! are evicted, and generations are cancelled. Each completed output is compared with that of a resident
//! model. The memory of the process is printed once a minute.
#![expect(clippy::print_stdout, reason = "the result is printed")]

use std::error::Error;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nestling::{
    CancelToken, Engine, EngineError, EngineOptions, FinishReason, GenerateOptions, Input, Model,
    ModelOptions, Residence,
};

const PROMPTS: [&str; 4] = [
    "Once upon a time there was a",
    "The little girl went to the park and",
    "Tom had a red ball. One day",
    "It was raining, so the dog",
];

fn open(path: &PathBuf, residence: Residence, memory: Option<u64>) -> Result<Model, EngineError> {
    let engine = Engine::new(EngineOptions { memory_budget: memory, ..EngineOptions::default() })?;
    let options = ModelOptions { residence, context_length: Some(256), ..ModelOptions::default() };
    Model::open(&engine, path, &options, &mut |_| {}, &CancelToken::new())
}

fn answer(
    model: &Model,
    prompt: &str,
    tokens: usize,
) -> Result<(String, FinishReason), EngineError> {
    let options = GenerateOptions { max_tokens: Some(tokens), ..GenerateOptions::greedy() };
    let generation = model.session().generate(Input::Text(prompt.into()), &options)?;
    let (text, finished) = generation.into_answer()?;
    Ok((text, finished.reason))
}

fn next(state: &mut u64) -> usize {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) as usize
}

/// Returns the resident memory of this process in KiB, if the system reports it.
fn resident_kib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let minutes: u64 = arguments.next().map_or(Ok(1), |text| text.parse())?;
    let bundled = concat!(env!("CARGO_MANIFEST_DIR"), "/models/nestling-storyteller.nest");
    let path = arguments.next().map_or_else(|| bundled.into(), PathBuf::from);
    let resident = open(&path, Residence::Owned, None)?;
    let expected = PROMPTS
        .iter()
        .map(|prompt| answer(&resident, prompt, 60))
        .collect::<Result<Vec<_>, _>>()?;
    drop(resident);
    let model = open(&path, Residence::Streamed, Some(64 << 20))?;
    let whole = model.memory_plan().map_or(0, |plan| plan.expert_bytes_total);
    let (mut state, mut answers, mut cancelled, mut changes) = (7, 0u64, 0u64, 0u64);
    let (begun, mut told) = (Instant::now(), Duration::ZERO);
    while begun.elapsed() < Duration::from_secs(minutes * 60) {
        // A budget between a sixteenth and all of the experts.
        let budget = whole / 16 * (1 + next(&mut state) as u64 % 16);
        model.set_expert_budget(budget)?;
        if next(&mut state).is_multiple_of(3) {
            model.shed_experts(whole / 4);
        }
        changes += 1;
        let which = next(&mut state) % PROMPTS.len();
        if next(&mut state).is_multiple_of(5) {
            let options = GenerateOptions::greedy();
            let input = Input::Text(PROMPTS[which].into());
            drop(model.session().generate(input, &options)?);
            cancelled += 1;
        }
        let found = answer(&model, PROMPTS[which], 60)?;
        if found != expected[which] {
            return Err(format!("answer {answers} differs: {found:?}").into());
        }
        let held = model.expert_bytes().unwrap_or(0);
        if held > budget {
            return Err(format!("{held} bytes of experts are held, the budget is {budget}").into());
        }
        answers += 1;
        if begun.elapsed() >= told {
            told += Duration::from_secs(60);
            let memory = resident_kib().map_or("unknown".into(), |kib| format!("{kib} KiB"));
            println!(
                "{:>5} s: {answers} answers, {cancelled} cancelled, {changes} changes, memory {memory}",
                begun.elapsed().as_secs()
            );
        }
    }
    println!("{answers} answers as they should be, {cancelled} cancelled, {changes} changes");
    Ok(())
}
