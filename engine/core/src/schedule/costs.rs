//! Cost model of steps: time as a function of rows, learned from measured steps.

/// Number of classes. Class `k` contains steps of `2^(k/2)` rows up to the next such number.
const CLASSES: usize = 40;

/// Weight of the newest step in the running mean of its class.
const NEWEST: f64 = 0.3;

/// Safety margin of estimates, in mean deviations of the class.
const DEVIATIONS: f64 = 2.0;

/// Maximum factor of rows over the largest measured step.
const GROWTH: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq)]
struct Class {
    rows: f64,
    seconds: f64,
    deviation: f64,
}

/// Seconds of a step as a monotonic function of its rows. Separate classes capture both the fixed cost
/// (weights that any step reads) and the cost per row (arithmetic).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepCosts {
    classes: Vec<Option<Class>>, // [CLASSES]
}

impl StepCosts {
    /// Records a measured step; a time of zero is ignored.
    pub fn measured(&mut self, rows: usize, seconds: f64) {
        if rows == 0 || !seconds.is_finite() || seconds <= 0.0 {
            return;
        }
        self.classes.resize(CLASSES, None);
        let index = ((rows as f64).log2() * 2.0) as usize;
        let index = index.min(CLASSES - 1);
        // Default: unreachable, since the index is bounded above.
        let Some(place) = self.classes.get_mut(index) else { return };
        let rows = rows as f64;
        let class = match *place {
            None => Class { rows, seconds, deviation: 0.0 },
            Some(old) => {
                let mean = |old: f64, new: f64| old + NEWEST * (new - old);
                Class {
                    rows: mean(old.rows, rows),
                    seconds: mean(old.seconds, seconds),
                    deviation: mean(old.deviation, (seconds - old.seconds).abs()),
                }
            }
        };
        *place = Some(class);
        // More rows do not take less time, so earlier measurements of other classes are adjusted.
        for other in self.classes.iter_mut().take(index).flatten() {
            other.seconds = other.seconds.min(class.seconds);
        }
        for other in self.classes.iter_mut().skip(index + 1).flatten() {
            other.seconds = other.seconds.max(class.seconds);
        }
    }

    /// Returns true if any step was measured.
    pub fn is_known(&self) -> bool {
        self.classes.iter().any(Option::is_some)
    }

    /// Returns the points of the curve, rows and seconds, both ascending. Few steps take longer than their
    /// point.
    fn points(&self) -> impl Iterator<Item = [f64; 2]> {
        let mut least = 0.0_f64;
        self.classes.iter().flatten().map(move |class| {
            least = least.max(class.seconds + DEVIATIONS * class.deviation);
            [class.rows, least]
        })
    }

    /// Returns an upper estimate of the seconds of a step of `rows` rows. Returns `None` before the first
    /// measurement.
    pub fn seconds(&self, rows: usize) -> Option<f64> {
        let (rows, mut before) = (rows as f64, [0.0, 0.0]);
        for point in self.points() {
            if rows <= point[0] {
                return Some(between(before, point, 0, rows));
            }
            before = point;
        }
        // Proportional extrapolation is an upper bound, because the fixed cost does not grow with rows.
        self.is_known().then(|| before[1] * rows / before[0])
    }

    /// Returns the largest number of rows expected to finish within `seconds`, capped at four times the
    /// largest measured. Returns `None` before the first measurement.
    pub fn rows_within(&self, seconds: f64) -> Option<usize> {
        let mut before = [0.0, 0.0];
        for point in self.points() {
            if seconds < point[1] {
                return Some(between(before, point, 1, seconds) as usize);
            }
            before = point;
        }
        let [rows, known] = before;
        let most = rows * GROWTH as f64;
        self.is_known().then(|| (rows * seconds / known).min(most) as usize)
    }

    /// Returns the number of rows whose cost equals the fixed cost of a step. Larger steps reduce the time
    /// per row by less than half. Returns `None` if the curve shows no fixed cost.
    pub fn paying_rows(&self) -> Option<usize> {
        let points = || self.classes.iter().flatten();
        let (first, last) = (points().next()?, points().last()?);
        let for_each = (last.seconds - first.seconds) / (last.rows - first.rows);
        let whatever = first.seconds - for_each * first.rows;
        let rows = whatever / for_each;
        (rows.is_finite() && rows > 0.0).then_some(rows.round() as usize)
    }
}

/// Interpolates between two points: returns the other coordinate, given the value of coordinate `axis`.
fn between(low: [f64; 2], high: [f64; 2], axis: usize, value: f64) -> f64 {
    let width = high[axis] - low[axis];
    let share = if width > 0.0 { (value - low[axis]) / width } else { 1.0 };
    low[1 - axis] + share.clamp(0.0, 1.0) * (high[1 - axis] - low[1 - axis])
}

#[cfg(test)]
mod tests {
    use super::StepCosts;

    /// Model of a step that reads weights for 30 ms and computes a row in 2 ms.
    fn seconds(rows: usize) -> f64 {
        0.03 + 0.002 * rows as f64
    }

    #[test]
    fn rows_are_found_within_a_few_steps() {
        let mut costs = StepCosts::default();
        assert_eq!((costs.rows_within(1.0), costs.seconds(7)), (None, None));
        let mut rows = 64;
        for _ in 0..12 {
            costs.measured(rows, seconds(rows));
            rows = costs.rows_within(0.4).unwrap();
        }
        assert!((170..=185).contains(&rows), "{rows}");
        let guessed = costs.seconds(rows).unwrap();
        assert!((guessed - 0.4).abs() < 0.02, "{guessed}");
    }

    #[test]
    fn what_took_longer_is_not_forgotten_for_more_rows() {
        let mut costs = StepCosts::default();
        costs.measured(64, 0.1);
        costs.measured(8, 0.3);
        assert!(costs.seconds(64).unwrap() >= 0.3);
        costs.measured(64, 0.05);
        assert!(costs.seconds(8).unwrap() <= 0.3);
        costs.measured(0, 1.0);
        costs.measured(9, f64::NAN);
        assert!(costs.seconds(8).unwrap().is_finite());
    }

    #[test]
    fn rows_pay_until_they_cost_what_the_weights_do() {
        let mut costs = StepCosts::default();
        for rows in [4, 400] {
            costs.measured(rows, seconds(rows));
        }
        assert_eq!(costs.paying_rows(), Some(15));
    }

    #[test]
    fn a_step_that_was_never_so_long_grows_by_steps() {
        let mut costs = StepCosts::default();
        costs.measured(10, 1e-6);
        assert_eq!(costs.rows_within(1.0), Some(40));
    }
}
