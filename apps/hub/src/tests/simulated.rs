//! Seeded simulations of downloads. Attempts run over connections that break, corrupt and mislead, and
//! partial files are modified between attempts. All completed files must be correct, and the download must
//! succeed in the end.

use super::*;

/// An xorshift64* generator, with equal results on all machines.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % limit
    }
}

impl Bench {
    /// Returns a random position in a file, preferring its start and its end.
    fn place(&self, random: &mut Random) -> (String, usize) {
        let names =
            [FIRST, SECOND, "config.json", "tokenizer.json", "model.safetensors.index.json"];
        let name = names[random.below(names.len())];
        let length = self.files[name].len();
        let at = match random.below(4) {
            0 => random.below(length.min(64)),
            1 => length - 1 - random.below(length.min(64)),
            _ => random.below(length),
        };
        (name.to_owned(), at)
    }

    fn misbehave(&self, random: &mut Random) {
        let cuts = (0..random.below(5)).map(|_| self.place(random)).collect();
        let flips = match random.below(3) {
            0 => vec![self.place(random)],
            _ => Vec::new(),
        };
        let manner = match random.below(12) {
            0 => HubFault::Short(random.below(100_000)),
            1 => HubFault::Loop,
            2 => HubFault::Nowhere,
            _ => HubFault::Sound,
        };
        let mut state = self.server.state.lock().unwrap();
        (state.cuts, state.flips, state.manner) = (cuts, flips, manner);
    }

    fn behave_well(&self) {
        let mut state = self.server.state.lock().unwrap();
        (state.cuts, state.flips) = (Vec::new(), Vec::new());
        state.manner = HubFault::Sound;
        state.requests.clear();
    }

    fn damage(&self, random: &mut Random) {
        let blobs = self.options.downloads.join("models--Owner--Small-MoE/blobs");
        let parts = std::fs::read_dir(blobs).into_iter().flatten().flatten();
        let parts: Vec<_> = parts.map(|entry| entry.path()).collect();
        let parts: Vec<_> =
            parts.iter().filter(|path| path.extension().is_some_and(|x| x == "part")).collect();
        if parts.is_empty() {
            return;
        }
        let path = parts[random.below(parts.len())];
        let mut bytes = std::fs::read(path).unwrap();
        let at = random.below(bytes.len() + 1);
        match random.below(3) {
            0 => bytes.truncate(at),
            1 => bytes.extend(vec![7; at]),
            _ => bytes.get_mut(at).into_iter().for_each(|byte| *byte ^= 1),
        }
        std::fs::write(path, bytes).unwrap();
    }
}

fn simulate(seed: u64, bench: &mut Bench) {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let caches = tempfile::tempdir().unwrap();
    bench.options.downloads = caches.path().join("hub");
    bench.options.headers = caches.path().join("headers");
    for _ in 0..random.below(4) {
        bench.misbehave(&mut random);
        if let Ok(obtained) = bench.obtain() {
            bench.expect_whole(&obtained);
        }
        if random.below(2) == 0 {
            bench.damage(&mut random);
        }
    }
    bench.behave_well();
    // An attempt over a good connection removes files found to be damaged; there are six files.
    let mut attempts = (0..7).map(|_| bench.obtain());
    let obtained = attempts.find_map(Result::ok);
    bench.expect_whole(&obtained.expect("over a sound line everything arrives"));
}

/// Runs `NESTLING_SEEDS` seeds, starting at `NESTLING_FIRST_SEED`.
#[test]
fn attempts_over_a_bad_line_end_in_whole_files_by_seed() {
    let mut bench = bench();
    bench.options.limits.pause = Duration::from_micros(10);
    let number = |name: &str| std::env::var(name).ok().map(|value| value.parse::<u64>().unwrap());
    let first = number("NESTLING_FIRST_SEED").unwrap_or(0);
    for seed in first..first + number("NESTLING_SEEDS").unwrap_or(20) {
        let run = std::panic::AssertUnwindSafe(|| simulate(seed, &mut bench));
        assert!(std::panic::catch_unwind(run).is_ok(), "seed {seed}");
    }
}
