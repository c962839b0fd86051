//! Tests of options that have no effect, contradict each other, or come from the environment.

use super::{ProcessOutput, bundled, checkpoint, program, run, run_with, scratch, store};
use serde_json::Value;

fn complete(model: &str, more: &[&str]) -> ProcessOutput {
    let flags = ["run", "-m", model, "-p", "the ship", "-n", "6", "--temp", "0"];
    run(&[&flags[..], more].concat())
}

fn with_variable(name: &str, value: &str, arguments: &[&str]) -> ProcessOutput {
    program().env(name, value).args(arguments).output().unwrap().into()
}

#[test]
fn options_without_effect_are_named() {
    let checkpoint = checkpoint().display().to_string();
    for (model, options, words) in [
        (&*checkpoint, &["--level", "4"][..], "--level has no effect"),
        (&*checkpoint, &["--mean-level", "3.2"], "--mean-level has no effect"),
        (&*checkpoint, &["--elastic"], "--elastic has no effect"),
        (&*checkpoint, &["--weight-budget", "1G"], "--weight-budget has no effect"),
        (store(), &["-sys", "Be brief."], "--system-prompt has no effect without --chat"),
        (store(), &["-t", "1000"], "-t 1000"),
        #[cfg(target_os = "linux")]
        (store(), &["--memory", "99999G"], "--memory"),
    ] {
        let plain = complete(model, &["-q"]);
        assert_eq!(plain.err, "");
        // Warnings are printed under --quiet too.
        let ran = complete(model, &[options, &["-q"]].concat());
        assert!(ran.err.starts_with("warning: "), "{options:?}: {}", ran.err);
        assert!(ran.err.contains(words), "{options:?}: {}", ran.err);
        assert_eq!(ran.err.lines().count(), 1, "{}", ran.err);
        assert_eq!(ran.ok(), plain.ok());
    }
}

#[test]
fn a_mean_above_the_highest_level_is_refused() {
    for (level, mean) in [("2", "3.2"), ("4", "5")] {
        let ran = complete(store(), &["--level", level, "--mean-level", mean]);
        ran.fails(2, &format!("--mean-level {mean} is above --level {level}"), "--level");
    }
    complete(store(), &["--level", "4", "--mean-level", "3.2"]).ok();
}

#[test]
fn the_bits_that_were_asked_for_are_those_that_were_typed() {
    let ran = complete(bundled(), &["--mean-level", "3.2"]);
    assert!(ran.err.contains("(asked: 3.2)"), "{}", ran.err);
    let bits = ran.err.split("Bits: ").nth(1).unwrap();
    let bits: f64 = bits.split(' ').next().unwrap().parse().unwrap();
    assert!((2.0..=8.0).contains(&bits), "{}", ran.err);
    let ran = complete(bundled(), &["--weight-budget", "16MB"]);
    assert!(ran.err.contains("Bits: mixed, ") && ran.err.contains(" on average"), "{}", ran.err);
}

#[test]
fn negative_values_reach_their_own_messages() {
    for (arguments, words) in [
        (&["--temp", "-1"][..], "-1 is not from 0 to 100"),
        (&["--temp", "-.5"], "-.5 is not from 0 to 100"),
        (&["--top-p", "-0.1"], "-0.1 is not from 0 to 1"),
        (&["--top-k", "-1"], "`-1` is not a count"),
        (&["--memory", "-1"], "`-1` is not a size"),
        (&["--memory", "-5G"], "`-5G` is not a size"),
        (&["-c", "-1"], "`-1` is not a count"),
        (&["-t", "-2"], "`-2` is not a count"),
        (&["-n", "-2"], "takes -1 or a count, such as 128"),
        (&["-n", "many"], "takes -1 or a count, such as 128"),
        (&["-s", "-3"], "`-3` is not a count"),
    ] {
        let ran = run(&[&["run", "-m", store(), "-p", "x"], arguments].concat());
        assert_eq!(ran.code, Some(2), "{arguments:?}: {}", ran.err);
        assert!(ran.err.contains(words), "{arguments:?}: {}", ran.err);
        assert!(!ran.err.contains("unexpected argument"), "{arguments:?}: {}", ran.err);
    }
    // A prompt may start like a number.
    let ran = run(&["run", "-m", store(), "-n", "2", "-p", "-5 degrees"]);
    ran.ok();
}

#[test]
fn an_unknown_option_gets_no_odd_tip() {
    let ran = run(&["run", "--frobnicate"]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.err.contains("--frobnicate") && !ran.err.contains("as a value"), "{}", ran.err);
    assert!(run(&["run", "--levl", "4"]).err.contains("--level"));
}

#[test]
fn a_wrong_variable_is_named() {
    let line = ["run", "-m", store(), "-p", "x", "-n", "1"];
    for (name, value) in
        [("NESTLING_LEVEL", "abc"), ("NESTLING_TEMP", "-1"), ("NESTLING_KV_TYPE", "f8")]
    {
        let ran = with_variable(name, value, &line);
        assert_eq!(ran.code, Some(2), "{}", ran.err);
        assert!(ran.err.contains(name), "{}", ran.err);
    }
    // If both are given, the argument is at fault.
    let both = with_variable("NESTLING_LEVEL", "abc", &[&line[..], &["--level", "5"]].concat());
    assert!(!both.err.contains("NESTLING_LEVEL") && both.err.contains("`5`"), "{}", both.err);
    let other = with_variable("NESTLING_LEVEL", "abc", &[&line[..], &["--temp", "hot"]].concat());
    assert_eq!(other.code, Some(2));
}

