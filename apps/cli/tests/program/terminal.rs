//! Tests of the chat at a pseudo-terminal.

use super::{program, scratch, store};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Timeout for heavily loaded machines.
const PATIENCE: Duration = Duration::from_secs(60);

pub struct Terminal {
    child: Child,
    keyboard: File,
    screen: Arc<Mutex<String>>,
    /// Number of bytes of the screen that have been matched.
    seen: usize,
}

impl Terminal {
    /// Starts the program at a terminal with the given number of columns.
    pub fn start(mut command: Command, columns: u16) -> Self {
        let keyboard = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&keyboard).unwrap();
        unlockpt(&keyboard).unwrap();
        let size = Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&keyboard, size).unwrap();
        let name = ptsname(&keyboard, Vec::new()).unwrap().into_string().unwrap();
        let open = || Stdio::from(File::options().read(true).write(true).open(&name).unwrap());
        command.env("TERM", "xterm").env("NO_COLOR", "1");
        let child = command.stdin(open()).stdout(open()).stderr(open()).spawn().unwrap();
        let keyboard = File::from(keyboard);
        let screen = Arc::new(Mutex::new(String::new()));
        let (mut reader, shown) = (keyboard.try_clone().unwrap(), Arc::clone(&screen));
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = reader.read(&mut buffer) {
                shown.lock().unwrap().push_str(&String::from_utf8_lossy(&buffer[..count]));
            }
        });
        Self { child, keyboard, screen, seen: 0 }
    }

    /// Starts a chat and waits for its first prompt.
    pub fn chat(arguments: &[&str]) -> Self {
        Self::chat_with(&[], arguments)
    }

    /// Starts a chat with environment variables.
    pub fn chat_with(variables: &[(&str, &str)], arguments: &[&str]) -> Self {
        let history = scratch().join("history.txt").display().to_string();
        let fixed = ["chat", "-m", store(), "--temp", "0", "--history", &history];
        let mut command = program();
        command.args(fixed).args(arguments).envs(variables.iter().copied());
        let mut terminal = Self::start(command, 80);
        terminal.expect(">>> ");
        terminal
    }

    pub fn type_in(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits for a text after the last match and returns the output up to it.
    #[track_caller]
    pub fn expect(&mut self, text: &str) -> String {
        let begun = Instant::now();
        loop {
            let screen = self.screen.lock().unwrap().clone();
            if let Some(at) = screen[self.seen..].find(text) {
                let before = screen[self.seen..self.seen + at].to_owned();
                self.seen += at + text.len();
                return before;
            }
            assert!(begun.elapsed() < PATIENCE, "no `{text}` in: {}", &screen[self.seen..]);
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    #[track_caller]
    pub fn expect_end(&mut self, code: i32) {
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            if let Some(status) = self.child.try_wait().unwrap() {
                assert_eq!(status.code(), Some(code), "{}", self.screen.lock().unwrap());
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("the program goes on");
    }

    fn interrupt(&self) {
        kill_process(Pid::from_child(&self.child), Signal::INT).unwrap();
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_conversation() {
    let mut terminal = Terminal::chat(&["-n", "10"]);
    terminal.type_in("hello\r");
    terminal.expect("Generation:");
    terminal.expect(">>> ");
    terminal.type_in("\"\"\"\r");
    terminal.expect("... ");
    terminal.type_in("two\r");
    terminal.expect("... ");
    terminal.type_in("lines\"\"\"\r");
    terminal.expect("Generation:");
    terminal.expect(">>> ");
    // An unknown command is an error, not a prompt.
    terminal.type_in("/foo\r");
    terminal.expect("unknown command /foo");
    assert!(!terminal.expect(">>> ").contains("Generation"));
    terminal.type_in("/set parameter top_p 7\r");
    terminal.expect("error:");
    terminal.type_in("/set parameter n 3\r");
    terminal.expect("n is 3");
    terminal.expect(">>> ");
    let saved = scratch().join("saved.json");
    terminal.type_in(&format!("/save {}\r", saved.display()));
    terminal.expect("saved to");
    let json: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&saved).unwrap()).unwrap();
    let roles: Vec<&str> =
        json["messages"].as_array().unwrap().iter().map(|m| m["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["user", "assistant", "user", "assistant"]);
    assert_eq!(json["messages"][2]["content"], "two\nlines");
    terminal.expect(">>> ");
    terminal.type_in("\x04");
    terminal.expect_end(0);
    let history = std::fs::read_to_string(scratch().join("history.txt")).unwrap();
    assert!(history.contains("hello"), "{history}");
}

/// Tests a terminal without bracketed paste, and lines typed ahead.
#[test]
fn lines_that_come_at_once_are_read_one_after_the_other() {
    let mut terminal = Terminal::chat(&["-n", "2"]);
    terminal.type_in("hello\r/set parameter n 3\ragain\r");
    terminal.expect("Generation:");
    terminal.expect("n is 3");
    terminal.expect("Generation:");
    terminal.expect(">>> ");
}

#[test]
fn ctrl_c_stops_a_reply_and_then_the_program() {
    // This model never ends without its end token: the context is shifted again and again.
    let mut terminal = Terminal::chat(&["--logit-bias", "2-inf,0-inf"]);
    terminal.type_in("hello\r");
    terminal.expect("is full: forgetting the oldest");
    terminal.interrupt();
    terminal.expect("Generation:");
    terminal.expect(">>> ");
    terminal.type_in("/show parameters\r");
    terminal.expect("temp 0");
    terminal.expect(">>> ");
    terminal.type_in("\x03");
    terminal.expect("Ctrl-C again");
    terminal.expect(">>> ");
    terminal.type_in("\x03");
    terminal.expect_end(130);
}

#[test]
fn a_reply_over_several_contexts_has_one_limit() {
    let mut terminal = Terminal::chat(&["--logit-bias", "2-inf,0-inf", "-n", "700"]);
    terminal.type_in("hello\r");
    terminal.expect("is full: forgetting the oldest");
    terminal.expect("stopped after 700 tokens (predict is 700)");
    terminal.expect("Generation:");
    terminal.expect(">>> ");
}

#[test]
fn old_messages_are_left_out_aloud() {
    let mut terminal = Terminal::chat(&["-n", "20"]);
    let message = "the ship and the storm and the sea ".repeat(2);
    for _ in 0..40 {
        terminal.type_in(&format!("{message}\r"));
        if terminal.expect("Generation:").contains("are left out") {
            return;
        }
        terminal.expect(">>> ");
    }
    panic!("the context never filled");
}
