//! Generation settings: the model's defaults, changed by flags and by `/set parameter`.

use crate::args::{GenerationArgs, SamplerOrder, stop_string};
use crate::output_constraint::OutputConstraint;
use crate::words::printable;
use nestling::SamplingParams;
use nestling::engine::GenerateOptions;
use std::fmt;
use std::str::FromStr;

/// All settings of a reply that the user can change.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    pub sampling: SamplingParams,
    /// Maximum number of tokens; `None` means until the model ends.
    pub tokens_max: Option<usize>,
    pub stop: Vec<String>,
    pub form: OutputConstraint,
}

impl Settings {
    /// Creates settings from the model's defaults and the command line.
    pub fn new(args: &GenerationArgs, defaults: &SamplingParams) -> Self {
        let mut sampling = defaults.clone();
        let set = |to: &mut f32, value: Option<f32>| *to = value.unwrap_or(*to);
        set(&mut sampling.temperature, args.temp);
        set(&mut sampling.top_p, args.top_p);
        set(&mut sampling.min_p, args.min_p);
        set(&mut sampling.repetition_penalty, args.repeat_penalty);
        set(&mut sampling.presence_penalty, args.presence_penalty);
        set(&mut sampling.frequency_penalty, args.frequency_penalty);
        sampling.top_k = args.top_k.map_or(sampling.top_k, |k| k as usize);
        set_llama_samplers(&mut sampling, args);
        sampling.seed = args.seed.or(sampling.seed);
        sampling.logit_bias.extend(args.logit_bias.iter().map(|bias| (bias.token, bias.bias)));
        let tokens_max = usize::try_from(args.predict).ok();
        Self { sampling, tokens_max, stop: args.stop.clone(), form: OutputConstraint::default() }
    }

    /// Returns the settings with an output constraint.
    pub fn with_form(self, form: OutputConstraint) -> Self {
        Self { form, ..self }
    }

    pub fn generate_options(&self) -> GenerateOptions {
        let mut options = GenerateOptions {
            sampling: self.sampling.clone().into(),
            max_tokens: self.tokens_max,
            stop: self.stop.clone(),
            ..GenerateOptions::default()
        };
        self.form.hold(&mut options);
        options
    }

    /// Returns true if `/set parameter` supports a name.
    pub fn knows(name: &str) -> bool {
        let name = name.replace('-', "_");
        PARAMETERS.iter().any(|known| known.contains(&&*name))
    }

    /// Handles `/set parameter NAME VALUE`. Names may use `_` or `-`, and the spelling of llama.cpp, Ollama
    /// or the Hub. Without a value, `stop` removes all stop strings. If it fails, no setting changes; the
    /// error is a sentence.
    pub fn set(&mut self, name: &str, value: Option<&str>) -> Result<(), String> {
        let mut new = self.clone();
        let sampling = &mut new.sampling;
        let Some(value) = value else {
            if name != "stop" {
                return Err("write for example: /set parameter temp 0.7".into());
            }
            self.stop.clear();
            return Ok(());
        };
        match name.replace('-', "_").as_str() {
            "temp" | "temperature" => sampling.temperature = parse(name, value)?,
            "top_k" => sampling.top_k = parse(name, value)?,
            "top_p" => sampling.top_p = parse(name, value)?,
            "min_p" => sampling.min_p = parse(name, value)?,
            "repeat_penalty" | "repetition_penalty" => {
                sampling.repetition_penalty = parse(name, value)?;
            }
            "presence_penalty" => sampling.presence_penalty = parse(name, value)?,
            "frequency_penalty" => sampling.frequency_penalty = parse(name, value)?,
            "seed" if value == "-1" || value == "random" => sampling.seed = None,
            "seed" => sampling.seed = Some(parse(name, value)?),
            "predict" | "num_predict" | "n_predict" | "n" => {
                new.tokens_max = usize::try_from(parse::<i64>(name, value)?).ok();
            }
            "stop" if new.stop.len() == STOPS_MAX => {
                return Err(format!("there are {STOPS_MAX} stop strings already"));
            }
            "stop" => new.stop.push(stop_string(value)?),
            _ => {
                return Err(format!(
                    "unknown parameter {name}; the parameters are temp, top_k, top_p, min_p, \
                     repeat_penalty, presence_penalty, frequency_penalty, seed, predict and stop"
                ));
            }
        }
        new.sampling.validate().map_err(|error| error.to_string())?;
        *self = new;
        Ok(())
    }
}

