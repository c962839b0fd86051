//! Levels on the command line.

use nestling::formats::Level;
use std::str::FromStr;

/// A level, given as its number of bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LevelArg(pub Level);

impl FromStr for LevelArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.trim()
            .parse()
            .ok()
            .and_then(Level::from_bits)
            .map(Self)
            .ok_or_else(|| format!("`{text}` is not a level; the levels are 2, 3, 4, 6 and 8"))
    }
}

/// A mean level of experts with an optional highest level, written as `3.2` or `3.2:4`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MeanLevelArg {
    pub mean: f32,
    pub highest: Option<Level>,
}

impl FromStr for MeanLevelArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (mean, highest) = match text.split_once(':') {
            Some((mean, highest)) => (mean, Some(highest.parse::<LevelArg>()?.0)),
            None => (text, None),
        };
        Ok(Self { mean: mean_level(mean)?, highest })
    }
}

/// Parses a mean level from 2 to 8 bits.
pub fn mean_level(text: &str) -> Result<f32, String> {
    let mean = text.trim().parse().ok().filter(|mean| (2.0..=8.0).contains(mean));
    mean.ok_or_else(|| format!("`{text}` is not a mean level from 2 to 8 bits"))
}
