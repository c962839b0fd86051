//! Dual routing of an open model: turns the requested options into policies for rows.

use std::sync::Mutex;

use nestling_formats::Level;

use super::{
    DualPolicy, ElasticController, LevelMode, LevelRouter, RouteSample, StepTimes, Threshold,
};
use nestling_core::cancel::CancelToken;
use nestling_core::error::EngineError;
use nestling_core::runner::ModelRunner;
use nestling_core::sync::whole;

/// Maximum reduction of the mean level below the requested one in elastic mode, in bits.
const CONCESSION: f32 = 1.0;

/// Number of thresholds between the requested one and the maximum concession.
const CONCESSION_STEPS: usize = 16;

/// Requested settings of dual routing.
///
/// ```
/// use nestling_levels::DualOptions;
/// use nestling_levels::dual::LevelMode;
///
/// let options = DualOptions { mean_level: Some(3.5), ..DualOptions::default() };
/// assert_eq!(options.mode, LevelMode::Strict); // timing never changes results
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DualOptions {
    /// Target mean bits of experts over (token, expert) pairs. If `None`, uses all planes, except those that
    /// elastic mode leaves out.
    pub mean_level: Option<f32>,
    /// Minimum level of an expert.
    pub lowest: Level,
    /// Mode: strict, or elastic, in which timing may change results.
    pub mode: LevelMode,
}

impl Default for DualOptions {
    fn default() -> Self {
        Self { mean_level: None, lowest: Level::L2, mode: LevelMode::Strict }
    }
}

/// Dual routing of one model.
pub struct DualRouting {
    asked: DualOptions,
    sample: RouteSample,
    policy: DualPolicy,
    controller: Mutex<ElasticController>,
}

impl DualRouting {
    /// Calibrates thresholds by running the model over `tokens`.
    ///
    /// # Errors
    /// Same errors as [`RouteSample::record`] and [`RouteSample::calibrate`].
    pub fn open(
        runner: &mut dyn ModelRunner,
        router: &dyn LevelRouter,
        asked: DualOptions,
        highest: Level,
        tokens: &[u32],
        cancel: &CancelToken,
    ) -> Result<Self, EngineError> {
        let sample = RouteSample::record(runner, router, tokens, cancel)?;
        Self::new(sample, asked, highest)
    }

    /// Creates dual routing from an existing sample.
    ///
    /// # Errors
    /// Same errors as [`RouteSample::calibrate`].
    pub fn new(
        sample: RouteSample,
        asked: DualOptions,
        highest: Level,
    ) -> Result<Self, EngineError> {
        let policy = calibrated(&sample, asked, highest)?;
        let steps = concessions(&sample, policy)?;
        let controller = Mutex::new(ElasticController::new(steps));
        Ok(Self { asked, sample, policy, controller })
    }

    /// Returns the options requested when the model was opened.
    pub fn requested(&self) -> DualOptions {
        self.asked
    }

    /// Returns the policy for those options.
    pub fn policy(&self) -> DualPolicy {
        self.policy
    }

    /// Returns the mean level of the sample under a policy.
    pub fn expected_level(&self, policy: DualPolicy) -> Option<f64> {
        self.sample.mean_level(policy)
    }

    /// Returns the policy for other options.
    ///
    /// # Errors
    /// Same errors as [`RouteSample::calibrate`].
    pub fn calibrate(&self, asked: DualOptions, highest: Level) -> Result<DualPolicy, EngineError> {
        if asked == self.asked && highest == self.policy.highest {
            return Ok(self.policy);
        }
        calibrated(&self.sample, asked, highest)
    }

    /// Returns the policy of the next step. In elastic mode, its threshold is at least the controller's.
    pub fn of_next_step(&self, policy: DualPolicy) -> DualPolicy {
        match policy.mode {
            LevelMode::Strict => policy,
            LevelMode::Elastic => {
                let controller = whole(self.controller.lock());
                let threshold = policy.threshold.max(controller.threshold());
                DualPolicy { threshold, ..policy }
            }
        }
    }

    /// Updates the controller with a step of elastic rows.
    pub fn observe(&self, step: StepTimes) {
        whole(self.controller.lock()).observe(step);
    }
}

impl std::fmt::Debug for DualRouting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DualRouting({:?}, {:?})", self.asked, self.policy)
    }
}

fn calibrated(
    sample: &RouteSample,
    asked: DualOptions,
    highest: Level,
) -> Result<DualPolicy, EngineError> {
    let (lowest, mode) = (asked.lowest.min(highest), asked.mode);
    let policy = DualPolicy { threshold: Threshold::ZERO, lowest, highest, mode };
    match asked.mean_level {
        Some(mean_level) => sample.calibrate(mean_level, policy),
        None => Ok(policy),
    }
}

/// Returns thresholds of evenly falling mean levels, starting with the policy's threshold.
fn concessions(sample: &RouteSample, policy: DualPolicy) -> Result<Vec<Threshold>, EngineError> {
    let highest = sample.mean_level(policy).map_or(0.0, |mean| mean as f32);
    let lowest = f32::from(policy.lowest.bits());
    let mut steps = vec![policy.threshold];
    for step in 1..=CONCESSION_STEPS {
        let mean = highest - CONCESSION * step as f32 / CONCESSION_STEPS as f32;
        if mean < lowest {
            break;
        }
        steps.push(sample.calibrate(mean, policy)?.threshold);
    }
    Ok(steps)
}
