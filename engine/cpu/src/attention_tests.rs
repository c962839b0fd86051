use std::ops::Range;

use half::f16;

use crate::attention::{AttentionRows, AttentionState, KvBlock, PAGE_POSITIONS, add_sink, merge};
use crate::fused::Fused;
use crate::kernels::Kernels;
use crate::math::{self, Element};

/// Positions that are stored, in three pages. The last page is filled in part.
const STORED: usize = 2 * PAGE_POSITIONS + 37;

#[derive(Clone, Copy, Debug)]
struct Case {
    head_dim: usize,
    /// Queries of one key head for each token.
    group: usize,
    /// Tokens, of which the last one sees all positions.
    tokens: usize,
    window: Option<usize>,
    sinks: bool,
}

fn noise(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|i| (((i + 31 * seed) * 7919) % 1009) as f32 / 500.0 - 1.0).collect()
}

/// Elements of one page: keys, `[head_dim, 64]`, and values, `[64, head_dim]`, with `unseen` at positions that were
/// not stored.
fn page<T: Copy>(elements: &[T], unseen: T, index: usize, head_dim: usize) -> [Vec<T>; 2] {
    let mut keys = vec![unseen; head_dim * PAGE_POSITIONS];
    let mut values = keys.clone();
    for position in 0..PAGE_POSITIONS.min(STORED - index * PAGE_POSITIONS) {
        for i in 0..head_dim {
            let at = (index * PAGE_POSITIONS + position) * 2 * head_dim + i;
            keys[i * PAGE_POSITIONS + position] = elements[at];
            values[position * head_dim + i] = elements[at + head_dim];
        }
    }
    [keys, values]
}

/// Scales of keys and values of a page.
type Scales = [[f32; PAGE_POSITIONS]; 2];

/// Computes the weighted values of one query as they are defined, one float after the other.
fn defined<T: Element>(
    query: &[f32],
    visible: Range<usize>,
    sink: Option<f32>,
    pages: &[([Vec<T>; 2], Scales)],
) -> Vec<f32> {
    let d = query.len();
    let (mut state, mut out) = (AttentionState::EMPTY, vec![0.0f32; d]);
    for (index, ([keys, values], [key_scales, value_scales])) in pages.iter().enumerate() {
        let first = index * PAGE_POSITIONS;
        let seen = visible.start.max(first)..visible.end.min(first + PAGE_POSITIONS);
        if seen.is_empty() {
            continue;
        }
        let mut weights = vec![f32::NEG_INFINITY; seen.end - first];
        for p in seen.start - first..seen.end - first {
            let dot = (0..d).fold(0.0, |sum, i| query[i].fused(keys[i * 64 + p].to_f32(), sum));
            weights[p] = dot * (key_scales[p] * 0.02);
        }
        let max = math::max(&weights);
        weights.iter_mut().for_each(|weight| *weight = math::exp(*weight - max));
        let [old, new] = merge(&mut state, max, math::sum(&weights));
        for (c, out) in out.iter_mut().enumerate() {
            let block = weights.iter().enumerate().fold(0.0, |sum, (p, weight)| {
                (weight * value_scales[p]).fused(values[p * d + c].to_f32(), sum)
            });
            *out = out.fused(old, block * new);
        }
    }
    let factor = sink.map_or(1.0, |sink| add_sink(&mut state, sink));
    out.iter().map(|out| out * factor / state.sum).collect()
}

fn check<T: Element>(
    case: Case,
    pages: &[([Vec<T>; 2], Scales)],
    block: impl for<'a> Fn(&'a ([Vec<T>; 2], Scales)) -> KvBlock<'a>,
) {
    let Case { head_dim: d, group, tokens, .. } = case;
    let sinks = if case.sinks { noise(group, 5) } else { Vec::new() };
    let queries = noise(tokens * group * d, 3);
    let visible_of = |index: usize| {
        let end = STORED - (tokens - 1 - index / group);
        end.saturating_sub(case.window.unwrap_or(end))..end
    };
    let mut expected = Vec::new();
    for (index, query) in queries.chunks(d).enumerate() {
        let sink = sinks.get(index % group).copied();
        expected.extend(defined(query, visible_of(index), sink, pages));
    }
    let expected: Vec<u32> = expected.iter().map(|x| x.to_bits()).collect();
    for kernels in Kernels::available() {
        let mut rows = AttentionRows::default();
        rows.try_reserve(tokens * group, d).unwrap();
        rows.clear(d, d);
        for (index, query) in queries.chunks(d).enumerate() {
            rows.push(query, visible_of(index));
        }
        rows.start();
        for index in 0..pages.len() {
            let next = pages.get(index + 1).map(&block);
            let first = index * PAGE_POSITIONS;
            kernels.attend_page(block(&pages[index]), next, first, 0.02, &mut rows);
        }
        let found: Vec<u32> = rows.finish(&sinks).iter().map(|x| x.to_bits()).collect();
        assert!(found == expected, "{} {}: {case:?}", kernels.name(), size_of::<T>());
    }
}

fn check_types(case: Case) {
    let d = case.head_dim;
    let floats = noise(STORED * 2 * d, 1);
    let halves: Vec<f16> = floats.iter().map(|x| f16::from_f32(*x)).collect();
    let integers: Vec<i8> = floats.iter().map(|x| (x * 127.0) as i8).collect();
    let ones = [[1.0; PAGE_POSITIONS]; 2];
    let each = 0..STORED.div_ceil(PAGE_POSITIONS);
    let pages: Vec<_> =
        each.clone().map(|index| (page(&floats, f32::NAN, index, d), ones)).collect();
    check(case, &pages, |([keys, values], _)| KvBlock::F32 { keys, values });
    let pages: Vec<_> =
        each.clone().map(|index| (page(&halves, f16::NAN, index, d), ones)).collect();
    check(case, &pages, |([keys, values], _)| KvBlock::F16 { keys, values });
    let scales = |index: usize| -> Scales {
        [0, 1].map(|kind| {
            std::array::from_fn(|p| match index * PAGE_POSITIONS + p < STORED {
                true => (1 + (p * 13 + index + kind) % 7) as f32 / 300.0,
                false => f32::NAN,
            })
        })
    };
    let pages: Vec<_> = each.map(|index| (page(&integers, 77, index, d), scales(index))).collect();
    check(case, &pages, |([keys, values], [key_scales, value_scales])| KvBlock::Int8 {
        keys,
        values,
        key_scales,
        value_scales,
    });
}

#[test]
fn pages_give_the_bits_of_the_definition() {
    for head_dim in [64, 128, 256, 40] {
        for group in [1, 2, 4, 8, 16] {
            for window in [None, Some(50), Some(70)] {
                let sinks = window.is_some();
                check_types(Case { head_dim, group, tokens: 1, window, sinks });
            }
        }
    }
}

#[test]
fn prompts_give_the_bits_of_the_definition() {
    // Up to 66 tokens: some end in the page before the last one, and with a window some begin after the first page.
    for (group, tokens) in [(1, 3), (1, 7), (1, 23), (1, 66), (4, 5), (8, 8), (16, 3)] {
        for (head_dim, window) in [(64, None), (128, Some(50)), (72, None)] {
            check_types(Case { head_dim, group, tokens, window, sinks: head_dim == 128 });
        }
    }
}
