// What products compute for the experts that a router chose: the blocks of their gates and ups, and
// of their downs, slab by slab, and the pairs of rows that they are for. Uses of one expert at one
// level lie together, up to four to a block; every use has a place for a block, most of them with no
// rows, as blocks of a matrix in another slab.
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
    // Words from the blocks of one slab to the next, of gates and ups and of downs.
    inner_stride: u32,
    out_stride: u32,
    // Words before the blocks of downs, the pairs of gates and ups, and those of downs.
    out_first: u32,
    inner_pairs: u32,
    out_pairs: u32,
    // Where the uses are noted.
    noted: u32,
    // Number of the call, from 1 on.
    call: u32,
    // Whether levels go by the weights of uses.
    by_weight: u32,
    // Whether experts have biases: of all gates, then of all ups, then of all downs.
    biased: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> ids: array<u32>; // [uses]
@group(0) @binding(2) var<storage, read> weights: array<u32>; // [uses], as bits
@group(0) @binding(3) var<storage, read> levels: array<u32>; // [rows]
// Of every expert its entry, then the least weight of levels 3, 4, 6 and 8.
@group(0) @binding(4) var<storage, read> entries: array<u32>; // [experts, 3, WORDS], [experts, 4]
@group(0) @binding(5) var<storage, read_write> made: array<u32>;
@group(0) @binding(6) var<storage, read_write> notes: array<u32>;
@group(0) @binding(7) var<storage, read_write> halt: atomic<u32>;

// Words of a matrix in its expert's entry: its slab, its place there, its prefix for every level.
const WORDS: u32 = 7u;
// The prefix of a level that planes are missing of.
const MISSING: u32 = 0xffffffffu;
const BLOCK_WORDS: u32 = 8u;
// Uses of a block.
const TOGETHER: u32 = 4u;
const INFINITY: u32 = 0x7f800000u;

fn level_of(use_: u32) -> u32 {
    if params.by_weight == 0u {
        return levels[use_ / params.per_token];
    }
    let expert = min(ids[use_], params.experts - 1u);
    var weight = weights[use_] & 0x7fffffffu;
    weight = select(weight, 0u, weight > INFINITY);
    let least = params.experts * 3u * WORDS + expert * 4u;
    var level = 0u;
    while level < 4u && weight >= entries[least + level] {
        level += 1u;
    }
    return level;
}

// What uses have in common that are computed together.
fn key_of(use_: u32) -> u32 {
    return ids[use_] * 8u + level_of(use_);
}

fn put_block(at: u32, block: Block) {
    made[at] = block.matrix;
    made[at + 1u] = block.level;
    made[at + 2u] = block.first_pair;
    made[at + 3u] = block.pairs;
    made[at + 4u] = block.first_row;
    made[at + 5u] = block.end_row;
    made[at + 6u] = block.out_col;
    made[at + 7u] = block.bias;
}

fn block_of(expert: u32, matrix: u32, level: u32, slab: u32, pairs: vec2<u32>) -> Block {
    let entry = (min(expert, params.experts - 1u) * 3u + matrix) * WORDS;
    let is_here = expert < params.experts && entries[entry] == slab && pairs.y > 0u;
    let rows = select(params.inner_rows, params.out_rows, matrix == 2u);
    let col = select(0u, params.inner_rows, matrix == 1u);
    let end = select(0u, rows, is_here);
    let place = entries[entry + 1u];
    let biases = matrix * params.experts * params.inner_rows + expert * rows;
    let bias = select(NONE, biases, params.biased != 0u);
    return Block(place, entries[entry + 2u + level], pairs.x, pairs.y, 0u, end, col, bias);
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
    let level = level_of(use_);
    let key = key_of(use_);
    // The use's place among all, and among those like it, by their order; and how many those are.
    var place = 0u;
    var before = 0u;
    var alike = 0u;
    for (var other = 0u; other < params.uses; other += 1u) {
        let theirs = key_of(other);
        place += select(0u, 1u, theirs < key || (theirs == key && other < use_));
        before += select(0u, 1u, theirs == key && other < use_);
        alike += select(0u, 1u, theirs == key);
    }
    let count = select(0u, min(TOGETHER, alike - before), before % TOGETHER == 0u);
    let pairs = vec2(place, count);
    let inner = slab * params.inner_stride + 2u * BLOCK_WORDS * use_;
    put_block(inner, block_of(expert, 0u, level, slab, pairs));
    put_block(inner + BLOCK_WORDS, block_of(expert, 1u, level, slab, pairs));
    let outer = params.out_first + slab * params.out_stride + BLOCK_WORDS * use_;
    put_block(outer, block_of(expert, 2u, level, slab, pairs));
    if slab == 0u {
        made[params.inner_pairs + 2u * place] = use_ / params.per_token;
        made[params.inner_pairs + 2u * place + 1u] = use_;
        made[params.out_pairs + 2u * place] = use_;
        made[params.out_pairs + 2u * place + 1u] = use_;
        notes[params.noted + use_] = expert | select(0u, (level + 1u) << 16u, params.by_weight != 0u);
        if is_missing(expert, level) {
            atomicStore(&halt, params.call);
        }
    }
}
