//! How a conversion codes weights, for those who compare settings.

use clap::{Args, ValueEnum};
use nestling::engine::convert::ConvertOptions;
use nestling::formats::nested::{InputTransform, NeuronOrder};

/// Settings of the quantizer.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Quantizer, advanced")]
pub struct QuantizerArgs {
    /// Tables of values that the matrices of a layer and kind share [default: 1]
    #[arg(long, value_name = "N", env = "NESTLING_TABLES")]
    #[arg(value_parser = clap::value_parser!(u8).range(1..=16))]
    pub tables: Option<u8>,

    /// Order of the hidden neurons of every expert
    #[arg(long, value_enum, value_name = "ORDER", env = "NESTLING_ORDER")]
    pub order: Option<Order>,

    /// How codes are chosen once the text was seen; without a text they are rounded
    #[arg(long, value_enum, value_name = "HOW", env = "NESTLING_ROUNDING")]
    pub rounding: Option<Rounding>,

    /// Whether the inputs of `down` are rotated in groups of 32 when a model runs
    #[arg(long, value_enum, value_name = "WHETHER", env = "NESTLING_ROTATION")]
    pub rotation: Option<Rotation>,

    /// What the errors of experts at levels 2, 3, 4, 6 and 8 count against each other, each relative
    /// to its usual size [default: 6,4,1.5,1,1 with a text, 2,3,1.5,0.9,0.7 without]
    #[arg(long, value_name = "FIVE", env = "NESTLING_LEVEL_WEIGHTS", value_parser = level_weights)]
    pub level_weights: Option<LevelWeights>,
}

/// A weight for every level.
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

/// Orders of hidden neurons.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Order {
    /// As in the checkpoint
    Source,
    /// Columns of `down` of like magnitude share a group
    Magnitude,
    /// Rows of like shape share a tile
    Shape,
}

/// How codes are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Rounding {
    /// Each weight alone
    Nearest,
    /// The error of a weight is answered by those after it, each level for itself
    Feedback,
    /// The same, then all levels at once are improved until little changes
    Joint,
}

/// Whether inputs are rotated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Rotation {
    /// As they are
    Off,
    /// By a Hadamard transform
    On,
    /// Whichever is better on a part of the calibration text that is kept for judging: converts
    /// twice, and holds the unquantized model in memory
    Auto,
}

impl QuantizerArgs {
    /// Puts what was asked for into the options of a conversion.
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
                // On trial it is set for each of the two stores.
                Rotation::Off | Rotation::Auto => InputTransform::None,
                Rotation::On => InputTransform::Hadamard,
            };
        }
    }
}
