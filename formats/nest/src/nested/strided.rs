//! Tables whose entries are multiples of a stride, or half a stride beside them, so that processors without VNNI multiply
//! by them in fewer instructions (`docs/perf/058-six-bit-tables.md`).

use super::NestedCodec;

/// Stride of the entries, which are at most 63 strides apart. Products of a number of strides and int8 activations can be
/// added by fours in 16 bits.
const STRIDE: f64 = 4.0;

/// Smallest magnitudes of the two grids that are their own mirror images: ±2, ±6 to ±126, and 0, ±4 to ±124. Other grids
/// would give all weights a small mean, which inputs of one sign add up (`docs/perf/059-dense-tables.md`).
const SMALLEST: [f64; 2] = [2.0, 0.0];

/// Maximum number of passes over the entries of a table.
const PASSES: usize = 32;

/// Multiplies the entries of a table and rounds them to ±2, ±6 to ±126.
pub(super) fn nearest<const N: usize>(table: [i8; N], gain: f64) -> [i8; N] {
    table.map(|entry| on_grid(f64::from(entry) * gain, SMALLEST[0]) as i8)
}

/// Rounds the entries of a codec's tables of levels 2 and 3 to 2 more than multiples of 4. Level 4 keeps its entries:
/// rounding them raises the divergence of a dense model by about a tenth (`docs/perf/059-dense-tables.md`).
pub fn round_tables(codec: &mut NestedCodec) {
    for tables in &mut codec.tables {
        tables.t2 = nearest(tables.t2, 1.0);
        tables.t3 = nearest(tables.t3, 1.0);
    }
}

/// Returns the nearest value of a grid; of two, the larger magnitude.
fn on_grid(entry: f64, smallest: f64) -> f64 {
    let strides = ((entry.abs() - smallest) / STRIDE).round().clamp(0.0, 31.0);
    (smallest + STRIDE * strides).copysign(entry)
}

/// Minimizes `vᵀ left v - 2 right v` over the values of each grid, entry by entry from `start` on, and returns the better
/// of both.
pub(super) fn fitted<const N: usize>(
    left: &[[f64; N]; N],
    right: &[f64; N],
    start: [f64; N],
) -> [i8; N] {
    let on_grids = SMALLEST.map(|smallest| {
        let mut values = start.map(|entry| on_grid(entry, smallest));
        for _ in 0..PASSES {
            let before = values;
            for at in 0..N {
                let others = dot(&left[at], &values) - left[at][at] * values[at];
                values[at] = on_grid((right[at] - others) / left[at][at], smallest);
            }
            if values == before {
                break;
            }
        }
        values
    });
    let [first, second] = on_grids.map(|values| {
        let products = left.map(|row| dot(&row, &values));
        dot(&values, &products) - 2.0 * dot(right, &values)
    });
    on_grids[usize::from(second < first)].map(|value| value as i8)
}

fn dot<const N: usize>(a: &[f64; N], b: &[f64; N]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}
