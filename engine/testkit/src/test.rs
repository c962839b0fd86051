//! One test, as a program without Rust's own harness registers it.

/// A test.
#[derive(Clone, Debug)]
pub struct Test {
    pub(crate) name: String,
    pub(crate) run: fn(),
    /// Why it is run only where `--ignored` asks for it.
    pub(crate) ignored: Option<&'static str>,
}

impl Test {
    /// A function of a module, named as Rust's own harness would name it if the module were a program's:
    /// `file::function`. [`tests`](crate::tests) makes it.
    pub fn new(module: &str, function: &str, run: fn()) -> Self {
        let file = module.rsplit("::").next().unwrap_or(module);
        let function = function.split("::").next().unwrap_or(function).trim();
        Self { name: format!("{file}::{function}"), run, ignored: None }
    }

    /// The same, run only where `--ignored` asks for it.
    #[must_use]
    pub fn ignored(self, why: &'static str) -> Self {
        Self { ignored: Some(why), ..self }
    }
}

/// Makes a list of [`Test`]s of functions of the module; those that are slow say why after `=>` and are run
/// where `--ignored` asks for them.
#[macro_export]
macro_rules! tests {
    ($($test:expr $(=> $why:literal)?),* $(,)?) => {
        vec![$($crate::Test::new(module_path!(), stringify!($test), $test)$(.ignored($why))?),*]
    };
}
