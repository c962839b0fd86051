//! Tests of `nestling serve` with a client that uses plain sockets.

use super::{bundled, program, run, scratch};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// A running server. Its output is read to the end, so that it never blocks.
pub struct ServerProcess {
    child: Child,
    pub address: String,
}

impl ServerProcess {
    pub fn start(options: &[&str]) -> Self {
        Self::with(&[&["-m", bundled()], options].concat())
    }

    fn with(options: &[&str]) -> Self {
        let mut command = program();
        command.args(["serve", "--port", "0", "-t", "2"]).args(options);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
        let served = lines.find(|line| line.contains(" served at http://"));
        let served = served.unwrap_or_else(|| panic!("the server ended before it served"));
        let (_, address) = served.split_once("http://").unwrap();
        let address = address.split('/').next().unwrap().to_owned();
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, address }
    }

    fn send(&self, head: &str, body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let length = body.len();
        write!(
            stream,
            "{head}\r\nHost: {}\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n\r\n{body}",
            self.address
        )
        .unwrap();
        stream
    }

    fn ask(&self, head: &str, body: &str) -> String {
        let mut answer = String::new();
        self.send(head, body).read_to_string(&mut answer).unwrap();
        answer
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const CHAT: &str = "POST /v1/chat/completions HTTP/1.1";

fn chat(tokens: u32) -> String {
    format!(
        "{{\"model\": \"story\", \"messages\": [{{\"role\": \"user\", \"content\": \"Hello\"}}], \
         \"max_tokens\": {tokens}, \"stream\": true, \"logit_bias\": {{\"2\": -100}}}}"
    )
}

#[test]
fn a_model_is_served_until_the_system_asks_for_the_end() {
    let mut serving = ServerProcess::start(&["--alias", "story"]);
    assert!(serving.ask("GET /health HTTP/1.1", "").starts_with("HTTP/1.1 200 OK"));
    let answer = serving.ask(CHAT, &chat(4));
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    assert!(answer.contains("data: {") && answer.contains("data: [DONE]"), "{answer}");
    let foreign = "GET /v1/models HTTP/1.1\r\nOrigin: https://evil.example";
    assert!(serving.ask(foreign, "").starts_with("HTTP/1.1 403"));
    // A request in progress at shutdown is completed.
    let mut stream = serving.send(CHAT, &chat(200));
    let mut start = [0; 16];
    stream.read_exact(&mut start).unwrap();
    end(&serving.child);
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("data: [DONE]"), "{rest}");
    assert_eq!(serving.child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_second_request_to_end_is_obeyed_at_once() {
    let mut serving = ServerProcess::start(&["--alias", "story"]);
    let mut stream = serving.send(CHAT, &chat(900));
    let mut start = [0; 16];
    stream.read_exact(&mut start).unwrap();
    end(&serving.child);
    std::thread::sleep(Duration::from_millis(200));
    let asked = Instant::now();
    end(&serving.child);
    // The request may have completed before.
    assert!(matches!(serving.child.wait().unwrap().code(), Some(130 | 0)));
    assert!(asked.elapsed() < Duration::from_secs(20));
}

fn end(child: &Child) {
    signal(child, rustix::process::Signal::TERM);
}

fn signal(child: &Child, signal: rustix::process::Signal) {
    rustix::process::kill_process(rustix::process::Pid::from_child(child), signal).unwrap();
}

#[cfg(target_os = "linux")]
#[test]
fn a_terminal_that_closes_ends_the_server_after_its_answers() {
    let mut serving = ServerProcess::start(&["--alias", "story"]);
    let mut stream = serving.send(CHAT, &chat(200));
    let mut start = [0; 16];
    stream.read_exact(&mut start).unwrap();
    for _ in 0..2 {
        signal(&serving.child, rustix::process::Signal::HUP);
        std::thread::sleep(Duration::from_millis(50));
    }
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("data: [DONE]"), "{rest}");
    if ignores_hang_up() {
        // The server inherited that from `nohup`, so it continues.
        assert!(serving.ask("GET /health HTTP/1.1", "").starts_with("HTTP/1.1 200"));
        end(&serving.child);
    }
    assert_eq!(serving.child.wait().unwrap().code(), Some(0));
}

/// Returns whether this process ignores SIGHUP, the first signal.
#[cfg(target_os = "linux")]
fn ignores_hang_up() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    u64::from_str_radix(ignored.trim(), 16).unwrap() & 1 != 0
}

#[test]
fn keys_come_from_a_file() {
    let keys = scratch().join("serve-keys");
    std::fs::write(&keys, "sk-one\nsk-two\n").unwrap();
    let serving = ServerProcess::start(&["--api-key-file", keys.to_str().unwrap()]);
    assert!(serving.ask("GET /v1/models HTTP/1.1", "").starts_with("HTTP/1.1 401"));
    assert!(serving.ask("GET /health HTTP/1.1", "").starts_with("HTTP/1.1 200"));
    let answer = serving.ask("GET /v1/models HTTP/1.1\r\nAuthorization: Bearer sk-two", "");
    assert!(answer.contains("nestling-storyteller"), "{answer}");
}

