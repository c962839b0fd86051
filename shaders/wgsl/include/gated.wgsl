// Gate and up of feed-forward parts, which lie in one row, gate in front.

struct Gated {
    rows: u32,
    // Columns of gate, and of up.
    cols: u32,
    // Which function, and its parameters.
    kind: u32,
    alpha: f32,
    limit: f32,
    // Whether groups of 32 are rotated.
    rotated: u32,
    padding: vec2<u32>,
}

@group(0) @binding(0) var<uniform> params: Gated;
@group(0) @binding(1) var<storage, read> x: array<f32>; // [rows, 2 * cols]

fn joined(row: u32, col: u32) -> f32 {
    let gate = row * 2u * params.cols + col;
    return activation(params.kind, x[gate], x[gate + params.cols], params.alpha, params.limit);
}
