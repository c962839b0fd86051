//! Tests of the grid of blocks.

use super::*;

#[test]
fn a_grid_covers_the_matrix() {
    let mut values = vec![0; 5 * 7];
    let pool = ThreadPool::new(2);
    for_each_block(
        &pool,
        true,
        &mut values,
        7,
        Cut::At(&[0, 1, 1, 5]),
        Cut::Every(3),
        &|col, block| {
            for row in 0..block.rows().len() {
                let first = block.rows().start;
                block.row(row).fill(col + 10 * (first + row));
            }
        },
    );
    let row = |r: usize| [0, 0, 0, 1, 1, 1, 2].map(|index| index + 10 * r);
    assert_eq!(values, [row(0), row(1), row(2), row(3), row(4)].concat());
}

#[test]
fn some_columns_are_left_alone() {
    let mut values = vec![0; 2 * 7];
    let pool = ThreadPool::new(1);
    for_each_block(
        &pool,
        true,
        &mut values,
        7,
        Cut::Every(2),
        Cut::Within(1, 6, 2),
        &|col, block| {
            (0..2).for_each(|row| block.row(row).fill(col + 1));
        },
    );
    assert_eq!(values, [[0, 1, 1, 2, 2, 3, 0]; 2].concat());
}

#[test]
#[should_panic(expected = "row 1 of 1")]
fn a_row_beyond_the_block_is_refused() {
    let pool = ThreadPool::new(1);
    for_each_block(&pool, false, &mut [0; 8], 4, Cut::Every(1), Cut::Every(4), &|_, block| {
        block.row(1);
    });
}

#[test]
#[should_panic(expected = "borders of 4")]
fn columns_beyond_the_matrix_are_refused() {
    let pool = ThreadPool::new(1);
    for_each_block(&pool, false, &mut [0; 8], 4, Cut::Every(1), Cut::At(&[0, 5]), &|_, _| {});
}
