//! Codes by error feedback, then by coordinate descent on the error of the outputs at all levels.
//!
//! The errors `e_b` of a row at level `b` cost `J = Σ μ_b e_b H e_bᵀ`. Feedback (LDLQ of "QuIP")
//! rounds column after column with an error of its own for each level; descent (as "QuantEase" does
//! for one level) then sweeps over the columns, giving each the code that is best while all others
//! stay. Both choose one code for the targets of all five levels.
//!
//! The rows of a tile are the lanes of every operation. What all other columns ask of a group,
//! `H e`, is one product of matrices made when the sweep comes to the group; inside of the group,
//! changes are added to it one by one. Products are fused and their order is fixed, so that the
//! result has the same bits with any vectors.
#![expect(clippy::needless_range_loop, reason = "one lane of several arrays")]

use super::chooser::{Chooser, Lanes, Levels};
use super::{DampedMoments, GROUP, STEPS, TILE_ROWS, ZERO_STEP};

/// Columns of errors that are multiplied before the next sums: what the first cache holds.
const BLOCK: usize = 64;

/// How far a group's step may move from where it is in one trial.
const TRIALS: [i8; 2] = [-1, 1];

/// The rows of a tile while their codes are sought, column by column; rows that are missing have
/// the scale 0. Lengths are those of the moments, padded to whole groups.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TileRows {
    pub weights: Vec<Lanes>,         // [stride]
    pub codes: Vec<[u8; TILE_ROWS]>, // [stride]
    pub steps: Vec<[u8; TILE_ROWS]>, // [groups]
    pub row_scales: Lanes,
    errors: Vec<Levels>, // [stride], zero in padding
}

impl TileRows {
    /// Rows of zeros.
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

/// What is done to the rows of a tile.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effort {
    pub feedback: bool,
    pub sweeps: u32,
    pub step_sweeps: u32,
}

/// What the rows of one tile share: their inputs' moments and their table.
pub(super) struct Tile<'a> {
    pub chooser: &'a Chooser,
    pub damped: &'a DampedMoments,
}

/// One group of a tile while steps and codes are tried for it.
#[derive(Clone)]
struct Trial {
    steps: [u8; TILE_ROWS],
    codes: [[u8; TILE_ROWS]; GROUP],
    gain: Lanes,
}

/// Whether a trial keeps the steps, so that codes may stay, or starts with others.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Steps {
    Kept,
    Moved,
}

impl Tile<'_> {
    /// Feedback, then sweeps, as the effort says; `COLUMNS` of a product are summed at a time.
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

    /// Columns of a group that the matrix has.
    #[inline(always)]
    fn width(&self, group: usize) -> usize {
        GROUP.min(self.damped.dim().saturating_sub(group * GROUP))
    }

    /// Chooses all codes anew, column by column, each from targets that answer for the errors made.
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

    /// What is left of weights without their codes' values.
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

    /// Brings the errors of a group up to date with its codes.
    #[inline(always)]
    fn refresh(&self, rows: &mut TileRows, group: usize) {
        let scales = rows.scales(&rows.steps[group]);
        for col in group * GROUP..group * GROUP + self.width(group) {
            rows.errors[col] = self.errors(&rows.weights[col], &scales, &rows.codes[col]);
        }
    }

    /// Gives the columns of a group their best codes; with `steps`, each row also tries the
    /// neighbours of its group's step.
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

    /// Gives each column of the group in turn its best code with the trial's steps.
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

/// `sums += values * factor`, fused.
#[inline(always)]
fn add_scaled(sums: &mut Levels, values: &Levels, factor: f32) {
    for level in 0..5 {
        for lane in 0..TILE_ROWS {
            sums[level][lane] = values[level][lane].mul_add(factor, sums[level][lane]);
        }
    }
}

/// The products of columns of errors with the first 32 rows of a matrix: one chain of fused
/// operations over the columns for every sum.
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