#[test]
fn an_empty_stop_string_is_refused_at_once() {
    let ran = complete("/no/such.nest", &["--stop", ""]);
    assert_eq!(ran.code, Some(2), "{}", ran.err);
    assert!(ran.err.contains("from 1 to 4096 bytes"), "{}", ran.err);
}

#[test]
fn text_in_the_place_of_a_model_is_pointed_behind_p() {
    for arguments in [&["run", "The ship left"][..], &["chat", "The ship left", "-q"]] {
        let ran = run(arguments);
        ran.fails(1, "The ship left", "-p");
        assert!(ran.err.contains("no such file"), "{}", ran.err);
    }
    run_with(&["run", "no-such-model"], "the ship").fails(1, "no-such-model", "-p");
}

#[test]
fn sizes_keep_the_units_that_were_typed() {
    for (typed, shown, others) in [("5M", "5.00 MiB", " MB"), ("5MB", "5.00 MB", "MiB")] {
        let ran = complete(bundled(), &["--memory", typed]);
        ran.fails(1, &format!("{shown} of memory is too little for this model"), "--memory");
        assert!(!ran.err.contains(others), "{}", ran.err);
    }
    for command in ["run", "chat"] {
        let help = run(&[command, "--help"]).ok();
        assert!(help.contains("6G means 6 GiB"), "{command}");
    }
}

#[test]
fn statistics_go_to_a_file_that_can_be_written_or_to_standard_output() {
    let flags = ["run", "-m", store(), "-p", "the ship", "-n", "6", "--temp", "0"];
    let nowhere = run(&[&flags[..], &["--stats-json", "/no/dir/a.json"]].concat());
    nowhere.fails(1, "/no/dir/a.json", "path");
    assert_eq!(nowhere.out, "", "it was refused after the text");
    let text = run(&flags).ok();
    let shown = run(&[&flags[..], &["--stats-json", "-"]].concat()).ok();
    let json = shown.strip_prefix(&text).unwrap();
    let stats: Value = serde_json::from_str(json).unwrap();
    assert_eq!(stats["completion_tokens"], 6, "{stats}");
    assert!(!std::path::Path::new("-").exists());
    // The model is resident: all lookups are hits.
    assert_eq!(stats["streaming"]["hit_rate"], 1.0, "{stats}");
    assert_eq!(stats["fact"]["hit_rate"], 1.0, "{stats}");
    assert!(!json.contains("-0.0"), "{stats}");
    // A failed run creates no empty file and keeps existing files.
    let (kept, new) = (scratch().join("kept.json"), scratch().join("new.json"));
    std::fs::write(&kept, "{}").unwrap();
    for path in [&kept, &new] {
        let path = path.display().to_string();
        let line = ["run", "-m", "/no/such.nest", "-p", "x", "--stats-json", &path];
        run(&line).fails(1, "/no/such.nest", "");
    }
    assert_eq!(std::fs::read_to_string(&kept).unwrap(), "{}");
    assert!(!new.exists());
}

#[test]
fn nothing_generated_has_no_speed() {
    let flags = ["run", "-m", store(), "-p", "the ship", "-n", "0"];
    let ran = run(&flags);
    assert!(!ran.err.contains("0.0 t/s"), "{}", ran.err);
    ran.ok();
}

#[test]
fn help_names_what_is_needed() {
    let help = run(&["--help"]).ok();
    assert!(help.contains("Usage: nestling [COMMAND] [OPTIONS]"), "{help}");
    assert!(help.contains("reader closed"), "{help}");
    let help = run(&["run", "--help"]).ok();
    assert!(!help.contains("--history"), "{help}");
    assert!(run(&["chat", "--help"]).ok().contains("--history"));
    // The flag is hidden but accepted: `run` without a prompt at a terminal is `chat`.
    run(&["run", "-m", store(), "-p", "x", "-n", "1", "--no-history"]).ok();
}

#[test]
fn what_was_computed_of_a_prompt_is_on_disk_for_the_next_run() {
    let folder = scratch().join("page-store");
    let (folder, prompt) = (folder.to_str().unwrap(), "The ship left the harbour. ".repeat(30));
    let flags = ["run", "-m", bundled(), "-p", &prompt, "-n", "8", "--temp", "0", "--verbose"];
    let kept = ["--page-store", folder, "--page-store-size", "64MiB"];
    let first = run(&[&flags[..], &kept].concat());
    assert_eq!(first.code, Some(0), "{}", first.err);
    let pages = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    let pages: Vec<_> = pages.filter(|name| name.to_string_lossy().ends_with(".page")).collect();
    assert!(pages.len() >= 2, "{pages:?}");
    let second = run(&[&flags[..], &kept].concat());
    assert_eq!((second.code, &second.out), (Some(0), &first.out));
    let reused = |ran: &ProcessOutput| {
        let (before, _) = ran.err.split_once(" more from the session").unwrap();
        before.rsplit(' ').next().unwrap().parse::<usize>().unwrap()
    };
    assert_eq!(reused(&first), 0);
    assert!(reused(&second) >= 64 && reused(&second).is_multiple_of(64), "{}", second.err);
    let file = scratch().join("page-store-is-a-file");
    std::fs::write(&file, "x").unwrap();
    let wrong = run(&[&flags[..], &["--page-store", file.to_str().unwrap()]].concat());
    wrong.fails(1, "page-store-is-a-file", "--page-store");
}
