//! Tests of drafts, commands and failures in a chat.

use super::terminal::Terminal;
use super::{program, scratch};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

const CTRL_C: &str = "\x03";
const CTRL_G: &str = "\x07";

/// Creates an executable script that acts as an editor.
fn editor(name: &str, script: &str) -> String {
    let path = scratch().join(name);
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path.display().to_string()
}

fn chat_with_editor(editor: &str) -> Terminal {
    Terminal::chat_with(&[("VISUAL", ""), ("EDITOR", editor)], &["-n", "4"])
}

/// Clears the line and checks that the chat still responds.
fn expect_alive(terminal: &mut Terminal) {
    terminal.type_in(CTRL_C);
    terminal.expect(">>> ");
    terminal.type_in("/show parameters\r");
    assert!(!terminal.expect("temp 0").contains("Generation"));
    terminal.expect(">>> ");
}

#[test]
fn an_editor_that_does_not_start_leaves_the_draft() {
    let mut terminal = chat_with_editor("/nope");
    terminal.type_in(&format!("Hi there{CTRL_G}"));
    terminal.expect("cannot start the editor `/nope`");
    terminal.expect(">>> Hi there");
    expect_alive(&mut terminal);
}

#[test]
fn an_editor_that_fails_sends_nothing() {
    let mut terminal = chat_with_editor(&editor("failing", "echo changed > \"$1\"; exit 1"));
    terminal.type_in(&format!("Bonjour{CTRL_G}"));
    terminal.expect("not sent");
    terminal.expect(">>> Bonjour");
    expect_alive(&mut terminal);
}

#[test]
fn a_draft_that_was_not_changed_is_sent_by_enter_only() {
    let mut terminal = chat_with_editor("true");
    terminal.type_in(&format!("Bonjour{CTRL_G}"));
    terminal.expect("not changed");
    assert!(!terminal.expect(">>> Bonjour").contains("Generation"));
    terminal.type_in("\r");
    terminal.expect("Generation:");
}

#[test]
fn what_was_edited_is_sent_and_shown_once() {
    let mut terminal = chat_with_editor(&editor("appending", "echo world >> \"$1\""));
    terminal.type_in(&format!("Hello{CTRL_G}"));
    // The typed line is removed from the screen before the editor starts.
    terminal.expect("\x1b[1A\r\x1b[J");
    terminal.expect(">>> Hello");
    terminal.expect("world");
    assert!(!terminal.expect("Generation:").contains("Hello"));
}

#[test]
fn a_draft_of_several_lines_goes_to_the_editor_whole() {
    let seen = scratch().join("seen.txt");
    let script = format!("cp \"$1\" '{}'; exit 1", seen.display());
    let mut terminal = chat_with_editor(&editor("copying", &script));
    terminal.type_in("\"\"\"one\r");
    terminal.expect("... ");
    terminal.type_in(&format!("two{CTRL_G}"));
    terminal.expect("not sent");
    assert_eq!(fs::read_to_string(seen).unwrap().trim_end(), "one\ntwo");
    // The earlier lines are still on the screen.
    terminal.expect("... two");
    terminal.type_in("\"\"\"\r");
    terminal.expect("Generation:");
}

#[test]
fn ctrl_c_on_a_draft_clears_it_and_does_not_end_the_chat() {
    let mut terminal = Terminal::chat(&["-q"]);
    for draft in ["draft one", "draft two", "draft three"] {
        terminal.type_in(draft);
        terminal.expect(draft);
        terminal.type_in(CTRL_C);
        assert!(!terminal.expect(">>> ").contains("Ctrl-C"), "{draft}");
    }
    terminal.type_in("\"\"\"abc\r");
    terminal.expect("... ");
    terminal.type_in(CTRL_C);
    assert!(!terminal.expect(">>> ").contains("Ctrl-C"));
    // A draft between two presses on empty lines restarts the count. Warnings are shown even with quiet
    // output.
    terminal.type_in(CTRL_C);
    terminal.expect("Ctrl-C again");
    terminal.expect(">>> ");
    terminal.type_in(&format!("draft{CTRL_C}"));
    terminal.expect(">>> ");
    terminal.type_in(CTRL_C);
    terminal.expect("Ctrl-C again");
    terminal.expect(">>> ");
    terminal.type_in(CTRL_C);
    terminal.expect_end(130);
}

