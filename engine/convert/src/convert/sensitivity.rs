//! Sensitivity of an expert's planes: the error of its output on tokens that are routed to it.

use nestling_formats::nested::{GROUP, NestedCodec, NestedError, QuantizedMatrix};
use nestling_formats::{Level, MatrixKind};
use nestling_import::Activation;

use crate::calibrate::RoutedSample;
use nestling_cpu::math;

pub(super) struct CodedMatrix<'a> {
    /// Original weights, `[rows, cols]`, with the input transform of the codec applied.
    pub weights: &'a [f32],
    pub coded: &'a QuantizedMatrix,
    pub codec: &'a NestedCodec,
    /// Bias, `[rows]`; empty if absent.
    pub bias: &'a [f32],
}

/// Mean squared error of an expert's output, weighted by the squared router weights: without any plane, then
/// at each level.
pub(super) type LevelErrors = [f64; 6];

/// Errors of an expert with all matrices coded, and with a single matrix coded.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct ExpertErrors {
    pub together: LevelErrors,
    pub gate: LevelErrors,
    pub up: LevelErrors,
    pub down: LevelErrors,
}

impl ExpertErrors {
    pub fn of(&self, kind: MatrixKind) -> &LevelErrors {
        match kind {
            MatrixKind::Gate => &self.gate,
            MatrixKind::Up => &self.up,
            _ => &self.down,
        }
    }

    /// Returns the reduction of the divergence by each plane of all matrices together. An error of all counts with the mean
    /// influence of the matrices, each weighted by what the plane reduces in it alone.
    pub fn together_drops(&self, kinds: &[MatrixKind], influences: &[f64]) -> [f32; 5] {
        let alone = kinds.iter().map(|kind| drops(self.of(*kind), 1.0)).zip(influences);
        let alone: Vec<_> = alone.collect();
        let mean = influences.iter().sum::<f64>() / influences.len() as f64;
        let mut together = drops(&self.together, 1.0);
        for (plane, drop) in together.iter_mut().enumerate() {
            let sum: f64 = alone.iter().map(|(drops, _)| f64::from(drops[plane])).sum();
            let weighted =
                alone.iter().map(|(drops, influence)| f64::from(drops[plane]) * *influence);
            let influence = if sum > 0.0 { weighted.sum::<f64>() / sum } else { mean };
            *drop = (f64::from(*drop) * influence) as f32;
        }
        together
    }
}

/// Returns the reduction of the error by each plane times `factor`, at least 0.
pub(super) fn drops(errors: &LevelErrors, factor: f64) -> [f32; 5] {
    let mut best = errors[0];
    let mut drops = [0.0; 5];
    for (drop, error) in drops.iter_mut().zip(&errors[1..]) {
        *drop = ((best - error).max(0.0) * factor) as f32;
        best = best.min(*error);
    }
    drops
}

