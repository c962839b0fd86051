// Pages as words of 32 bits.
@group(0) @binding(4) var<storage, read> chunk_0: array<u32>;
@group(0) @binding(5) var<storage, read> chunk_1: array<u32>;
@group(0) @binding(6) var<storage, read> chunk_2: array<u32>;
@group(0) @binding(7) var<storage, read> chunk_3: array<u32>;

fn word_at(chunk: u32, index: u32) -> u32 {
    switch chunk {
        case 0u: { return chunk_0[index]; }
        case 1u: { return chunk_1[index]; }
        case 2u: { return chunk_2[index]; }
        default: { return chunk_3[index]; }
    }
}

// The elements of a word; those that it has not are 0.
fn elements_at(chunk: u32, index: u32) -> vec4<f32> {
    let word = word_at(chunk, index);
    if KIND == 0u {
        return vec4<f32>(bitcast<f32>(word), 0.0, 0.0, 0.0);
    }
    if KIND == 1u {
        return vec4<f32>(f16_to_f32(word & 0xffffu), f16_to_f32(word >> 16u), 0.0, 0.0);
    }
    return vec4<f32>(unpack4xI8(word));
}

// The scale of integers.
fn scale_at(chunk: u32, index: u32) -> f32 {
    return bitcast<f32>(word_at(chunk, index));
}
