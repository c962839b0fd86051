//! Limits on the work of one launch. Operating systems reset a GPU that is busy for too long: Windows after
//! two seconds, macOS and phones similarly.
//!
//! Work is counted in multiplications, and a device's rates are measured when it is opened
//! (`calibration.rs`). Rates only determine how work is split into launches; results do not depend on them.

use std::ops::Range;

use nestling_import::{DeltaNetConfig, Mamba2Config, ShortConvConfig};

use nestling_core::kv_cache::PAGE_POSITIONS;

/// Maximum estimated duration of one launch, in nanoseconds.
pub const LAUNCH_NANOSECONDS: u64 = 250_000_000;

/// Maximum estimated duration of one submission, in nanoseconds. A submission may exceed it if it consists of
/// one launch.
pub const SUBMISSION_NANOSECONDS: u64 = 500_000_000;

/// Cost of an element read or written in memory, in multiplications of attention.
const ELEMENT_WORK: u128 = 8;

/// Kind of work in a launch. A device's speed differs between kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkKind {
    /// Products of a nested matrix with many rows of activations, which decode weights once for all rows.
    ManyRows,
    /// Products of a nested matrix with few rows of activations.
    FewRows,
    /// Products with float activations.
    Floats,
    /// Scores and weighted values of attention.
    Attention,
    /// Sequential updates of a recurrent state, row after row.
    Recurrence,
    /// Elementwise operations.
    Elements,
}

impl WorkKind {
    /// Kinds that are measured.
    pub const MEASURED: [Self; 5] =
        [Self::ManyRows, Self::FewRows, Self::Floats, Self::Attention, Self::Recurrence];
}

/// Speed of a device for each kind of work, in multiplications per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkRates {
    /// Rates in the order of [`WorkKind::MEASURED`].
    rates: [u64; WorkKind::MEASURED.len()],
}

impl WorkRates {
    /// Rate assumed for a device that could not be measured, slower than any GPU.
    pub const FLOOR: u64 = 1 << 28;

    /// Maximum rate. At this rate, a launch of [`LAUNCH_NANOSECONDS`] exceeds any product of a layer.
    pub const CEILING: u64 = 1 << 45;

    /// Rates of a device that could not be measured.
    pub const UNKNOWN: Self = Self::uniform(Self::FLOOR);

    /// Rates of a device without a watchdog, such as a program on the CPU.
    pub const UNWATCHED: Self = Self::uniform(Self::CEILING);

    /// Returns the same rate for all kinds of work. Used by tests.
    pub const fn uniform(per_second: u64) -> Self {
        Self { rates: [per_second; WorkKind::MEASURED.len()] }
    }

    /// Returns measured rates, given in the order of [`WorkKind::MEASURED`]. Rates are clamped to
    /// [`WorkRates::FLOOR`] and [`WorkRates::CEILING`]; NaN becomes the floor.
    pub fn measured(per_second: [f64; WorkKind::MEASURED.len()]) -> Self {
        let sane = |rate: f64| match rate {
            rate if rate >= Self::CEILING as f64 => Self::CEILING,
            rate if rate > Self::FLOOR as f64 => rate as u64,
            // Includes NaN.
            _ => Self::FLOOR,
        };
        Self { rates: per_second.map(sane) }
    }

    /// Returns the rate in multiplications per second.
    pub fn per_second(&self, kind: WorkKind) -> u64 {
        let [many, few, floats, attention, recurrence] = self.rates;
        match kind {
            WorkKind::ManyRows => many,
            WorkKind::FewRows => few,
            WorkKind::Floats => floats,
            WorkKind::Attention | WorkKind::Elements => attention,
            WorkKind::Recurrence => recurrence,
        }
    }

    /// Returns the estimated duration of work in nanoseconds.
    pub fn nanoseconds(&self, kind: WorkKind, work: u64) -> u64 {
        let each = if kind == WorkKind::Elements { ELEMENT_WORK } else { 1 };
        let work = u128::from(work) * each * 1_000_000_000;
        let time = work.div_ceil(u128::from(self.per_second(kind).max(1)));
        u64::try_from(time).unwrap_or(u64::MAX)
    }

