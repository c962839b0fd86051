//! A single test, registered by a program without Rust's test harness.

#[derive(Clone, Debug)]
pub struct Test {
    pub(crate) name: String,
    pub(crate) run: fn(),
    /// Reason why it only runs with `--ignored`.
    pub(crate) ignored: Option<&'static str>,
}

impl Test {
    /// Creates a test from a function of a module. It is named as in Rust's test harness if the module were a
    /// program: `file::function`. Called by [`tests`](crate::tests).
    pub fn new(module: &str, function: &str, run: fn()) -> Self {
        let file = module.rsplit("::").next().unwrap_or(module);
        let function = function.split("::").next().unwrap_or(function).trim();
        Self { name: format!("{file}::{function}"), run, ignored: None }
    }

    /// Marks the test to run only with `--ignored`, for a reason.
    #[must_use]
    pub fn ignored(self, why: &'static str) -> Self {
        Self { ignored: Some(why), ..self }
    }
}

/// Creates a list of [`Test`]s from functions of the module. Slow ones give a reason after `=>` and only run
/// with `--ignored`.
#[macro_export]
macro_rules! tests {
    ($($test:expr $(=> $why:literal)?),* $(,)?) => {
        vec![$($crate::Test::new(module_path!(), stringify!($test), $test)$(.ignored($why))?),*]
    };
}
