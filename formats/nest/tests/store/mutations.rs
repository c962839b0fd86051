//! A short run of the fuzz targets in each test run: seeded mutations of a valid store, with recomputed
//! checksums so that the checks behind them are reached.

use nestling_formats::store::Measures;

use crate::support::seal::seal;
use crate::support::{Random, bytes_of, open_bytes, small_plan};

/// Typical edge cases of parsers.
const INTERESTING: [u64; 10] =
    [0, 1, 2, 0x7f, 0xff, 0xffff, 0x7fff_ffff, 0xffff_ffff, 0x8000_0000_0000_0000, u64::MAX];

fn mutate(bytes: &mut Vec<u8>, index_end: usize, random: &mut Random) {
    for _ in 0..=random.below(4) {
        let front = index_end.min(bytes.len());
        if front < 8 {
            return;
        }
        let at = random.below(front - 7);
        match random.below(8) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = random.next() as u8,
            2 => {
                let value = INTERESTING[random.below(INTERESTING.len())].to_le_bytes();
                let width = 1 << random.below(4);
                bytes[at..at + width].copy_from_slice(&value[..width]);
            }
            3 => {
                let aligned = at / 4 * 4;
                let value = u32::from_le_bytes(bytes[aligned..aligned + 4].try_into().unwrap());
                let value = value.wrapping_add(random.below(9) as u32).wrapping_sub(4);
                bytes[aligned..aligned + 4].copy_from_slice(&value.to_le_bytes());
            }
            4 => {
                let from = random.below(front - 7);
                let length = random.below(64).min(front - from.max(at));
                bytes.copy_within(from..from + length, at);
            }
            5 => {
                let width = [4, 8, 24, 32, 48][random.below(5)];
                let (a, b) = (random.below(front), random.below(front));
                let width = width.min(front - a.max(b));
                (0..width).for_each(|i| bytes.swap(a + i, b + i));
            }
            6 => bytes.truncate(random.below(bytes.len())),
            _ => {
                bytes.remove(at);
            }
        }
    }
}

#[test]
fn mutated_stores_are_refused_or_read_without_a_panic() {
    let mut plan = small_plan();
    plan.measures = Measures::PerMatrix;
    let good = bytes_of(&plan);
    let length = u64::from_le_bytes(good[56..64].try_into().unwrap());
    let index_end = 128 + length as usize;
    let mut random = Random(0xf00d);
    let (mut opened, mut refused) = (0, 0);
    for _ in 0..20_000 {
        let mut bytes = good.clone();
        mutate(&mut bytes, index_end, &mut random);
        if random.below(16) != 0 {
            seal(&mut bytes);
        }
        let Ok(store) = open_bytes(bytes) else {
            refused += 1;
            continue;
        };
        opened += 1;
        for group in store.groups() {
            for plane in nestling_formats::Plane::ALL {
                assert!(group.parts(plane).is_some());
                if let Some(extent) = store.extent(group, plane) {
                    // Damage is an acceptable result; a panic is not.
                    drop(store.read_extent_vec(extent));
                }
            }
        }
    }
    // The mutations must produce both valid and invalid stores.
    assert!(opened > 100 && refused > 10_000, "{opened} opened, {refused} refused");
}
