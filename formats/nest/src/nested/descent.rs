//! Choice of codes by error feedback, then by coordinate descent on the output error at all levels.
//!
//! A row with errors `e_b` at levels `b` costs `J = Σ μ_b e_b H e_bᵀ`. Feedback (LDLQ of "QuIP") rounds
//! column after column, with a separate error for each level. Descent (as "QuantEase" does for one level)
//! then sweeps over the columns and gives each the best code while all others stay fixed. Both choose a
//! single code for the targets of all five levels.
//!
//! The rows of a tile are the lanes of each operation. The contribution `H e` of all other columns to a group
//! is one matrix product, computed when the sweep reaches the group; changes inside the group are then added
//! one by one. Products are fused in a fixed order, so the result has the same bits with any vector width.
#![expect(clippy::needless_range_loop, reason = "one lane of several arrays")]

use super::chooser::{Chooser, Lanes, Levels};
use super::{DampedMoments, GROUP, STEPS, TILE_ROWS, ZERO_STEP};

/// Columns of errors per block of a product; a block fits in the L1 cache.
const BLOCK: usize = 64;

/// Changes of a group's step in one trial.
const TRIALS: [i8; 2] = [-1, 1];

/// The rows of a tile while their codes are searched, column by column. Missing rows have scale 0. Lengths
/// match the moments, padded to whole groups.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TileRows {
    pub weights: Vec<Lanes>,         // [stride]
    pub codes: Vec<[u8; TILE_ROWS]>, // [stride]
    pub steps: Vec<[u8; TILE_ROWS]>, // [groups]
    pub row_scales: Lanes,
    errors: Vec<Levels>, // [stride], zero in padding
}

impl TileRows {
    pub fn new(groups: usize) -> Self {
        Self {
            weights: vec![[0.0; TILE_ROWS]; groups * GROUP],
            codes: vec![[0; TILE_ROWS]; groups * GROUP],
            steps: vec![[ZERO_STEP; TILE_ROWS]; groups],
            row_scales: [0.0; TILE_ROWS],
            errors: vec![[[0.0; TILE_ROWS]; 5]; groups * GROUP],
        }
    }

    #[inline(always)]
    fn scales(&self, steps: &[u8; TILE_ROWS]) -> Lanes {
        let mut scales = self.row_scales;
        for lane in 0..TILE_ROWS {
            scales[lane] *= STEPS[usize::from(steps[lane] & 31)];
        }
        scales
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Effort {
    pub feedback: bool,
    pub sweeps: u32,
    pub step_sweeps: u32,
}

/// Parameters shared by the rows of a tile: their table and the moments of their inputs.
pub(super) struct Tile<'a> {
    pub chooser: &'a Chooser,
    pub damped: &'a DampedMoments,
}

#[derive(Clone)]
struct Trial {
    steps: [u8; TILE_ROWS],
    codes: [[u8; TILE_ROWS]; GROUP],
    gain: Lanes,
}

/// State of the steps in a trial: unchanged, so that codes may stay, or changed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Steps {
    Kept,
    Moved,
}

