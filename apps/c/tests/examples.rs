//! The examples in C and C++, compiled with warnings as errors and run on the bundled model.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on should say where")]

use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn model() -> PathBuf {
    root().join("../../models/nestling-storyteller.nest")
}

/// Where cargo put the library.
fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().unwrap().to_owned()
}

/// Compiles an example and returns what runs it.
fn compiled(folder: &Path, name: &str) -> Command {
    let is_c = name.ends_with(".c");
    let compiler = if is_c { "cc" } else { "c++" };
    let program = folder.join(name.replace('.', "-"));
    let library = library();
    let done = Command::new(compiler)
        .arg(if is_c { "-std=c11" } else { "-std=c++17" })
        .args([
            "-D_POSIX_C_SOURCE=200809L",
            "-O1",
            "-Wall",
            "-Wextra",
            "-Wpedantic",
            "-Werror",
            "-pthread",
        ])
        .arg("-I")
        .arg(root().join("include"))
        .arg(root().join("examples").join(name))
        .arg("-o")
        .arg(&program)
        .arg("-L")
        .arg(&library)
        .arg("-lnestling_c")
        .arg(format!("-Wl,-rpath,{}", library.display()))
        .output()
        .unwrap_or_else(|error| panic!("{compiler}: {error}"));
    assert!(done.status.success(), "{name}: {}", String::from_utf8_lossy(&done.stderr));
    Command::new(program)
}

/// Runs it, and returns what it prints.
fn run(command: &mut Command) -> String {
    let done = command.output().unwrap();
    let (out, errors) =
        (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{command:?}: {:?}\n{out}\n{errors}", done.status);
    out.into_owned()
}

fn run_on_model(name: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    run(compiled(folder.path(), name).arg(model()))
}

/// What the Rust library says to the same.
fn expected(messages: &[&str]) -> Vec<String> {
    let model = nestling::open(model()).unwrap();
    let mut chat = nestling::Chat::new(model.session(), nestling::Conversation::default());
    let options =
        nestling::GenerateOptions { max_tokens: Some(40), ..nestling::GenerateOptions::greedy() };
    let answer = |said: &&str| chat.send(*said, &options).unwrap().into_text().unwrap();
    messages.iter().map(answer).collect()
}

#[test]
fn a_chat_says_what_it_says_in_rust() {
    let said = ["Tell me a story about a ship.", "And what did the captain say?"];
    let expected = expected(&said);
    for name in ["chat.c", "chat.cpp"] {
        let out = run_on_model(name);
        assert!(out.starts_with(&format!("{}\n{}\n", expected[0], expected[1])), "{name}: {out}");
        let transcript: serde_json::Value =
            serde_json::from_str(out.lines().last().unwrap()).unwrap();
        let texts: Vec<_> =
            transcript.as_array().unwrap().iter().map(|one| &one["content"]).collect();
        assert_eq!(texts, [said[0], &expected[0], said[1], &expected[1]], "{name}");
    }
}

#[test]
fn an_answer_stops_from_another_thread() {
    assert!(run_on_model("cancel.c").contains("reason 5, "));
}

#[test]
fn two_threads_write_what_each_writes_alone() {
    assert!(!run_on_model("threads.c").is_empty());
}

#[test]
fn a_smaller_budget_takes_memory_from_a_streamed_model() {
    let out = run_on_model("budget.c");
    assert!(out.contains("1 byte: a memory budget of 1 byte"), "{out}");
}

#[test]
fn a_gguf_file_runs_where_it_lies() {
    let file = root().join("../../engine/runtime/tests/data/gguf/glm4-moe.gguf");
    let folder = tempfile::tempdir().unwrap();
    let out = run(compiled(folder.path(), "gguf.c").arg(&file));
    let model = nestling::open(file).unwrap();
    let options = nestling::GenerateOptions {
        max_tokens: Some(8),
        token_events: true,
        ignore_end: true,
        ..nestling::GenerateOptions::greedy()
    };
    let mut session = model.session();
    let events = session.generate(vec![3, 1, 4, 1, 5], &options).unwrap();
    let token = |event| match event {
        Ok(nestling::Event::Token(token)) => Some(token.token.to_string()),
        Ok(_) => None,
        Err(error) => panic!("{error}"),
    };
    assert_eq!(out.lines().collect::<Vec<_>>(), events.filter_map(token).collect::<Vec<_>>());
    assert_eq!(out.lines().count(), 8);
}

/// Every error has a class and words, and nothing is left where a handle would be.
#[test]
fn what_makes_no_sense_is_refused() {
    let out = run_on_model("errors.c");
    assert!(out.contains("class 5: ") && out.contains("model is NULL"), "{out}");
}

#[test]
fn a_frame_waits_no_longer_than_it_says() {
    let out = run_on_model("frames.c");
    let frames = out.lines().last().unwrap().strip_suffix(" frames").unwrap();
    assert!(frames.parse::<u32>().unwrap() > 0, "{out}");
}

#[test]
fn a_session_goes_on_in_another_process() {
    let folder = tempfile::tempdir().unwrap();
    let mut save = compiled(folder.path(), "snapshot.c");
    let mut restore = Command::new(save.get_program());
    let file = folder.path().join("session");
    let begun = run(save.arg(model()).arg("save").arg(&file));
    let rest = run(restore.arg(model()).arg("restore").arg(&file));
    let model = nestling::open(model()).unwrap();
    let options =
        nestling::GenerateOptions { max_tokens: Some(32), ..nestling::GenerateOptions::greedy() };
    let whole = model.session().generate("The captain said", &options).unwrap();
    let whole = whole.into_text().unwrap();
    assert_eq!(format!("{}{}", begun.trim_end_matches('\n'), rest.trim_end_matches('\n')), whole);
}
