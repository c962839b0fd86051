//! RoPE angles of positions.

use nestling_import::{Llama3Scaling, ModelConfig, RopeConfig, RopeScaling, YarnScaling};

/// Rotary angles of one kind.
///
/// Frequencies and angles are rounded to f32, as in the code that models are trained with. Cosines and sines
/// are computed in f64 and rounded to f32.
#[derive(Debug)]
pub struct RopeAngles {
    frequencies: Vec<f32>, // [dims / 2]
    /// Multiplier of cosines and sines.
    factor: f32,
}

impl RopeAngles {
    /// Computes the frequencies for a model opened with a context of `context` positions.
    pub fn new(rope: &RopeConfig, context: usize) -> Self {
        let wavelength = |i: usize| {
            let exponent = (2 * i) as f32 / rope.dims as f32;
            libm::pow(rope.theta, f64::from(exponent)) as f32
        };
        let wavelengths: Vec<f32> = (0..rope.dims / 2).map(wavelength).collect();
        match &rope.scaling {
            RopeScaling::None => {
                Self { frequencies: wavelengths.iter().map(|w| 1.0 / w).collect(), factor: 1.0 }
            }
            RopeScaling::Proportional { pairs } => {
                let turned = wavelengths.iter().take(*pairs).map(|w| 1.0 / w);
                // The other pairs are not rotated.
                let still = std::iter::repeat_n(0.0, wavelengths.len().saturating_sub(*pairs));
                Self { frequencies: turned.chain(still).collect(), factor: 1.0 }
            }
            RopeScaling::Linear { factor } => {
                let slower = wavelengths.iter().map(|w| 1.0 / w / *factor as f32);
                Self { frequencies: slower.collect(), factor: 1.0 }
            }
            RopeScaling::Llama3(scaling) => {
                let slower = wavelengths.iter().map(|w| llama3_frequency(1.0 / w, scaling));
                Self { frequencies: slower.collect(), factor: 1.0 }
            }
            RopeScaling::LongRope(long) => {
                let factors = wavelengths.iter().zip(long.factors(context));
                let frequencies = factors.map(|(wavelength, factor)| 1.0 / (factor * wavelength));
                Self { frequencies: frequencies.collect(), factor: long.attention_factor as f32 }
            }
            RopeScaling::Yarn(yarn) => {
                let kept = kept_shares(rope, yarn);
                let mixed = |(wavelength, kept): (&f32, f32)| {
                    let slow = 1.0 / (yarn.factor as f32 * wavelength);
                    slow * (1.0 - kept) + 1.0 / wavelength * kept
                };
                let frequencies = wavelengths.iter().zip(kept).map(mixed).collect();
                Self { frequencies, factor: yarn.attention_factor as f32 }
            }
        }
    }

    /// Fills `angles` with the cosines and sines of positions, `[T, dims]`.
    pub fn fill(&self, positions: &[u32], angles: &mut Vec<f32>) {
        angles.clear();
        for &position in positions {
            let angle = |frequency: &f32| f64::from(position as f32 * frequency);
            let cos = |frequency| libm::cos(angle(frequency)) as f32 * self.factor;
            let sin = |frequency| libm::sin(angle(frequency)) as f32 * self.factor;
            angles.extend(self.frequencies.iter().map(cos));
            angles.extend(self.frequencies.iter().map(sin));
        }
    }
}

/// Scales a frequency by the Llama 3 rule: reduced if it makes few turns within the original context length.
fn llama3_frequency(frequency: f32, scaling: &Llama3Scaling) -> f32 {
    let (factor, low) = (scaling.factor as f32, scaling.low_freq_factor as f32);
    let high = scaling.high_freq_factor as f32;
    let wavelength = 2.0 * std::f32::consts::PI / frequency;
    let turns = scaling.original_max_position_embeddings as f32 / wavelength;
    if turns < low {
        return frequency / factor;
    }
    if turns > high {
        return frequency;
    }
    let kept = (turns - low) / (high - low);
    (1.0 - kept) * frequency / factor + kept * frequency
}

/// Returns the share of each frequency that YaRN keeps: 1 above the fast border, 0 below the slow one.
fn kept_shares(rope: &RopeConfig, yarn: &YarnScaling) -> impl Iterator<Item = f32> + use<> {
    // Index of the pair that makes `turns` turns within the original context length.
    let border = |turns: f64| {
        let positions = yarn.original_max_position_embeddings as f64;
        let per_turn = positions / (turns * 2.0 * std::f64::consts::PI);
        rope.dims as f64 * libm::log(per_turn) / (2.0 * libm::log(rope.theta))
    };
    let (mut low, mut high) = (border(yarn.beta_fast), border(yarn.beta_slow));
    if yarn.truncate {
        (low, high) = (low.floor(), high.ceil());
    }
    (low, high) = (low.max(0.0), high.min(rope.dims as f64 - 1.0));
    if low == high {
        high += 0.001;
    }
    let (low, span) = (low as f32, (high - low) as f32);
    (0..rope.dims / 2).map(move |pair| 1.0 - ((pair as f32 - low) / span).clamp(0.0, 1.0))
}