/// Applies the flags of the samplers that have llama.cpp's definitions.
fn set_llama_samplers(sampling: &mut SamplingParams, args: &GenerationArgs) {
    let set = |to: &mut f32, value: Option<f32>| *to = value.unwrap_or(*to);
    set(&mut sampling.typical_p, args.typical);
    set(&mut sampling.top_n_sigma, args.top_nsigma);
    set(&mut sampling.xtc_probability, args.xtc_probability);
    set(&mut sampling.xtc_threshold, args.xtc_threshold);
    set(&mut sampling.dry_multiplier, args.dry_multiplier);
    set(&mut sampling.dry_base, args.dry_base);
    set(&mut sampling.mirostat_eta, args.mirostat_lr);
    set(&mut sampling.mirostat_tau, args.mirostat_ent);
    set(&mut sampling.dynatemp_range, args.dynatemp_range);
    set(&mut sampling.dynatemp_exponent, args.dynatemp_exp);
    let window = |to: &mut i32, value: Option<i32>| *to = value.unwrap_or(*to);
    window(&mut sampling.dry_penalty_last_n, args.dry_penalty_last_n);
    window(&mut sampling.repeat_last_n, args.repeat_last_n);
    sampling.dry_allowed_length = args.dry_allowed_length.unwrap_or(sampling.dry_allowed_length);
    sampling.mirostat = args.mirostat.unwrap_or(sampling.mirostat);
    if let Some(SamplerOrder(order)) = &args.samplers {
        sampling.samplers.clone_from(order);
    }
    match args.dry_sequence_breaker.as_slice() {
        [] => {}
        // "none" leaves no breaker, as in llama.cpp.
        [none] if none == "none" => sampling.dry_sequence_breakers.clear(),
        breakers => sampling.dry_sequence_breakers = breakers.to_vec(),
    }
}

/// Spellings of each parameter.
const PARAMETERS: [&[&str]; 10] = [
    &["temp", "temperature"],
    &["top_k"],
    &["top_p"],
    &["min_p"],
    &["repeat_penalty", "repetition_penalty"],
    &["presence_penalty"],
    &["frequency_penalty"],
    &["seed"],
    &["predict", "num_predict", "n_predict", "n"],
    &["stop"],
];

const STOPS_MAX: usize = 64;

fn parse<T: FromStr>(name: &str, value: &str) -> Result<T, String> {
    value.parse().map_err(|_| format!("`{value}` is not a valid value of {name}"))
}

