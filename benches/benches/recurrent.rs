//! Benchmarks of recurrent layers: a prompt in one step and token by token, with and without the projections.

use std::hint::black_box;
use std::sync::Arc;

use criterion::{Criterion, criterion_group, criterion_main};
use nestling_benches::{RecurrentLayer, RecurrentModel};
use nestling_cpu::kernels::Kernels;
use nestling_cpu::threads::ThreadPool;

/// Tokens of the prompt.
const TOKENS: usize = 512;

/// Number of equal layers that single tokens pass by turns, so that weights and states come from memory as in a
/// whole model.
const COPIES: usize = 8;

fn layers(criterion: &mut Criterion) {
    for model in RecurrentModel::ALL {
        for threads in [1, 2] {
            let pool = Arc::new(ThreadPool::new(threads));
            let layer =
                || RecurrentLayer::new(model, Arc::clone(&pool), Kernels::detect(), TOKENS).ok();
            let layers: Option<Vec<_>> = (0..COPIES).map(|_| layer()).collect();
            let Some(mut layers) = layers else { return };
            let name = format!("{}, {TOKENS} tokens, {threads} threads", model.name());
            let mut group = criterion.benchmark_group(name);
            group.sample_size(10);
            for (steps, count) in [("one step", TOKENS), ("single tokens", 1)] {
                group.bench_function(format!("layer, {steps}"), |b| {
                    b.iter(|| pass(&mut layers, count, RecurrentLayer::step));
                });
                group.bench_function(format!("mixer, {steps}"), |b| {
                    b.iter(|| pass(&mut layers, count, RecurrentLayer::mixer_step));
                });
            }
        }
    }
}

/// Passes the tokens in steps of `count` tokens, each through the next layer.
fn pass<E>(
    layers: &mut [RecurrentLayer],
    count: usize,
    step: impl Fn(&mut RecurrentLayer, usize) -> Result<(), E>,
) {
    layers.iter_mut().for_each(RecurrentLayer::restart);
    for at in 0..TOKENS / count {
        black_box(step(&mut layers[at % COPIES], count).is_ok());
    }
}

criterion_group!(benches, layers);
criterion_main!(benches);
