//! RoPE settings: `rope_theta`, `rope_scaling`, `rope_parameters`.

use crate::ImportError;
use crate::json::Fields;
use crate::limits::{MAX_ANGLE_FACTORS, MAX_POSITIONS};

/// RoPE settings of a head.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeConfig {
    /// Base of the frequencies.
    pub theta: f64,
    /// Number of rotated elements of a head, from the first; even.
    pub dims: usize,
    /// Scaling of the frequencies for longer contexts.
    pub scaling: RopeScaling,
}

impl RopeConfig {
    /// Absence of RoPE: one pair of elements, which never turns.
    pub const NONE: Self =
        Self { theta: 1.0, dims: 2, scaling: RopeScaling::Proportional { pairs: 0 } };
}

/// Scaling of RoPE frequencies, mostly for contexts longer than the original training context.
#[derive(Clone, Copy, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "a few for each model, which are copied like others")]
pub enum RopeScaling {
    /// Unscaled frequencies.
    None,
    /// Rotation of only the first pairs of elements, with the frequencies of a full rotation.
    Proportional {
        /// Number of rotated pairs.
        pairs: usize,
    },
    /// Division of all frequencies by a factor, which interpolates positions (arXiv 2306.15595).
    Linear {
        /// Divisor of the frequencies.
        factor: f64,
    },
    /// Division of low frequencies by a factor (Llama 3.1).
    Llama3(Llama3Scaling),
    /// YaRN (arXiv 2309.00071).
    Yarn(YarnScaling),
    /// Division of each frequency by its own factor (LongRoPE, arXiv 2402.13753).
    LongRope(LongRopeScaling),
}

/// LongRoPE scaling: a factor per frequency, with separate factors for contexts longer than the original
/// training context. Cosines and sines are multiplied by a constant.
///
/// The context length of the open model selects the factors, as in llama.cpp. `transformers` selects them by
/// the longest sequence of a batch, which invalidates KV cache entries computed for a shorter one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LongRopeScaling {
    /// Divisors within the original training context, `[dims / 2]`.
    pub short_factor: AngleFactors,
    /// Divisors beyond the original training context, `[dims / 2]`.
    pub long_factor: AngleFactors,
    /// Length of the original training context in positions.
    pub original_max_position_embeddings: usize,
    /// Factor of cosines and sines.
    pub attention_factor: f64,
}

impl LongRopeScaling {
    /// Returns the divisors for a context of `context` positions.
    pub fn factors(&self, context: usize) -> &[f32] {
        match context > self.original_max_position_embeddings {
            true => self.long_factor.values(),
            false => self.short_factor.values(),
        }
    }
}

/// A factor per frequency of a head.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AngleFactors {
    values: [f32; MAX_ANGLE_FACTORS],
    count: usize,
}

impl AngleFactors {
    /// Creates factors. Returns `None` for more than [`MAX_ANGLE_FACTORS`].
    pub fn new(factors: &[f32]) -> Option<Self> {
        let mut values = [0.0; MAX_ANGLE_FACTORS];
        values.get_mut(..factors.len())?.copy_from_slice(factors);
        Some(Self { values, count: factors.len() })
    }

    /// Returns the factors.
    pub fn values(&self) -> &[f32] {
        &self.values[..self.count.min(MAX_ANGLE_FACTORS)]
    }
}

/// Llama 3.1 scaling: low frequencies are divided by a factor, high ones are unchanged, and those between are
/// interpolated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Llama3Scaling {
    /// Divisor of low frequencies.
    pub factor: f64,
    /// Number of rotations within the original training context below which a frequency counts as low.
    pub low_freq_factor: f64,
    /// Number of rotations within the original training context above which a frequency counts as high; above
    /// `low_freq_factor`.
    pub high_freq_factor: f64,
    /// Length of the original training context in positions.
    pub original_max_position_embeddings: usize,
}

/// YaRN scaling: low frequencies are divided by a factor, high ones are unchanged, and those between are
/// interpolated. Cosines and sines are multiplied by a constant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct YarnScaling {
    /// Divisor of low frequencies.
    pub factor: f64,
    /// Length of the original training context in positions.
    pub original_max_position_embeddings: usize,
    /// Number of rotations within the original training context above which a frequency is unchanged.
    pub beta_fast: f64,
    /// Number of rotations within the original training context below which a frequency is divided.
    pub beta_slow: f64,
    /// True if the bounds of the interpolation are rounded to whole pairs of elements.
    pub truncate: bool,
    /// Factor of cosines and sines.
    pub attention_factor: f64,
    /// Argument of [`Self::mscale`] for the scale of latent attention; 0 for none.
    pub mscale_all_dim: f64,
}

