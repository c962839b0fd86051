// Exact dot products of int8.

// Whether products of four bytes are one instruction of the device.
override DOT4: bool = true;

fn signed_bytes(word: u32) -> vec4<i32> {
    let wide = vec4<i32>(vec4(word) << vec4(24u, 16u, 8u, 0u));
    return wide >> vec4(24u);
}

fn dot_bytes(a: u32, b: u32) -> i32 {
    if (DOT4) {
        return dot4I8Packed(a, b);
    }
    let products = signed_bytes(a) * signed_bytes(b);
    return products.x + products.y + products.z + products.w;
}
