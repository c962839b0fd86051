//! Types with one scale and one or two bits per weight: TQ1_0, TQ2_0, Q1_0, Q2_0.

use super::k_quants::two_bits;

/// Powers of three that shift a digit of a TQ1_0 byte to the top.
const POWERS: [u8; 5] = [1, 3, 9, 27, 81];

/// Returns a digit of a byte as a code 0, 1 or 2, which represents -1, 0 or 1.
const fn digit(byte: u8, power: u8) -> u8 {
    // The byte is a fraction in base 3, rounded up. The integer part of three times the fraction is the
    // digit.
    ((byte.wrapping_mul(power) as u16 * 3) >> 8) as u8
}

/// Returns the codes of TQ1_0: five digits in each of 48 bytes, four in each of 4.
pub(super) fn tq1_0(block: &[u8; 54]) -> [u8; 256] {
    let mut out = [0; 256];
    let runs = [(&block[..32], 5), (&block[32..48], 5), (&block[48..52], 4)];
    let mut rest = out.as_mut_slice();
    for (bytes, digits) in runs {
        for power in &POWERS[..digits] {
            let (now, later) = rest.split_at_mut(bytes.len());
            now.iter_mut().zip(bytes).for_each(|(out, byte)| *out = digit(*byte, *power));
            rest = later;
        }
    }
    out
}

pub(super) fn tq2_0(block: &[u8; 66]) -> [u8; 256] {
    std::array::from_fn(|at| two_bits(block, at))
}

/// Returns the bits of Q1_0: set if the weight is the scale, clear if it is the negative scale.
pub(super) fn q1_0(block: &[u8; 18]) -> [u8; 128] {
    std::array::from_fn(|at| block[2 + at / 8] >> (at % 8) & 1)
}

pub(super) fn q2_0(block: &[u8; 18]) -> [u8; 64] {
    std::array::from_fn(|at| block[2 + at / 4] >> (2 * (at % 4)) & 3)
}
