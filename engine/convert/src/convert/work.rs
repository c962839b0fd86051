//! Parallel jobs whose results are collected on the calling thread.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;

use super::ConvertError;

/// Returns the number of threads for a setting; 0 means one per processor.
pub(super) fn threads(setting: usize) -> usize {
    if cfg!(target_family = "wasm") {
        return 1;
    }
    match setting {
        0 => std::thread::available_parallelism().map_or(1, Into::into),
        threads => threads,
    }
}

/// Runs `job(0)` to `job(count - 1)` on up to `threads` threads. Results are passed to `collect` on this
/// thread, in the order of completion. The first error stops all jobs.
pub(super) fn for_each<T: Send>(
    threads: usize,
    count: usize,
    job: &(dyn Fn(usize) -> Result<T, ConvertError> + Sync),
    collect: &mut dyn FnMut(usize, T) -> Result<(), ConvertError>,
) -> Result<(), ConvertError> {
    let threads = threads.min(count);
    if threads <= 1 {
        return (0..count).try_for_each(|index| collect(index, job(index)?));
    }
    let next = AtomicUsize::new(0);
    let stop = AtomicBool::new(false);
    // The channel is bounded, so that no thread runs ahead of the collector.
    let (sender, receiver) = mpsc::sync_channel(threads);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let (sender, next, stop) = (sender.clone(), &next, &stop);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= count || sender.send((index, job(index))).is_err() {
                        break;
                    }
                }
            });
        }
        drop(sender);
        let mut result = Ok(());
        for (index, done) in &receiver {
            result = done.and_then(|done| collect(index, done));
            if result.is_err() {
                stop.store(true, Ordering::Relaxed);
                break;
            }
        }
        // Blocked senders must see that the receiver is gone.
        drop(receiver);
        result
    })
}

/// Does the same as [`for_each`], but returns the results in the order of the jobs.
pub(super) fn map<T: Send>(
    threads: usize,
    count: usize,
    job: &(dyn Fn(usize) -> Result<T, ConvertError> + Sync),
) -> Result<Vec<T>, ConvertError> {
    let mut results: Vec<Option<T>> = Vec::new();
    results.resize_with(count, || None);
    for_each(threads, count, job, &mut |index, result| {
        results[index] = Some(result);
        Ok(())
    })?;
    Ok(results.into_iter().flatten().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_order() {
        for threads in [1, 2, 5] {
            let squares = map(threads, 100, &|index| Ok(index * index)).unwrap();
            assert!(squares.iter().enumerate().all(|(index, square)| index * index == *square));
        }
    }

    #[test]
    fn an_error_stops_all() {
        for threads in [1, 3] {
            let ran = AtomicUsize::new(0);
            let result = map(threads, 1_000_000, &|index| {
                ran.fetch_add(1, Ordering::Relaxed);
                if index == 10 { Err(ConvertError::Cancelled) } else { Ok(()) }
            });
            assert!(matches!(result, Err(ConvertError::Cancelled)));
            assert!(ran.into_inner() < 1_000_000);
        }
    }
}