/// Returns the distinct kinds of angles of a model's layers.
pub fn rope_kinds(config: &ModelConfig) -> Vec<RopeConfig> {
    config.distinct(|layer| layer.mixer.rope().copied())
}

#[cfg(test)]
mod tests {
    use super::*;
    use nestling_import::{AngleFactors, LongRopeScaling};

    fn yarn(theta: f64, dims: usize, yarn: YarnScaling) -> RopeAngles {
        RopeAngles::new(&RopeConfig { theta, dims, scaling: RopeScaling::Yarn(yarn) }, 1)
    }

    fn check(angles: &RopeAngles, expected: &[(usize, f32)]) {
        for (pair, frequency) in expected {
            let found = angles.frequencies[*pair];
            assert!((found / frequency - 1.0).abs() < 3e-7, "{pair}: {found} {frequency}");
        }
    }

    /// Expected values: `ROPE_INIT_FUNCTIONS["yarn"]` of transformers 5.23 for gpt-oss-120b,
    /// DeepSeek-V2-Lite, and a short one with whole borders.
    #[test]
    fn yarn_has_the_frequencies_of_transformers() {
        let mut scaling = YarnScaling {
            factor: 32.0,
            original_max_position_embeddings: 4096,
            beta_fast: 32.0,
            beta_slow: 1.0,
            truncate: false,
            attention_factor: 1.25,
            mscale_all_dim: 0.0,
        };
        assert!((scaling.mscale(1.0) - 1.3465735902799727).abs() < 1e-12);
        let angles = yarn(150_000.0, 64, scaling);
        assert_eq!((angles.factor, angles.frequencies.len()), (1.25, 32));
        check(&angles, &[(0, 1.0), (1, 0.689_044_3), (8, 0.050_813_27), (9, 0.031_705_696)]);
        check(&angles, &[(17, 0.000_129_318_7), (31, 3.0235114e-7)]);
        (scaling.factor, scaling.truncate) = (40.0, true);
        let angles = yarn(10_000.0, 64, scaling);
        check(&angles, &[(10, 0.056_234_13), (11, 0.039_006_926), (22, 0.00017782794)]);
        check(&angles, &[(23, 3.3338034e-5), (31, 3.3338035e-6)]);
        (scaling.factor, scaling.original_max_position_embeddings) = (4.0, 64);
        let angles = yarn(150_000.0, 16, scaling);
        assert!((scaling.mscale(1.0) / scaling.mscale(0.5) - 1.0648216253695715).abs() < 1e-12);
        check(&angles, &[(1, 0.14088625), (2, 0.012703318), (7, 7.3936717e-6)]);
    }

    /// Expected values: `ROPE_INIT_FUNCTIONS["llama3"]`, `["linear"]` (heads of 32 elements) and
    /// `["longrope"]` (16) of transformers 5.23.
    #[test]
    fn slower_angles_have_the_frequencies_of_transformers() {
        let scaling = RopeScaling::Llama3(Llama3Scaling {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position_embeddings: 256,
        });
        let angles = RopeAngles::new(&RopeConfig { theta: 500_000.0, dims: 32, scaling }, 1);
        check(&angles, &[(0, 1.0), (1, 0.44036663), (2, 0.19392276), (3, 0.07243004)]);
        check(
            &angles,
            &[(4, 0.010538231), (5, 0.002070055), (6, 0.00091158313), (15, 5.677088e-07)],
        );
        let factors = |values: [f32; 8]| AngleFactors::new(&values).unwrap();
        let scaling = RopeScaling::LongRope(LongRopeScaling {
            short_factor: factors([1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7]),
            long_factor: factors([1.0, 2.0, 4.0, 8.0, 16.0, 24.0, 32.0, 64.0]),
            original_max_position_embeddings: 4096,
            attention_factor: 1.1902380714238083,
        });
        let rope = RopeConfig { theta: 10_000.0, dims: 16, scaling };
        let short = RopeAngles::new(&rope, 4096);
        check(&short, &[(0, 1.0), (1, 0.28747976), (4, 0.007142857), (7, 0.00018601633)]);
        let long = RopeAngles::new(&rope, 4097);
        check(&long, &[(0, 1.0), (1, 0.15811388), (4, 0.000625), (7, 4.941059e-6)]);
        assert_eq!((short.factor, long.factor), (1.190_238_1, 1.190_238_1));
        let scaling = RopeScaling::Linear { factor: 2.5 };
        let angles = RopeAngles::new(&RopeConfig { theta: 10_000.0, dims: 32, scaling }, 1);
        check(&angles, &[(0, 0.4), (1, 0.22493653), (8, 0.0039999997), (15, 7.113117e-05)]);
        assert!((angles.factor - 1.0).abs() < f32::EPSILON);
    }
}
