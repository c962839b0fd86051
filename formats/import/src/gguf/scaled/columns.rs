//! Column permutations of scaled integers.

use nestling_formats::nested::{ScaleType, ScaledForm, ScaledRows, SubScale};

use super::parts::ScaledRun;

/// Copies columns into `out` in the order of `units`, which are indices of runs of `span` groups of 32
/// columns. If `span` is smaller than that of the matrix, scales are repeated.
pub(crate) fn take_units(
    from: &ScaledRows,
    form: &ScaledForm,
    span: u8,
    units: &[usize],
    out: &mut ScaledRun<'_>,
) {
    let columns = 32 * usize::from(span);
    let subs = columns / usize::from(form.sub_block);
    let narrower = usize::from(form.span / span.max(1)).max(1);
    let own = |unit: usize| unit;
    let shared = |unit: usize| unit / narrower;
    let of = |part: &[u8], bytes: usize, place: &dyn Fn(usize) -> usize, out: &mut [u8]| {
        if bytes == 0 || part.is_empty() {
            return;
        }
        let mut out = out.chunks_exact_mut(bytes);
        for row in part.chunks_exact(part.len() / from.rows.max(1)) {
            for (unit, out) in units.iter().zip(&mut out) {
                let at = place(*unit) * bytes;
                out.copy_from_slice(&row[at..at + bytes]);
            }
        }
    };
    of(&from.codes, columns, &own, out.codes);
    if form.scale != ScaleType::None {
        of(&from.scales, form.scale.bytes(), &shared, out.scales);
        of(&from.minima, form.scale.bytes(), &shared, out.minima);
    }
    if form.sub_scale != SubScale::None {
        of(&from.sub_scales, subs, &own, out.sub_scales);
        of(&from.sub_minima, subs, &own, out.sub_minima);
    }
}
