//! Copies of what is not looked at soon.
#![cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "stores that pass the processor's caches")
)]

/// Copies bytes past the processor's caches where it can: what is written is not read into them first,
/// and what lies there stays. `to` is as long as `from`.
#[cfg(target_arch = "x86_64")]
pub(super) fn copy_past_cache(from: &[u8], to: &mut [u8]) {
    use std::arch::x86_64::*;

    const LINE: usize = 64;
    let length = from.len().min(to.len());
    let (from, to) = (&from[..length], &mut to[..length]);
    let head = to.as_ptr().align_offset(LINE).min(length);
    to[..head].copy_from_slice(&from[..head]);
    let (lines, rest) = from[head..].as_chunks::<LINE>();
    let (to_lines, to_rest) = to[head..].as_chunks_mut::<LINE>();
    for (line, to) in lines.iter().zip(to_lines) {
        // SAFETY: both have 64 bytes, and `to` begins at a multiple of 64. Every x86-64 has these instructions.
        unsafe {
            let (from, to) = (line.as_ptr().cast::<__m128i>(), to.as_mut_ptr().cast::<__m128i>());
            _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().wrapping_add(AHEAD).cast());
            for at in 0..4 {
                _mm_stream_si128(to.add(at), _mm_loadu_si128(from.add(at)));
            }
        }
    }
    // SAFETY: every x86-64 has it. Others see the bytes in the order of what follows only after it.
    unsafe { _mm_sfence() };
    to_rest.copy_from_slice(rest);
}

/// How far ahead memory is asked for.
#[cfg(target_arch = "x86_64")]
const AHEAD: usize = 1024;

/// Copies bytes. `to` is as long as `from`.
#[cfg(not(target_arch = "x86_64"))]
pub(super) fn copy_past_cache(from: &[u8], to: &mut [u8]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
}

#[cfg(test)]
mod tests {
    use super::copy_past_cache;

    #[test]
    fn every_byte_arrives_wherever_it_lies() {
        let from: Vec<u8> = (0..1000u32).map(|i| (i * 7 % 251) as u8).collect();
        for (start, length) in (0..70).flat_map(|start| [0, 1, 63, 64, 65, 700].map(|l| (start, l)))
        {
            for to_start in [0, 1, 17, 64] {
                let mut to = vec![255; 1000];
                copy_past_cache(&from[start..start + length], &mut to[to_start..to_start + length]);
                assert_eq!(to[to_start..to_start + length], from[start..start + length]);
                assert!(to[..to_start].iter().chain(&to[to_start + length..]).all(|b| *b == 255));
            }
        }
    }
}
