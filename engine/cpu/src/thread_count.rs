//! How many threads a machine's steps run best with.

use std::hint::black_box;

use crate::bandwidth::sum;
use crate::threads::ThreadPool;
use nestling_core::arena::AlignedBytes;
use nestling_core::clock::Moment;

/// With so few cores all of them compute: a measurement would decide nothing but noise.
pub const CORES_FEW: usize = 4;

/// Bytes that a job reads, about what one product of a decode step does.
const JOB_BYTES: usize = 4 << 20;

/// Jobs of one measurement, a fork and join each.
const JOBS: usize = 20;

/// Of the fastest, the fewest threads whose time is at most this much longer are taken: more
/// would only heat the machine, and the slow cores of a hybrid one keep the others waiting.
const TOLERANCE: f64 = 1.05;

/// The number of threads, at most `cores`, that runs jobs like those of a decode step best: reads
/// of memory, a fork and join for each few megabytes. Takes some tens of milliseconds for every
/// size tried, and is worth remembering. On machines with few cores it is all of them.
pub fn best_thread_count(cores: usize) -> usize {
    if cores <= CORES_FEW {
        return cores.max(1);
    }
    let mut counts: Vec<usize> =
        [cores / 4, cores / 3, cores / 2, cores * 2 / 3, cores * 3 / 4, cores].into();
    counts.retain(|count| *count >= 2);
    counts.dedup();
    // Default: without memory to measure with, all of them.
    let Ok(mut memory) = AlignedBytes::zeroed("a measurement", JOB_BYTES * JOBS) else {
        return cores;
    };
    memory.bytes_mut().chunks_mut(4096).for_each(|page| page[0] = 1);
    let times: Vec<f64> = counts.iter().map(|count| job_seconds(*count, memory.as_ref())).collect();
    let best = times.iter().copied().fold(f64::INFINITY, f64::min);
    let found = times.iter().position(|time| *time <= best * TOLERANCE);
    found.map_or(cores, |index| counts[index])
}

/// Seconds of the fastest of three rounds of jobs.
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
