//! Codes by error feedback, then by coordinate descent on the error of the outputs at all levels.
//!
//! The errors `e_b` of a row at level `b` cost `J = Σ μ_b e_b H e_bᵀ`. Feedback (LDLQ of "QuIP")
//! rounds column after column with an error of its own for each level; descent (as "QuantEase" does
//! for one level) then sweeps over the columns, giving each the code that is best while all others
//! stay. Both choose one code for the targets of all five levels. Sixteen rows go together, so that
//! a block of `H` is read once for all of them.

use super::chooser::Chooser;
use super::{DampedMoments, GROUP};

/// Errors of one column at every level.
type Errors = [f32; 5];

/// Values of one group at every level.
type GroupLevels = [[f32; GROUP]; 5];

/// Lanes of the running sums of a product.
const LANES: usize = 16;

/// How far a group's step may move from where it is in one trial.
const TRIALS: [i8; 2] = [-1, 1];

/// A row while its codes are sought. Lengths are those of the moments, padded to whole groups.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub weights: Vec<f32>, // [stride]
    pub codes: Vec<u8>,    // [stride]
    pub steps: Vec<u8>,    // [groups]
    pub row_scale: f32,
    errors: Vec<Errors>,     // [stride]
    products: [Vec<f32>; 5], // [stride] each: H e
}

impl Row {
    pub fn new(weights: &[f32], codes: &[u8], steps: &[u8], row_scale: f32) -> Self {
        let stride = codes.len();
        let mut padded = weights.to_vec();
        padded.resize(stride, 0.0);
        Self {
            weights: padded,
            codes: codes.to_vec(),
            steps: steps.to_vec(),
            row_scale,
            errors: vec![[0.0; 5]; stride],
            products: std::array::from_fn(|_| vec![0.0; stride]),
        }
    }

    #[inline(always)]
    fn scale(&self, group: usize) -> f32 {
        self.row_scale * super::STEPS[usize::from(self.steps[group])]
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

impl Tile<'_> {
    /// Feedback, then sweeps, as the effort says.
    #[inline(always)]
    pub fn improve(&self, rows: &mut [Row], effort: Effort) {
        if effort.feedback {
            self.feed_back(rows);
        }
        if effort.sweeps == 0 {
            return;
        }
        self.refresh(rows);
        for sweep in 0..effort.sweeps {
            self.sweep(rows, sweep < effort.step_sweeps);
        }
    }

    /// Chooses all codes anew, column by column, each from targets that answer for the errors made.
    #[inline(always)]
    pub fn feed_back(&self, rows: &mut [Row]) {
        let stride = self.damped.stride();
        let Some(upper) = self.damped.upper() else { return };
        for group in 0..stride / GROUP {
            let from = group * GROUP;
            let columns = from..self.damped.dim().min(from + GROUP);
            for row in rows.iter_mut() {
                let scale = row.scale(group);
                let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
                let mut targets = products(&row.errors[..from], upper, stride, from);
                for target in &mut targets {
                    for (target, weight) in target.iter_mut().zip(&row.weights[from..]) {
                        *target += weight;
                    }
                }
                for col in columns.clone() {
                    let at = col - from;
                    if scale > 0.0 {
                        let wanted = std::array::from_fn(|level| targets[level][at] * inverse);
                        row.codes[col] = self.chooser.choose(&wanted);
                    }
                    let values = self.chooser.values(row.codes[col]);
                    let error = values.map(|value| row.weights[col] - scale * value);
                    row.errors[col] = error;
                    let later: &[f32] = &upper[col * stride + from..][..GROUP];
                    for level in 0..5 {
                        for (target, factor) in targets[level].iter_mut().zip(later) {
                            *target += error[level] * factor;
                        }
                    }
                }
            }
        }
    }

    /// Brings errors and products up to date with the codes.
    #[inline(always)]
    pub fn refresh(&self, rows: &mut [Row]) {
        let stride = self.damped.stride();
        let dim = self.damped.dim();
        for row in rows.iter_mut() {
            for col in 0..dim {
                let scale = row.scale(col / GROUP);
                let values = self.chooser.values(row.codes[col]);
                row.errors[col] = values.map(|value| row.weights[col] - scale * value);
            }
        }
        for group in 0..stride / GROUP {
            for row in rows.iter_mut() {
                let from = group * GROUP;
                let sums = products(&row.errors, self.damped.values(), stride, from);
                for (product, sum) in row.products.iter_mut().zip(&sums) {
                    product[from..from + GROUP].copy_from_slice(sum);
                }
            }
        }
    }

    /// One sweep over all columns; with `steps`, each group also tries its neighbouring steps.
    ///
    /// Returns by how much the rows' joint error fell.
    #[inline(always)]
    pub fn sweep(&self, rows: &mut [Row], steps: bool) -> f64 {
        let mut gain = 0.0;
        for group in 0..self.damped.stride() / GROUP {
            for row in rows.iter_mut() {
                gain += f64::from(self.sweep_group(row, group, steps));
            }
        }
        gain
    }
}

/// One group of a row while a step and codes are tried for it.
#[derive(Clone)]
struct Trial {
    step: u8,
    codes: [u8; GROUP],
    errors: [Errors; GROUP],
    products: GroupLevels,
    gain: f32,
}

impl Trial {
    #[inline(always)]
    fn of(row: &Row, group: usize) -> Self {
        let from = group * GROUP;
        let mut trial = Self {
            step: row.steps[group],
            codes: [0; GROUP],
            errors: [[0.0; 5]; GROUP],
            products: [[0.0; GROUP]; 5],
            gain: 0.0,
        };
        trial.codes.copy_from_slice(&row.codes[from..from + GROUP]);
        trial.errors.copy_from_slice(&row.errors[from..from + GROUP]);
        for (trial, row) in trial.products.iter_mut().zip(&row.products) {
            trial.copy_from_slice(&row[from..from + GROUP]);
        }
        trial
    }
}

impl Tile<'_> {
    #[inline(always)]
    fn sweep_group(&self, row: &mut Row, group: usize, steps: bool) -> f32 {
        let before = Trial::of(row, group);
        if row.scale(group) == 0.0 {
            return 0.0;
        }
        let mut best = before.clone();
        self.descend(row, group, &mut best);
        for shift in TRIALS.iter().filter(|_| steps) {
            let mut trial = before.clone();
            trial.step = trial.step.saturating_add_signed(*shift);
            if trial.step != before.step && trial.step < super::ZERO_STEP {
                self.descend(row, group, &mut trial);
                if trial.gain > best.gain {
                    best = trial;
                }
            }
        }
        if best.gain > 0.0 {
            self.accept(row, group, &before, &best);
        }
        best.gain.max(0.0)
    }