impl YarnScaling {
    /// Returns the attention scale `0.1 * mscale * ln(factor) + 1`.
    pub fn mscale(&self, mscale: f64) -> f64 {
        if self.factor > 1.0 { 0.1 * mscale * libm::log(self.factor) + 1.0 } else { 1.0 }
    }
}

/// Keys allowed with any scaling. Multimodal RoPE in three dimensions (mrope) equals plain RoPE for text.
const KEYS: &[&str] = &[
    "interleaved",
    "mrope_interleaved",
    "mrope_section",
    "partial_rotary_factor",
    "rope_theta",
    "rope_type",
    "type",
];

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

const LONGROPE_KEYS: &[&str] = &[
    "attention_factor",
    "factor",
    "long_factor",
    "original_max_position_embeddings",
    "short_factor",
];

const LLAMA3_KEYS: &[&str] =
    &["factor", "high_freq_factor", "low_freq_factor", "original_max_position_embeddings"];

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum RotatedPart {
    Whole,
    /// The fraction `partial_rotary_factor`, or the given number of elements if the key is absent.
    Part(usize),
}

/// Reads the RoPE settings common to all layers, from `rope_scaling` or `rope_parameters`. If both are
/// present, they must agree, because readers differ in which one they use.
pub(super) fn rope(
    fields: &Fields,
    head_dim: usize,
    turned: RotatedPart,
) -> Result<RopeConfig, ImportError> {
    let read = |rope: Option<&Fields>| read_rope(fields, rope, head_dim, turned);
    let scaling = fields.object("rope_scaling")?.filter(|rope| !rope.is_empty());
    let parameters = fields.object("rope_parameters")?;
    let is_given = fields.member("rope_parameters").is_some();
    match (&scaling, &parameters) {
        (Some(scaling), Some(parameters)) if is_given && !parameters.is_empty() => {
            let found = read(Some(scaling))?;
            if found != read(Some(parameters))? {
                let expected = "the same angles as `rope_parameters`, or only one of the two";
                return Err(fields.wrong("rope_scaling", expected));
            }
            Ok(found)
        }
        (Some(scaling), _) => read(Some(scaling)),
        (None, parameters) => read(parameters.as_ref()),
    }
}

/// Reads RoPE settings from one object and the keys next to it.
fn read_rope(
    fields: &Fields,
    rope: Option<&Fields>,
    head_dim: usize,
    turned: RotatedPart,
) -> Result<RopeConfig, ImportError> {
    let theta = rope_theta(fields, rope)?;
    let dims = turned_dims(fields, rope, head_dim, turned)?;
    let scaling = match rope {
        Some(rope) => read_scaling(fields, rope, dims)?,
        None => RopeScaling::None,
    };
    refuse_flat_yarn(fields, theta, dims, scaling)
}

/// Reads the RoPE settings of one kind of layers from its object alone. Part of each head may be rotated.
pub(super) fn of_layers(
    fields: &Fields,
    own: &Fields,
    head_dim: usize,
) -> Result<RopeConfig, ImportError> {
    let dims = turned_dims(own, None, head_dim, RotatedPart::Part(head_dim))?;
    let scaling = read_scaling(fields, own, dims)?;
    own.refuse_null("rope_theta")?;
    let theta = checked_theta(own, own.number("rope_theta")?)?;
    refuse_flat_yarn(own, theta, dims, scaling)
}

/// Reads an object of type `dynamic` with a fixed `alpha`, which stretches the base for all contexts.
pub(super) fn stretched(
    fields: &Fields,
    rope: &Fields,
    head_dim: usize,
) -> Result<RopeConfig, ImportError> {
    const ALPHA: &str = "alpha";
    for key in ["rope_type", "type"] {
        rope.refuse_null(key)?;
        if rope.text(key)?.is_some_and(|kind| kind != "dynamic") {
            return Err(rope.unsupported(key, &format!("supported: dynamic, beside `{ALPHA}`")));
        }
    }
    if rope.text("rope_type")?.or(rope.text("type")?).is_none() {
        return Err(rope.wrong("rope_type", format!("dynamic, beside `{ALPHA}`")));
    }
    let known = |key: &str| KEYS.contains(&key) || YARN_KEYS.contains(&key) || key == ALPHA;
    if let Some((key, value)) = rope.members().find(|(key, _)| !known(key)) {
        return Err(rope.unknown(key, value));
    }
    let dims = turned_dims(fields, Some(rope), head_dim, RotatedPart::Whole)?;
    let alpha = positive(rope, ALPHA, None)?;
    let theta = rope_theta(fields, Some(rope))?;
    if dims <= 2 {
        return Err(fields.wrong("head_dim", "more than 2"));
    }
    let stretch = libm::pow(alpha, dims as f64 / (dims - 2) as f64);
    let theta = checked_theta(fields, Some(theta * stretch))?;
    Ok(RopeConfig { theta, dims, scaling: RopeScaling::None })
}

