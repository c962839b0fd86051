use super::fit::initial_codec;
use super::strided::{fitted, nearest, round_tables};

#[test]
fn nearest_keeps_mirror_images() {
    // Half-way between two values, the larger magnitude on both sides.
    assert_eq!(nearest([-127, -8, -4, -1, 0, 4, 8, 127], 1.0), [-126, -10, -6, -2, 2, 6, 10, 126]);
    assert_eq!(nearest([-120, 50], 1.25), [-126, 62]);
}

#[test]
fn level_4_keeps_its_table() {
    let mut codec = initial_codec(9830);
    let before = codec.tables[0];
    round_tables(&mut codec);
    let after = codec.tables[0];
    assert_eq!((after.t2, after.t3), (nearest(before.t2, 1.0), nearest(before.t3, 1.0)));
    assert_eq!(after.t4, before.t4);
    assert!(after.t2.iter().chain(&after.t3).all(|entry| (i32::from(*entry) + 126) % 4 == 0));
}

#[test]
fn independent_entries_are_rounded_to_the_better_grid() {
    let left = [[3.0, 0.0], [0.0, 1.0]];
    for (best, expected) in [([-40.5, 17.0], [-40, 16]), ([-41.5, 18.0], [-42, 18])] {
        let right = [left[0][0] * best[0], left[1][1] * best[1]];
        assert_eq!(fitted(&left, &right, best), expected);
    }
}

/// Compares with all values of both grids, where entries depend on each other.
#[test]
fn fitted_entries_are_the_best_of_all() {
    let left = [[5.0, 1.0], [1.0, 2.0]];
    let grids = [2i8, 0].map(|first| {
        (-126..=126i8).filter(move |value| (value - first).rem_euclid(4) == 0).collect::<Vec<_>>()
    });
    for step in 0..50 {
        let best = [f64::from(step) * 2.3 - 60.0, 80.0 - f64::from(step) * 1.7];
        let right = left.map(|row| row[0] * best[0] + row[1] * best[1]);
        let error = |values: [i8; 2]| {
            let [a, b] = [f64::from(values[0]) - best[0], f64::from(values[1]) - best[1]];
            5.0 * a * a + 2.0 * a * b + 2.0 * b * b
        };
        let pairs = grids.iter().flat_map(|grid| {
            grid.iter().flat_map(move |a| grid.iter().map(move |b| error([*a, *b])))
        });
        let smallest = pairs.min_by(f64::total_cmp).unwrap();
        assert!(error(fitted(&left, &right, best)) < smallest + 1e-9, "{best:?}");
    }
}
