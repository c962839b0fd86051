//! Measurement of the best number of threads for a machine.

use std::hint::black_box;

use crate::bandwidth::sum;
use crate::threads::ThreadPool;
use nestling_core::arena::AlignedBytes;
use nestling_core::clock::Moment;

/// Number of cores up to which all of them are used, because a measurement would only show noise.
pub const CORES_FEW: usize = 4;

/// Number of bytes that a job reads, about the same as one product of a decode step.
const JOB_BYTES: usize = 4 << 20;

/// Number of jobs per measurement, with one fork and join each.
const JOBS: usize = 20;

/// Tolerance in time relative to the fastest number of threads. The smallest number within it is chosen: more
/// threads would only produce heat, and the slow cores of a hybrid processor delay the others.
const TOLERANCE: f64 = 1.05;

/// Returns the number of threads, at most `cores`, that is best for jobs like those of a decode step: reads
/// of memory with a fork and join every few megabytes. The measurement takes some tens of milliseconds per
/// candidate, so that the result should be cached. On machines with few cores, all cores are used.
pub fn best_thread_count(cores: usize) -> usize {
    if cores <= CORES_FEW {
        return cores.max(1);
    }
    let mut counts: Vec<usize> =
        [cores / 4, cores / 3, cores / 2, cores * 2 / 3, cores * 3 / 4, cores].into();
    counts.retain(|count| *count >= 2);
    counts.dedup();
    // Default: without memory for the measurement, all cores.
    let Ok(mut memory) = AlignedBytes::zeroed("a measurement", JOB_BYTES * JOBS) else {
        return cores;
    };
    memory.bytes_mut().chunks_mut(4096).for_each(|page| page[0] = 1);
    let times: Vec<f64> = counts.iter().map(|count| job_seconds(*count, memory.as_ref())).collect();
    let best = times.iter().copied().fold(f64::INFINITY, f64::min);
    let found = times.iter().position(|time| *time <= best * TOLERANCE);
    found.map_or(cores, |index| counts[index])
}

/// Returns the time in seconds of the fastest of three rounds of jobs.
fn job_seconds(threads: usize, memory: &[u8]) -> f64 {
    let pool = ThreadPool::new(threads);
    let parts = threads * 4;
    let round = || {
        let started = Moment::now();
        for job in memory.chunks(JOB_BYTES) {
            let part_bytes = job.len().div_ceil(parts).next_multiple_of(256);
            pool.run(parts, &|part| {
                let start = (part * part_bytes).min(job.len());
                let end = (start + part_bytes).min(job.len());
                black_box(sum(&job[start..end]));
            });
        }
        Moment::now().seconds_since(started)
    };
    (0..3).map(|_| round()).fold(f64::INFINITY, f64::min)
}

#[cfg(test)]
mod tests {
    use super::best_thread_count;

    #[test]
    fn few_cores_are_all_used_and_many_are_not_exceeded() {
        assert_eq!([0, 1, 2, 4].map(best_thread_count), [1, 1, 2, 4]);
        let found = best_thread_count(6);
        assert!((2..=6).contains(&found), "{found} of 6");
    }
}
