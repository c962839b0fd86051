//! Steps that fail, hang and crash.

use serde_json::Map;

use super::*;

/// Returns a step that runs a shell script. The kit adds `$0` and further arguments.
fn step(name: &str, action: Action, script: &str, seconds: u64) -> Step {
    Step {
        name: name.into(),
        action,
        program: ["/bin/sh", "-c", script].map(str::to_owned).into(),
        env: Vec::new(),
        budget: Duration::from_secs(seconds),
        under: None,
        lacks: None,
    }
}

fn with_runner<T>(budget: u64, act: impl FnOnce(&mut Runner<'_>) -> T) -> T {
    let folder = tempfile::tempdir().unwrap();
    let interrupted = AtomicBool::new(false);
    let mut runner = Runner {
        record: Record::new(folder.path().join("result.json"), Map::new()),
        work: folder.path(),
        env: Vec::new(),
        started: Instant::now(),
        budget: Duration::from_secs(budget),
        interrupted: &interrupted,
    };
    act(&mut runner)
}

const GOOD: &str = "echo '{\"bandwidth\":[1]}' >> $NESTLING_KIT_OUT";

#[test]
fn what_fails_hangs_or_crashes_is_told_and_the_rest_goes_on() {
    let faults = [
        ("exit 3", Outcome::Failed),
        // Results written before the timeout are kept.
        ("echo '{\"bandwidth\":[7]}' >> $NESTLING_KIT_OUT; sleep 60", Outcome::TimedOut),
        ("kill -SEGV $$", Outcome::Crashed),
        ("true", Outcome::Failed),
    ];
    with_runner(60, |runner| {
        let mut outcomes = Vec::new();
        for (script, expected) in faults {
            let (outcome, _) = runner.run(&step(script, Action::Measure, script, 2)).unwrap();
            assert_eq!(outcome, expected, "{script}");
            outcomes.push(outcome.name());
            let on_disk = fs::read_to_string(runner.work.join("result.json")).unwrap();
            let on_disk: Value = serde_json::from_str(&on_disk).unwrap();
            assert_eq!(on_disk["steps"].as_array().unwrap().len(), outcomes.len());
        }
        let (outcome, _) = runner.run(&step("good", Action::Measure, GOOD, 2)).unwrap();
        assert_eq!(outcome, Outcome::Passed);
        assert_eq!(*runner.record.get("bandwidth"), json!([7, 1]));
        let steps = runner.record.get("steps").as_array().unwrap();
        let names: Vec<_> = steps.iter().map(|step| step["outcome"].as_str().unwrap()).collect();
        assert_eq!(names, ["failed", "timed out", "crashed", "failed", "passed"]);
        assert_eq!(steps[2]["message"], "0 results; ended by signal 11 (SIGSEGV)");
    });
}

#[test]
fn nothing_is_begun_when_the_time_is_over() {
    with_runner(1, |runner| {
        let (outcome, _) = runner.run(&step("late", Action::Measure, GOOD, 10)).unwrap();
        assert_eq!(outcome, Outcome::OutOfTime);
        let lacks = Some("ncu is not installed".to_owned());
        let absent = Step { lacks, ..step("absent", Action::Profile, GOOD, 10) };
        assert_eq!(runner.run(&absent).unwrap(), (Outcome::Absent, "ncu is not installed".into()));
        assert_eq!(*runner.record.get("bandwidth"), Value::Null);
    });
}

/// A program of three cases. The second crashes it, also when run separately.
const CASES: &str = "
case \"$*\" in
*--list*) printf 'a: test\\nb: test\\nc: test\\n' ;;
*--exact*) case \"$*\" in
    *b*) printf 'test b ... '; kill -SEGV $$ ;;
    *) printf 'test c ... ok\\n' ;;
    esac ;;
*) printf 'test a ... ok\\ntest b ... '; kill -SEGV $$ ;;
esac";

#[test]
fn a_case_that_ends_the_program_keeps_the_others_from_nothing() {
    with_runner(60, |runner| {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("cases.sh");
        fs::write(&script, format!("#!/bin/sh\n{CASES}\n")).unwrap();
        let mut mode = fs::metadata(&script).unwrap().permissions();
        std::os::unix::fs::PermissionsExt::set_mode(&mut mode, 0o755);
        fs::set_permissions(&script, mode).unwrap();
        let program = vec![script.to_string_lossy().into_owned()];
        let step = Step { program, ..step("cases", Action::Cases("cuda"), "", 20) };
        let (outcome, told) = runner.run(&step).unwrap();
        assert_eq!(outcome, Outcome::Crashed, "{told}");
        assert!(told.starts_with("2 passed, 0 failed, 1 unfinished, 0 skipped"), "{told}");
        let cases = &runner.record.get("cases")["cuda"];
        assert_eq!(cases[0], json!({ "name": "a", "outcome": "passed" }));
        assert_eq!(cases[1]["alone"], "unfinished");
        assert!(cases[1]["alone_message"].as_str().unwrap().contains("SIGSEGV"));
        assert_eq!(
            (&cases[2]["outcome"], &cases[2]["alone"]),
            (&json!("unfinished"), &json!("passed"))
        );
    });
}

#[test]
fn findings_of_a_sanitizer_are_kept() {
    let script = "printf 'test a ... ========= Invalid __global__ read\\nok\\n========= ERROR SUMMARY: 2 errors\\n'
        exit 97";
    with_runner(60, |runner| {
        let step = step("memcheck", Action::Sanitize("memcheck"), script, 10);
        let (outcome, told) = runner.run(&step).unwrap();
        assert_eq!(outcome, Outcome::Failed);
        assert!(told.contains("1 cases begun, ERROR SUMMARY: 2 errors"), "{told}");
    });
}

#[test]
fn profiles_are_kept_without_what_the_program_says() {
    let script = "echo '==PROF== Connected'; echo running 1 test
        printf '\"ID\",\"Kernel Name\"\\n\"0\",\"argmax\"\\n'; echo '{\"profiled\":true}' >> $NESTLING_KIT_OUT";
    with_runner(60, |runner| {
        let profile = step("ncu", Action::Profile, script, 10);
        assert_eq!(runner.run(&profile).unwrap().0, Outcome::Passed);
        let expected = "\"ID\",\"Kernel Name\"\n\"0\",\"argmax\"\n";
        assert_eq!(*runner.record.get("ncu"), json!({ "csv": expected }));
        assert_eq!(*runner.record.get("profiled"), Value::Null);
        // Performance counters may be restricted to administrators.
        let refused = step("ncu", Action::Profile, "echo '==ERROR== ERR_NVGPUCTRPERM'", 10);
        assert_eq!(runner.run(&refused).unwrap().0, Outcome::Failed);
    });
}

#[test]
fn tables_of_nvidia_smi_become_objects() {
    let csv =
        "name, memory.total [MiB], clocks.current.sm [MHz]\nNVIDIA H100 80GB HBM3, 81559, 1980\n";
    let expected = json!({
        "name": "NVIDIA H100 80GB HBM3", "memory.total [MiB]": 81559.0, "clocks.current.sm [MHz]": 1980.0
    });
    assert_eq!(table(csv), [expected]);
}
