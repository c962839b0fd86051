//! Requests of a load: prompts of random tokens and their sending times, determined by a seed.

use crate::args::{Lengths, WorkArgs};
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use std::time::Duration;

/// A request.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Scheduled time after the start of the load. It is 0 if clients send as soon as a response ends.
    pub at: Duration,
    pub prompt: Vec<u32>,
    /// Number of tokens to generate.
    pub answer: u32,
}

/// Returns the requests of one load. Each load of a series has different prompts, so that no load benefits
/// from the prefix cache of another.
pub fn requests(args: &WorkArgs, load: usize, vocab_size: u32, rate: Option<f64>) -> Vec<Request> {
    let seed = args.seed.wrapping_add((load as u64) << 32);
    let mut random = Random(SplitMix64::seed_from_u64(seed));
    let prefix = |random: &mut Random| random.tokens(args.prefix_len, vocab_size);
    let prefixes: Vec<Vec<u32>> = (0..args.num_prefixes).map(|_| prefix(&mut random)).collect();
    let mut at = 0.0;
    let request = |_| {
        if let Some(rate) = rate {
            at += random.exponential() / rate;
        }
        let mut prompt = prefixes[random.below(args.num_prefixes) as usize].clone();
        let lengths = args.input_len[random.below(args.input_len.len() as u32) as usize];
        prompt.extend(random.prompt(lengths, vocab_size));
        Request { at: Duration::from_secs_f64(at), prompt, answer: args.output_len }
    };
    (0..args.num_prompts).map(request).collect()
}

struct Random(SplitMix64);

impl Random {
    fn below(&mut self, count: u32) -> u32 {
        ((u64::from(self.0.next_u64() as u32) * u64::from(count)) >> 32) as u32
    }

    fn tokens(&mut self, count: u32, vocab_size: u32) -> Vec<u32> {
        (0..count).map(|_| self.below(vocab_size)).collect()
    }

    fn prompt(&mut self, lengths: Lengths, vocab_size: u32) -> Vec<u32> {
        let count = lengths.least + self.below(lengths.most - lengths.least + 1);
        self.tokens(count, vocab_size)
    }

    /// Returns an exponentially distributed number of mean 1: the gaps of a Poisson process.
    fn exponential(&mut self) -> f64 {
        let share = (self.0.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        -(1.0 - share).ln()
    }
}

#[cfg(test)]
mod tests {
    use super::requests;
    use crate::args::{Lengths, WorkArgs};

    fn args(count: u32) -> WorkArgs {
        WorkArgs {
            num_prompts: count,
            max_concurrency: None,
            request_rate: Vec::new(),
            input_len: vec![Lengths { least: 2, most: 5 }, Lengths { least: 40, most: 40 }],
            output_len: 7,
            prefix_len: 3,
            num_prefixes: 2,
            vocab_size: None,
            seed: 5,
        }
    }

    #[test]
    fn prompts_have_their_lengths_and_beginnings() {
        let all = requests(&args(400), 0, 1000, None);
        assert_eq!(all, requests(&args(400), 0, 1000, None));
        let next = requests(&args(400), 1, 1000, None);
        assert!(all.iter().zip(&next).all(|(one, other)| one.prompt[..3] != other.prompt[..3]));
        let mut beginnings: Vec<_> = all.iter().map(|one| one.prompt[..3].to_vec()).collect();
        beginnings.sort();
        beginnings.dedup();
        assert_eq!(beginnings.len(), 2);
        let rests: Vec<usize> = all.iter().map(|one| one.prompt.len() - 3).collect();
        assert!((2..=5).all(|length| rests.contains(&length)));
        assert!(rests.iter().all(|rest| (2..=5).contains(rest) || *rest == 40));
        let long = rests.iter().filter(|rest| **rest == 40).count();
        assert!((140..=260).contains(&long), "{long}");
        let tokens = all.iter().flat_map(|one| &one.prompt);
        assert!(tokens.clone().all(|token| *token < 1000));
        assert!(tokens.max() > Some(&990));
        assert!(all.iter().all(|one| one.at.is_zero() && one.answer == 7));
    }

    /// The mean of 4,000 gaps is within 5 of its standard deviations (mean / √4000) of the requested mean.
    #[test]
    fn requests_come_at_their_rate() {
        let all = requests(&args(4000), 0, 10, Some(20.0));
        assert!(all.is_sorted_by_key(|one| one.at));
        let mean = all.last().unwrap().at.as_secs_f64() / 4000.0;
        assert!((mean - 0.05).abs() < 5.0 * 0.05 / 4000f64.sqrt(), "{mean}");
    }
}
