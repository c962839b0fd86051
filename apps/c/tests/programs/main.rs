//! The examples in C and C++, compiled with warnings as errors and under sanitizers, write what those in Rust write.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

#[cfg(test)]
mod harness;
#[cfg(test)]
mod programs;

use std::error::Error;
use std::path::Path;
use std::process::Command;

use harness::{CHECKED, compiled, dense, model, root, run, tiny, with_tools};

/// Returns the output of a program in Rust.
fn rust(program: impl FnOnce(&mut Vec<u8>) -> Result<(), Box<dyn Error>>) -> String {
    let mut out = Vec::new();
    program(&mut out).unwrap();
    String::from_utf8(out).unwrap()
}

/// The example prints this in C and in C++.
fn same(name: &str, model: &Path, expected: &str) {
    same_of_each(name, &[(model, expected)]);
}

/// The example prints the text of each model in C and in C++.
fn same_of_each(name: &str, models: &[(&Path, &str)]) {
    let folder = tempfile::tempdir().unwrap();
    for language in ["c", "cpp"] {
        let source = format!("examples/{name}.{language}");
        let program = compiled(folder.path(), &source, CHECKED);
        for (model, expected) in models {
            let printed = run(Command::new(&program).arg(model));
            assert_eq!(&printed, expected, "{source} of {}", model.display());
        }
    }
}

/// Writes a model with a template that knows tools to a new folder.
fn folder_with_tools(model: &Path) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    with_tools(model, folder.path());
    folder
}

#[test]
fn a_chat_says_what_it_says_in_rust() {
    let expected = rust(|out| programs::chat::run(&model(), out));
    let transcript = expected.lines().last().unwrap();
    let transcript: serde_json::Value = serde_json::from_str(transcript).unwrap();
    assert_eq!(transcript.as_array().unwrap().len(), 4, "{expected}");
    let dense = folder_with_tools(&dense());
    let of_dense = rust(|out| programs::chat::run(dense.path(), out));
    assert!(!of_dense.is_empty());
    same_of_each("chat", &[(&model(), &expected), (dense.path(), &of_dense)]);
}

#[test]
fn an_answer_stops_from_another_thread_within_250_ms() {
    let expected = rust(|out| programs::cancel::run(&model(), out));
    same("cancel", &model(), &expected);
}

#[test]
fn a_tool_is_called_as_its_schema_says() {
    let models = [tiny(), dense()].map(|model| {
        let folder = folder_with_tools(&model);
        let expected = rust(|out| programs::tool::run(folder.path(), out));
        let arguments = expected.lines().next().unwrap().strip_prefix("weather ").unwrap();
        let arguments: serde_json::Value = serde_json::from_str(arguments).unwrap();
        assert!(arguments["city"].is_string(), "{expected}");
        assert!((1..10).contains(&arguments["days"].as_u64().unwrap()), "{expected}");
        (folder, expected)
    });
    let of_each = models.each_ref().map(|(folder, expected)| (folder.path(), expected.as_str()));
    same_of_each("tool", &of_each);
}

#[test]
fn two_threads_write_what_each_writes_alone() {
    let expected = rust(|out| programs::threads::run(&model(), out));
    same("threads", &model(), &expected);
}

#[test]
fn a_smaller_budget_takes_memory_from_a_streamed_model_and_changes_no_word() {
    let expected = rust(|out| programs::budget::run(&model(), out));
    same("budget", &model(), &expected);
}

#[test]
fn a_session_goes_on_in_another_process() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("session");
    let (c, cpp) = ("examples/snapshot.c", "examples/snapshot.cpp");
    let (c, cpp) = (compiled(folder.path(), c, CHECKED), compiled(folder.path(), cpp, CHECKED));
    for model in [model(), dense()] {
        let begun = rust(|out| programs::snapshot::save(&model, &file, out));
        let rest = rust(|out| programs::snapshot::restore(&model, &file, out));
        // What one writes another one reads.
        for (saves, restores) in [(&c, &cpp), (&cpp, &c)] {
            let saved = run(Command::new(saves).arg(&model).arg("save").arg(&file));
            let restored = run(Command::new(restores).arg(&model).arg("restore").arg(&file));
            assert_eq!((saved, restored), (begun.clone(), rest.clone()), "{saves:?}");
            assert_eq!(rust(|out| programs::snapshot::restore(&model, &file, out)), rest);
        }
        let options = nestling::GenerateOptions::greedy();
        let options = nestling::GenerateOptions { max_tokens: Some(32), ..options };
        let mut session = nestling::open(&model).unwrap().session();
        let whole = session.generate("The captain said", &options).unwrap().into_text().unwrap();
        assert_eq!(begun.trim_end_matches('\n').to_owned() + rest.trim_end_matches('\n'), whole);
    }
}

