// Causal attention of one query head of one row over its window of positions, a page of 64 at a
// time. What a page gives does not depend on others; pages are merged in ascending order to blocks of
// eight, and blocks likewise, so a row's result depends on nothing else that is computed. One
// workgroup for each head of each row, or, where those are few and contexts long, for each of its
// blocks, which `attend_merge` then merges.

struct Params {
    // Which heads of rows, numbered row by row, are attended for.
    first: u32,
    end: u32,
    // Query heads, and query heads for each key head.
    heads: u32,
    sharing: u32,
    // Elements from row to row of the queries.
    stride: u32,
    head_dim: u32,
    value_dim: u32,
    // Positions that a row sees, its own included.
    window: u32,
    // 1: every head has a logit without a value.
    has_sinks: u32,
    scale: f32,
    page_words: u32,
    head_words: u32,
    value_first: u32,
    // Words from position to position and from word to word of values.
    value_position: u32,
    value_word: u32,
    // Words of a key that have the scale of values.
    prefix_words: u32,
    scale_first: u32,
    chunk_pages: u32,
    // Blocks of a row, where each has a workgroup.
    blocks: u32,
}

// 0: f32; 1: f16; 2: int8.
override KIND: u32 = 0u;
// 1: a workgroup for each block.
override SPLIT: u32 = 0u;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> queries: array<f32>;
// For each row its position, and where the pages of its sequence begin; then the pages.
@group(0) @binding(2) var<storage, read> tables: array<u32>;
@group(0) @binding(3) var<storage, read> sinks: array<f32>; // [heads]
// [rows, heads * value_dim], or of every block its maximum, its sum, and what it gathered:
// [heads from the first on, blocks, 2 + value_dim].
@group(0) @binding(8) var<storage, read_write> out: array<f32>;

// include: exp
// include: half_float
// include: page_elements
// include: reduce
// include: softmax

const POSITIONS: u32 = 64u;

var<workgroup> query: array<f32, 1024>;
var<workgroup> gathered: array<f32, 1024>;
var<workgroup> merged: array<f32, 1024>;
var<workgroup> weights: array<f32, 64>;

// `sum` and what one word of a key adds to it.
fn multiply(sum: f32, key: vec4<f32>, first: u32) -> f32 {
    var result = fma(query[first], key.x, sum);
    if KIND > 0u {
        result = fma(query[first + 1u], key.y, result);
    }
    if KIND > 1u {
        result = fma(query[first + 2u], key.z, result);
        result = fma(query[first + 3u], key.w, result);
    }
    return result;
}

// The score of one position of a page.
fn score(chunk: u32, head: u32, scales: u32, position: u32) -> f32 {
    let per_word = 1u << KIND;
    let words = params.head_dim / per_word;
    var sum = 0.0;
    for (var word = 0u; word < params.prefix_words; word += 1u) {
        sum = multiply(sum, elements_at(chunk, head + word * POSITIONS + position), word * per_word);
    }
    if KIND == 2u {
        sum *= scale_at(chunk, scales + POSITIONS + position);
    }
    var rest = 0.0;
    for (var word = params.prefix_words; word < words; word += 1u) {
        rest = multiply(rest, elements_at(chunk, head + word * POSITIONS + position), word * per_word);
    }
    if KIND == 2u {
        if params.prefix_words == 0u {
            return rest * (scale_at(chunk, scales + position) * params.scale);
        }
        rest *= scale_at(chunk, scales + position);
    }
    return (sum + rest) * params.scale;
}

// Where a head of a row reads, and how far.
struct Span {
    kv_head: u32,
    first_page: u32,
    // Positions that are seen.
    start: u32,
    end: u32,
}