impl Tile<'_> {
    /// Runs feedback, then sweeps, as `effort` requests; `COLUMNS` sums of a product are computed at a time.
    #[inline(always)]
    pub fn improve<const COLUMNS: usize>(&self, rows: &mut TileRows, effort: Effort) {
        if let Some(lower) = self.damped.lower().filter(|_| effort.feedback) {
            self.feed_back::<COLUMNS>(rows, lower);
        }
        if effort.sweeps == 0 {
            return;
        }
        let groups = rows.steps.len();
        for group in 0..groups {
            self.refresh(rows, group);
        }
        for sweep in 0..effort.sweeps {
            for group in 0..groups {
                self.sweep_group::<COLUMNS>(rows, group, sweep < effort.step_sweeps);
            }
        }
    }

    /// Returns the number of columns of a group within the matrix.
    #[inline(always)]
    fn width(&self, group: usize) -> usize {
        GROUP.min(self.damped.dim().saturating_sub(group * GROUP))
    }

    /// Chooses all codes again, column by column, from targets that compensate for the errors so far.
    #[inline(always)]
    fn feed_back<const COLUMNS: usize>(&self, rows: &mut TileRows, lower: &[f32]) {
        let stride = self.damped.stride();
        for group in 0..rows.steps.len() {
            let from = group * GROUP;
            let scales = rows.scales(&rows.steps[group]);
            let inverses = inverses(&scales);
            let answers =
                products::<COLUMNS>(&rows.errors[..from], &lower[from * stride..], stride);
            for at in 0..self.width(group) {
                let factors = &lower[(from + at) * stride + from..][..GROUP];
                let mut targets = answers[at];
                for (error, factor) in rows.errors[from..from + at].iter().zip(factors) {
                    add_scaled(&mut targets, error, *factor);
                }
                for target in &mut targets {
                    for lane in 0..TILE_ROWS {
                        target[lane] =
                            (target[lane] + rows.weights[from + at][lane]) * inverses[lane];
                    }
                }
                let codes = self.chooser.choose(&targets);
                for lane in 0..TILE_ROWS {
                    if scales[lane] > 0.0 {
                        rows.codes[from + at][lane] = codes[lane];
                    }
                }
                rows.errors[from + at] =
                    self.errors(&rows.weights[from + at], &scales, &rows.codes[from + at]);
            }
        }
    }

    /// Returns the weights minus their decoded values, at each level.
    #[inline(always)]
    fn errors(&self, weights: &Lanes, scales: &Lanes, codes: &[u8; TILE_ROWS]) -> Levels {
        let mut errors = self.chooser.values(codes);
        for level in 0..5 {
            for lane in 0..TILE_ROWS {
                errors[level][lane] = weights[lane] - scales[lane] * errors[level][lane];
            }
        }
        errors
    }

    /// Recomputes the errors of a group from its codes.
    #[inline(always)]
    fn refresh(&self, rows: &mut TileRows, group: usize) {
        let scales = rows.scales(&rows.steps[group]);
        for col in group * GROUP..group * GROUP + self.width(group) {
            rows.errors[col] = self.errors(&rows.weights[col], &scales, &rows.codes[col]);
        }
    }

    /// Chooses the best codes for the columns of a group; with `steps`, each row also tries the neighbouring
    /// steps.
    #[inline(always)]
    fn sweep_group<const COLUMNS: usize>(&self, rows: &mut TileRows, group: usize, steps: bool) {
        let (stride, from) = (self.damped.stride(), group * GROUP);
        let moments = &self.damped.values()[from * stride..];
        let asked = products::<COLUMNS>(&rows.errors[..self.damped.dim()], moments, stride);
        let mut best = Trial {
            steps: rows.steps[group],
            codes: [[0; TILE_ROWS]; GROUP],
            gain: [0.0; TILE_ROWS],
        };
        best.codes.copy_from_slice(&rows.codes[from..from + GROUP]);
        let before = best.clone();
        self.descend(rows, group, &asked, Steps::Kept, &mut best);
        for shift in TRIALS.iter().filter(|_| steps) {
            let mut trial = before.clone();
            for step in &mut trial.steps {
                let moved = step.saturating_add_signed(*shift);
                *step = if *step < ZERO_STEP && moved < ZERO_STEP { moved } else { *step };
            }
            self.descend(rows, group, &asked, Steps::Moved, &mut trial);
            for lane in 0..TILE_ROWS {
                if trial.gain[lane] > best.gain[lane] {
                    (best.gain[lane], best.steps[lane]) = (trial.gain[lane], trial.steps[lane]);
                    for (best, trial) in best.codes.iter_mut().zip(&trial.codes) {
                        best[lane] = trial[lane];
                    }
                }
            }
        }
        rows.steps[group] = best.steps;
        rows.codes[from..from + GROUP].copy_from_slice(&best.codes);
        self.refresh(rows, group);
    }

    /// Chooses the best code for each column of the group in turn, with the trial's steps.
    #[inline(always)]
    fn descend(
        &self,
        rows: &TileRows,
        group: usize,
        asked: &[Levels; GROUP],
        steps: Steps,
        trial: &mut Trial,
    ) {
        let (stride, from) = (self.damped.stride(), group * GROUP);
        let scales = rows.scales(&trial.steps);
        let inverses = inverses(&scales);
        let mut changes = [[[0.0f32; TILE_ROWS]; 5]; GROUP];
        for at in 0..self.width(group) {
            let moments = &self.damped.values()[(from + at) * stride + from..][..GROUP];
            let mut products = asked[at];
            for (change, moment) in changes[..at].iter().zip(moments) {
                add_scaled(&mut products, change, *moment);
            }
            let (weights, errors) = (&rows.weights[from + at], &rows.errors[from + at]);
            let mut targets = *errors;
            let inverse = 1.0 / moments[at];
            for level in 0..5 {
                for lane in 0..TILE_ROWS {
                    let kept = weights[lane] - errors[level][lane];
                    targets[level][lane] =
                        (kept + products[level][lane] * inverse) * inverses[lane];
                }
            }
            let codes = self.chooser.choose(&targets);
            let mut change = self.errors(weights, &scales, &codes);
            let mut cost = [0.0f32; TILE_ROWS];
            for level in 0..5 {
                let weight = self.chooser.weights()[level];
                for lane in 0..TILE_ROWS {
                    let delta = change[level][lane] - errors[level][lane];
                    let slope = 2.0 * products[level][lane] + delta * moments[at];
                    cost[lane] += weight * delta * slope;
                    change[level][lane] = delta;
                }
            }
            let mut taken = [0.0f32; TILE_ROWS];
            for lane in 0..TILE_ROWS {
                let pays = steps == Steps::Moved || cost[lane] < 0.0;
                let take = pays && scales[lane] > 0.0;
                taken[lane] = if take { 1.0 } else { 0.0 };
                trial.codes[at][lane] = if take { codes[lane] } else { trial.codes[at][lane] };
                trial.gain[lane] -= if take { cost[lane] } else { 0.0 };
            }
            for level in 0..5 {
                for lane in 0..TILE_ROWS {
                    changes[at][level][lane] = taken[lane] * change[level][lane];
                }
            }
        }
    }
}

