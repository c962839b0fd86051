//! What a load says of a server, under the names of `vllm bench serve`.

use super::client::Outcome;
use super::load::Run;
use crate::args::{Objective, Time};
use serde_json::{Map, Value, json};

/// How requests came.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Requests a second; none for clients that ask as soon as they are answered.
    pub rate: Option<f64>,
    /// Most requests under way at a time.
    pub clients: usize,
}

/// Times of one kind, in seconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Times(Vec<f64>);

impl Times {
    fn new(times: impl Iterator<Item = f64>) -> Self {
        let mut times: Vec<f64> = times.collect();
        times.sort_by(f64::total_cmp);
        Self(times)
    }

    /// Between the two nearest where it lies between, as numpy has it; none without times.
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

/// One load that was measured.
#[derive(Clone, Debug)]
pub struct Report {
    pub point: Point,
    pub completed: usize,
    pub failed: usize,
    pub seconds: f64,
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    pub tokens: u64,
    /// Requests that kept to all objectives; none where there are none.
    pub good: Option<usize>,
    /// To the first token.
    pub first: Times,
    /// For each token after the first, by request.
    pub each: Times,
    /// From each part of an answer to the next.
    pub gaps: Times,
    pub whole: Times,
    /// Longest time that a request was sent after it was due.
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

    /// All figures; times in milliseconds.
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

    /// Times by the names that they go by.
    pub fn times(&self) -> [(&'static str, &Times); 4] {
        [("ttft", &self.first), ("tpot", &self.each), ("itl", &self.gaps), ("e2el", &self.whole)]
    }
}

/// Whether a request kept to a bound; an answer too short to have a time kept to it.
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

    /// numpy.percentile([1, 2, 3, 4], [25, 50, 90, 99]) and numpy.std.
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
