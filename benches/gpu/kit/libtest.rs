//! Parses the output of a test program that runs cases sequentially.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Passed,
    Failed,
    /// The case does not run unless selected.
    Ignored,
    /// The program ended during the case.
    Unfinished,
}

/// A case that was started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    pub name: String,
    pub verdict: Verdict,
    /// Output of the case, or the reason why it is ignored.
    pub output: String,
}

/// Returns the names of all cases from the output of `--list`.
pub fn names(list: &str) -> Vec<String> {
    list.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect()
}

/// Returns all cases that were started, in order.
pub fn cases(out: &str) -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    let mut section: Option<(String, String)> = None;
    for line in out.lines() {
        if let Some(name) = line.strip_prefix("---- ").and_then(|l| l.strip_suffix(" ----")) {
            give(&mut cases, section.replace((name.to_owned(), String::new())));
        } else if is_end_of_section(line) {
            give(&mut cases, section.take());
        } else if let Some((_, text)) = &mut section {
            text.push_str(line);
            text.push('\n');
        } else if let Some((name, rest)) = parse_start(line) {
            cases.push(Case { name, verdict: Verdict::Unfinished, output: String::new() });
            judge(&mut cases, rest);
        } else {
            // A driver may have printed text before the verdict.
            judge(&mut cases, line);
        }
    }
    give(&mut cases, section);
    cases
}

/// Returns whether a line ends the sections of case output: the next heading or the summary.
fn is_end_of_section(line: &str) -> bool {
    line == "failures:" || line.starts_with("test result: ")
}

/// Returns the name of a starting case and the rest of the line.
fn parse_start(line: &str) -> Option<(String, &str)> {
    let (name, rest) = line.strip_prefix("test ")?.split_once(" ... ")?;
    // Names are padded to the length of the longest.
    let name = name.trim_end();
    (!name.contains(' ')).then(|| (name.to_owned(), rest))
}

/// Sets the verdict of the last started case from a line of output.
fn judge(cases: &mut [Case], text: &str) {
    let Some(last) = cases.last_mut().filter(|last| last.verdict == Verdict::Unfinished) else {
        return;
    };
    if text == "ok" || text.ends_with(" ok") {
        last.verdict = Verdict::Passed;
    } else if text == "FAILED" || text.ends_with(" FAILED") {
        last.verdict = Verdict::Failed;
    } else if let Some(why) = text.strip_prefix("ignored") {
        last.verdict = Verdict::Ignored;
        last.output = why.trim().trim_start_matches('(').trim_end_matches(')').to_owned();
    }
}

fn give(cases: &mut [Case], section: Option<(String, String)>) {
    let Some((name, text)) = section else { return };
    if let Some(case) = cases.iter_mut().find(|case| case.name == name) {
        case.output = text.trim().to_owned();
    }
}

impl Case {
    /// Returns the relevant part of the output: the reason for ignoring the case, or the failure.
    pub fn message(&self) -> Option<String> {
        const LINES_MAX: usize = 6;
        const CHARS_MAX: usize = 800;
        let lines: Vec<&str> = self.output.lines().filter(|line| !line.is_empty()).collect();
        let told = match self.verdict {
            Verdict::Passed => None,
            Verdict::Ignored => Some(self.output.clone()),
            Verdict::Failed | Verdict::Unfinished => {
                let from = lines.iter().position(|line| line.contains("panicked at"));
                let from = from.unwrap_or(lines.len().saturating_sub(LINES_MAX));
                Some(lines[from..].iter().take(LINES_MAX).copied().collect::<Vec<_>>().join("\n"))
            }
        };
        told.map(|told| told.chars().take(CHARS_MAX).collect())
    }

    /// Returns whether the case did not run.
    pub fn is_skipped(&self) -> bool {
        self.verdict == Verdict::Ignored
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "
running 6 tests
test a::one     ... ok
test a::two     ... FAILED
test a::three   ... ok
test a::four    ... ignored (takes minutes)
test a::five    ... some words of a driver
ok
test b::sixteen ... ignored (no adapter)

failures:

---- a::two ----
before
panicked at x.rs:3:5:
1 is not 2


failures:
    a::two

test result: FAILED. 3 passed; 1 failed; 2 ignored; 0 measured; 0 filtered out; finished in 0.10s
";

    #[test]
    fn verdicts_and_messages_are_found() {
        let cases = cases(SAID);
        let found: Vec<_> = cases.iter().map(|c| (c.name.as_str(), c.verdict)).collect();
        let expected = [
            ("a::one", Verdict::Passed),
            ("a::two", Verdict::Failed),
            ("a::three", Verdict::Passed),
            ("a::four", Verdict::Ignored),
            ("a::five", Verdict::Passed),
            ("b::sixteen", Verdict::Ignored),
        ];
        assert_eq!(found, expected);
        let skipped: Vec<bool> = cases.iter().map(Case::is_skipped).collect();
        assert_eq!(skipped, [false, false, false, true, false, true]);
        assert_eq!(cases[1].message().unwrap(), "panicked at x.rs:3:5:\n1 is not 2");
        assert_eq!(cases[3].message().unwrap(), "takes minutes");
        assert_eq!(cases[4].message(), None);
    }

    #[test]
    fn a_case_that_the_program_ended_in_has_no_verdict() {
        let cases = cases("running 2 tests\ntest one ... ok\ntest two ... ");
        assert_eq!(cases[1].verdict, Verdict::Unfinished);
        assert_eq!(cases.len(), 2);
    }

    #[test]
    fn names_are_listed() {
        assert_eq!(
            names("a::b: test\nc: test\nd: benchmark\n\n2 tests, 0 benchmarks\n"),
            ["a::b", "c"]
        );
    }
}
