use half::f16;

use super::fit::initial_codec;
use super::*;
use crate::Level;

/// Returns a matrix of 16 rows and one group, whose weights are `factor` times what its codes decode to at level 4.
fn coded(codec: &NestedCodec, factor: f32) -> (Vec<f32>, QuantizedMatrix) {
    let (rows, cols) = (TILE_ROWS, GROUP);
    let codes: Vec<u8> = (0..rows * cols).map(|at| (at * 37 % 256) as u8).collect();
    let (row_scales, steps) = (vec![f16::from_f32(2.0); rows], vec![3; rows]);
    let scale = codec.steps.weight_scale(row_scales[0], Level::L4, steps[0]);
    let value = |code: &u8| factor * scale * f32::from(codec.value(Level::L4, 0, *code));
    let weights = codes.iter().map(value).collect();
    (weights, QuantizedMatrix { rows, cols, codes, row_scales, steps, tile_tables: vec![0] })
}

/// Returns the nearest of ±2, ±6 to ±126; of two, the larger magnitude.
fn on_grid(entry: f64) -> i8 {
    let magnitude = (2..=126).rev().step_by(4).min_by(|a, b| {
        let distance = |grid: &i8| (f64::from(*grid) - entry.abs()).abs();
        distance(a).total_cmp(&distance(b))
    });
    magnitude.unwrap() * if entry < 0.0 { -1 } else { 1 }
}

#[test]
fn tables_grow_to_the_size_of_the_weights() {
    let mut codec = initial_codec(9830);
    for entry in &mut codec.tables[0].t4 {
        *entry = *entry / 5 * 4;
    }
    let before = codec.clone();
    let (weights, matrix) = coded(&codec, 1.07);
    let mut shrinkage = Shrinkage::new(&codec);
    shrinkage.add(&weights, &matrix, &codec).unwrap();
    shrinkage.rescale(&mut codec);
    let expected = before.tables[0].t4.map(|entry| on_grid(f64::from(entry) * 1.07));
    assert_eq!(codec.tables[0].t4, expected);
    assert_ne!(before.tables[0].t4, expected);
}

#[test]
fn gains_are_bounded_and_entries_stay_in_range() {
    for (factor, gain) in [(8.0, 1.25), (0.01, 0.8)] {
        let mut codec = initial_codec(9830);
        let before = codec.clone();
        let (weights, matrix) = coded(&codec, factor);
        let mut shrinkage = Shrinkage::new(&codec);
        shrinkage.add(&weights, &matrix, &codec).unwrap();
        shrinkage.rescale(&mut codec);
        let expected = before.tables[0].t4.map(|entry| on_grid(f64::from(entry) * gain));
        assert_eq!(codec.tables[0].t4, expected, "{factor}");
    }
}

#[test]
fn tables_without_weights_stay() {
    let mut codec = initial_codec(9830);
    Shrinkage::new(&codec).rescale(&mut codec);
    let before = codec.clone();
    Shrinkage::new(&codec).rescale(&mut codec);
    let (weights, matrix) = coded(&codec, 0.0);
    let mut shrinkage = Shrinkage::new(&codec);
    shrinkage.add(&weights, &matrix, &codec).unwrap();
    shrinkage.rescale(&mut codec);
    assert_eq!(before, codec);
    assert!(shrinkage.add(&weights[1..], &matrix, &codec).is_err());
    let mut other = matrix;
    other.tile_tables[0] = 1;
    assert!(shrinkage.add(&weights, &other, &codec).is_err());
}
