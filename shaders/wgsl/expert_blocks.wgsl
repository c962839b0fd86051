// What products compute for the experts that a router chose: the blocks of their gates and ups, and
// of their downs, one for each use, slab by slab. A block of a matrix in another slab has no rows.
//
// Where the table lacks an expert, or planes of one, the call's number is left in `halt`, and nothing
// that comes after does anything; what was chosen is noted all the same.
// halts

// include: blocks

struct Params {
    // Uses: rows times experts of a row.
    uses: u32,
    per_token: u32,
    experts: u32,
    slabs: u32,
    // Rows of gates and ups, and of downs.
    inner_rows: u32,
    out_rows: u32,
    // Blocks from one slab to the next.
    inner_stride: u32,
    out_stride: u32,
    // Where the uses are noted.
    noted: u32,
    // Number of the call, from 1 on.
    call: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> ids: array<u32>; // [uses]
@group(0) @binding(2) var<storage, read> levels: array<u32>; // [rows]
@group(0) @binding(3) var<storage, read> entries: array<u32>; // [experts, 3, WORDS]
@group(0) @binding(4) var<storage, read_write> inner_blocks: array<Block>; // [slabs, uses, 2]
@group(0) @binding(5) var<storage, read_write> out_blocks: array<Block>; // [slabs, uses]
@group(0) @binding(6) var<storage, read_write> notes: array<u32>;
@group(0) @binding(7) var<storage, read_write> halt: atomic<u32>;

// Words of a matrix in its expert's entry: its slab, its place there, its prefix for every level.
const WORDS: u32 = 7u;
// The prefix of a level that planes are missing of.
const MISSING: u32 = 0xffffffffu;

fn block_of(expert: u32, matrix: u32, level: u32, slab: u32, use_: u32) -> Block {
    let entry = (min(expert, params.experts - 1u) * 3u + matrix) * WORDS;
    let is_here = expert < params.experts && entries[entry] == slab;
    let rows = select(params.inner_rows, params.out_rows, matrix == 2u);
    let col = select(0u, params.inner_rows, matrix == 1u);
    let end = select(0u, rows, is_here);
    let place = entries[entry + 1u];
    return Block(place, entries[entry + 2u + level], use_, 1u, 0u, end, col, NONE);
}

fn is_missing(expert: u32, level: u32) -> bool {
    return expert < params.experts && entries[expert * 3u * WORDS + 2u + level] == MISSING;
}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) global: vec3<u32>) {
    let slab = global.x / params.uses;
    let use_ = global.x % params.uses;
    if slab >= params.slabs {
        return;
    }
    // Another of this call's invocations may have left its number.
    let halted = atomicLoad(&halt);
    if halted != 0u && halted != params.call {
        return;
    }
    let expert = ids[use_];
    let level = levels[use_ / params.per_token];
    let inner = slab * params.inner_stride + 2u * use_;
    inner_blocks[inner] = block_of(expert, 0u, level, slab, use_);
    inner_blocks[inner + 1u] = block_of(expert, 1u, level, slab, use_);
    out_blocks[slab * params.out_stride + use_] = block_of(expert, 2u, level, slab, use_);
    if slab == 0u {
        notes[params.noted + use_] = expert;
        if is_missing(expert, level) {
            atomicStore(&halt, params.call);
        }
    }
}