impl Settings {
    /// Returns a message that confirms a changed parameter.
    pub fn confirmation(&self, name: &str, value: Option<&str>) -> String {
        match (value, self.stop.as_slice()) {
            (Some(value), _) if name != "stop" => format!("{name} is {value}"),
            (_, []) => "stop is nothing: no text ends a reply".into(),
            (_, stops) => {
                let stops: Vec<String> = stops.iter().map(|stop| format!("{stop:?}")).collect();
                format!("stop is {}", stops.join(", "))
            }
        }
    }
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = &self.sampling;
        writeln!(
            f,
            "temp {}, top_k {}, top_p {}, min_p {}",
            s.temperature, s.top_k, s.top_p, s.min_p
        )?;
        let (repeat, presence) = (s.repetition_penalty, s.presence_penalty);
        let frequency = s.frequency_penalty;
        writeln!(
            f,
            "repeat_penalty {repeat}, presence_penalty {presence}, frequency_penalty {frequency}"
        )?;
        match s.seed {
            Some(seed) => write!(f, "seed {seed}")?,
            None => write!(f, "seed: a new one each time")?,
        }
        match self.tokens_max {
            Some(tokens) => write!(f, ", predict {tokens}")?,
            None => write!(f, ", predict: until the model ends")?,
        }
        self.stop.iter().try_for_each(|stop| write!(f, ", stop {stop:?}"))?;
        match self.form.description() {
            Some(words) => write!(f, "\n{}", printable(words)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        Settings::new(
            &GenerationArgs { predict: -1, ..Default::default() },
            &SamplingParams::greedy(),
        )
    }

    #[test]
    fn flags_change_only_what_they_name() {
        let defaults = SamplingParams { top_k: 20, top_p: 0.8, ..SamplingParams::default() };
        let args =
            GenerationArgs { predict: 5, temp: Some(0.0), seed: Some(3), ..Default::default() };
        let settings = Settings::new(&args, &defaults);
        let expected = SamplingParams { temperature: 0.0, seed: Some(3), ..defaults };
        assert_eq!(settings.sampling, expected);
        assert_eq!(settings.tokens_max, Some(5));
        assert_eq!(settings_of_predict(-1), None);
    }

    fn settings_of_predict(predict: i64) -> Option<usize> {
        let args = GenerationArgs { predict, ..Default::default() };
        Settings::new(&args, &SamplingParams::default()).tokens_max
    }

    #[test]
    fn parameters_are_read_in_every_spelling() {
        let mut s = settings();
        for (name, value) in [
            ("temp", "0.7"),
            ("top-k", "40"),
            ("top_p", "0.9"),
            ("min_p", "0.05"),
            ("repeat_penalty", "1.1"),
            ("presence_penalty", "-0.5"),
            ("frequency-penalty", "0.2"),
            ("seed", "7"),
            ("num_predict", "64"),
            ("stop", "END"),
        ] {
            s.set(name, Some(value)).unwrap();
            assert!(Settings::knows(name), "{name}");
        }
        assert_eq!(s.sampling.temperature, 0.7);
        assert_eq!(s.sampling.top_k, 40);
        assert_eq!(s.sampling.seed, Some(7));
        assert_eq!(s.tokens_max, Some(64));
        assert_eq!(s.stop, ["END"]);
        s.set("seed", Some("random")).unwrap();
        s.set("predict", Some("-1")).unwrap();
        assert_eq!((s.sampling.seed, s.tokens_max), (None, None));
    }

    #[test]
    fn nonsense_changes_nothing() {
        let mut s = settings();
        for (name, value) in [("temp", "hot"), ("top_p", "2"), ("temp", "nan"), ("mirostat", "1")] {
            assert!(s.set(name, Some(value)).is_err(), "{name} {value}");
        }
        assert!(s.set("temp", None).is_err());
        assert!(!Settings::knows("mirostat"));
        assert_eq!(s, settings());
    }

    #[test]
    fn stop_strings_are_added_said_and_taken_away() {
        let mut s = settings();
        assert!(s.set("stop", Some("")).is_err());
        assert!(s.set("stop", Some(&"x".repeat(4097))).is_err());
        for stop in ["END", "off"] {
            s.set("stop", Some(stop)).unwrap();
        }
        assert_eq!(s.confirmation("stop", Some("off")), "stop is \"END\", \"off\"");
        assert_eq!(s.confirmation("temp", Some("0.5")), "temp is 0.5");
        s.set("stop", None).unwrap();
        assert_eq!(s, settings());
        assert!(s.confirmation("stop", None).starts_with("stop is nothing"));
        for n in 0..64 {
            s.set("stop", Some(&n.to_string())).unwrap();
        }
        assert!(s.set("stop", Some("65")).is_err());
    }
}