#[inline(always)]
fn inverses(scales: &Lanes) -> Lanes {
    let mut inverses = [0.0; TILE_ROWS];
    for lane in 0..TILE_ROWS {
        inverses[lane] = if scales[lane] > 0.0 { 1.0 / scales[lane] } else { 0.0 };
    }
    inverses
}

#[inline(always)]
fn add_scaled(sums: &mut Levels, values: &Levels, factor: f32) {
    for level in 0..5 {
        for lane in 0..TILE_ROWS {
            sums[level][lane] = values[level][lane].mul_add(factor, sums[level][lane]);
        }
    }
}

/// Returns the products of error columns with the first 32 rows of a matrix. Each sum is one chain of fused
/// operations over the columns.
#[inline(always)]
fn products<const COLUMNS: usize>(
    errors: &[Levels],
    matrix: &[f32],
    stride: usize,
) -> [Levels; GROUP] {
    let mut sums = [[[0.0; TILE_ROWS]; 5]; GROUP];
    for (block, errors) in errors.chunks(BLOCK).enumerate() {
        for (at, sums) in sums.as_chunks_mut::<COLUMNS>().0.iter_mut().enumerate() {
            let rows: [&[f32]; COLUMNS] = std::array::from_fn(|col| {
                &matrix[(at * COLUMNS + col) * stride + block * BLOCK..][..errors.len()]
            });
            let mut running = *sums;
            for (k, errors) in errors.iter().enumerate() {
                for col in 0..COLUMNS {
                    add_scaled(&mut running[col], errors, rows[col][k]);
                }
            }
            *sums = running;
        }
    }
    sums
}
