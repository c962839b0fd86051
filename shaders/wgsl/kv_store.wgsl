// Stores keys and values of rows in their pages. One workgroup for each head of each row. See
// `pages.rs` for the layout of a page.

struct Params {
    // Rows that are stored, and heads of each.
    rows: u32,
    heads: u32,
    // Elements from row to row, and before the first key.
    stride: u32,
    first: u32,
    head_dim: u32,
    // Elements of a value that are the first of its key; 0 where values are beside the keys.
    prefix: u32,
    page_words: u32,
    head_words: u32,
    value_first: u32,
    scale_first: u32,
}

// 0: f32; 1: f16; 2: int8.
override KIND: u32 = 0u;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
// Row, and its position counted from the first page of the buffer.
@group(0) @binding(2) var<storage, read> places: array<vec2<u32>>; // [rows]
@group(0) @binding(3) var<storage, read_write> pages: array<u32>;

// include: narrow

const POSITIONS: u32 = 64u;

var<workgroup> largest: atomic<u32>;

// The scale of integers for `length` elements: their largest magnitude by 127. By its bits, in which
// infinity and NaN are larger than any number.
fn group_scale(lane: u32, start: u32, length: u32) -> f32 {
    workgroupBarrier();
    if lane == 0u {
        atomicStore(&largest, 0u);
    }
    workgroupBarrier();
    for (var i = lane; i < length; i += 64u) {
        atomicMax(&largest, bitcast<u32>(x[start + i]) & 0x7fffffffu);
    }
    workgroupBarrier();
    return bitcast<f32>(atomicLoad(&largest));
}

fn integer(value: f32, factor: f32) -> u32 {
    return u32(i32(round(clamp(value * factor, -127.0, 127.0)))) & 0xffu;
}

// The word that begins with an element.
fn packed(start: u32, factor: f32) -> u32 {
    if KIND == 0u {
        return bitcast<u32>(x[start]);
    }
    if KIND == 1u {
        return f32_to_f16(x[start]) | (f32_to_f16(x[start + 1u]) << 16u);
    }
    return integer(x[start], factor) | (integer(x[start + 1u], factor) << 8u)
        | (integer(x[start + 2u], factor) << 16u) | (integer(x[start + 3u], factor) << 24u);
}

// What integers are made with; 0 where all is 0 or something is no number, which reaches the scale. Decided by
// bits, as where floats are compared NaN need not count. A device may take subnormal numbers for 0: the
// integers are then anything up to 127, of a scale that is 0 or next to it.
fn inverse(amax: f32) -> f32 {
    return select(0.0, 127.0 / amax, bitcast<u32>(amax) - 1u < 0x7f800000u);
}

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = group.y * groups.x + group.x;
    if index >= params.rows * params.heads {
        return;
    }
    let head = index % params.heads;
    let place = places[index / params.heads];
    let position = place.y % POSITIONS;
    let page = place.y / POSITIONS * params.page_words;
    let out = page + head * params.head_words;
    let key = place.x * params.stride + params.first + head * params.head_dim;
    let value = key + params.heads * params.head_dim;
    var key_max = 0.0;
    var value_max = 0.0;
    if KIND == 2u {
        key_max = group_scale(lane, key + params.prefix, params.head_dim - params.prefix);
        if params.prefix > 0u {
            value_max = group_scale(lane, key, params.prefix);
        } else {
            value_max = group_scale(lane, value, params.head_dim);
        }
        if lane == 0u {
            let scales = page + params.scale_first + head * 2u * POSITIONS + position;
            pages[scales] = bitcast<u32>(key_max / 127.0);
            pages[scales + POSITIONS] = bitcast<u32>(value_max / 127.0);
        }
    }
    let per_word = 1u << KIND;
    let words = params.head_dim / per_word;
    for (var word = lane; word < words; word += 64u) {
        let element = word * per_word;
        let amax = select(key_max, value_max, element < params.prefix);
        pages[out + word * POSITIONS + position] = packed(key + element, inverse(amax));
        if params.prefix == 0u {
            let at = out + params.value_first + position * words + word;
            pages[at] = packed(value + element, inverse(value_max));
        }
    }
}