    /// Returns the maximum work of one launch.
    pub fn launch_work(&self, kind: WorkKind) -> u64 {
        let each = if kind == WorkKind::Elements { ELEMENT_WORK } else { 1 };
        let rate = u128::from(self.per_second(kind)) * u128::from(LAUNCH_NANOSECONDS);
        let work = rate / (1_000_000_000 * each);
        u64::try_from(work).unwrap_or(u64::MAX).max(1)
    }
}

/// Returns the product of counts, saturating at `u64::MAX`.
pub fn work_of(counts: &[usize]) -> u64 {
    counts.iter().fold(1, |work: u64, count| work.saturating_mul(*count as u64))
}

/// Returns the number of positions in the pages that a row sees, including its own page. `window` limits the
/// visible positions.
pub fn seen_positions(position: u32, window: Option<usize>) -> usize {
    let end = position as usize + 1;
    let start = window.map_or(0, |window| end.saturating_sub(window));
    end.next_multiple_of(PAGE_POSITIONS) - start / PAGE_POSITIONS * PAGE_POSITIONS
}

/// Splits items into consecutive ranges whose total work is at most `most`. An item that exceeds `most` gets
/// its own range.
pub fn pieces(work: impl IntoIterator<Item = u64>, most: u64) -> Vec<Range<usize>> {
    let mut pieces: Vec<Range<usize>> = Vec::new();
    let mut sum = 0u64;
    for (index, work) in work.into_iter().enumerate() {
        let with = sum.checked_add(work).filter(|with| *with <= most);
        match (pieces.last_mut(), with) {
            (Some(last), Some(with)) => (last.end, sum) = (index + 1, with),
            _ => {
                pieces.push(index..index + 1);
                sum = work;
            }
        }
    }
    pieces
}

/// Columns of the largest recurrent state used for measuring. Smaller states take as long.
const STATE_COLUMNS: usize = 8192;

/// Returns the work of one row over all heads of a state: two dot products and one update for each element.
/// Small states count as `STATE_COLUMNS` columns, because they take as long.
pub fn recurrence_row_work(shape: &DeltaNetConfig) -> u64 {
    work_of(&[3, shape.value_dim().max(STATE_COLUMNS), shape.key_head_dim])
}

/// Returns the work of one row over all heads of a Mamba-2 layer: an update and a dot product for each element of
/// the states. Small states count as `STATE_COLUMNS` columns, because they take as long.
pub fn mamba2_row_work(shape: &Mamba2Config) -> u64 {
    work_of(&[2, shape.inner().max(STATE_COLUMNS), shape.state_size])
}

/// Returns the work of one row of a gated short convolution. Few channels count as `STATE_COLUMNS`, because
/// they take as long.
pub fn short_conv_row_work(shape: &ShortConvConfig) -> u64 {
    work_of(&[shape.taps + 2, shape.channels.max(STATE_COLUMNS)])
}

