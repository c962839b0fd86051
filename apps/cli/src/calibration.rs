//! Calibration texts of conversions.

use crate::args::{CALIBRATION_TOKENS, CalibrationArgs};
use crate::conversation::read_text;
use crate::explain::{explain, explain_import};
use crate::failure::{Failure, Result};
use crate::long_text;
use nestling::EngineError;
use nestling::engine::calibrate::CalibrationTokens;
use nestling::engine::convert::Calibration;
use nestling::engine::text::{EncodeOptions, SpecialText, Tokenizer};
use nestling::import::Checkpoint;
use sha2::{Digest, Sha256};
use std::fmt::Write as _;

/// Bundled calibration text: English prose in the public domain (sources in `data/README.md`).
const DEFAULT_TEXT: &str = include_str!("../data/calibration.txt");

/// Value of `--calibration` for conversion by the weights alone.
const NONE: &str = "none";

/// Value of `--calibration` for the bundled text.
const PROSE: &str = "prose";

/// Part of the cache key for the bundled text and the default number of tokens. Must change when either does.
const DEFAULT_NAME: &str = "prose1";

/// Returns the calibration settings for converting a GGUF file into the cache. Unless calibration was
/// requested, none is used: the file is already quantized, and calibration would delay the first response by
/// hours.
pub fn of_gguf(args: &CalibrationArgs) -> CalibrationArgs {
    let mut args = args.clone();
    if args.calibration.is_none() && args.calibration_tokens == CALIBRATION_TOKENS {
        args.calibration = Some(NONE.into());
    }
    args
}

/// Returns true if no calibration was requested and a GGUF file is therefore converted without any.
pub fn is_lighter(args: &CalibrationArgs) -> bool {
    args.calibration.is_none() && of_gguf(args).calibration.is_some()
}

/// Returns the calibration of a checkpoint's conversion as given on the command line.
pub fn calibration(args: &CalibrationArgs, checkpoint: &Checkpoint) -> Result<Calibration> {
    match &args.calibration {
        Some(file) if file.as_os_str() == NONE => Ok(Calibration::None),
        Some(file) if file.as_os_str() != PROSE => {
            from_text(checkpoint, &read_text(file)?, args.calibration_tokens)
        }
        _ => from_text(checkpoint, DEFAULT_TEXT, args.calibration_tokens),
    }
}

/// Returns the part of a store's cache key that identifies the calibration text.
pub fn name(args: &CalibrationArgs) -> Result<String> {
    let mut name = match &args.calibration {
        Some(file) if file.as_os_str() == NONE => return Ok(NONE.into()),
        Some(file) if file.as_os_str() != PROSE => {
            let mut name = String::from("text");
            for byte in &Sha256::digest(read_text(file)?)[..8] {
                let _ = write!(name, "{byte:02x}");
            }
            name
        }
        _ => DEFAULT_NAME.into(),
    };
    if args.calibration_tokens != CALIBRATION_TOKENS {
        let _ = write!(name, "-{}", args.calibration_tokens);
    }
    Ok(name)
}

fn from_text(checkpoint: &Checkpoint, text: &str, tokens_max: u32) -> Result<Calibration> {
    let file = "tokenizer.json";
    let bytes = checkpoint.asset(file).map_err(|error| explain_import(&error))?;
    let bytes = bytes.ok_or_else(|| {
        Failure::new(format!("{} has no {file}", checkpoint.directory().display()))
            .advise("save the tokenizer beside the weights")
    })?;
    let failed = |error| explain(&EngineError::text(error));
    let tokenizer = Tokenizer::from_bytes(file, &bytes).map_err(failed)?;
    let options = EncodeOptions { add_special_tokens: false, special_text: SpecialText::Parse };
    let tokens_max = tokens_max as usize;
    let mut tokens = long_text::encode(&tokenizer, text, options, tokens_max).map_err(failed)?;
    tokens.truncate(tokens_max);
    let tokens = CalibrationTokens::new(tokens).map_err(|error| explain(&error))?;
    Ok(Calibration::Tokens(tokens))
}
