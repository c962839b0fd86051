//! Fused multiplication and addition of floats.
//!
//! WebAssembly has no such instruction, and its libraries compute it in a function that is not inlined. Here it
//! is computed in doubles: the product of two floats is exact, its sum with the third is rounded to odd by means
//! of the exact error of the addition (Knuth's TwoSum), and rounding that to a float gives the right float, since
//! a double has more than two bits beyond it (Boldo and Melquiond, "Emulation of FMA and correctly rounded
//! sums: proved algorithms using rounding to odd", 2008).

/// Products with a sum that are rounded once.
pub trait Fused {
    /// Computes `self * factor + sum`, rounded once.
    fn fused(self, factor: Self, sum: Self) -> Self;
}

impl Fused for f32 {
    #[cfg(not(target_family = "wasm"))]
    #[inline(always)]
    fn fused(self, factor: Self, sum: Self) -> Self {
        self.mul_add(factor, sum)
    }

    #[cfg(target_family = "wasm")]
    #[inline(always)]
    fn fused(self, factor: Self, sum: Self) -> Self {
        in_doubles(self, factor, sum)
    }
}

#[cfg(any(target_family = "wasm", test))]
#[inline(always)]
fn in_doubles(a: f32, b: f32, sum: f32) -> f32 {
    let (product, sum) = (f64::from(a) * f64::from(b), f64::from(sum));
    let rounded = product + sum;
    let of_sum = rounded - product;
    let of_product = rounded - of_sum;
    let error = (product - of_product) + (sum - of_sum);
    // An error that is not a number belongs to an infinite sum, which is exact.
    let is_inexact = error.abs() > 0.0;
    let bits = rounded.to_bits();
    // 1 away from zero if the exact sum is there, otherwise -1.
    let step = ((bits ^ error.to_bits()) as i64 >> 63 | 1) as u64;
    let is_moved = is_inexact && bits & 1 == 0;
    f64::from_bits(if is_moved { bits.wrapping_add(step) } else { bits }) as f32
}

#[cfg(test)]
pub(crate) mod tests {
    use rand_xoshiro::Xoshiro256PlusPlus;
    use rand_xoshiro::rand_core::{Rng, SeedableRng};

    use super::in_doubles;

    const SPECIAL: [f32; 15] = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        f32::MAX,
        f32::MIN,
        f32::MIN_POSITIVE,
        f32::from_bits(1),
        -f32::from_bits(1),
        f32::EPSILON,
        0.5,
        3.0,
    ];

    /// Calls `check` with factors and sums: any bits, products halfway between floats, and special
    /// numbers.
    pub(crate) fn each_case(mut check: impl FnMut(f32, f32, f32)) {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(1);
        for _ in 0..400_000 {
            let mut bits = || f32::from_bits(random.next_u32());
            check(bits(), bits(), bits());
        }
        for _ in 0..400_000 {
            let mut factor = || 1.0 + (random.next_u32() & 0xfff) as f32 * 2f32.powi(-12);
            let (a, b) = (factor(), factor());
            // The product often lies halfway between floats, and the sum is beyond a double's last bit.
            let tiny = 2f32.powi(-54 - (random.next_u32() & 63) as i32);
            check(a, b, tiny);
            check(a, b, -tiny);
            check(a, b, -a * b);
        }
        for _ in 0..400_000 {
            // Halfway between floats below the normal ones, but for what is beyond a double's last bit.
            let mut factor =
                || (1.0 + (random.next_u32() % 3) as f32 * 2f32.powi(-23)) * 2f32.powi(-75);
            let (a, b) = (factor() - 2f32.powi(-98), factor() - 2f32.powi(-98));
            let sum = f32::from_bits(random.next_u32() & 0x7f_ffff);
            check(a, b, sum);
            check(a, b, -sum);
        }
        for a in SPECIAL {
            for b in SPECIAL {
                SPECIAL.into_iter().for_each(|sum| check(a, b, sum));
            }
        }
    }

    /// Panics unless a result is that of a fused multiplication.
    #[track_caller]
    pub(crate) fn expect_fused(found: f32, a: f32, b: f32, sum: f32) {
        // WebAssembly's library rounds twice below the normal floats. Elsewhere an instruction tests this function.
        let expected =
            if cfg!(target_family = "wasm") { in_doubles(a, b, sum) } else { a.mul_add(b, sum) };
        let is_same = found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan();
        assert!(is_same, "{a:e} * {b:e} + {sum:e} is {expected:e}, not {found:e}");
    }

    #[test]
    fn a_product_with_a_sum_is_rounded_once() {
        each_case(|a, b, sum| expect_fused(in_doubles(a, b, sum), a, b, sum));
    }

    #[test]
    fn rounding_twice_would_be_found() {
        let twice = |a, b, sum| (f64::from(a) * f64::from(b) + f64::from(sum)) as f32;
        let mut differences = 0;
        each_case(|a, b, sum| {
            let (found, expected) = (twice(a, b, sum), a.mul_add(b, sum));
            differences += usize::from(found != expected && !expected.is_nan());
        });
        assert!(differences > 0);
    }
}
