//! The server behind a socket, tested with a byte-level client.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use nestling_server::{ListenError, Listener};
use serde_json::{Value, json};

use crate::models::{NAME, server};
use crate::{CHAT, chat_with};

pub fn connect(listener: &Listener) -> TcpStream {
    let stream = TcpStream::connect(listener.address()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream
}

pub fn send(stream: &mut TcpStream, method: &str, path: &str, body: &str) {
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(head.as_bytes()).unwrap();
}

/// Returns the status and body of a response that is not chunked.
pub fn receive(stream: &mut TcpStream) -> (u16, String) {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    let status = line.split(' ').nth(1).unwrap().parse().unwrap();
    let mut length = 0;
    loop {
        line.clear();
        reader.read_line(&mut line).unwrap();
        let lower = line.to_ascii_lowercase();
        if let Some(value) = lower.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        if line.trim().is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    (status, String::from_utf8(body).unwrap())
}

pub fn status(listener: &Listener) -> Value {
    let mut stream = connect(listener);
    send(&mut stream, "GET", "/status", "");
    let (code, body) = receive(&mut stream);
    assert_eq!(code, 200, "{body}");
    serde_json::from_str(&body).unwrap()
}

pub fn wait_until(listener: &Listener, done: impl Fn(&Value) -> bool) -> Value {
    let end = Instant::now() + Duration::from_secs(120);
    loop {
        let now = status(listener);
        if done(&now) || Instant::now() > end {
            return now;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A client that does not know that a connection will be closed sends its next request into it.
#[test]
fn a_response_before_the_body_was_read_says_that_the_connection_closes() {
    let listener = Listener::start(&server(), "127.0.0.1", 0).unwrap();
    for (path, sent, closes) in [
        ("/api/delete", "", true),
        ("/api/delete", "{\"model\"", true),
        ("/nowhere", "", true),
        (CHAT, "{\"model\":1}", false),
    ] {
        let mut stream = connect(&listener);
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Content-Length: 11\r\n\r\n{sent}"
        );
        stream.write_all(head.as_bytes()).unwrap();
        let mut lines = BufReader::new(&mut stream).lines().map(|line| line.unwrap());
        let head: Vec<String> = lines.by_ref().take_while(|line| !line.is_empty()).collect();
        let says = head.iter().any(|line| line.eq_ignore_ascii_case("connection: close"));
        assert_eq!(says, closes, "{path} {sent}: {head:?}");
    }
}

#[test]
fn one_connection_serves_many_requests() {
    let listener = Listener::start(&server(), "127.0.0.1", 0).unwrap();
    let mut stream = connect(&listener);
    for _ in 0..3 {
        send(&mut stream, "POST", CHAT, &chat_with(&json!({ "max_tokens": 2 })).to_string());
        let (code, body) = receive(&mut stream);
        assert_eq!(code, 200, "{body}");
        let reply: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(reply["model"], NAME);
        send(&mut stream, "GET", "/nothing", "");
        assert_eq!(receive(&mut stream).0, 404);
    }
}

#[test]
fn bodies_may_wait_for_a_sign_and_come_in_chunks() {
    let listener = Listener::start(&server(), "127.0.0.1", 0).unwrap();
    let body = chat_with(&json!({ "max_tokens": 2 })).to_string();
    let head =
        format!("POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n");
    let mut stream = connect(&listener);
    write!(stream, "{head}Content-Length: {}\r\nExpect: 100-continue\r\n\r\n", body.len()).unwrap();
    let mut sign = [0; 25];
    stream.read_exact(&mut sign).unwrap();
    assert_eq!(&sign, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(body.as_bytes()).unwrap();
    let (code, whole) = receive(&mut stream);
    assert_eq!(code, 200, "{whole}");
    write!(stream, "{head}Transfer-Encoding: chunked\r\n\r\n").unwrap();
    for piece in body.as_bytes().chunks(7) {
        write!(stream, "{:x}\r\n", piece.len()).unwrap();
        stream.write_all(piece).unwrap();
        stream.write_all(b"\r\n").unwrap();
    }
    stream.write_all(b"0\r\n\r\n").unwrap();
    let (code, chunked) = receive(&mut stream);
    assert_eq!(code, 200, "{chunked}");
    let text = |reply: &str| {
        let reply: Value = serde_json::from_str(reply).unwrap();
        reply["choices"][0]["message"]["content"].clone()
    };
    assert_eq!(text(&whole), text(&chunked));
}

#[test]
fn heads_that_are_too_long_are_refused() {
    let listener = Listener::start(&server(), "127.0.0.1", 0).unwrap();
    let mut stream = connect(&listener);
    let long = "x".repeat(64 << 10);
    // The server may close the connection before the request is fully written.
    let _ = write!(stream, "GET /health HTTP/1.1\r\nHost: localhost\r\nX-Long: {long}\r\n\r\n");
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    assert!(answer.starts_with("HTTP/1.1 431") || answer.is_empty(), "{answer}");
    let mut stream = connect(&listener);
    send(&mut stream, "GET", "/health", "");
    assert_eq!(receive(&mut stream).0, 200);
}

#[test]
fn a_client_that_goes_away_frees_the_model_and_loses_nothing() {
    let listener = Listener::start(&server(), "127.0.0.1", 0).unwrap();
    let long = json!({ "max_tokens": 900, "stream": true, "logit_bias": { "2": -100 } });
    let mut stream = connect(&listener);
    send(&mut stream, "POST", CHAT, &chat_with(&long).to_string());
    // The second delta shows that the prompt has been computed.
    let mut lines = BufReader::new(&stream).lines().map(Result::unwrap);
    assert!(lines.by_ref().filter(|line| line.starts_with("data: ")).nth(1).is_some());
    drop(lines);
    let idle_before = status(&listener)["idle_sessions"].as_u64().unwrap();
    drop(stream);
    let after = wait_until(&listener, |status| {
        status["requests_free"] == 256 && status["idle_sessions"].as_u64() > Some(idle_before)
    });
    assert_eq!(after["requests_free"], 256, "{after}");
    assert_eq!(after["idle_sessions"], idle_before + 1);
    let mut stream = connect(&listener);
    send(&mut stream, "POST", CHAT, &chat_with(&json!({ "max_tokens": 1 })).to_string());
    let reply: Value = serde_json::from_str(&receive(&mut stream).1).unwrap();
    let usage = &reply["usage"];
    let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    // The last token is computed again, for its logits.
    assert_eq!(cached + 1, usage["prompt_tokens"].as_u64().unwrap());
}

#[test]
fn what_is_under_way_ends_before_the_server_does() {
    let listener = Listener::start(&server(), "127.0.0.1", 0).unwrap();
    let address = listener.address();
    let mut stream = connect(&listener);
    let request = chat_with(&json!({ "max_tokens": 60, "logit_bias": { "2": -100 } }));
    send(&mut stream, "POST", CHAT, &request.to_string());
    wait_until(&listener, |status| status["requests_free"] != 256);
    listener.stop();
    let (code, body) = receive(&mut stream);
    assert_eq!(code, 200, "{body}");
    let reply: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(reply["usage"]["completion_tokens"], 60);
    listener.end();
    assert!(TcpStream::connect(address).is_err(), "nobody listens any more");
}

#[test]
fn addresses_that_others_reach_need_keys() {
    let refused = Listener::start(&server(), "0.0.0.0", 0).unwrap_err();
    assert!(matches!(refused, ListenError::OpenToAll { .. }), "{refused}");
    let mut access = nestling_server::Access::default();
    access.add_keys("sk-one").unwrap();
    let listener = Listener::start(&crate::models::server_with(access), "0.0.0.0", 0).unwrap();
    assert!(listener.address().port() > 0);
    let taken = Listener::start(&server(), "127.0.0.1", listener.address().port());
    assert!(matches!(taken, Err(ListenError::Address { .. })));
}
