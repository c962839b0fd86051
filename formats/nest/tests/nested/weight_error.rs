//! The nested code is at least as good as each block quantization of its rate, on random weights.

use nestling_formats::Level;
use nestling_formats::nested::NestedError;

use super::kquants::KQuant;
use super::mwq;
use super::samples::{Distribution, NestedResult, fit, measure, quantize};

/// Compares dB + 6.02 * bits per weight with the emulated quantization of the same rate, at each level. Both
/// use the same two matrices, which share a codec. All bytes count.
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

/// Compares with D²MoE's matryoshka quantization, a 2-bit base with planes of signs.
#[test]
fn low_levels_are_better_than_a_base_with_sign_planes() -> Result<(), NestedError> {
    const ROWS: usize = 64;
    const COLS: usize = 1024;
    for distribution in Distribution::ALL {
        let weights = distribution.sample(8, ROWS * COLS);
        let codec = fit(&[(&weights, ROWS, COLS)])?;
        let mut result = measure(&weights, &quantize(&weights, ROWS, COLS, &codec)?, &codec)?;
        for bytes in &mut result.bytes {
            *bytes += codec.to_bytes().len();
        }
        let peers = mwq::relative_errors(&weights);
        for ((level, bits), error) in Level::ALL.into_iter().zip(mwq::BITS).zip(peers) {
            let peer_gap = 10.0 * error.log10() + 6.02 * mwq::bits_per_weight(bits);
            let gap = result.gap(level);
            assert!(
                gap < peer_gap - 0.3,
                "{}: level {level} has {gap:.2}, D²MoE at {bits} bits has {peer_gap:.2}",
                distribution.name(),
            );
        }
    }
    Ok(())
}

/// Uses weights that a 2-bit base represents exactly, and checks sign planes on a constant residual.
#[test]
fn the_base_with_sign_planes_is_what_it_says() {
    let base: Vec<f32> = (0..mwq::GROUP).map(|i| [-0.5, 0.0, 0.5, 1.0][i % 4]).collect();
    let [two, three, four] = mwq::decode(&base);
    assert_eq!(two, base);
    assert_eq!([three, four], [base.clone(), base.clone()]);
    let shifted: Vec<f32> = base
        .iter()
        .enumerate()
        .map(|(i, w)| w + if i / 4 % 2 == 0 { 0.0625 } else { -0.0625 })
        .collect();
    let [two, three, _] = mwq::decode(&shifted);
    let worst = |a: &[f32]| a.iter().zip(&shifted).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst(&two) >= 0.05 && worst(&three) < 0.02, "{} {}", worst(&two), worst(&three));
    assert!((mwq::bits_per_weight(4) - 4.390_625).abs() < 1e-12);
}
