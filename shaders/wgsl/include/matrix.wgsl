// A matrix in a slab: `Matrix` at the beginning of its place, then the parts that it names. Their
// places are words from the beginning of the slab's matrix on. `shaders/src/matrix.rs` writes them.

const FORM_F32: u32 = 0u;
const FORM_F16: u32 = 1u;
const FORM_BF16: u32 = 2u;
const FORM_TILE16: u32 = 3u;
const FORM_ROW_MAJOR: u32 = 4u;
// The same of scaled integers.
const FORM_SCALED_TILE16: u32 = 5u;
const FORM_SCALED_ROW_MAJOR: u32 = 6u;

struct Matrix {
    form: u32,
    // P3 and P4 lie merged where P3 is named.
    merged: u32,
    rows: u32,
    cols: u32,
    groups: u32,
    // Row of the whole matrix that the first one here is.
    first_row: u32,
    codec: u32,
    // Row scales, or all elements of a float matrix, or scales of spans.
    scales: u32,
    // Or scales of minima, of scaled integers.
    tables: u32,
    // Or sub-scales.
    steps: u32,
    // Or sub-minima.
    step_high: u32,
    p2: u32,
    p3: u32,
    p4: u32,
    p6: u32,
    p8: u32,
}

fn read_matrix(at: u32) -> Matrix {
    return Matrix(
        slab[at],
        slab[at + 1u],
        slab[at + 2u],
        slab[at + 3u],
        slab[at + 4u],
        slab[at + 5u],
        at + slab[at + 6u],
        at + slab[at + 7u],
        at + slab[at + 8u],
        at + slab[at + 9u],
        at + slab[at + 10u],
        at + slab[at + 11u],
        at + slab[at + 12u],
        at + slab[at + 13u],
        at + slab[at + 14u],
        at + slab[at + 15u],
    );
}

fn is_row_major(matrix: Matrix) -> bool {
    return matrix.form == FORM_ROW_MAJOR || matrix.form == FORM_SCALED_ROW_MAJOR;
}

fn slab_byte(word: u32, byte: u32) -> u32 {
    return (slab[word + byte / 4u] >> (byte % 4u * 8u)) & 0xffu;
}

fn slab_half(word: u32, half: u32) -> u32 {
    return (slab[word + half / 2u] >> (half % 2u * 16u)) & 0xffffu;
}
