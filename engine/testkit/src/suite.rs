//! Suites, and the program that runs them.

use std::env;
use std::io::{self, Write};
use std::process::ExitCode;

use libtest_mimic::{Arguments, Completion, Conclusion, Trial};

use crate::{Test, notes};

/// Tests with the same requirements.
#[derive(Clone, Debug)]
pub struct Suite {
    tests: Vec<Test>,
    lacks: fn() -> Option<String>,
    judge: fn() -> Result<(), String>,
}

impl Suite {
    /// Creates a suite without requirements.
    pub fn new(tests: Vec<Test>) -> Self {
        Self { tests, lacks: || None, judge: || Ok(()) }
    }

    /// Adds a requirement: tests are ignored if `lacks` returns a reason. It is called before each test that
    /// runs.
    #[must_use]
    pub fn unless(self, lacks: fn() -> Option<String>) -> Self {
        Self { lacks, ..self }
    }

    /// Prefixes all test names with a module name.
    #[must_use]
    pub fn within(mut self, module: &str) -> Self {
        for test in &mut self.tests {
            test.name = format!("{module}::{}", test.name);
        }
        self
    }

    /// Marks tests as ignored by default because they are slow without a real device. A name that ends with
    /// `::` selects a whole module.
    ///
    /// # Panics
    /// Panics if a name matches no test.
    #[must_use]
    pub fn slow(mut self, names: &[&str]) -> Self {
        for name in names {
            let is_named = |test: &Test| match name.ends_with("::") {
                true => test.name.starts_with(name),
                false => test.name == *name,
            };
            let mut found = 0;
            for test in self.tests.iter_mut().filter(|test| is_named(test)) {
                test.ignored = Some("slow without a real device: --include-ignored");
                found += 1;
            }
            assert!(found > 0, "no test is called {name}");
        }
        self
    }

    /// Adds a check of the whole suite, called after all its tests have passed. Skipped if only some tests
    /// were selected.
    #[must_use]
    pub fn judged(self, judge: fn() -> Result<(), String>) -> Self {
        Self { judge, ..self }
    }

    fn trials<'a>(&'a self, options: &'a Options) -> impl Iterator<Item = Trial> + 'a {
        let tests = self.tests.iter().filter(|test| options.names(&test.name));
        tests.map(|test| trial(test, self.lacks, &options.arguments))
    }
}

fn trial(test: &Test, lacks: fn() -> Option<String>, arguments: &Arguments) -> Trial {
    let is_asked = arguments.ignored || arguments.include_ignored || arguments.list;
    let (run, ignored) = (test.run, test.ignored.filter(|_| !is_asked));
    let (name, is_shown) = (test.name.clone(), arguments.show_output || arguments.nocapture);
    let trial = Trial::ignorable_test(test.name.clone(), move || {
        if let Some(why) = ignored.map(str::to_owned).or_else(lacks) {
            return Ok(Completion::ignored_with(why));
        }
        let (passed, said) = notes::of(run);
        if !passed {
            return Err(said.into());
        }
        if is_shown && !said.is_empty() {
            // The error output may be closed.
            let _ = write!(io::stderr().lock(), "---- {name} ----\n{said}");
        }
        Ok(Completion::Completed)
    });
    trial.with_ignored_flag(test.ignored.is_some() && ignored.is_none())
}

/// Parsed command line.
struct Options {
    arguments: Arguments,
    /// Substrings of names; a test runs if one matches.
    filters: Vec<String>,
}

impl Options {
    /// Parses arguments like Rust's test harness, with any number of filters.
    fn read(given: impl IntoIterator<Item = String>) -> Self {
        /// Options whose value is a separate word.
        const WITH_VALUE: &[&str] =
            &["--test-threads", "--logfile", "--skip", "--color", "--format", "-Z"];
        let (mut words, mut filters) = (Vec::new(), Vec::new());
        let mut given = given.into_iter();
        words.extend(given.next());
        while let Some(word) = given.next() {
            match word.starts_with('-') {
                false => filters.push(word),
                true => {
                    let value = WITH_VALUE.contains(&word.as_str()).then(|| given.next());
                    words.push(word);
                    words.extend(value.flatten());
                }
            }
        }
        Self { arguments: Arguments::from_iter(words), filters }
    }

