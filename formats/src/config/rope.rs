//! How positions turn queries and keys: `rope_theta`, `rope_scaling`, `rope_parameters`.

use super::keys::unknown;
use crate::ImportError;
use crate::json::Fields;
use crate::limits::MAX_POSITIONS;

/// How positions turn queries and keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeConfig {
    /// Base of the angles.
    pub theta: f64,
    /// Elements of a head that are turned, from its first; even.
    pub dims: usize,
    /// How the angles were changed for longer contexts.
    pub scaling: RopeScaling,
}

/// How angles are changed, mostly for contexts longer than those of the first training.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    /// They are not.
    None,
    /// Only the first pairs of elements turn, with the angles that they have among all.
    Proportional {
        /// How many.
        pairs: usize,
    },
    /// YaRN (arXiv 2309.00071).
    Yarn(YarnScaling),
}

/// Angles that turn slowly are divided by a factor, fast ones stay, those between are mixed; cosines
/// and sines are multiplied by a constant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct YarnScaling {
    /// What slow angles are divided by.
    pub factor: f64,
    /// Positions of the first training.
    pub original_max_position_embeddings: usize,
    /// Angles that turn more often than this within those positions stay.
    pub beta_fast: f64,
    /// Angles that turn less often than this are divided.
    pub beta_slow: f64,
    /// Whether the borders between them are rounded to whole pairs of elements.
    pub truncate: bool,
    /// What cosines and sines are multiplied by.
    pub attention_factor: f64,
    /// Exponent of [`Self::mscale`] that latent attention scales its products with; 0 for none.
    pub mscale_all_dim: f64,
}

impl YarnScaling {
    /// `0.1 * mscale * ln(factor) + 1`: how much sharper attention must be.
    pub fn mscale(&self, mscale: f64) -> f64 {
        if self.factor > 1.0 { 0.1 * mscale * libm::log(self.factor) + 1.0 } else { 1.0 }
    }
}

/// Keys that any kind of angles may have. Positions in three directions, for images, are the same for
/// text.
const KEYS: &[&str] = &[
    "mrope_interleaved",
    "mrope_section",
    "partial_rotary_factor",
    "rope_theta",
    "rope_type",
    "type",
];

/// Keys of YaRN.
const YARN_KEYS: &[&str] = &[
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "factor",
    "mscale",
    "mscale_all_dim",
    "original_max_position_embeddings",
    "truncate",
];

/// Angles of `dims` elements of each head, the same in every layer.
pub(super) fn rope(fields: &Fields, dims: usize) -> Result<RopeConfig, ImportError> {
    let mut scaling = RopeScaling::None;
    for key in ["rope_scaling", "rope_parameters"] {
        if let Some(rope) = fields.object(key)? {
            scaling = read_scaling(fields, &rope)?;
        }
    }
    Ok(RopeConfig { theta: rope_theta(fields)?, dims, scaling })
}

fn read_scaling(fields: &Fields, rope: &Fields) -> Result<RopeScaling, ImportError> {
    let mut yarn = false;
    for kind in ["rope_type", "type"] {
        match rope.text(kind)? {
            None | Some("default") => {}
            Some("yarn") => yarn = true,
            Some(_) => return Err(rope.unsupported(kind, "supported: default, yarn")),
        }
    }
    let known = |key: &str| KEYS.contains(&key) || (yarn && YARN_KEYS.contains(&key));
    if let Some((key, value)) = rope.members().find(|(key, _)| !known(key)) {
        return Err(unknown(rope.file(), key, value));
    }
    if yarn { read_yarn(fields, rope).map(RopeScaling::Yarn) } else { Ok(RopeScaling::None) }
}

fn read_yarn(fields: &Fields, rope: &Fields) -> Result<YarnScaling, ImportError> {
    let positive = |key: &str, default: f64| match rope.number(key)?.unwrap_or(default) {
        value if value > 0.0 && value < 1e6 => Ok(value),
        _ => Err(rope.wrong(key, "a number above 0 and below 1e6")),
    };
    let original = rope.size("original_max_position_embeddings", MAX_POSITIONS)?;
    let positions = fields.required_size("max_position_embeddings", MAX_POSITIONS)?;
    let original = original.unwrap_or(positions);
    let mut yarn = YarnScaling {
        factor: positive("factor", positions as f64 / original as f64)?,
        original_max_position_embeddings: original,
        beta_fast: positive("beta_fast", 32.0)?,
        beta_slow: positive("beta_slow", 1.0)?,
        truncate: rope.boolean("truncate")?.unwrap_or(true),
        attention_factor: 1.0,
        mscale_all_dim: rope.number("mscale_all_dim")?.unwrap_or(0.0),
    };
    let mscale = rope.number("mscale")?.unwrap_or(0.0);
    yarn.attention_factor = match (mscale != 0.0, yarn.mscale_all_dim != 0.0) {
        (true, true) => yarn.mscale(mscale) / yarn.mscale(yarn.mscale_all_dim),
        _ => yarn.mscale(1.0),
    };
    yarn.attention_factor = positive("attention_factor", yarn.attention_factor)?;
    Ok(yarn)
}

fn rope_theta(fields: &Fields) -> Result<f64, ImportError> {
    let mut theta = fields.number("rope_theta")?;
    for key in ["rope_scaling", "rope_parameters"] {
        if let Some(rope) = fields.object(key)?
            && let Some(nested) = rope.number("rope_theta")?
        {
            if theta.is_some_and(|theta| theta != nested) {
                return Err(rope.wrong("rope_theta", "the value that is given elsewhere too"));
            }
            theta = Some(nested);
        }
    }
    checked_theta(fields, theta)
}

/// The base of angles; 10 000 where none is given.
pub(super) fn checked_theta(fields: &Fields, theta: Option<f64>) -> Result<f64, ImportError> {
    let theta = theta.unwrap_or(10_000.0);
    if (1.0..1e15).contains(&theta) {
        return Ok(theta);
    }
    Err(fields.wrong("rope_theta", "a number from 1 to 1e15"))
}
