//! Two models in one engine with one memory budget: `cargo run --release --example two_models [MODEL]`.
#![expect(clippy::print_stdout, reason = "the result is printed")]

mod bundled;

use nestling::{
    CancelToken, Engine, EngineError, EngineOptions, GenerateOptions, Level, Model, ModelOptions,
    ModelSource,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = bundled::model_path();
    let memory_budget = Some(1 << 30);
    let engine = Engine::new(EngineOptions { memory_budget, ..Default::default() })?;
    let open = |level| {
        let options = ModelOptions { level, ..Default::default() };
        Model::open(&engine, &path, &options, &mut |_| {}, &CancelToken::new())
    };
    // The first sections of a store are a smaller model. A checkpoint has only one level.
    let is_store = matches!(ModelSource::at(&path)?, ModelSource::Store(_));
    let whole = open(None)?;
    let small = open(is_store.then_some(Level::L2))?;
    let budget = engine.budget();
    println!("{} of {:?} bytes are in use", budget.used_bytes(), budget.total_bytes());

    // Both generate at the same time. Neither affects the other's output.
    let options = GenerateOptions { max_tokens: Some(40), ..GenerateOptions::greedy() };
    let prompt = "The ship left the harbour";
    let first = whole.session().generate(prompt, &options)?;
    let second = small.session().generate(prompt, &options)?;
    println!("whole: {prompt}{}", first.into_text()?);
    println!("small: {prompt}{}", second.into_text()?);

    // A model that does not fit is rejected before anything is loaded.
    budget.set_total_bytes(Some(budget.used_bytes() + 1));
    match open(None) {
        Err(refusal @ (EngineError::Budget(_) | EngineError::MemoryTooSmall(_))) => {
            println!("no room for a third: {refusal}");
        }
        Err(other) => return Err(other.into()),
        Ok(_) => println!("there was room after all"),
    }
    Ok(())
}
