//! Tests that every failure is reported as a sentence with advice.

use super::{checkpoint, program, run, scratch, store};
use std::fs;
use std::process::Stdio;

#[test]
fn a_path_that_is_not_there() {
    for command in ["run", "chat", "inspect", "verify"] {
        let talks = matches!(command, "run" | "chat");
        let prompt: &[&str] = if talks { &["-p", "x"] } else { &[] };
        let ran = run(&[&[command, "-m", "/no/such.nest"], prompt].concat());
        ran.fails(1, "/no/such.nest", "");
        assert!(ran.err.contains("no such file"), "{}", ran.err);
    }
    run(&["convert", "/no/such", "-o", "x.nest"]).fails(1, "/no/such", "folder with config.json");
}

#[test]
fn a_folder_that_is_no_checkpoint() {
    let folder = scratch().join("empty");
    fs::create_dir_all(&folder).unwrap();
    let path = folder.display().to_string();
    run(&["run", "-m", &path, "-p", "x"]).fails(1, "no config.json", ".nest store");
    run(&["convert", &path, "-o", "x.nest"]).fails(1, "config.json", "folder with config.json");
    run(&["verify", &path]).fails(1, "is a folder", "nestling convert");
}

#[test]
fn a_file_that_is_no_store() {
    let path = scratch().join("notes.txt");
    fs::write(&path, "not a store at all, but long enough to have a header. ".repeat(10)).unwrap();
    let path = path.display().to_string();
    run(&["run", "-m", &path, "-p", "x"]).fails(1, "not a .nest store", "nestling convert");
    run(&["inspect", &path]).fails(1, "it is a text file of 540 B", "nestling convert");
}

/// The message describes the kind of the file and lists the accepted sources.
#[test]
fn a_file_that_cannot_be_converted() {
    let file = |name: &str, bytes: &[u8]| {
        let path = scratch().join(name);
        fs::write(&path, bytes).unwrap();
        path.display().to_string()
    };
    let text = file("a.gguf", b"not a GGUF at all");
    let convert = |path: &str| run(&["convert", path, "-o", "/no/x.nest"]);
    convert(&text).fails(
        1,
        "a.gguf is a text file of 17 B, neither a GGUF file",
        "name a GGUF file",
    );
    run(&["plan", &text]).fails(1, "a.gguf is a text file of 17 B", "name a GGUF file");
    run(&["run", "-m", &text, "-p", "x"]).fails(1, "is a text file of 17 B", "a GGUF file or a");
    let pdf = file("paper.pdf", b"%PDF-1.7 \xff\xfe");
    convert(&pdf).fails(1, "is a PDF document", "name a GGUF file");
    convert(store()).fails(1, "tiny.nest is a store already", "--budget");
    let weights = checkpoint().join("model-00001-of-00003.safetensors");
    convert(&weights.display().to_string()).fails(1, "a part of a checkpoint", "folder");
}

#[test]
fn a_dense_model() {
    let folder = scratch().join("dense");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("config.json"), r#"{"model_type": "gpt2", "hidden_size": 64}"#).unwrap();
    let path = folder.display().to_string();
    run(&["run", "-m", &path, "-p", "x"]).fails(
        1,
        "gpt2 is not a supported family of dense models",
        "OLMoE",
    );
    let ran = run(&["convert", &path, "-o", "x.nest"]);
    ran.fails(1, "gpt2 is not a supported family of dense models; supported: gemma3_text", "OLMoE");
}

fn spoiled(name: &str, at: usize, bytes: &[u8]) -> String {
    let mut content = fs::read(store()).unwrap();
    content[at..at + bytes.len()].copy_from_slice(bytes);
    let path = scratch().join(name);
    fs::write(&path, content).unwrap();
    path.display().to_string()
}

#[test]
fn a_store_of_another_version() {
    // The version follows the 8-byte signature.
    let path = spoiled("version.nest", 8, &9u32.to_le_bytes());
    let ran = run(&["run", "-m", &path, "-p", "x"]);
    ran.fails(1, "version 9", "convert the model again");
}

#[test]
fn a_damaged_store() {
    let length = fs::metadata(store()).unwrap().len() as usize;
    let middle = length / 2;
    let byte = fs::read(store()).unwrap()[middle];
    let path = spoiled("damaged.nest", middle, &[byte ^ 1]);
    let ran = run(&["verify", &path]);
    ran.fails(3, "1 place is damaged", "again");
    assert!(ran.err.contains("expert") || ran.err.contains("layer"), "{}", ran.err);
    run(&["run", "-m", &path, "-p", "x"]).fails(3, "damaged", "again");
    assert!(run(&["verify", store()]).ok().contains("no damage"));
}

#[test]
fn a_store_that_was_cut() {
    let content = fs::read(store()).unwrap();
    let path = scratch().join("cut.nest");
    fs::write(&path, &content[..content.len() - 5000]).unwrap();
    let path = path.display().to_string();
    run(&["verify", &path]).fails(3, "within section", "--partial");
    run(&["run", "-m", &path, "-p", "x"]).fails(3, "within section", "--partial");
    run(&["inspect", &path]).fails(3, "within section", "--partial");
    // The downloaded part can be inspected.
    let verified = run(&["verify", "--partial", &path]).ok();
    assert!(verified.contains("no damage") && verified.contains("up to level 6"), "{verified}");
    let inspected = run(&["inspect", "--partial", &path]).ok();
    assert!(inspected.contains("complete up to level 6"), "{inspected}");
    // The advice is given only where it can help.
    let front = scratch().join("front.nest");
    fs::write(&front, &content[..20]).unwrap();
    let front = front.display().to_string();
    for more in [&[][..], &["--partial"]] {
        let ran = run(&[&["run", "-m", &front, "-p", "x"], more].concat());
        ran.fails(3, "ends at byte 20", "not even its lowest level");
        assert!(!ran.err.contains("--partial"), "{}", ran.err);
    }
    let greedy = |more: &[&str]| {
        let fixed = ["run", "-p", "the ship", "-n", "8", "--temp", "0"];
        run(&[&fixed[..], more].concat()).ok()
    };
    let whole = greedy(&["-m", store(), "--level", "6"]);
    assert_eq!(greedy(&["-m", &path, "--partial"]), whole);
    assert_eq!(greedy(&["-m", &path, "--partial", "--load-mode", "mmap"]), whole);
}

