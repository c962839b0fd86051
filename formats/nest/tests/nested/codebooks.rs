//! Several tables per codec, and the order of an expert's hidden neurons.

use nestling_formats::Level;
use nestling_formats::nested::{
    CodecFitter, NestedCodec, NeuronOrder, QuantizeOptions, SecondMoments, TILE_ROWS,
    quantize_matrix, reorder_columns, reorder_moments, reorder_rows,
};

use super::samples::{Distribution, measure};

const COLS: usize = 256;

fn options(tables: usize) -> QuantizeOptions {
    let mut options = QuantizeOptions::default();
    options.tables = tables;
    options
}

/// Returns tiles that alternate between Gaussian weights and weights of two magnitudes, which need different
/// tables.
fn mixed(tiles: usize) -> Vec<f32> {
    let random = Distribution::Gaussian.sample(11, tiles * TILE_ROWS * COLS);
    let two = |w: &f32| w.signum() * if w.abs() > 0.67 { 1.0 } else { 0.23 } + 0.02 * w;
    random
        .chunks_exact(TILE_ROWS * COLS)
        .enumerate()
        .flat_map(|(tile, weights)| {
            weights.iter().map(move |w| if tile % 2 == 0 { *w } else { two(w) })
        })
        .collect()
}

fn fit(weights: &[f32], rows: usize, cols: usize, tables: usize) -> NestedCodec {
    let mut fitter = CodecFitter::new(&options(tables));
    for weights in weights.chunks(rows.min(64) * cols) {
        fitter.add(weights, weights.len() / cols, cols, None).unwrap();
    }
    fitter.finish().unwrap()
}

/// Two kinds of tiles take different tables. The errors, read back through planes, are smaller than with a
/// single table at each low level.
#[test]
fn tiles_of_two_kinds_take_two_tables() {
    let rows = 24 * TILE_ROWS;
    let weights = mixed(24);
    let results: Vec<_> = [1, 2, 5]
        .map(|tables| {
            let codec = fit(&weights, rows, COLS, tables);
            assert_eq!(codec.tables.len(), tables);
            let matrix =
                quantize_matrix(&weights, rows, COLS, &codec, None, &options(tables)).unwrap();
            if tables == 2 {
                assert_ne!(matrix.tile_tables[0], matrix.tile_tables[1]);
                assert!(matrix.tile_tables.chunks(2).all(|pair| *pair == matrix.tile_tables[..2]));
            }
            measure(&weights, &matrix, &codec).unwrap()
        })
        .into();
    for (level, gain) in [(Level::L2, 0.3), (Level::L3, 0.3), (Level::L4, 0.05)] {
        let [one, two, five] = [0, 1, 2].map(|index: usize| results[index].decibels(level));
        assert!(two < one - gain, "level {level}: {one:.2} dB with one table, {two:.2} with two");
        assert!(
            five < two + 0.05,
            "level {level}: {two:.2} dB with two tables, {five:.2} with five"
        );
    }
}

/// The fast choice of a table is almost as good as coding with each table and comparing.
#[test]
fn the_choice_of_tables_is_near_that_of_a_full_search() {
    let weights = mixed(12);
    let codec = fit(&weights, 12 * TILE_ROWS, COLS, 4);
    let relative = |codec: &NestedCodec, weights: &[f32]| {
        let rows = weights.len() / COLS;
        let matrix = quantize_matrix(weights, rows, COLS, codec, None, &options(4)).unwrap();
        let result = measure(weights, &matrix, codec).unwrap();
        // Joint error, the objective of the code search.
        let weights = options(4).level_weights;
        let levels = Level::ALL.into_iter().zip(weights).zip(result.errors);
        levels
            .map(|((level, weight), error)| {
                f64::from(weight) * f64::from(level.bits() * 2).exp2() * error
            })
            .sum::<f64>()
    };
    let chosen = relative(&codec, &weights);
    let full: f64 = weights
        .chunks_exact(TILE_ROWS * COLS)
        .map(|tile| {
            let alone = codec.tables.iter().map(|tables| {
                relative(&NestedCodec { tables: vec![*tables], ..codec.clone() }, tile)
            });
            alone.fold(f64::INFINITY, f64::min)
        })
        .sum();
    assert!(chosen <= full * 1.005, "{chosen} against {full}");
}

#[test]
fn tables_do_not_depend_on_how_samples_were_joined() {
    let weights = mixed(8);
    let whole = fit(&weights, 8 * TILE_ROWS, COLS, 3);
    let mut joined = CodecFitter::new(&options(3));
    for weights in weights.chunks(64 * COLS) {
        let mut one = CodecFitter::new(&options(3));
        one.add(weights, weights.len() / COLS, COLS, None).unwrap();
        joined.absorb(one);
    }
    assert_eq!(joined.finish().unwrap(), whole);
}

#[test]
fn numbers_of_tables_are_checked() {
    for tables in [0, 17, usize::MAX] {
        let mut fitter = CodecFitter::new(&options(tables));
        fitter.add(&[1.0; 32], 1, 32, None).unwrap();
        fitter.finish().unwrap_err();
    }
    // More tables than tiles, and all-zero weights.
    for weights in [[1.0; 64], [0.0; 64]] {
        assert_eq!(fit(&weights, 2, 32, 16).tables.len(), 16);
    }
}