#[test]
fn a_gguf_file_runs_where_it_lies() {
    let files = ["glm4-moe", "llama"].map(|name| {
        let file = root().join("../../engine/runtime/tests/data/gguf").join(format!("{name}.gguf"));
        let expected = rust(|out| programs::gguf::run(&file, out));
        assert_eq!(expected.lines().count(), 8, "{expected}");
        (file, expected)
    });
    let of_each = files.each_ref().map(|(file, expected)| (file.as_path(), expected.as_str()));
    same_of_each("gguf", &of_each);
}

#[test]
fn a_frame_waits_no_longer_than_it_says() {
    let options =
        nestling::GenerateOptions { max_tokens: Some(40), ..nestling::GenerateOptions::greedy() };
    let model = nestling::open(model()).unwrap();
    let answer = model.session().generate("The captain said", &options).unwrap();
    let expected = answer.into_text().unwrap() + "\n";
    same("frames", &harness::model(), &expected);
}

/// Errors have a class and a text, and leave no handle behind.
#[test]
fn what_makes_no_sense_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let program = compiled(folder.path(), "examples/errors.c", CHECKED);
    let out = run(Command::new(program).arg(model()));
    assert!(out.contains("class 5: ") && out.contains("model is NULL"), "{out}");
    let program = compiled(folder.path(), "tests/c/misuse.c", CHECKED);
    assert_eq!(run(Command::new(program).arg(tiny())), "lines of the log\n");
}

#[test]
fn two_models_share_an_engine() {
    let folder = tempfile::tempdir().unwrap();
    for source in ["tests/c/shared.c", "tests/c/shared.cpp"] {
        let program = compiled(folder.path(), source, CHECKED);
        for model in [tiny(), dense()] {
            run(Command::new(&program).arg(model));
        }
    }
}

/// `NESTLING_CYCLES` for more of them.
#[test]
fn what_is_opened_and_closed_again_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let program = compiled(folder.path(), "tests/c/cycles.c", &["-D_DEFAULT_SOURCE"]);
    // Default: as many as every change has time for.
    let cycles = std::env::var("NESTLING_CYCLES").unwrap_or_else(|_| "50".to_owned());
    let out = run(Command::new(program).arg(tiny()).arg(cycles));
    assert!(out.contains("live heap"), "{out}");
    println!("{out}");
}

#[test]
fn a_forked_child_is_refused_and_its_frees_do_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let program = compiled(folder.path(), "tests/c/fork.c", &[]);
    assert_eq!(run(Command::new(program).arg(tiny())), "child 0\n");
}

#[test]
fn a_text_with_a_zero_byte_is_refused_in_cpp() {
    let folder = tempfile::tempdir().unwrap();
    let program = compiled(folder.path(), "tests/c/zero.cpp", CHECKED);
    run(Command::new(program).arg(tiny()));
}

/// Prompts of a model with experts and of a dense one, and of the bundled one with its larger vocabulary.
#[test]
fn texts_become_tokens_and_prompts_have_log_probabilities() {
    let folder = tempfile::tempdir().unwrap();
    let program = compiled(folder.path(), "tests/c/tokens.c", CHECKED);
    for model in [model(), tiny(), dense()] {
        run(Command::new(&program).arg(model));
    }
}

/// Names of the global symbols that a library defines.
#[cfg(target_os = "linux")]
fn symbols(library: &Path, flags: &[&str]) -> Vec<String> {
    let mut nm = Command::new("nm");
    let out = run(nm.args(["--defined-only", "--extern-only"]).args(flags).arg(library));
    let names = out.lines().filter_map(|line| line.split_whitespace().nth(2));
    names.map(str::to_owned).collect()
}

#[cfg(target_os = "linux")]
#[test]
fn the_shared_library_exports_its_own_functions_alone() {
    let names = symbols(&harness::library().join("libnestling_c.so"), &["--dynamic"]);
    let foreign: Vec<_> = names.iter().filter(|name| !name.starts_with("nestling_")).collect();
    assert!(foreign.is_empty() && names.len() > 40, "{} symbols, {foreign:?}", names.len());
}

/// The installed static library, so that it can be linked beside llguidance.
#[cfg(target_os = "linux")]
#[test]
fn the_static_library_has_no_c_functions_of_llguidance() {
    let folder = tempfile::tempdir().unwrap();
    let mut script = Command::new(root().join("local_symbols.sh"));
    let library = folder.path().join("libnestling.a");
    std::fs::copy(harness::library().join("libnestling_c.a"), &library).unwrap();
    run(script.arg(&library));
    let names = symbols(&library, &[]);
    assert!(names.iter().any(|name| name == "nestling_model_open"), "{} symbols", names.len());
    let foreign: Vec<_> = names.iter().filter(|name| name.starts_with("llg_")).collect();
    assert!(foreign.is_empty(), "{foreign:?}");
}
