//! Models over several ranks have the bits of one.

use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nestling_core::EngineError;
use nestling_core::group::Group;
use nestling_core::runner::ModelRunner;
use nestling_cpu::Cpu;
use nestling_cpu::kernels::Kernels;
use nestling_cpu::threads::ThreadPool;
use nestling_experts::expert::ExpertSource;
use nestling_formats::Level;
use nestling_ranks::{LeadRunner, ThreadGroup, follow};
use nestling_runtime::model::RunnerOptions;
use nestling_testkit::runners::{all_logits, checkpoint, data, runner, some_tokens};

/// Timeout of a silent rank. An operation of a tiny model takes milliseconds.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A model over ranks that are threads.
struct Ranks {
    lead: Option<LeadRunner>,
    followers: Vec<JoinHandle<Result<(), EngineError>>>,
}

impl Ranks {
    fn new(source: &Arc<dyn ExpertSource>, options: &RunnerOptions, ranks: usize) -> Self {
        let mut group = ThreadGroup::new(ranks, TIMEOUT).into_iter();
        let first: Arc<dyn Group> = Arc::new(group.next().unwrap());
        let follower = |rank: ThreadGroup| {
            let (source, options) = (Arc::clone(source), options.clone());
            thread::spawn(move || {
                let rank: Arc<dyn Group> = Arc::new(rank);
                let mut own = runner(cpu(&rank), &source, &options);
                follow(&mut own, &*rank)
            })
        };
        let followers = group.map(follower).collect();
        let own = Box::new(runner(cpu(&first), source, options));
        Self { lead: Some(LeadRunner::new(own, first)), followers }
    }

    fn lead(&mut self) -> &mut dyn ModelRunner {
        self.lead.as_mut().unwrap()
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        self.lead = None;
        for follower in self.followers.drain(..) {
            let ended = follower.join();
            assert!(thread::panicking() || ended.unwrap().is_ok());
        }
    }
}

fn cpu(rank: &Arc<dyn Group>) -> Cpu {
    Cpu::with(Arc::new(ThreadPool::new(1)), Kernels::detect()).in_group(Arc::clone(rank))
}

fn assert_bits(source: &Arc<dyn ExpertSource>, options: &RunnerOptions, name: &str) {
    let tokens = some_tokens(70, source.config().vocab_size, 5);
    let level = Level::L8;
    let mut alone = runner(Cpu::new(1), source, options);
    let expected = all_logits(&mut alone, &tokens, level, 32);
    for ranks in [2, 3, 4, 8] {
        let mut group = Ranks::new(source, options, ranks);
        let found = all_logits(group.lead(), &tokens, level, 32);
        let differs = expected.iter().zip(&found).position(|(a, b)| a.to_bits() != b.to_bits());
        assert_eq!((differs, found.len()), (None, expected.len()), "{name} over {ranks} ranks");
    }
}

#[test]
fn a_checkpoint_over_ranks_has_the_bits_of_one() {
    let source = checkpoint(Path::new(&data("tiny-qwen3-moe")));
    assert_bits(&source, &RunnerOptions::default(), "tiny");
}