/// Returns the number of items of `each` work that fit in `most`: a positive multiple of `unit`.
pub fn at_once(each: u64, most: u64, unit: usize) -> usize {
    let count = usize::try_from(most / each.max(1)).unwrap_or(usize::MAX);
    (count / unit.max(1) * unit.max(1)).max(unit).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [WorkKind; 6] = [
        WorkKind::ManyRows,
        WorkKind::FewRows,
        WorkKind::Floats,
        WorkKind::Attention,
        WorkKind::Recurrence,
        WorkKind::Elements,
    ];

    #[test]
    fn nonsense_that_was_measured_becomes_a_bound() {
        let (floor, ceiling) = (WorkRates::FLOOR, WorkRates::CEILING);
        for (measured, rate) in [
            (0.0, floor),
            (-1e12, floor),
            (f64::NAN, floor),
            (f64::NEG_INFINITY, floor),
            (1e-300, floor),
            (268_435_455.0, floor),
            (268_435_458.0, floor + 2),
            (1e12, 1_000_000_000_000),
            (1e300, ceiling),
            (f64::INFINITY, ceiling),
        ] {
            assert_eq!(WorkRates::measured([measured; 5]), WorkRates::uniform(rate), "{measured}");
        }
        let apart = WorkRates::measured([1e10, 2e10, 3e10, 4e10, f64::NAN]);
        let rates = ALL.map(|kind| apart.per_second(kind));
        let (e, floor) = (10_000_000_000, WorkRates::FLOOR);
        assert_eq!(rates, [e, 2 * e, 3 * e, 4 * e, floor, 4 * e]);
    }

    #[test]
    fn times_are_those_of_the_rate_rounded_up() {
        let rates = WorkRates::uniform(1_000_000_000);
        assert_eq!(rates.nanoseconds(WorkKind::ManyRows, 7), 7);
        assert_eq!(rates.nanoseconds(WorkKind::Elements, 7), 56);
        assert_eq!(WorkRates::uniform(3_000_000_000).nanoseconds(WorkKind::Floats, 7), 3);
        assert_eq!(rates.launch_work(WorkKind::Attention), 250_000_000);
        assert_eq!(rates.launch_work(WorkKind::Elements), 31_250_000);
        // At a rate of zero, durations are huge and a launch has the minimum work.
        let none = WorkRates::uniform(0);
        assert_eq!(none.nanoseconds(WorkKind::FewRows, 1), 1_000_000_000);
        assert_eq!(none.launch_work(WorkKind::FewRows), 1);
        for kind in ALL {
            for rate in [1, WorkRates::FLOOR, WorkRates::CEILING] {
                let rates = WorkRates::uniform(rate);
                let most = rates.launch_work(kind);
                assert!(most == 1 || rates.nanoseconds(kind, most) <= LAUNCH_NANOSECONDS);
                assert!(rates.nanoseconds(kind, most + 1) > LAUNCH_NANOSECONDS - 64);
            }
        }
    }

    /// Uses 4,096 rows at the end of 131,072 positions, 64 heads of 128 and 128 elements, and 94 layers.
    #[test]
    fn long_prompts_do_not_overflow() {
        let positions: usize =
            (131_072 - 4096..131_072).map(|position| seen_positions(position, None)).sum();
        // Pages 1985 to 2048 have 64 positions and are seen by 64 rows each: 64 * 64 * (1985 + ... + 2048).
        assert_eq!(positions, 64 * 64 * 129_056);
        let layer = work_of(&[positions, 64, 128 + 128]);
        assert_eq!(layer, 8_660_801_552_384);
        assert_eq!(work_of(&[positions, 64, 256, 94]), 814_115_345_924_096);
        let slow = WorkRates::uniform(WorkRates::FLOOR);
        // The durations are 32,264 and 3,032,816 seconds.
        assert_eq!(slow.nanoseconds(WorkKind::Attention, layer), 32_264_000_000_000);
        assert_eq!(slow.nanoseconds(WorkKind::Attention, 94 * layer), 3_032_816_000_000_000);
        assert_eq!(work_of(&[usize::MAX, usize::MAX, 3]), u64::MAX);
        assert_eq!(WorkRates::uniform(1).nanoseconds(WorkKind::Elements, u64::MAX), u64::MAX);
        assert_eq!(WorkRates::uniform(u64::MAX).launch_work(WorkKind::Floats), u64::MAX / 4);
    }

    #[test]
    fn windows_are_counted_in_whole_pages() {
        for (position, window, seen) in [
            (0, None, 64),
            (63, None, 64),
            (64, None, 128),
            (1000, Some(1), 64),
            (1000, Some(41), 64),
            (1000, Some(42), 128),
            (1000, Some(5000), 1024),
            (u32::MAX, None, 1 << 32),
        ] {
            assert_eq!(seen_positions(position, window), seen, "{position}, {window:?}");
        }
    }

    #[test]
    fn pieces_are_as_large_as_they_may_be() {
        let cut = |work: &[u64], most| -> Vec<(usize, usize)> {
            let pieces = pieces(work.iter().copied(), most).into_iter();
            pieces.map(|piece| (piece.start, piece.end)).collect()
        };
        assert!(cut(&[], 5).is_empty());
        assert_eq!(cut(&[2, 3, 1, 9, 1, 1], 5), [(0, 2), (2, 3), (3, 4), (4, 6)]);
        assert_eq!(cut(&[1, 1, 1], u64::MAX), [(0, 3)]);
        assert_eq!(cut(&[u64::MAX, u64::MAX, 1], u64::MAX), [(0, 1), (1, 2), (2, 3)]);
        assert_eq!(cut(&[0, 0], 0), [(0, 2)]);
        assert_eq!(at_once(10, 100, 1), 10);
        assert_eq!(at_once(10, 100, 4), 8);
        assert_eq!(at_once(10, 9, 4), 4);
        assert_eq!(at_once(0, u64::MAX, 1), usize::MAX);
        assert_eq!(at_once(5, 0, 0), 1);
    }
}
