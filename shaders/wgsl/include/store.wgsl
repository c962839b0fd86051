// Adds the bias and stores the product of row `row` of a block.
fn store(block: Block, out_row: u32, row: u32, product: f32) {
    if (row < block.first_row || row >= block.end_row) {
        return;
    }
    let from_first = row - block.first_row;
    var value = product;
    if (block.bias != NONE) {
        value += biases[block.bias + from_first];
    }
    let at = out_row * products.out_cols + block.out_col + from_first;
    if (products.add != 0u) {
        value += out[at];
    }
    out[at] = value;
}
