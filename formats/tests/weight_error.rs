//! The nested code loses to no block quantization of its rate, on a sample of random weights.

use nestling_formats::Level;
use nestling_formats::nested::NestedError;

#[path = "support/kquants.rs"]
mod kquants;
#[path = "support/samples.rs"]
mod samples;

use kquants::KQuant;
use samples::{Distribution, NestedResult, fit, measure, quantize};

/// dB + 6.02 * bits per weight over two matrices that share a codec, at each level, against the
/// emulated quantization of that rate on the same weights. All bytes count.
#[test]
fn no_level_is_worse_than_its_block_quantization() -> Result<(), NestedError> {
    const ROWS: usize = 64;
    const COLS: usize = 1024;
    for distribution in Distribution::ALL {
        let weights = distribution.sample(7, 2 * ROWS * COLS);
        let (first, second) = weights.split_at(ROWS * COLS);
        let codec = fit(&[(first, ROWS, COLS), (second, ROWS, COLS)])?;
        let mut total = NestedResult::default();
        for weights in [first, second] {
            total.add(&measure(weights, &quantize(weights, ROWS, COLS, &codec)?, &codec)?);
        }
        for bytes in &mut total.bytes {
            *bytes += codec.to_bytes().len();
        }
        for (level, peer) in Level::ALL.into_iter().zip(KQuant::ALL) {
            let peer_error = 10.0 * peer.relative_error(&weights).log10();
            let peer_gap = peer_error + 6.02 * peer.bits_per_weight();
            let gap = total.gap(level);
            assert!(
                gap <= peer_gap,
                "{}: level {level} has {gap:.2}, {} has {peer_gap:.2}",
                distribution.name(),
                peer.name(),
            );
        }
    }
    Ok(())
}