/// Returns the settings, unless YaRN cannot distinguish low and high frequencies because all are equal.
fn refuse_flat_yarn(
    fields: &Fields,
    theta: f64,
    dims: usize,
    scaling: RopeScaling,
) -> Result<RopeConfig, ImportError> {
    if matches!(scaling, RopeScaling::Yarn(_)) && theta <= 1.0 {
        return Err(fields.wrong("rope_theta", "a number above 1 with YaRN"));
    }
    Ok(RopeConfig { theta, dims, scaling })
}

/// Returns a number of the object; the key must not be null.
fn nested(rope: Option<&Fields>, key: &str) -> Result<Option<f64>, ImportError> {
    let Some(rope) = rope else { return Ok(None) };
    rope.refuse_null(key)?;
    rope.number(key)
}

fn turned_dims(
    fields: &Fields,
    rope: Option<&Fields>,
    head_dim: usize,
    turned: RotatedPart,
) -> Result<usize, ImportError> {
    const KEY: &str = "partial_rotary_factor";
    let (own, beside) = (nested(rope, KEY)?, fields.number(KEY)?);
    let RotatedPart::Part(default) = turned else {
        for (fields, part) in rope.map(|rope| (rope, own)).into_iter().chain([(fields, beside)]) {
            if !matches!(part, None | Some(1.0)) {
                return Err(fields.unsupported(KEY, "supported: 1.0"));
            }
        }
        return Ok(head_dim);
    };
    let dims = match own.or(beside) {
        Some(part) => (head_dim as f64 * part) as usize,
        None => default,
    };
    if dims == 0 || dims > head_dim || !dims.is_multiple_of(2) {
        let expected = format!("a part of `head_dim` = {head_dim} that is even");
        return Err(fields.wrong(KEY, expected));
    }
    Ok(dims)
}

/// Names of the scaling types, each with its keys. `dynamic` has no effect within the model's context
/// (transformers: `_compute_dynamic_ntk_parameters`).
const KINDS: [(&str, &[&str]); 7] = [
    ("default", &[]),
    ("yarn", YARN_KEYS),
    ("linear", &["factor"]),
    ("dynamic", &["factor"]),
    ("llama3", LLAMA3_KEYS),
    ("longrope", LONGROPE_KEYS),
    // Older name of `longrope`.
    ("su", LONGROPE_KEYS),
];

/// Reads the scaling of an object, of heads with `dims` rotated elements.
pub(super) fn read_scaling(
    fields: &Fields,
    rope: &Fields,
    dims: usize,
) -> Result<RopeScaling, ImportError> {
    let mut found = None;
    for key in ["rope_type", "type"] {
        rope.refuse_null(key)?;
        let Some(kind) = rope.text(key)? else { continue };
        let Some(known) = KINDS.iter().find(|(name, _)| *name == kind) else {
            let names = KINDS.map(|(name, _)| name).join(", ");
            return Err(rope.unsupported(key, &format!("supported: {names}")));
        };
        if found.is_some_and(|(name, _)| name != known.0) {
            return Err(rope.wrong(key, "the same as `rope_type`"));
        }
        found = Some(*known);
    }
    let (kind, own) = found.unwrap_or(KINDS[0]);
    let known = |key: &str| KEYS.contains(&key) || own.contains(&key);
    if let Some((key, value)) = rope.members().find(|(key, _)| !known(key)) {
        return Err(rope.unknown(key, value));
    }
    match kind {
        "yarn" => read_yarn(fields, rope).map(RopeScaling::Yarn),
        "linear" => Ok(RopeScaling::Linear { factor: positive(rope, "factor", None)? }),
        "llama3" => read_llama3(fields, rope).map(RopeScaling::Llama3),
        "longrope" | "su" => read_longrope(fields, rope, dims).map(RopeScaling::LongRope),
        "dynamic" => positive(rope, "factor", None).map(|_| RopeScaling::None),
        _ => Ok(RopeScaling::None),
    }
}

fn positive(rope: &Fields, key: &str, default: Option<f64>) -> Result<f64, ImportError> {
    match rope.number(key)?.or(default) {
        Some(value) if value > 0.0 && value < 1e6 => Ok(value),
        _ => Err(rope.wrong(key, "a number above 0 and below 1e6")),
    }
}

/// Returns the length of the original training context, from the object or else from the model.
fn original_positions(fields: &Fields, rope: &Fields) -> Result<usize, ImportError> {
    const KEY: &str = "original_max_position_embeddings";
    rope.refuse_null(KEY)?;
    match rope.size(KEY, MAX_POSITIONS)? {
        Some(original) => Ok(original),
        None => fields.required_size("max_position_embeddings", MAX_POSITIONS),
    }
}

