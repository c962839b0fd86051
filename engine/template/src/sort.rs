//! A stable sort whose comparisons may fail and may be inconsistent.

use std::cmp::Ordering;

use super::compare::order;
use super::error::Fault;
use super::limits::ITEM_WORK;
use super::meter::Meter;
use super::value::Value;

/// Returns the indices of `keys` in sorted order. Bottom-up merge sort, which needs no stack.
pub(crate) fn sorted_places(
    meter: &Meter<'_>,
    keys: &[Value],
    reverse: bool,
) -> Result<Vec<usize>, Fault> {
    let _places = meter.charge(keys.len().saturating_mul(2 * size_of::<usize>()))?;
    meter.walk(keys.len())?;
    let mut places: Vec<usize> = (0..keys.len()).collect();
    let mut merged: Vec<usize> = Vec::with_capacity(keys.len());
    let mut run = 1;
    while run < keys.len() {
        merged.clear();
        for pair in places.chunks(2 * run) {
            let (left, right) = pair.split_at(run.min(pair.len()));
            let runs = Runs { left, right };
            merge(meter, keys, runs, reverse, &mut merged)?;
        }
        std::mem::swap(&mut places, &mut merged);
        run *= 2;
    }
    Ok(places)
}

/// Two sorted runs to merge.
struct Runs<'p> {
    left: &'p [usize],
    right: &'p [usize],
}

fn merge(
    meter: &Meter<'_>,
    keys: &[Value],
    runs: Runs<'_>,
    reverse: bool,
    merged: &mut Vec<usize>,
) -> Result<(), Fault> {
    let Runs { mut left, mut right } = runs;
    meter.work(ITEM_WORK * (left.len() + right.len()) as u64)?;
    while let ([first, left_rest @ ..], [second, right_rest @ ..]) = (left, right) {
        let order = match (keys.get(*first), keys.get(*second)) {
            (Some(a), Some(b)) => order(meter, a, b)?,
            _ => None,
        };
        // Equal items keep their order, even if reversed.
        let second_first =
            if reverse { order == Some(Ordering::Less) } else { order == Some(Ordering::Greater) };
        if second_first {
            merged.push(*second);
            right = right_rest;
        } else {
            merged.push(*first);
            left = left_rest;
        }
    }
    merged.extend(left);
    merged.extend(right);
    Ok(())
}
