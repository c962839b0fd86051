//! Results of a load, with the field names of `vllm bench serve`.

use super::client::Outcome;
use super::load::Run;
use crate::args::{Objective, Time};
use serde_json::{Map, Value, json};

/// A load level.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Requests per second; `None` if clients send the next request as soon as a response ends.
    pub rate: Option<f64>,
    /// Maximum number of concurrent requests.
    pub clients: usize,
}

/// Durations of one kind in seconds, sorted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Times(Vec<f64>);

impl Times {
    fn new(times: impl Iterator<Item = f64>) -> Self {
        let mut times: Vec<f64> = times.collect();
        times.sort_by(f64::total_cmp);
        Self(times)
    }

    /// Returns a percentile with linear interpolation, as numpy does. Returns `None` without times.
    pub fn percentile(&self, percent: u8) -> Option<f64> {
        let place = f64::from(percent) / 100.0 * self.0.len().checked_sub(1)? as f64;
        let (below, share) = (place as usize, place.fract());
        let low = self.0.get(below)?;
        let high = self.0.get(below + 1).unwrap_or(low);
        Some(low + share * (high - low))
    }

    pub fn mean(&self) -> Option<f64> {
        (!self.0.is_empty()).then(|| self.0.iter().sum::<f64>() / self.0.len() as f64)
    }

    fn deviation(&self) -> Option<f64> {
        let mean = self.mean()?;
        let squares = self.0.iter().map(|time| (time - mean).powi(2)).sum::<f64>();
        Some((squares / self.0.len() as f64).sqrt())
    }
}

/// Results of one load.
#[derive(Clone, Debug)]
pub struct Report {
    pub point: Point,
    pub completed: usize,
    pub failed: usize,
    pub seconds: f64,
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    pub tokens: u64,
    /// Number of requests that met all objectives; `None` without objectives.
    pub good: Option<usize>,
    /// Times to the first token.
    pub first: Times,
    /// Mean times per token after the first, one per request.
    pub each: Times,
    /// Gaps between successive parts of a response.
    pub gaps: Times,
    pub whole: Times,
    /// Largest delay in seconds between the scheduled and the actual time of sending.
    pub late: f64,
}

impl Report {
    pub fn new(point: Point, run: &Run, objectives: &[Objective]) -> Self {
        let done: Vec<&Outcome> =
            run.outcomes.iter().filter(|outcome| outcome.failure.is_none()).collect();
        let good = |outcome: &&&Outcome| objectives.iter().all(|bound| keeps(outcome, bound));
        let sum = |of: fn(&Outcome) -> u64| done.iter().map(|outcome| of(outcome)).sum();
        Self {
            point,
            completed: done.len(),
            failed: run.outcomes.len() - done.len(),
            seconds: run.seconds,
            prompt_tokens: sum(|outcome| outcome.prompt_tokens),
            cached_tokens: sum(|outcome| outcome.cached_tokens),
            tokens: sum(|outcome| outcome.tokens),
            good: (!objectives.is_empty()).then(|| done.iter().filter(good).count()),
            first: Times::new(done.iter().filter_map(|outcome| outcome.first)),
            each: Times::new(done.iter().filter_map(|outcome| outcome.each_token())),
            gaps: Times::new(done.iter().flat_map(|outcome| outcome.gaps.iter().copied())),
            whole: Times::new(done.iter().map(|outcome| outcome.whole)),
            late: run.outcomes.iter().map(|outcome| outcome.late).fold(0.0, f64::max),
        }
    }

    pub fn per_second(&self, count: f64) -> f64 {
        if self.seconds > 0.0 { count / self.seconds } else { 0.0 }
    }

