//! Angles of positions.

use nestling_formats::{ModelConfig, RopeConfig, TokenMixer};

use crate::batch::StepRows;

/// Rotary angles of one kind. Frequencies and angles are rounded to f32, as in the code that models
/// are trained with; cosine and sine are then exact but for their last rounding.
#[derive(Debug)]
pub(crate) struct RopeAngles {
    frequencies: Vec<f32>, // [dims / 2]
}

impl RopeAngles {
    pub fn new(rope: &RopeConfig) -> Self {
        let frequency = |i: usize| {
            let exponent = (2 * i) as f32 / rope.dims as f32;
            1.0 / (libm::pow(rope.theta, f64::from(exponent)) as f32)
        };
        Self { frequencies: (0..rope.dims / 2).map(frequency).collect() }
    }

    /// Cosines and sines of each row's position, `[T, dims]`, in place of what `angles` held.
    pub fn fill(&self, rows: &StepRows, angles: &mut Vec<f32>) {
        angles.clear();
        for &position in &rows.positions {
            let angle = |frequency: &f32| f64::from(position as f32 * frequency);
            angles.extend(self.frequencies.iter().map(|f| libm::cos(angle(f)) as f32));
            angles.extend(self.frequencies.iter().map(|f| libm::sin(angle(f)) as f32));
        }
    }
}

/// The kinds of angles that the layers of a model use.
pub(crate) fn rope_kinds(config: &ModelConfig) -> Vec<RopeConfig> {
    let mut kinds: Vec<RopeConfig> = Vec::new();
    for layer in &config.layers {
        let TokenMixer::Attention(attention) = &layer.mixer;
        if !kinds.contains(&attention.rope) {
            kinds.push(attention.rope);
        }
    }
    kinds
}