fn read_llama3(fields: &Fields, rope: &Fields) -> Result<Llama3Scaling, ImportError> {
    let scaling = Llama3Scaling {
        factor: positive(rope, "factor", None)?,
        low_freq_factor: positive(rope, "low_freq_factor", None)?,
        high_freq_factor: positive(rope, "high_freq_factor", None)?,
        original_max_position_embeddings: original_positions(fields, rope)?,
    };
    if scaling.low_freq_factor < scaling.high_freq_factor {
        return Ok(scaling);
    }
    Err(rope.wrong("high_freq_factor", "more than `low_freq_factor`"))
}

fn read_longrope(
    fields: &Fields,
    rope: &Fields,
    dims: usize,
) -> Result<LongRopeScaling, ImportError> {
    let original = original_positions(fields, rope)?;
    let positions = fields.required_size("max_position_embeddings", MAX_POSITIONS)?;
    rope.refuse_null("factor")?;
    rope.refuse_null("attention_factor")?;
    let factor = positive(rope, "factor", Some(positions as f64 / original as f64))?;
    let stretch = match factor > 1.0 && original > 1 {
        true => libm::sqrt(1.0 + libm::log(factor) / libm::log(original as f64)),
        false => 1.0,
    };
    let factors = |key: &str| -> Result<AngleFactors, ImportError> {
        let factors = rope.floats(key, dims / 2)?;
        let is_usable = |factor: &f64| (1e-6..1e6).contains(factor);
        let expected = || rope.wrong(key, format!("{} numbers from 1e-6 to 1e6", dims / 2));
        if factors.len() != dims / 2 || !factors.iter().all(is_usable) {
            return Err(expected());
        }
        let factors: Vec<f32> = factors.into_iter().map(|factor| factor as f32).collect();
        AngleFactors::new(&factors).ok_or_else(expected)
    };
    Ok(LongRopeScaling {
        short_factor: factors("short_factor")?,
        long_factor: factors("long_factor")?,
        original_max_position_embeddings: original,
        attention_factor: positive(rope, "attention_factor", Some(stretch))?,
    })
}

fn read_yarn(fields: &Fields, rope: &Fields) -> Result<YarnScaling, ImportError> {
    let positive = |key: &str, default: f64| positive(rope, key, Some(default));
    let original = original_positions(fields, rope)?;
    let positions = fields.required_size("max_position_embeddings", MAX_POSITIONS)?;
    let mscale_all_dim = rope.number("mscale_all_dim")?.unwrap_or(0.0);
    // A null factor, unlike an absent one, is computed from the context lengths.
    let is_implied = rope.is_null("factor") && mscale_all_dim == 0.0;
    if rope.number("factor")?.is_none() && !is_implied {
        return Err(rope.wrong("factor", "how many times longer contexts became"));
    }
    let mut yarn = YarnScaling {
        factor: positive("factor", positions as f64 / original as f64)?,
        original_max_position_embeddings: original,
        beta_fast: positive("beta_fast", 32.0)?,
        beta_slow: positive("beta_slow", 1.0)?,
        truncate: rope.boolean("truncate")?.unwrap_or(!rope.is_null("truncate")),
        attention_factor: 1.0,
        mscale_all_dim,
    };
    let mscale = rope.number("mscale")?.unwrap_or(0.0);
    yarn.attention_factor = match (mscale != 0.0, yarn.mscale_all_dim != 0.0) {
        (true, true) => yarn.mscale(mscale) / yarn.mscale(yarn.mscale_all_dim),
        _ => yarn.mscale(1.0),
    };
    yarn.attention_factor = positive("attention_factor", yarn.attention_factor)?;
    Ok(yarn)
}

/// Returns the base of the frequencies, from the object, the configuration or the family's default.
fn rope_theta(fields: &Fields, rope: Option<&Fields>) -> Result<f64, ImportError> {
    const KEY: &str = "rope_theta";
    let (own, beside) = (nested(rope, KEY)?, fields.number(KEY)?);
    if let (Some(rope), Some(own)) = (rope, own)
        && fields.member(KEY).is_some()
        && beside != Some(own)
    {
        return Err(rope.wrong(KEY, "the value that is given elsewhere too"));
    }
    checked_theta(fields, own.or(beside))
}

/// Checks the base of the frequencies, which is required.
pub(super) fn checked_theta(fields: &Fields, theta: Option<f64>) -> Result<f64, ImportError> {
    match theta {
        Some(theta) if (1.0..1e15).contains(&theta) => Ok(theta),
        _ => Err(fields.wrong("rope_theta", "a number from 1 to 1e15")),
    }
}
