// Merges the blocks that `attend` left, in ascending order. One workgroup for each head of each row.

struct Params {
    // Which heads of rows, numbered row by row, are merged.
    first: u32,
    end: u32,
    heads: u32,
    value_dim: u32,
    // Positions that a row sees, its own included.
    window: u32,
    // Blocks of a row.
    blocks: u32,
    // 1: every head has a logit without a value.
    has_sinks: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> tables: array<u32>; // of a row its position, something else
@group(0) @binding(2) var<storage, read> sinks: array<f32>; // [heads]
// Of every block its maximum, its sum, and what it gathered.
@group(0) @binding(3) var<storage, read> parts: array<f32>; // [heads from the first on, blocks, 2 + value_dim]
@group(0) @binding(4) var<storage, read_write> out: array<f32>; // [rows, heads * value_dim]

// include: exp
// include: softmax

const LANES: u32 = 64u;
const POSITIONS: u32 = 64u;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let number = group.y * groups.x + group.x;
    let index = params.first + number;
    if index >= params.end {
        return;
    }
    let end = tables[2u * (index / params.heads)] + 1u;
    let start = end - min(end, params.window);
    let first = start / (BLOCK_PAGES * POSITIONS);
    var sink = LOWEST;
    if params.has_sinks == 1u {
        sink = sinks[index % params.heads];
    }
    let width = 2u + params.value_dim;
    for (var i = lane; i < params.value_dim; i += LANES) {
        var all = nothing();
        var merged = 0.0;
        for (var block = first; block * BLOCK_PAGES * POSITIONS < end; block += 1u) {
            let part = (number * params.blocks + block) * width;
            let merge = merge_of(all, Softmax(parts[part], parts[part + 1u]));
            all = merge.both;
            merged = fma(merged, merge.old, parts[part + 2u + i] * merge.fresh);
        }
        let ending = ending_of(all, params.has_sinks == 1u, sink);
        out[index * params.value_dim + i] = merged * ending.factor / ending.sum;
    }
}