/// Returns the weights of an expert, `[hidden, dim]`, `[hidden, dim]`, `[dim, hidden]`.
fn expert(hidden: usize, dim: usize) -> [Vec<f32>; 3] {
    let mut parts = [1, 2, 3].map(|seed| Distribution::Laplace.sample(seed, hidden * dim));
    for (index, weight) in parts[2].iter_mut().enumerate() {
        // Gives the columns different magnitudes.
        *weight *= 1.0 + (index % hidden * 7 % 13) as f32;
    }
    parts
}

fn feed_forward(parts: &[Vec<f32>; 3], hidden: usize, x: &[f32]) -> Vec<f64> {
    let dot = |row: &[f32]| -> f64 {
        row.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum()
    };
    let rows = parts[0].chunks_exact(x.len()).zip(parts[1].chunks_exact(x.len()));
    let inner: Vec<f64> = rows
        .map(|(gate, up)| {
            let gate = dot(gate);
            gate / (1.0 + (-gate).exp()) * dot(up)
        })
        .collect();
    let rows = parts[2].chunks_exact(hidden);
    rows.map(|row| row.iter().zip(&inner).map(|(w, h)| f64::from(*w) * h).sum()).collect()
}

#[test]
fn an_order_changes_no_output_of_an_expert() {
    for (hidden, dim) in [(1, 1), (31, 5), (32, 40), (100, 33), (129, 64)] {
        let parts = expert(hidden, dim);
        let x = Distribution::Gaussian.sample(9, dim);
        let wanted = feed_forward(&parts, hidden, &x);
        for order in [NeuronOrder::Source, NeuronOrder::Magnitude, NeuronOrder::Shape] {
            let neurons = order.order(&parts[0], &parts[1], &parts[2], hidden).unwrap();
            let mut sorted = neurons.clone();
            sorted.sort_unstable();
            assert!((0..hidden as u32).eq(sorted), "{order:?} is no permutation of {hidden}");
            let moved = [
                reorder_rows(&parts[0], dim, &neurons).unwrap(),
                reorder_rows(&parts[1], dim, &neurons).unwrap(),
                reorder_columns(&parts[2], hidden, &neurons).unwrap(),
            ];
            let found = feed_forward(&moved, hidden, &x);
            let scale: f64 = wanted.iter().map(|y| y.abs()).sum::<f64>() + 1.0;
            for (a, b) in wanted.iter().zip(&found) {
                assert!((a - b).abs() < 1e-12 * scale * hidden as f64, "{order:?}: {a} and {b}");
            }
        }
    }
}

#[test]
fn groups_of_down_hold_columns_of_like_magnitude() {
    let (hidden, dim) = (100, 33);
    let [gate, up, down] = expert(hidden, dim);
    let order = NeuronOrder::Magnitude.order(&gate, &up, &down, hidden).unwrap();
    let peak =
        |col: u32| down.chunks_exact(hidden).map(|row| row[col as usize].abs()).fold(0.0, f32::max);
    let groups: Vec<Vec<f32>> =
        order.chunks(32).map(|group| group.iter().map(|col| peak(*col)).collect()).collect();
    for pair in groups.windows(2) {
        let least = pair[0].iter().copied().fold(f32::INFINITY, f32::min);
        let most = pair[1].iter().copied().fold(0.0, f32::max);
        assert!(least >= most, "{least} before {most}");
    }
}

#[test]
fn moments_follow_their_inputs() {
    let inputs = Distribution::Gaussian.sample(5, 4 * 7);
    let order: Vec<u32> = [3, 0, 6, 2, 5, 1, 4].into();
    let moments_of = |inputs: &[f32]| {
        let mut moments = SecondMoments::new(7).unwrap();
        moments.add_rows(inputs).unwrap();
        moments
    };
    let moved = moments_of(&reorder_columns(&inputs, 7, &order).unwrap());
    assert_eq!(reorder_moments(&moments_of(&inputs), &order).unwrap(), moved);
}

#[test]
fn lengths_that_do_not_fit_are_errors() {
    let order = |gate: &[f32], up: &[f32], down: &[f32], hidden| {
        NeuronOrder::Magnitude.order(gate, up, down, hidden)
    };
    order(&[1.0; 6], &[1.0; 6], &[1.0; 6], 3).unwrap();
    order(&[1.0; 6], &[1.0; 5], &[1.0; 6], 3).unwrap_err();
    order(&[1.0; 7], &[1.0; 7], &[1.0; 7], 3).unwrap_err();
    order(&[], &[], &[], 0).unwrap_err();
    order(&[], &[], &[], 3).unwrap_err();
    reorder_rows(&[1.0; 6], 3, &[2]).unwrap_err();
    reorder_rows(&[1.0; 5], 3, &[0]).unwrap_err();
    reorder_columns(&[1.0; 6], 3, &[0, 3]).unwrap_err();
    reorder_columns(&[1.0; 6], 0, &[0]).unwrap_err();
    reorder_moments(&SecondMoments::new(3).unwrap(), &[0, 1]).unwrap_err();
}
