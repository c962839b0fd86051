use super::*;

fn points(errors: [f64; 5]) -> Vec<(Level, f64, f64)> {
    let bits = Level::ALL.map(|level| f64::from(level.bits()));
    (0..5).map(|at| (Level::ALL[at], bits[at], errors[at])).collect()
}

#[test]
fn a_convex_curve_is_its_own_hull() {
    let edges = hull(&points([100.0, 30.0, 8.0, 0.5, 0.0]));
    assert_eq!(edges, [(Level::L3, 70.0), (Level::L4, 22.0), (Level::L6, 3.75), (Level::L8, 0.25)]);
}

#[test]
fn levels_above_the_hull_are_passed_over() {
    // Level 3 gains little and level 4 much, so level 3 is skipped.
    let edges = hull(&points([100.0, 95.0, 10.0, 9.0, 1.0]));
    assert_eq!(edges, [(Level::L4, 45.0), (Level::L8, 2.25)]);
}

#[test]
fn a_level_that_makes_it_worse_is_never_chosen_for_its_own_sake() {
    let edges = hull(&points([10.0, 5.0, 6.0, 4.0, 4.5]));
    assert!(edges.windows(2).all(|pair| pair[0].1 >= pair[1].1), "{edges:?}");
    assert_eq!(edges.first(), Some(&(Level::L3, 5.0)));
    assert!(edges.iter().all(|(_, slope)| *slope >= 0.0));
    assert_eq!(hull(&points([0.0; 5])), [(Level::L8, 0.0)]);
    assert_eq!(hull(&points([1.0; 5])[..1]), []);
}