#[test]
fn save_writes_over_conversations_only() {
    let file = |name: &str| -> (PathBuf, String) {
        let path = scratch().join(name);
        (path.clone(), path.display().to_string())
    };
    let ((notes, notes_text), (_, saved)) = (file("keep.txt"), file("twice.json"));
    fs::write(&notes, "keep me\n").unwrap();
    let mut terminal = Terminal::chat(&["-n", "2", "-q"]);
    terminal.type_in(&format!("/save {notes_text}\r"));
    terminal.expect("error:");
    terminal.expect("/save -f");
    terminal.expect(">>> ");
    assert_eq!(fs::read_to_string(&notes).unwrap(), "keep me\n");
    for _ in 0..2 {
        terminal.type_in(&format!("/save {saved}\r"));
        terminal.expect("saved to");
        terminal.expect(">>> ");
    }
    terminal.type_in(&format!("/save {}\r", scratch().display()));
    terminal.expect("error:");
    terminal.type_in(&format!("/save -f {notes_text}\r"));
    terminal.expect("saved to");
    assert!(fs::read_to_string(&notes).unwrap().contains("messages"));
}

#[test]
fn stop_strings_are_added_and_cleared() {
    let mut terminal = Terminal::chat(&["-n", "3"]);
    terminal.type_in("/set parameter stop \"\"\r");
    terminal.expect("error:");
    terminal.expect(">>> ");
    for (value, shown) in [("END", "stop is \"END\""), ("off", "stop is \"END\", \"off\"")] {
        terminal.type_in(&format!("/set parameter stop {value}\r"));
        terminal.expect(shown);
        terminal.expect(">>> ");
    }
    terminal.type_in("/set parameter stop\r");
    terminal.expect("stop is nothing");
    terminal.type_in("/show parameters\r");
    terminal.expect("temp 0");
    assert!(!terminal.expect(">>> ").contains("stop"));
    terminal.type_in("hello\r");
    terminal.expect("stopped after 3 tokens (predict is 3)");
    terminal.expect("Generation:");
}

#[test]
fn settings_say_what_they_do() {
    let mut terminal = Terminal::chat(&["-q"]);
    for (command, words) in [
        ("/set temp 0", "/set parameter temp 0"),
        ("/set think", "cannot"),
        ("/set verbose", "in full"),
        ("/set nohistory", "no longer saved"),
        ("/set quiet", "no statistics"),
        ("/load /no/such.nest", "check the spelling"),
        ("/read /dev/null", "0 lines go"),
    ] {
        terminal.type_in(&format!("{command}\r"));
        terminal.expect(words);
        terminal.expect(">>> ");
    }
    let line = scratch().join("line.txt");
    fs::write(&line, "only one\n").unwrap();
    terminal.type_in(&format!("/read {}\r", line.display()));
    terminal.expect("1 line goes with");
}

#[test]
#[cfg(target_os = "linux")]
fn what_computes_is_said_once() {
    let none = "/no/such.json";
    let drivers = [("VK_DRIVER_FILES", none), ("VK_ICD_FILENAMES", none)];
    let mut command = program();
    command.args(["chat", "-m", super::store(), "--device", "auto", "--no-history"]).envs(drivers);
    let mut terminal = Terminal::start(command, 80);
    terminal.expect("no GPU was found");
    assert!(!terminal.expect(">>> ").contains("no GPU"));
    terminal.type_in("/load /no/such.nest\r");
    assert!(!terminal.expect("error:").contains("no GPU"));
    assert!(!terminal.expect(">>> ").contains("no GPU"));
}

/// Returns the visible part of a line, without escape sequences and text overwritten by a spinner.
fn visible(line: &str) -> String {
    let last = line.trim_end().rsplit('\r').next().unwrap_or_default();
    let mut parts = last.split('\x1b');
    let first = parts.next().unwrap_or_default().to_owned();
    let behind = |part: &str| -> String {
        let end = part.find(|c: char| c.is_ascii_alphabetic()).map_or(part.len(), |at| at + 1);
        part[end..].into()
    };
    first + &parts.map(behind).collect::<String>()
}

#[test]
fn a_narrow_terminal_breaks_no_words() {
    let mut command = program();
    command.args(["chat", "--no-history"]);
    let mut terminal = Terminal::start(command, 40);
    let screen = terminal.expect(">>> ");
    let broken = |text: &str| text.lines().any(|line| visible(line).chars().count() > 40);
    assert!(!broken(&screen), "{screen}");
    assert!(screen.contains("storyteller, brought up"), "{screen}");
    terminal.type_in("/set parameter mirostat 1\r");
    let error = terminal.expect(">>> ");
    assert!(error.contains("error: unknown parameter") && !broken(&error), "{error}");
    let mut command = program();
    command.args(["run", "--level", "abc"]);
    let mut terminal = Terminal::start(command, 40);
    let error = terminal.expect("For more");
    assert!(error.contains("is not a level") && !broken(&error), "{error}");
}
