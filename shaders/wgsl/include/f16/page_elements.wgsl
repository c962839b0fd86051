// Pages as pairs of half floats, for adapters that have these: of no other kind of pages.
@group(0) @binding(4) var<storage, read> chunk_0: array<vec2<f16>>;
@group(0) @binding(5) var<storage, read> chunk_1: array<vec2<f16>>;
@group(0) @binding(6) var<storage, read> chunk_2: array<vec2<f16>>;
@group(0) @binding(7) var<storage, read> chunk_3: array<vec2<f16>>;

fn pair_at(chunk: u32, index: u32) -> vec2<f16> {
    switch chunk {
        case 0u: { return chunk_0[index]; }
        case 1u: { return chunk_1[index]; }
        case 2u: { return chunk_2[index]; }
        default: { return chunk_3[index]; }
    }
}

// The elements of a word; those that it has not are 0. A device may take subnormal ones for 0.
fn elements_at(chunk: u32, index: u32) -> vec4<f32> {
    return vec4<f32>(vec2<f32>(pair_at(chunk, index)), 0.0, 0.0);
}

// Half floats have none.
fn scale_at(chunk: u32, index: u32) -> f32 {
    return 1.0;
}