    /// Gives each column of the group in turn its best code with the trial's step.
    #[inline(always)]
    fn descend(&self, row: &Row, group: usize, trial: &mut Trial) {
        let stride = self.damped.stride();
        let from = group * GROUP;
        let step = super::STEPS[usize::from(trial.step)];
        let (scale, same) = (row.row_scale * step, trial.step == row.steps[group]);
        let inverse = 1.0 / scale;
        let weights = self.chooser.weights();
        for at in 0..GROUP.min(self.damped.dim().saturating_sub(from)) {
            let moments = &self.damped.values()[(from + at) * stride + from..][..GROUP];
            let (moment, weight) = (moments[at], row.weights[from + at]);
            let error = trial.errors[at];
            let product: Errors = std::array::from_fn(|level| trial.products[level][at]);
            let wanted = std::array::from_fn(|level| {
                (weight - error[level] + product[level] / moment) * inverse
            });
            let code = self.chooser.choose(&wanted);
            if same && code == trial.codes[at] {
                continue;
            }
            let moved = self.chooser.values(code).map(|value| weight - scale * value);
            let mut change = 0.0;
            for level in 0..5 {
                let delta = moved[level] - error[level];
                change += weights[level] * delta * (2.0 * product[level] + delta * moment);
            }
            if same && change >= 0.0 {
                continue;
            }
            trial.gain -= change;
            trial.codes[at] = code;
            trial.errors[at] = moved;
            for level in 0..5 {
                let delta = moved[level] - error[level];
                for (product, moment) in trial.products[level].iter_mut().zip(moments) {
                    *product += delta * moment;
                }
            }
        }
    }

    #[inline(always)]
    fn accept(&self, row: &mut Row, group: usize, before: &Trial, trial: &Trial) {
        let (stride, from) = (self.damped.stride(), group * GROUP);
        row.steps[group] = trial.step;
        row.codes[from..from + GROUP].copy_from_slice(&trial.codes);
        row.errors[from..from + GROUP].copy_from_slice(&trial.errors);
        for level in 0..5 {
            let mut moved = [(0.0f32, 0usize); GROUP];
            let mut count = 0;
            for at in 0..GROUP {
                let delta = trial.errors[at][level] - before.errors[at][level];
                if delta != 0.0 {
                    moved[count] = (delta, (from + at) * stride);
                    count += 1;
                }
            }
            add_rows(&mut row.products[level], &moved[..count], self.damped.values());
        }
    }
}

/// Adds to `sums` the rows of `matrix` that start at the given places, times their factors.
#[inline(always)]
fn add_rows(sums: &mut [f32], rows: &[(f32, usize)], matrix: &[f32]) {
    if rows.is_empty() {
        return;
    }
    let (chunks, _) = sums.as_chunks_mut::<GROUP>();
    for (chunk, sums) in chunks.iter_mut().enumerate() {
        let mut running = *sums;
        for (factor, start) in rows {
            let row = &matrix[start + chunk * GROUP..][..GROUP];
            for (sum, value) in running.iter_mut().zip(row) {
                *sum += factor * value;
            }
        }
        *sums = running;
    }
}

/// The products of errors with the rows of a matrix in the columns of one group.
#[inline(always)]
fn products(errors: &[Errors], matrix: &[f32], stride: usize, from: usize) -> GroupLevels {
    let mut sums = [[0.0; GROUP]; 5];
    for half in (0..GROUP).step_by(LANES) {
        let mut running = [[0.0f32; LANES]; 5];
        for (errors, row) in errors.iter().zip(matrix.chunks_exact(stride)) {
            let Some(row) = row[from + half..].first_chunk::<LANES>() else { continue };
            for (sums, error) in running.iter_mut().zip(errors) {
                for (sum, value) in sums.iter_mut().zip(row) {
                    *sum += error * value;
                }
            }
        }
        for (sums, running) in sums.iter_mut().zip(&running) {
            sums[half..half + LANES].copy_from_slice(running);
        }
    }
    sums
}
