//! Masks, log-probabilities, stored pages and batches of several sequences over ranks, beside one rank.

use std::path::Path;
use std::sync::Arc;

use nestling_core::batch::Batch;
use nestling_core::kv_cache::PageAllocator;
use nestling_core::kv_heads::KvDivision;
use nestling_core::runner::ModelRunner;
use nestling_cpu::Cpu;
use nestling_formats::Level;
use nestling_guide::Guide;
use nestling_runtime::model::RunnerOptions;
use nestling_runtime::{
    Event, GenerateOptions, Model, ModelOptions, PageReads, PageStore, PageStoreOptions,
    SamplingOptions,
};
use nestling_testkit::runners::{Sequence, checkpoint, data, runner, some_tokens, step};

use crate::harness::{Ranks, watched};
use crate::opened::{PROMPT, alone, engine, open};

const SCHEMA: &str = r#"{
    "type": "object", "required": ["name", "age"], "additionalProperties": false,
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 99}}
}"#;

/// A token with the bits of its log-probability and of those of the likeliest tokens.
type Likely = (u32, Option<u32>, Vec<(u32, u32)>);

/// Returns the text, and the tokens of prompt and answer.
fn likely(model: &Model, options: &GenerateOptions) -> (String, Vec<Likely>) {
    let (mut text, mut tokens) = (String::new(), Vec::new());
    for event in model.session().generate(PROMPT, options).unwrap() {
        match event.unwrap() {
            Event::Token(token) | Event::PromptToken(token) => {
                let top = token.top.iter().map(|(id, log_prob)| (*id, log_prob.to_bits()));
                tokens.push((token.token, token.log_prob.map(f32::to_bits), top.collect()));
            }
            Event::Text(more) => text.push_str(&more),
            _ => {}
        }
    }
    (text, tokens)
}

#[test]
fn masks_and_log_probabilities_are_those_of_one_rank() {
    watched(|| {
        let options = ModelOptions { context_length: Some(128), ..ModelOptions::default() };
        let alone = alone(&options);
        let sampled =
            SamplingOptions { temperature: Some(1.2), seed: Some(7), ..SamplingOptions::default() };
        let asks = [SamplingOptions::greedy(), sampled].map(|sampling| GenerateOptions {
            sampling: SamplingOptions { top_logprobs: Some(5), ..sampling },
            prompt_logprobs: Some(3),
            constraint: Some(Arc::new(Guide::json_schema_text(SCHEMA).unwrap())),
            max_tokens: Some(40),
            ..GenerateOptions::default()
        });
        let expected = asks.each_ref().map(|ask| likely(&alone, ask));
        for (text, tokens) in &expected {
            assert!(text.starts_with('{') && text.contains("\"name\""), "{text}");
            assert!(tokens.iter().any(|(_, _, top)| top.len() == 5));
            assert!(tokens.iter().any(|(_, _, top)| top.len() == 3));
        }
        // A mask matters: without it, the answer is a story.
        let free = GenerateOptions { constraint: None, ..asks[0].clone() };
        assert_ne!(likely(&alone, &free).1, expected[0].1);
        for ranks in [2, 3] {
            let engine = engine(None);
            let model = open(&engine, &options, ranks).unwrap();
            for (ask, expected) in asks.iter().zip(&expected) {
                assert_eq!(&likely(&model, ask), expected, "{ranks} ranks");
            }
        }
    });
}

fn stored(directory: &Path) -> PageStore {
    let (directory, reads) = (directory.to_owned(), PageReads::Always);
    PageStore::open(PageStoreOptions { directory, bytes_max: 1 << 30, reads }).unwrap()
}

/// Pages of all ranks are the same, so that any number of ranks reads them.
#[test]
fn pages_that_two_ranks_stored_serve_one_and_three() {
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("pages");
        let prompt = "The captain said that the ship would sail at dawn. ".repeat(20);
        let ask = GenerateOptions { max_tokens: Some(6), ..GenerateOptions::greedy() };
        let options = ModelOptions { context_length: Some(512), ..ModelOptions::default() };
        let fresh = alone(&options);
        let answer = |model: &Model| {
            let (text, summary) =
                model.session().generate(&*prompt, &ask).unwrap().into_answer().unwrap();
            (text, summary.usage.cached_tokens)
        };
        let (expected, cached) = answer(&fresh);
        assert_eq!(cached, 0);
        let with = |store: &PageStore, kv_division| ModelOptions {
            page_store: Some(store.clone()),
            kv_division,
            ..options.clone()
        };
        let store = stored(&directory);
        {
            let engine = engine(None);
            let model = open(&engine, &with(&store, KvDivision::ByHeads), 2).unwrap();
            assert_eq!(answer(&model), (expected.clone(), 0));
        }
        drop(store);
        for (ranks, kv) in
            [(1, KvDivision::Replicated), (3, KvDivision::Replicated), (4, KvDivision::ByHeads)]
        {
            let store = stored(&directory);
            assert!(store.status().pages > 1, "two ranks stored {:?}", store.status());
            let engine = engine(None);
            let model = open(&engine, &with(&store, kv), ranks).unwrap();
            let (text, cached) = answer(&model);
            assert_eq!(text, expected, "{ranks} ranks");
            assert!(
                cached >= 128 && store.status().hits > 1,
                "{ranks} ranks found {cached} tokens"
            );
            assert_eq!((store.status().damaged, store.status().failed), (0, 0));
        }
    });
}

/// Returns the bits of the logits of steps with several sequences: prompts of different lengths together, one of them in
/// two parts, and then rows of all.
fn together(runner: &mut dyn ModelRunner, vocab_size: usize) -> Vec<u32> {
    let mut pages = PageAllocator::new(runner.limits().pages as u32);
    let mut sequences: Vec<Sequence> = (0..3).map(|_| Sequence::new(Level::L4)).collect();
    let steps = [[7, 3, 1], [1, 9, 1], [1, 1, 1], [1, 1, 1]];
    let mut bits = Vec::new();
    for (at, lengths) in steps.into_iter().enumerate() {
        let mut batch = Batch::default();
        for (number, (sequence, length)) in sequences.iter_mut().zip(lengths).enumerate() {
            let tokens = some_tokens(length, vocab_size, (10 * at + number) as u64);
            let wants = |row| row + 1 == length && (number, at) != (1, 0);
            sequence.push(&tokens, wants, &mut batch, &mut pages);
        }
        bits.extend(step(runner, &batch).logits.iter().map(|logit| logit.to_bits()));
    }
    bits
}

#[test]
fn batches_of_several_sequences_have_the_bits_of_one_rank() {
    // Attention, latent attention, and recurrent states.
    for family in ["tiny-qwen3-moe", "families/deepseek-v2", "families/qwen3-next"] {
        let source = checkpoint(&data(family));
        let vocab_size = source.config().vocab_size;
        let options = RunnerOptions { states: Some(8), ..RunnerOptions::default() };
        let mut alone = runner(Cpu::new(1), &source, &options);
        let expected = together(&mut alone, vocab_size);
        assert_eq!(expected.len(), 11 * vocab_size);
        for ranks in [2, 3] {
            let mut group = Ranks::new(&source, &options, ranks);
            assert!(together(group.lead(), vocab_size) == expected, "{family}, {ranks} ranks");
            assert!(group.close().iter().all(Result::is_ok));
        }
    }
}
