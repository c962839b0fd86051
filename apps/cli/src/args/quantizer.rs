//! Quantizer settings of a conversion, for comparing them.

use clap::{Args, ValueEnum};
use nestling::engine::convert::ConvertOptions;
use nestling::formats::nested::{InputTransform, NeuronOrder};

/// Settings of the quantizer.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Quantizer, advanced")]
pub struct QuantizerArgs {
    /// Number of codec tables that the matrices of one layer and kind share [default: 1]
    #[arg(long, value_name = "N", env = "NESTLING_TABLES")]
    #[arg(value_parser = clap::value_parser!(u8).range(1..=16))]
    pub tables: Option<u8>,

    /// Order of the hidden neurons of every expert
    #[arg(long, value_enum, value_name = "ORDER", env = "NESTLING_ORDER")]
    pub order: Option<Order>,

    /// Choice of the codes when a calibration text is used; without one they are rounded to nearest
    #[arg(long, value_enum, value_name = "HOW", env = "NESTLING_ROUNDING")]
    pub rounding: Option<Rounding>,

    /// Rotation of the inputs of `down` in groups of 32 when a model runs
    #[arg(long, value_enum, value_name = "WHETHER", env = "NESTLING_ROTATION")]
    pub rotation: Option<Rotation>,

    /// Weights of the experts' errors at levels 2, 3, 4, 6 and 8, each relative to its typical size [default:
    /// 6,5,4,0.2,0.2 with a text, 2,3,1.5,0.9,0.7 without]
    #[arg(long, value_name = "FIVE", env = "NESTLING_LEVEL_WEIGHTS", value_parser = level_weights)]
    pub level_weights: Option<LevelWeights>,
}

/// One error weight for each level, lowest level first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LevelWeights(pub [f32; 5]);

fn level_weights(text: &str) -> Result<LevelWeights, String> {
    let weights: Vec<f32> = text
        .split(',')
        .map(|weight| weight.trim().parse().map_err(|_| format!("`{weight}` is not a number")))
        .collect::<Result<_, _>>()?;
    let found = weights.len();
    let weights = <[f32; 5]>::try_from(weights).map_err(|_| {
        format!("five weights are needed, for levels 2, 3, 4, 6 and 8; found {found}")
    })?;
    let counts = |weight: &f32| weight.is_finite() && *weight >= 0.0;
    if !weights.iter().all(counts) || weights.iter().all(|weight| *weight == 0.0) {
        return Err("weights are at least 0, and one of them is more".into());
    }
    Ok(LevelWeights(weights))
}

/// Order of the hidden neurons of an expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Order {
    /// Order of the checkpoint
    Source,
    /// Group columns of `down` of similar magnitude
    Magnitude,
    /// Put rows of similar shape into the same tile
    Shape,
}

/// Method of choosing codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Rounding {
    /// Round each weight to the nearest code
    Nearest,
    /// Compensate the error of a weight in the weights after it, separately for each level
    Feedback,
    /// Feedback, then joint refinement of all levels until convergence
    Joint,
}

/// Rotation of the inputs of `down`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Rotation {
    /// No rotation
    Off,
    /// Hadamard transform
    On,
    /// The better of the two on a held-out part of the calibration text: converts twice and holds the
    /// unquantized model in memory
    Auto,
}

impl QuantizerArgs {
    /// Copies the given settings into the options of a conversion.
    pub fn apply(&self, options: &mut ConvertOptions) {
        if let Some(tables) = self.tables {
            options.quantize.tables = tables.into();
        }
        if let Some(order) = self.order {
            options.order = match order {
                Order::Source => NeuronOrder::Source,
                Order::Magnitude => NeuronOrder::Magnitude,
                Order::Shape => NeuronOrder::Shape,
            };
        }
        let calibrated = &mut options.quantize.calibrated;
        match self.rounding {
            Some(Rounding::Nearest) => (calibrated.feedback, calibrated.sweeps) = (false, 0),
            Some(Rounding::Feedback) => (calibrated.feedback, calibrated.sweeps) = (true, 0),
            Some(Rounding::Joint) => {
                calibrated.feedback = true;
                calibrated.sweeps = calibrated.sweeps.max(1);
            }
            None => (),
        }
        if let Some(LevelWeights(weights)) = self.level_weights {
            options.expert_level_weights = Some(weights);
        }
        if let Some(rotation) = self.rotation {
            options.rotation = match rotation {
                // A trial sets the transform for each of its two stores.
                Rotation::Off | Rotation::Auto => InputTransform::None,
                Rotation::On => InputTransform::Hadamard,
            };
        }
    }
}
