//! Tests of the thread pool.

use super::*;
use std::sync::atomic::AtomicU32;

#[test]
fn every_part_runs_once() {
    for threads in [1, 2, 3, 7] {
        let pool = ThreadPool::new(threads);
        assert_eq!(pool.threads(), threads);
        for parts in [0, 1, 2, 5, 64] {
            let counts: Vec<AtomicU32> = (0..parts).map(|_| AtomicU32::new(0)).collect();
            pool.run(parts, &|part| {
                counts[part].fetch_add(1, Ordering::Relaxed);
            });
            assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1));
        }
    }
}

#[test]
fn parked_workers_wake_for_the_next_job() {
    let pool = ThreadPool::new(2);
    let count = AtomicU32::new(0);
    for pause_us in [0, 10, 100, 1000, 5000, 0, 3000] {
        std::thread::sleep(std::time::Duration::from_micros(pause_us));
        for _ in 0..100 {
            pool.run(2, &|_| {
                count.fetch_add(1, Ordering::Relaxed);
            });
        }
    }
    assert_eq!(count.load(Ordering::Relaxed), 1400);
}

#[test]
fn callers_take_turns() {
    let pool = ThreadPool::new(2);
    let count = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..200 {
                    pool.run(3, &|_| {
                        count.fetch_add(1, Ordering::Relaxed);
                    });
                }
            });
        }
    });
    assert_eq!(count.load(Ordering::Relaxed), 1800);
}

#[test]
fn a_panic_reaches_the_caller_and_the_pool_goes_on() {
    let pool = ThreadPool::new(2);
    for bad in 0..4 {
        let result = catch_unwind(AssertUnwindSafe(|| {
            pool.run(4, &|part| assert_ne!(part, bad, "part {bad} fails"));
        }));
        assert!(result.is_err());
        pool.run(4, &|_| {});
    }
}

#[test]
fn a_pool_of_any_size_survives_panics_and_drops_while_parked() {
    for threads in 1..=8 {
        let pool = ThreadPool::new(threads);
        let count = AtomicU32::new(0);
        for round in 0..20 {
            let result = catch_unwind(AssertUnwindSafe(|| {
                pool.run(3 * threads, &|part| {
                    count.fetch_add(1, Ordering::Relaxed);
                    assert!(round % 5 != 4 || part != 1, "part {part} fails");
                });
            }));
            assert_eq!(result.is_err(), round % 5 == 4);
        }
        assert!(count.load(Ordering::Relaxed) as usize >= 16 * 3 * threads);
        if threads % 2 == 0 {
            // Long enough for all workers to park.
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        drop(pool);
    }
}
