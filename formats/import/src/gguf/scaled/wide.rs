//! Transcoding compiled for wider vectors, selected at run time.
//!
//! Bits are only moved, so all versions write the same ones.
#![cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "functions for instructions that were found present")
)]

use super::codes;
use super::parts::ScaledRun;
use crate::gguf::BlockType;

/// Transcodes blocks with the widest available vectors.
pub(super) fn write(kind: BlockType, blocks: &[u8], run: &mut ScaledRun<'_>) {
    #[cfg(target_arch = "x86_64")]
    {
        if has_avx512() {
            // SAFETY: the processor supports these instructions.
            return unsafe { write_avx512(kind, blocks, run) };
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the processor supports these instructions.
            return unsafe { write_avx2(kind, blocks, run) };
        }
    }
    codes::write(kind, blocks, run);
}

#[cfg(target_arch = "x86_64")]
fn has_avx512() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,avx512f,avx512bw,avx512vl")]
fn write_avx512(kind: BlockType, blocks: &[u8], run: &mut ScaledRun<'_>) {
    codes::write(kind, blocks, run);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn write_avx2(kind: BlockType, blocks: &[u8], run: &mut ScaledRun<'_>) {
    codes::write(kind, blocks, run);
}

/// Returns all versions that this machine can run, with their names.
#[cfg(test)]
pub(super) fn versions() -> Vec<(&'static str, Write)> {
    let mut versions: Vec<(&str, Write)> = vec![("plain", codes::write), ("detected", write)];
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor supports these instructions.
        versions.push(("AVX2", |kind, blocks, run| unsafe { write_avx2(kind, blocks, run) }));
    }
    versions
}

#[cfg(test)]
type Write = fn(BlockType, &[u8], &mut ScaledRun<'_>);
