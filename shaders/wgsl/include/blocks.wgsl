// Which products a dispatch computes: every workgroup one tile of 16 rows of one matrix, for the
// rows of one block.

struct Block {
    // Word of the matrix in the slab.
    matrix: u32,
    // Level of its codes, by place.
    level: u32,
    // Its pairs of rows: the first one and how many.
    first_pair: u32,
    pairs: u32,
    // Rows of the matrix that are wanted, from the first row of this part on.
    first_row: u32,
    end_row: u32,
    // Column of the output that the first one goes to.
    out_col: u32,
    // First element of the bias that belongs to it, or NONE.
    bias: u32,
}

const NONE: u32 = 0xffffffffu;

struct Products {
    // Elements from one row of the output to the next.
    out_cols: u32,
    // Columns of the input, in groups or elements.
    x_cols: u32,
    // Whether products are added to the output.
    add: u32,
    padding: u32,
}