#[test]
fn what_would_be_open_to_all_is_refused() {
    let serve = |options: &[&str]| run(&[&["serve", "-m", bundled()], options].concat());
    serve(&["--host", "0.0.0.0"]).fails(2, "without keys", "--api-key-file");
    let empty = scratch().join("serve-no-keys");
    std::fs::write(&empty, "\n").unwrap();
    let empty = empty.to_str().unwrap();
    serve(&["--api-key-file", empty]).fails(1, "list of keys is empty", "one key a line");
    serve(&["--api-key-file", "/nothing/there"]).fails(1, "cannot read", "spelling");
    let pipe = scratch().join("serve-pipe");
    let _ = std::fs::remove_file(&pipe);
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let refused = serve(&["--api-key-file", pipe.to_str().unwrap()]);
    assert!(
        refused.code == Some(1) && refused.err.contains("not a regular file"),
        "{}",
        refused.err
    );
    let wrong = serve(&["--cors-origin", "*"]);
    assert_eq!(wrong.code, Some(2), "{}", wrong.err);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    serve(&["--port", &port]).fails(1, "cannot listen", "--port");
}

#[test]
fn the_models_of_a_folder_are_opened_by_name() {
    let folder = tempfile::tempdir_in(scratch()).unwrap();
    std::fs::copy(bundled(), folder.path().join("story.nest")).unwrap();
    let tiny = super::crate_path("../../engine/runtime/tests/data/gguf/qwen3-moe.gguf");
    std::fs::copy(tiny, folder.path().join("tiny.gguf")).unwrap();
    std::fs::write(folder.path().join("broken.nest"), "no store").unwrap();
    let models = folder.path().to_str().unwrap();
    let mut serving = ServerProcess::with(&["--models", models, "--keep-alive", "1s"]);
    let listed = |name: &str, state: &str| {
        let answer = serving.ask("GET /v1/models HTTP/1.1", "");
        let models =
            answer.split("\"id\":").find(|model| model.starts_with(&format!("\"{name}\"")));
        models.unwrap_or_default().contains(&format!("\"value\":\"{state}\""))
    };
    assert!(listed("story", "unloaded") && listed("tiny", "unloaded"));
    let answer = serving.ask(CHAT, &chat(4));
    assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.contains("data: [DONE]"), "{answer}");
    assert!(listed("story", "loaded"));
    let completion = "POST /v1/completions HTTP/1.1";
    let body = "{\"model\": \"tiny\", \"prompt\": [1, 2, 3], \"max_tokens\": 2}";
    let answer = serving.ask(completion, body);
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    // A model that cannot be opened fails its request, not the server. Requests cannot name paths.
    let answer = serving.ask(completion, &body.replace("tiny", "broken"));
    assert!(answer.starts_with("HTTP/1.1 500") && answer.contains("model_not_opened"), "{answer}");
    let answer = serving.ask(completion, &body.replace("tiny", bundled()));
    assert!(answer.starts_with("HTTP/1.1 404") && answer.contains("model_not_found"), "{answer}");
    let end_of_wait = Instant::now() + Duration::from_secs(120);
    while !(listed("story", "unloaded") && listed("tiny", "unloaded")) {
        assert!(Instant::now() < end_of_wait, "models stay open");
        std::thread::sleep(Duration::from_millis(50));
    }
    end(&serving.child);
    assert_eq!(serving.child.wait().unwrap().code(), Some(0));
}

#[test]
fn one_model_and_several_exclude_each_other() {
    let folder = scratch().to_str().unwrap();
    let both = run(&["serve", "-m", bundled(), "--models", folder]);
    assert_eq!(both.code, Some(2), "{}", both.err);
    run(&["serve", "--models", folder, "--alias", "x", "--port", "0"]).fails(
        2,
        "--alias names one model",
        "omit --alias",
    );
    run(&["serve", "--models", "/nothing/there", "--port", "0"]).fails(
        1,
        "cannot read",
        "spelling",
    );
    assert_eq!(run(&["serve", "--cached", "--keep-alive", "soon"]).code, Some(2));
}

#[test]
fn a_model_whose_file_was_touched_is_served_again() {
    let folder = tempfile::tempdir_in(scratch()).unwrap();
    let file = folder.path().join("story.nest");
    std::fs::copy(bundled(), &file).unwrap();
    let options = ["-m", file.to_str().unwrap(), "--load-mode", "mmap", "--alias", "story"];
    let serving = ServerProcess::with(&options);
    assert!(serving.ask(CHAT, &chat(4)).contains("data: [DONE]"));
    let open = std::fs::File::options().write(true).open(&file).unwrap();
    open.set_modified(std::time::SystemTime::now() + Duration::from_secs(5)).unwrap();
    let failed = serving.ask(CHAT, &chat(4));
    assert!(failed.contains("story.nest: changed while it was open"), "{failed}");
    assert!(!failed.contains(folder.path().to_str().unwrap()), "{failed}");
    let answer = serving.ask(CHAT, &chat(4));
    assert!(answer.contains("data: [DONE]") && !answer.contains("\"error\""), "{answer}");
    assert!(serving.ask("GET /health HTTP/1.1", "").starts_with("HTTP/1.1 200 OK"));
}

#[test]
fn processes_under_mpi_serve_one_model() {
    run(&["serve", "--models", ".", "--ranks", "mpi"]).fails(2, "open one model", "-m");
}