    /// Returns whether a test name is selected.
    fn names(&self, name: &str) -> bool {
        let is_exact = self.arguments.exact;
        let matches =
            |filter: &String| if is_exact { name == filter } else { name.contains(filter) };
        self.filters.is_empty() || self.filters.iter().any(matches)
    }

    /// Returns whether all tests that are not slow are selected.
    fn is_all(&self) -> bool {
        let arguments = &self.arguments;
        self.filters.is_empty()
            && arguments.skip.is_empty()
            && !arguments.ignored
            && !arguments.list
    }
}

/// Runs suites with the command line of Rust's test harness.
pub fn run(suites: &[Suite]) -> ExitCode {
    notes::keep_panics();
    let options = Options::read(env::args());
    let trials = suites.iter().flat_map(|suite| suite.trials(&options)).collect();
    let conclusion = libtest_mimic::run(&options.arguments, trials);
    let Conclusion { num_passed, num_failed, .. } = conclusion;
    if num_failed > 0 || num_passed == 0 || !options.is_all() {
        return conclusion.exit_code();
    }
    let judged = suites.iter().filter(|suite| (suite.lacks)().is_none());
    let found: Vec<String> = judged.filter_map(|suite| (suite.judge)().err()).collect();
    for words in &found {
        let _ = writeln!(io::stderr().lock(), "{words}");
    }
    if found.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(words: &[&str]) -> Options {
        Options::read(["program"].iter().chain(words).map(|word| (*word).to_owned()))
    }

    #[test]
    fn any_of_several_filters_is_enough() {
        let some = options(&["--test-threads", "1", "norms::", "--show-output", "route::"]);
        assert_eq!(some.arguments.test_threads, Some(1));
        assert!(some.names("norms::a") && some.names("route::b") && !some.names("attention::c"));
        assert!(!some.is_all());
        let exact = options(&["--exact", "norms::a"]);
        assert!(exact.names("norms::a") && !exact.names("norms::ab"));
        assert!(options(&["--test-threads=1", "--quiet"]).is_all());
    }

    fn passes() {}

    fn fails() {
        crate::note!("before");
        panic!("planted");
    }

    /// Returns the conclusion of a run, without printing its deliberate failure.
    fn conclusion(suite: Suite, words: &[&str]) -> Conclusion {
        let log = tempfile::NamedTempFile::new().unwrap();
        let log = format!("--logfile={}", log.path().display());
        let options = options(&[&["--test-threads=1", log.as_str()], words].concat());
        libtest_mimic::run(&options.arguments, suite.trials(&options).collect())
    }

    #[test]
    fn what_is_lacked_is_ignored_and_counted() {
        let suite = || Suite::new(crate::tests![passes, fails, passes => "slow"]).within("kit");
        let counts = |c: Conclusion| (c.num_passed, c.num_failed, c.num_ignored);
        assert_eq!(counts(conclusion(suite(), &[])), (1, 1, 1));
        assert_eq!(counts(conclusion(suite(), &["--ignored"])), (1, 0, 0));
        assert_eq!(counts(conclusion(suite(), &["kit::tests::passes"])), (1, 0, 1));
        let absent = suite().unless(|| Some("no adapter".into()));
        assert_eq!(counts(conclusion(absent, &[])), (0, 0, 3));
    }

    #[test]
    fn slow_tests_run_on_request() {
        let suite = || Suite::new(crate::tests![passes, fails]).slow(&["tests::fails"]);
        let counts = |c: Conclusion| (c.num_passed, c.num_failed, c.num_ignored);
        assert_eq!(counts(conclusion(suite(), &[])), (1, 0, 1));
        assert_eq!(counts(conclusion(suite(), &["--include-ignored"])), (1, 1, 0));
    }

    #[test]
    #[should_panic(expected = "no test is called tests::absent")]
    fn unknown_slow_tests_are_refused() {
        drop(Suite::new(crate::tests![passes]).slow(&["tests::absent"]));
    }

    #[test]
    fn a_failure_has_what_the_test_said() {
        keep_hook(|| {
            let (passed, said) = notes::of(fails);
            assert!(!passed && said.starts_with("before\npanicked at "), "{said}");
            assert!(said.contains("planted"), "{said}");
        });
        assert_eq!(notes::of(passes), (true, String::new()));
    }

    /// Runs `act` with the hook of [`run`], and removes the hook afterwards.
    fn keep_hook(act: impl FnOnce()) {
        notes::keep_panics();
        act();
        drop(std::panic::take_hook());
    }
}