    /// Returns all fields, with times in milliseconds.
    pub fn fields(&self, percentiles: &[u8]) -> Map<String, Value> {
        let mut fields = Map::new();
        let mut set = |name: &str, value: Value| fields.insert(name.to_owned(), value);
        set("request_rate", self.point.rate.map_or_else(|| "inf".into(), Into::into));
        set("max_concurrency", self.point.clients.into());
        set("duration", self.seconds.into());
        set("completed", self.completed.into());
        set("failed", self.failed.into());
        set("total_input_tokens", self.prompt_tokens.into());
        set("total_cached_tokens", self.cached_tokens.into());
        set("total_output_tokens", self.tokens.into());
        set("request_throughput", self.per_second(self.completed as f64).into());
        set("request_goodput", json!(self.good.map(|good| self.per_second(good as f64))));
        set("output_throughput", self.per_second(self.tokens as f64).into());
        let tokens = self.prompt_tokens + self.tokens;
        set("total_token_throughput", self.per_second(tokens as f64).into());
        set("max_late_ms", (1e3 * self.late).into());
        let milliseconds = |time: Option<f64>| json!(time.map(|time| 1e3 * time));
        for (name, times) in self.times() {
            set(&format!("mean_{name}_ms"), milliseconds(times.mean()));
            set(&format!("median_{name}_ms"), milliseconds(times.percentile(50)));
            set(&format!("std_{name}_ms"), milliseconds(times.deviation()));
            for percent in percentiles {
                set(&format!("p{percent}_{name}_ms"), milliseconds(times.percentile(*percent)));
            }
        }
        fields
    }

    /// Returns the times with their field names.
    pub fn times(&self) -> [(&'static str, &Times); 4] {
        [("ttft", &self.first), ("tpot", &self.each), ("itl", &self.gaps), ("e2el", &self.whole)]
    }
}

/// Returns whether a request met an objective. A response too short to have the time meets it.
fn keeps(outcome: &Outcome, bound: &Objective) -> bool {
    let time = match bound.time {
        Time::FirstToken => outcome.first,
        Time::EachToken => outcome.each_token(),
        Time::Whole => Some(outcome.whole),
    };
    time.is_none_or(|time| time <= bound.most)
}

#[cfg(test)]
mod tests {
    use super::{Point, Report, Times};
    use crate::bench::serve::client::Outcome;
    use crate::bench::serve::load::Run;

    fn outcome(first: f64, gaps: &[f64]) -> Outcome {
        let whole = first + gaps.iter().sum::<f64>();
        let (gaps, tokens) = (gaps.to_vec(), gaps.len() as u64 + 1);
        Outcome { first: Some(first), gaps, whole, tokens, prompt_tokens: 10, ..Outcome::default() }
    }

    /// The expected values are those of numpy.percentile([1, 2, 3, 4], [25, 50, 90, 99]) and numpy.std.
    #[test]
    fn percentiles_are_numpys() {
        let times = Times::new([4.0, 1.0, 3.0, 2.0].into_iter());
        let found = [25, 50, 90, 99].map(|percent| times.percentile(percent).unwrap());
        for (found, expected) in found.into_iter().zip([1.75, 2.5, 3.7, 3.97]) {
            assert!((found - expected).abs() < 1e-12, "{found}");
        }
        assert!((times.deviation().unwrap() - 1.118_033_988_749_895).abs() < 1e-12);
        assert_eq!((Times::default().percentile(50), Times::default().mean()), (None, None));
        assert_eq!(Times::new([7.0].into_iter()).percentile(99), Some(7.0));
    }

    #[test]
    fn failures_and_slow_answers_are_no_goodput() {
        let failed = Outcome { failure: Some("503".into()), ..Outcome::default() };
        let outcomes = vec![outcome(0.1, &[0.1, 0.1]), outcome(0.5, &[0.1, 0.1]), failed];
        let run = Run { outcomes, seconds: 2.0 };
        let point = Point { rate: Some(3.0), clients: 4 };
        let objectives = ["ttft:200", "tpot:100.001"].map(|text| text.parse().unwrap());
        let report = Report::new(point, &run, &objectives);
        assert_eq!((report.completed, report.failed, report.good), (2, 1, Some(1)));
        let fields = report.fields(&[50, 99]);
        assert_eq!(
            (fields["request_goodput"].as_f64(), fields["request_rate"].as_f64()),
            (Some(0.5), Some(3.0))
        );
        assert_eq!(
            (fields["output_throughput"].as_f64(), fields["total_input_tokens"].as_u64()),
            (Some(3.0), Some(20))
        );
        assert!((fields["p50_ttft_ms"].as_f64().unwrap() - 300.0).abs() < 1e-9);
        assert!((fields["mean_itl_ms"].as_f64().unwrap() - 100.0).abs() < 1e-9);
        let none = Report::new(Point { rate: None, clients: 1 }, &run, &[]).fields(&[]);
        assert_eq!(
            (&none["request_rate"], none["request_goodput"].is_null()),
            (&"inf".into(), true)
        );
    }
}
