//! XXH3-128 of long inputs, compiled for wider vectors that are selected at run time.
//!
//! All data read is hashed, so hashing is a large part of the CPU time on a machine that streams. The
//! `xxhash-rust` crate selects its vectors at compile time, which is SSE2 in a portable build. The algorithm
//! follows the specification of Yann Collet's XXH3
//! (<https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md>).
#![cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "functions for instructions that were found present")
)]

use xxhash_rust::xxh3::xxh3_128_with_seed;

pub(super) fn hash(seed: u64, bytes: &[u8]) -> u128 {
    #[cfg(target_arch = "x86_64")]
    if bytes.len() > x86::LONG {
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: the processor supports these instructions.
            return unsafe { x86::hash_avx512(seed, bytes) };
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the processor supports these instructions.
            return unsafe { x86::hash_avx2(seed, bytes) };
        }
    }
    xxh3_128_with_seed(bytes, seed)
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use xxhash_rust::const_xxh3::const_custom_default_secret;

    /// Maximum length of inputs that use the algorithm's short variants.
    pub const LONG: usize = 240;

    const STRIPE: usize = 64;
    const LANES: usize = STRIPE / 8;
    const SECRET: usize = 192;
    const BLOCK: usize = STRIPE * (SECRET - STRIPE) / 8;

    /// Prefetch distance in bytes; the hardware prefetcher does not reach as far.
    const AHEAD: usize = 4096;

    const P32_1: u64 = 0x9e37_79b1;
    const P32_2: u64 = 0x85eb_ca77;
    const P32_3: u64 = 0xc2b2_ae3d;
    const P64_1: u64 = 0x9e37_79b1_85eb_ca87;
    const P64_2: u64 = 0xc2b2_ae3d_27d4_eb4f;
    const P64_3: u64 = 0x1656_67b1_9e37_79f9;
    const P64_4: u64 = 0x85eb_ca77_c2b2_ae63;
    const P64_5: u64 = 0x27d4_eb2f_1656_67c5;
    const AVALANCHE: u64 = 0x1656_6791_9e37_79f9;

    const START: [u64; LANES] = [P32_3, P64_1, P64_2, P64_3, P64_4, P32_2, P64_5, P32_1];

    #[target_feature(enable = "avx512f")]
    pub fn hash_avx512(seed: u64, bytes: &[u8]) -> u128 {
        let secret = const_custom_default_secret(seed);
        // SAFETY: both have 64 bytes.
        let load = |from: &[u8; STRIPE]| unsafe { _mm512_loadu_si512(from.as_ptr().cast()) };
        let prime = _mm512_set1_epi64(P32_1.cast_signed());
        // SAFETY: both have 64 bytes.
        let mut sums: __m512i = unsafe { std::mem::transmute(START) };
        let add = |sums: &mut __m512i, stripe: &[u8; STRIPE], key: &[u8; STRIPE]| {
            let data = load(stripe);
            let mixed = _mm512_xor_si512(data, load(key));
            let product = _mm512_mul_epu32(mixed, _mm512_srli_epi64::<32>(mixed));
            let swapped = _mm512_shuffle_epi32::<0b01_00_11_10>(data);
            *sums = _mm512_add_epi64(product, _mm512_add_epi64(swapped, *sums));
        };
        let scramble = |sums: &mut __m512i, key: &[u8; STRIPE]| {
            let mixed = _mm512_xor_si512(*sums, _mm512_srli_epi64::<47>(*sums));
            let mixed = _mm512_xor_si512(mixed, load(key));
            let high = _mm512_mul_epu32(_mm512_srli_epi64::<32>(mixed), prime);
            let low = _mm512_mul_epu32(mixed, prime);
            *sums = _mm512_add_epi64(low, _mm512_slli_epi64::<32>(high));
        };
        pass(bytes, &secret, &mut sums, add, scramble);
        // SAFETY: both have 64 bytes.
        finish(unsafe { std::mem::transmute::<__m512i, [u64; LANES]>(sums) }, bytes.len(), &secret)
    }

    #[target_feature(enable = "avx2")]
    pub fn hash_avx2(seed: u64, bytes: &[u8]) -> u128 {
        let secret = const_custom_default_secret(seed);
        let load = |from: &[u8; STRIPE]| {
            let from = from.as_ptr().cast::<__m256i>();
            // SAFETY: there are 64 bytes.
            unsafe { [_mm256_loadu_si256(from), _mm256_loadu_si256(from.add(1))] }
        };
        let prime = _mm256_set1_epi64x(P32_1.cast_signed());
        // SAFETY: both have 64 bytes.
        let mut sums: [__m256i; 2] = unsafe { std::mem::transmute(START) };
        let add = |sums: &mut [__m256i; 2], stripe: &[u8; STRIPE], key: &[u8; STRIPE]| {
            for ((sum, data), key) in sums.iter_mut().zip(load(stripe)).zip(load(key)) {
                let mixed = _mm256_xor_si256(data, key);
                let product = _mm256_mul_epu32(mixed, _mm256_srli_epi64::<32>(mixed));
                let swapped = _mm256_shuffle_epi32::<0b01_00_11_10>(data);
                *sum = _mm256_add_epi64(product, _mm256_add_epi64(swapped, *sum));
            }
        };
        let scramble = |sums: &mut [__m256i; 2], key: &[u8; STRIPE]| {
            for (sum, key) in sums.iter_mut().zip(load(key)) {
                let mixed = _mm256_xor_si256(*sum, _mm256_srli_epi64::<47>(*sum));
                let mixed = _mm256_xor_si256(mixed, key);
                let high = _mm256_mul_epu32(_mm256_srli_epi64::<32>(mixed), prime);
                let low = _mm256_mul_epu32(mixed, prime);
                *sum = _mm256_add_epi64(low, _mm256_slli_epi64::<32>(high));
            }
        };
        pass(bytes, &secret, &mut sums, add, scramble);
        // SAFETY: both have 64 bytes.
        finish(
            unsafe { std::mem::transmute::<[__m256i; 2], [u64; LANES]>(sums) },
            bytes.len(),
            &secret,
        )
    }

    /// Processes an input longer than [`LONG`]: `add` accumulates a stripe with its key, `scramble` ends a
    /// block.
    #[inline(always)]
    fn pass<S>(
        bytes: &[u8],
        secret: &[u8; SECRET],
        sums: &mut S,
        add: impl Fn(&mut S, &[u8; STRIPE], &[u8; STRIPE]),
        scramble: impl Fn(&mut S, &[u8; STRIPE]),
    ) {
        let key = |at: usize| secret[at..].first_chunk().unwrap_or(&[0; STRIPE]);
        let add_stripes = |sums: &mut S, block: &[u8]| {
            let (stripes, _) = block.as_chunks::<STRIPE>();
            for (at, stripe) in stripes.iter().enumerate() {
                let ahead = stripe.as_ptr().wrapping_add(AHEAD);
                // SAFETY: all x86-64 processors support it, and prefetching an invalid address has no effect.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(ahead.cast()) };
                add(sums, stripe, key(8 * at));
            }
        };
        // The last block is not scrambled, even if complete, and the last stripe is added separately.
        let blocks = bytes[..bytes.len().saturating_sub(1)].chunks_exact(BLOCK);
        let rest = blocks.remainder();
        for block in blocks {
            add_stripes(sums, block);
            scramble(sums, key(SECRET - STRIPE));
        }
        add_stripes(sums, rest);
        if let Some(last) = bytes.last_chunk() {
            add(sums, last, key(SECRET - STRIPE - 7));
        }
    }

    fn finish(sums: [u64; LANES], length: usize, secret: &[u8; SECRET]) -> u128 {
        let length = length as u64;
        let low = merge(&sums, &secret[11..], length.wrapping_mul(P64_1));
        let high = merge(&sums, &secret[SECRET - STRIPE - 11..], !length.wrapping_mul(P64_2));
        u128::from(high) << 64 | u128::from(low)
    }

    fn merge(sums: &[u64; LANES], secret: &[u8], start: u64) -> u64 {
        let keys = secret.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
        let mut mixed = *sums;
        mixed.iter_mut().zip(keys).for_each(|(sum, key)| *sum ^= key);
        let folded = mixed.as_chunks::<2>().0.iter().fold(start, |sum, pair| {
            let product = u128::from(pair[0]) * u128::from(pair[1]);
            sum.wrapping_add(product as u64 ^ (product >> 64) as u64)
        });
        let mixed = (folded ^ (folded >> 37)).wrapping_mul(AVALANCHE);
        mixed ^ (mixed >> 32)
    }
}

#[cfg(test)]
mod tests {
    use xxhash_rust::xxh3::xxh3_128_with_seed;

    use super::hash;

    #[test]
    fn long_and_short_inputs_hash_as_the_specification_says() {
        let bytes: Vec<u8> =
            (0..70_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        let near = [0, 1024, 2048, 4096, 65_536]
            .into_iter()
            .flat_map(|at: usize| at.saturating_sub(70)..at + 70);
        for length in (0..1200).chain(near) {
            for seed in [0, 1, u64::MAX, 0x0123_4567_89ab_cdef] {
                let bytes = &bytes[length % 13..][..length];
                let expected = xxh3_128_with_seed(bytes, seed);
                assert_eq!(hash(seed, bytes), expected, "{length} bytes, seed {seed}");
                #[cfg(target_arch = "x86_64")]
                if length > super::x86::LONG && is_x86_feature_detected!("avx2") {
                    // SAFETY: the processor supports these instructions.
                    let found = unsafe { super::x86::hash_avx2(seed, bytes) };
                    assert_eq!(found, expected, "{length} bytes, seed {seed}, AVX2");
                }
            }
        }
    }
}
