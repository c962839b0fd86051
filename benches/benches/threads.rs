//! Measures the overhead of handing two empty tasks to two threads and waiting for them.

use std::hint::black_box;
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier};

use criterion::{Criterion, criterion_group, criterion_main};
use nestling_cpu::threads::ThreadPool;

fn fork_join(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("fork and join of two parts");
    let job = |part: usize| {
        black_box(part);
    };
    for threads in [1, 2] {
        let pool = ThreadPool::new(threads);
        group.bench_function(format!("our pool, {threads} threads"), |b| {
            b.iter(|| pool.run(2, &job));
        });
    }
    group.bench_function("std::thread::scope", |b| {
        b.iter(|| {
            std::thread::scope(|scope| {
                scope.spawn(|| job(1));
                job(0);
            });
        });
    });
    group.bench_function("worker behind a channel", |b| {
        let (work, works) = channel::<usize>();
        let (done, dones) = channel::<()>();
        let worker = std::thread::spawn(move || {
            for part in works {
                job(part);
                if done.send(()).is_err() {
                    return;
                }
            }
        });
        b.iter(|| {
            let sent = work.send(1);
            job(0);
            black_box((sent.is_ok(), dones.recv().is_ok()));
        });
        drop(work);
        black_box(worker.join().is_ok());
    });
    group.bench_function("worker behind a bounded crossbeam channel", |b| {
        let (work, works) = crossbeam::channel::bounded::<usize>(1);
        let (done, dones) = crossbeam::channel::bounded::<()>(1);
        let worker = std::thread::spawn(move || {
            for part in works {
                job(part);
                if done.send(()).is_err() {
                    return;
                }
            }
        });
        b.iter(|| {
            let sent = work.send(1);
            job(0);
            black_box((sent.is_ok(), dones.recv().is_ok()));
        });
        drop(work);
        black_box(worker.join().is_ok());
    });
    group.finish();
}

fn fork_join_barriers(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("fork and join of two parts");
    let job = |part: usize| {
        black_box(part);
    };
    group.bench_function("worker behind two std::sync::Barrier", |b| {
        let (start, end) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
        let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let worker = {
            let (start, end, stop) = (Arc::clone(&start), Arc::clone(&end), Arc::clone(&stop));
            std::thread::spawn(move || {
                loop {
                    start.wait();
                    if stop.load(std::sync::atomic::Ordering::Acquire) {
                        return;
                    }
                    job(1);
                    end.wait();
                }
            })
        };
        b.iter(|| {
            start.wait();
            job(0);
            end.wait();
        });
        stop.store(true, std::sync::atomic::Ordering::Release);
        start.wait();
        black_box(worker.join().is_ok());
    });
}

criterion_group!(benches, fork_join, fork_join_barriers);
criterion_main!(benches);