/// Measures an expert on its tokens. The matrices are gate `[I, D]`, up `[I, D]` and down `[D, I]`, or up and down
/// without a gate; for another number of matrices, all errors are 0. The bias of down is ignored, because it is present without
/// any plane.
///
/// # Errors
/// Fails with [`NestedError::Shape`] if codes and weights differ in shape.
pub(super) fn expert_errors(
    matrices: &[CodedMatrix<'_>],
    sample: &RoutedSample,
    activation: Activation,
) -> Result<ExpertErrors, NestedError> {
    let (gate, up, down) = match matrices {
        [gate, up, down] => (Some(gate), up, down),
        [up, down] => (None, up, down),
        // Default: a group that is not an expert has no errors.
        _ => return Ok(ExpertErrors::default()),
    };
    let (hidden, intermediate) = (down.coded.rows, down.coded.cols);
    let tokens = sample.weights.len();
    let product = |weights: &[f32], bias: &[f32]| {
        let mut out = multiply(weights, &sample.inputs, hidden);
        if !bias.is_empty() {
            out.chunks_exact_mut(bias.len()).for_each(|row| math::add(row, bias));
        }
        out
    };
    let gates = gate.map(|gate| product(gate.weights, gate.bias)); // [T, I]
    let ups = product(up.weights, up.bias); // [T, I]
    let inner = |gates: &Option<Vec<f32>>, ups: &[f32]| -> Result<Vec<f32>, NestedError> {
        // Default: without a gate, up is joined with itself.
        let mut inner = join(activation, gates.as_deref().unwrap_or(ups), ups);
        down.codec.inputs.transform_weights(&mut inner, intermediate)?;
        Ok(inner)
    };
    let exact = inner(&gates, &ups)?;
    let output = multiply(down.weights, &exact, intermediate); // [T, D]
    let error = |other: &[f32]| {
        let rows = output.chunks_exact(hidden).zip(other.chunks_exact(hidden));
        let mut sum = 0.0;
        let mut weights = 0.0;
        for ((exact, other), weight) in rows.zip(&sample.weights) {
            let square = f64::from(*weight).powi(2);
            let difference = |(a, b): (&f32, &f32)| f64::from(a - b).powi(2);
            sum += square * exact.iter().zip(other).map(difference).sum::<f64>();
            weights += square;
        }
        if weights > 0.0 { sum / weights } else { 0.0 }
    };
    let nothing = error(&vec![0.0; tokens * hidden]);
    let mut errors = ExpertErrors {
        together: [nothing; 6],
        gate: [nothing; 6],
        up: [nothing; 6],
        down: [nothing; 6],
    };
    for (at, level) in (1..).zip(Level::ALL) {
        let coded = |gate| decode(gate, level).map(|weights| product(&weights, gate.bias));
        let coded_gates = gate.map(coded).transpose()?;
        let coded_ups = product(&decode(up, level)?, up.bias);
        let coded_down = decode(down, level)?;
        let through = |down: &[f32], inner: &[f32]| error(&multiply(down, inner, intermediate));
        errors.gate[at] = through(down.weights, &inner(&coded_gates, &ups)?);
        errors.up[at] = through(down.weights, &inner(&gates, &coded_ups)?);
        errors.down[at] = through(&coded_down, &exact);
        errors.together[at] = through(&coded_down, &inner(&coded_gates, &coded_ups)?);
    }
    Ok(errors)
}

/// Joins gate and up with the activation.
fn join(activation: Activation, gates: &[f32], ups: &[f32]) -> Vec<f32> {
    if activation == Activation::Silu {
        return gates.iter().zip(ups).map(|(g, u)| swish(*g) * u).collect();
    }
    let mut inner = gates.to_vec();
    math::gated(activation, &mut inner, ups);
    inner
}

fn swish(x: f32) -> f32 {
    x / (1.0 + (-x).exp())
}

/// Decodes the weights at a level, `[rows, cols]`.
pub(super) fn decode(matrix: &CodedMatrix<'_>, level: Level) -> Result<Vec<f32>, NestedError> {
    let (coded, codec) = (matrix.coded, matrix.codec);
    let (rows, cols) = (coded.rows, coded.cols);
    if matrix.weights.len() != rows * cols {
        return Err(NestedError::Shape { rows, cols });
    }
    let groups = cols.div_ceil(GROUP);
    let mut out = vec![0.0; rows * cols];
    for (row, out) in out.chunks_exact_mut(cols).enumerate() {
        let table = coded.tile_tables[row / nestling_formats::nested::TILE_ROWS];
        for (group, out) in out.chunks_mut(GROUP).enumerate() {
            let place = row * groups + group;
            let scale = codec.steps.weight_scale(coded.row_scales[row], level, coded.steps[place]);
            for (value, code) in out.iter_mut().zip(&coded.codes[place * GROUP..]) {
                *value = scale * f32::from(codec.value(level, table, *code));
            }
        }
    }
    Ok(out)
}

/// Computes `x Wᵀ`: `[T, cols]` times `[rows, cols]` gives `[T, rows]`.
fn multiply(weights: &[f32], x: &[f32], cols: usize) -> Vec<f32> {
    let rows = weights.chunks_exact(cols);
    x.chunks_exact(cols).flat_map(|x| rows.clone().map(move |row| dot(row, x))).collect()
}

/// Returns the dot product. Eight partial sums let the compiler use one register.
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let (a, a_rest) = a.as_chunks::<8>();
    let (b, b_rest) = b.as_chunks::<8>();
    let mut sums = [0.0f32; 8];
    for (a, b) in a.iter().zip(b) {
        for lane in 0..8 {
            sums[lane] += a[lane] * b[lane];
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    sums.iter().sum::<f32>() + rest
}

#[cfg(test)]
mod tests;
