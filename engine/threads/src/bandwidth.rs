//! Measurement of the memory's read bandwidth, the reference for all speeds of a model.

use std::hint::black_box;

use crate::threads::ThreadPool;
use nestling_core::arena::AlignedBytes;
use nestling_core::clock::Moment;

/// Number of bytes that one part of a pass reads.
const PART_BYTES: usize = 4 << 20;

/// Minimum number of passes.
const PASSES_MIN: usize = 3;

/// Returns the read bandwidth of all threads of a pool together, in bytes per second. It is the best pass
/// over a buffer of `bytes`, which should be several times the largest cache, within about `seconds`. Returns
/// 0 if the platform has no clock or no memory.
pub fn read_bandwidth(pool: &ThreadPool, bytes: usize, seconds: f64) -> f64 {
    let bytes = bytes.max(PART_BYTES) / PART_BYTES * PART_BYTES;
    // Default: 0 if it cannot be measured.
    let Ok(mut buffer) = AlignedBytes::zeroed("a measurement", bytes) else { return 0.0 };
    // Pages that were never written may all map to the same zero page.
    buffer.bytes_mut().chunks_mut(4096).for_each(|page| page[0] = 1);
    let buffer = buffer.as_ref();
    let (mut best, started) = (0.0f64, Moment::now());
    for pass in 0.. {
        let begun = Moment::now();
        pool.run(buffer.len() / PART_BYTES, &|part| {
            black_box(sum(&buffer[part * PART_BYTES..][..PART_BYTES]));
        });
        let took = Moment::now().seconds_since(begun);
        if took <= 0.0 {
            break;
        }
        best = best.max(buffer.len() as f64 / took);
        if pass + 1 >= PASSES_MIN && Moment::now().seconds_since(started) > seconds {
            break;
        }
    }
    best
}

/// Returns the sum of all 64-bit words, read as four interleaved streams. A single stream is limited by the
/// processor's prefetch distance, not by memory (13.5 against 21.6 GB/s on one machine).
pub(crate) fn sum(part: &[u8]) -> u64 {
    let (front, back) = part.split_at(part.len() / 2);
    let (a, b) = front.split_at(front.len() / 2);
    let (c, d) = back.split_at(back.len() / 2);
    let [a, b, c, d] = [a, b, c, d].map(|stream| stream.as_chunks::<64>().0.iter());
    let mut sums = [0u64; 8];
    for (((a, b), c), d) in a.zip(b).zip(c).zip(d) {
        for line in [a, b, c, d] {
            for (sum, word) in sums.iter_mut().zip(line.as_chunks::<8>().0) {
                *sum = sum.wrapping_add(u64::from_le_bytes(*word));
            }
        }
    }
    sums.iter().fold(0, |all, sum| all.wrapping_add(*sum))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_read() {
        let bytes: Vec<u8> = (0..PART_BYTES).map(|i| (i % 251) as u8).collect();
        let words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
        assert_eq!(sum(&bytes), words.fold(0, u64::wrapping_add));
    }

    #[test]
    fn memory_has_a_speed() {
        let speed = read_bandwidth(&ThreadPool::new(2), 8 << 20, 0.0);
        assert!((1e7..1e13).contains(&speed), "{speed}");
    }
}