// Gathers the values of a block of pages, from nothing.
fn gather_block(lane: u32, width: u32, span: Span, block: u32) -> Softmax {
    let per_word = 1u << KIND;
    for (var i = lane; i < params.value_dim; i += LANES) {
        gathered[i] = 0.0;
    }
    workgroupBarrier();
    var all = nothing();
    let first = max(span.start / POSITIONS, block * BLOCK_PAGES);
    let last = (block + 1u) * BLOCK_PAGES;
    for (var page = first; page < last && page * POSITIONS < span.end; page += 1u) {
        let place = tables[span.first_page + page];
        let chunk = place / params.chunk_pages;
        let base = place % params.chunk_pages * params.page_words;
        let keys = base + span.kv_head * params.head_words;
        let scales = base + params.scale_first + span.kv_head * 2u * POSITIONS;
        let at = page * POSITIONS + lane;
        let is_seen = at >= span.start && at < span.end;
        var value = LOWEST;
        if is_seen {
            value = score(chunk, keys, scales, lane);
        }
        let page_max = max_lanes(lane, width, value);
        var weight = 0.0;
        if is_seen {
            weight = exp_of(value - page_max);
        }
        let merge = merge_of(all, Softmax(page_max, sum_lanes(lane, width, weight)));
        all = merge.both;
        if KIND == 2u {
            weight *= scale_at(chunk, scales + POSITIONS + lane);
        }
        weights[lane] = select(0.0, weight, is_seen);
        workgroupBarrier();
        let first = max(span.start, page * POSITIONS) - page * POSITIONS;
        let last = min(span.end - page * POSITIONS, POSITIONS);
        let values = keys + params.value_first;
        for (var word = lane; word * per_word < params.value_dim; word += LANES) {
            var block = vec4<f32>();
            for (var p = first; p < last; p += 1u) {
                let at = values + p * params.value_position + word * params.value_word;
                block = fma(vec4<f32>(weights[p]), elements_at(chunk, at), block);
            }
            for (var i = 0u; i < per_word; i += 1u) {
                let element = word * per_word + i;
                gathered[element] = fma(gathered[element], merge.old, block[i] * merge.fresh);
            }
        }
        workgroupBarrier();
    }
    return all;
}

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
    // include: lane_arguments
) {
    // include: lane_begin
    let number = group.y * groups.x + group.x;
    let index = params.first + select(number, number / max(params.blocks, 1u), SPLIT == 1u);
    if index >= params.end {
        return;
    }
    let row = index / params.heads;
    let head = index % params.heads;
    let first_query = row * params.stride + head * params.head_dim;
    for (var i = lane; i < params.head_dim; i += LANES) {
        query[i] = queries[first_query + i];
    }
    let end = tables[2u * row] + 1u;
    let start = end - min(end, params.window);
    let span = Span(head / params.sharing, tables[2u * row + 1u], start, end);
    if SPLIT == 1u {
        let all = gather_block(lane, width, span, number % params.blocks);
        let first_out = number * (2u + params.value_dim);
        if lane == 0u {
            out[first_out] = all.largest;
            out[first_out + 1u] = all.sum;
        }
        for (var i = lane; i < params.value_dim; i += LANES) {
            out[first_out + 2u + i] = gathered[i];
        }
        return;
    }
    for (var i = lane; i < params.value_dim; i += LANES) {
        merged[i] = 0.0;
    }
    var all = nothing();
    let first = start / (BLOCK_PAGES * POSITIONS);
    for (var block = first; block * BLOCK_PAGES * POSITIONS < end; block += 1u) {
        let merge = merge_of(all, gather_block(lane, width, span, block));
        all = merge.both;
        for (var i = lane; i < params.value_dim; i += LANES) {
            merged[i] = fma(merged[i], merge.old, gathered[i] * merge.fresh);
        }
        workgroupBarrier();
    }
    var sink = LOWEST;
    if params.has_sinks == 1u {
        sink = sinks[head];
    }
    let ending = ending_of(all, params.has_sinks == 1u, sink);
    let first_out = index * params.value_dim;
    for (var i = lane; i < params.value_dim; i += LANES) {
        out[first_out + i] = merged[i] * ending.factor / ending.sum;
    }
}