#[test]
fn a_prompt_longer_than_the_context() {
    let prompt = "the ship and the storm ".repeat(200);
    let ran = run(&["run", "-m", store(), "-p", &prompt]);
    ran.fails(1, "; the context holds 256", "shorten the prompt");
    assert!(ran.err.contains("the prompt and room for an answer take"), "{}", ran.err);
    let ran = run(&["chat", "-m", store(), "-p", &prompt, "--single-turn"]);
    ran.fails(1, "the context holds 256", "shorten the prompt");
}

#[test]
fn a_level_that_the_store_does_not_hold() {
    let sections = run(&["inspect", store(), "--json"]).ok();
    let sections: serde_json::Value = serde_json::from_str(&sections).unwrap();
    let end = sections["sections"][1]["end"].as_u64().unwrap() as usize;
    let path = scratch().join("level3.nest");
    fs::write(&path, &fs::read(store()).unwrap()[..end]).unwrap();
    let path = path.display().to_string();
    assert!(run(&["verify", &path]).ok().contains("complete up to level 3"));
    run(&["run", "-m", &path, "-p", "x", "-n", "2"]).ok();
    run(&["run", "-m", &path, "-p", "x", "--level", "4"]).fails(1, "level 4", "--level 3");
}

#[test]
fn too_little_memory() {
    let ran = run(&["run", "-m", store(), "-p", "x", "--memory", "100k"]);
    ran.fails(1, "too little", "--memory");
}

#[test]
fn an_output_that_exists() {
    let checkpoint = checkpoint().display().to_string();
    let ran = run(&["convert", &checkpoint, "-o", store()]);
    ran.fails(1, &format!("cannot write {}: it exists already", store()), "--force");
    let ran = run(&["convert", &checkpoint, "-o", "/no/such/folder/x.nest"]);
    ran.fails(1, "directory does not exist", "");
}

#[test]
fn wrong_command_lines() {
    let ran = run(&["run", "-m", store(), "-p", ""]);
    ran.fails(2, "prompt is empty", "-p");
    let ran = run(&["run", "--levl", "4"]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.err.contains("--level"), "no suggestion: {}", ran.err);
    run(&["run", "-hf", "nonsense", "-p", "x"]).fails(2, "nonsense", "owner/repo");
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_behind_the_output() {
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let mut command = program();
    command.args(["run", "-m", store(), "-p", "x", "-n", "4"]);
    let output = command.stdout(full).stderr(Stdio::piped()).output().unwrap();
    super::ProcessOutput::from(output).fails(1, "the disk is full", "free some space");
}

#[test]
fn a_closed_pipe_is_no_error() {
    let script = format!(
        "{} run -m {} -p x -n 100 --temp 0 | head -c 1 >/dev/null",
        env!("CARGO_BIN_EXE_nestling"),
        store()
    );
    if cfg!(unix) {
        let output = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
        let ran = super::ProcessOutput::from(output);
        assert!(!ran.err.contains("error") && !ran.err.contains("panicked"), "{}", ran.err);
    }
}

/// A closed pipe is success, so that scripts continue.
#[test]
fn a_closed_pipe_ends_with_success_unless_a_file_is_missing_then() {
    let closed = |more: &[&str]| {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = program();
        command.args(["run", "-m", store(), "-p", "x", "-n", "4", "-q"]).args(more);
        super::ProcessOutput::from(command.stdout(writer).stderr(Stdio::piped()).output().unwrap())
    };
    let ran = closed(&[]);
    assert_eq!((ran.code, &*ran.err), (Some(0), ""));
    let path = scratch().join("closed.json");
    let ran = closed(&["--stats-json", &path.display().to_string()]);
    assert_eq!(ran.code, Some(1), "{}", ran.err);
    assert!(ran.err.contains("closed.json was not written"), "{}", ran.err);
}

#[test]
fn no_message_commands_the_terminal() {
    let hostile = "/no/\u{1b}[2J\u{9b}31m\u{7f}such\n  try: sh -c evil.nest";
    for arguments in [
        &["run", "-m", hostile, "-p", "x"][..],
        &["inspect", hostile],
        &["run", "-p", "x", "--level", "\u{1b}[2J"],
        &["run", hostile, "-p", "x", "more\u{1b}c"],
    ] {
        let ran = run(arguments);
        let controls = |c: char| c.is_control() && c != '\n';
        assert!(!ran.err.contains(controls), "{arguments:?}: {:?}", ran.err);
        assert!(!ran.err.contains("\n  try: sh"), "{arguments:?}: {}", ran.err);
        assert_ne!(ran.code, Some(0));
    }
}

#[test]
fn a_file_that_is_no_conversation_or_text() {
    let path = scratch().join("bytes.bin");
    fs::write(&path, b"ab\xff\xfe").unwrap();
    let ran = run(&["run", "-m", store(), "-f", &path.display().to_string()]);
    ran.fails(1, "is not UTF-8 text (byte 2)", "UTF-8");
}
