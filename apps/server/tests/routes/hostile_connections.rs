//! Slow, excessive or stalling clients, behind a socket with short time limits.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use nestling_server::limits::ConnectionLimits;
use nestling_server::{Listener, Server, ServerOptions};
use serde_json::{Value, json};

use crate::connections::{connect, receive, send, status, wait_until};
use crate::models::{NAME, open_bundled};
use crate::{CHAT, chat_with};

/// Short limit that is still longer than any well-behaved client here needs.
const SHORT: Duration = Duration::from_millis(400);

/// Upper bound that is below the server's default limits, so that only the short limit can have applied.
const SOON: Duration = Duration::from_secs(15);

fn listener(limits: ConnectionLimits) -> Listener {
    let options = ServerOptions { connections: limits, ..ServerOptions::default() };
    let server = Server::new(options);
    server.set_model(open_bundled(1 << 30), NAME);
    Listener::start(&server, "127.0.0.1", 0).unwrap()
}

/// Reads until the server closes the connection. Returns the text and the elapsed time.
fn rest(stream: &mut TcpStream) -> (String, Duration) {
    let (started, mut bytes) = (Instant::now(), Vec::new());
    if let Err(error) = stream.read_to_end(&mut bytes) {
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    }
    (String::from_utf8_lossy(&bytes).into_owned(), started.elapsed())
}

fn is_at_rest(status: &Value) -> bool {
    let held = ["running", "waiting", "promised"].map(|name| &status["pages"][name]);
    status["requests_free"] == 256
        && status["running"] == 0
        && status["waiting"] == 0
        && held.into_iter().all(|pages| *pages == 0)
}

#[test]
fn heads_that_do_not_come_end_the_connection() {
    let listener = listener(ConnectionLimits { head_time: SHORT, ..Default::default() });
    for beginning in ["", "GET /health HT", "GET /health HTTP/1.1\r\nHost: local"] {
        let mut stream = connect(&listener);
        stream.write_all(beginning.as_bytes()).unwrap();
        let (said, took) = rest(&mut stream);
        assert!(took < SOON && !said.contains("200 OK"), "{beginning:?}: {took:?} {said}");
    }
    // Single bytes do not extend the deadline.
    let mut stream = connect(&listener);
    let started = Instant::now();
    for byte in "GET /health HTTP/1.1\r\nHost: localhost\r\nX-Slow: ".bytes().cycle() {
        if stream.write_all(&[byte]).is_err() {
            break;
        }
        assert!(started.elapsed() < SOON, "a head that never ends");
        thread::sleep(SHORT / 10);
    }
    // An earlier request does not extend it either.
    let mut stream = connect(&listener);
    send(&mut stream, "GET", "/health", "");
    assert_eq!(receive(&mut stream).0, 200);
    assert!(rest(&mut stream).1 < SOON);
}

#[test]
fn bodies_that_do_not_come_are_answered_in_the_form_of_each_api() {
    let listener = listener(ConnectionLimits { body_time: SHORT, ..Default::default() });
    for path in [CHAT, "/v1/completions", "/v1/responses", "/v1/messages", "/api/chat"] {
        let mut stream = connect(&listener);
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Content-Length: 1000\r\n\r\n{{\"model\""
        );
        stream.write_all(head.as_bytes()).unwrap();
        let (code, body) = receive(&mut stream);
        let error: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(code, 408, "{path}: {body}");
        let message = match path {
            "/api/chat" => &error["error"],
            _ => &error["error"]["message"],
        };
        assert!(message.as_str().unwrap().contains("0.4 s"), "{path}: {body}");
        assert!(rest(&mut stream).1 < SOON, "{path}: still open");
    }
}

#[test]
fn a_reader_that_takes_nothing_has_its_answer_stopped() {
    let listener = listener(ConnectionLimits { write_time: SHORT, ..Default::default() });
    let mut stream = connect(&listener);
    // Far more than the socket buffers hold.
    let loud = json!({
        "max_tokens": 900, "stream": true, "n": 8, "logprobs": true, "top_logprobs": 20,
        "logit_bias": { "2": -100 },
    });
    send(&mut stream, "POST", CHAT, &chat_with(&loud).to_string());
    let busy = wait_until(&listener, |status| status["requests_free"] != 256);
    assert_eq!(busy["requests_free"], 255, "{busy}");
    let after = wait_until(&listener, is_at_rest);
    assert!(is_at_rest(&after), "{after}");
    assert!(after["rows"].as_u64().unwrap() < 8 * 900, "it was computed to its end: {after}");
    let (said, took) = rest(&mut stream);
    assert!(took < SOON, "the answer went on for {took:?}");
    assert!(said.starts_with("HTTP/1.1 200"), "{}", &said[..said.len().min(200)]);
    assert!(!said.contains("[DONE]"), "an answer that was stopped does not look whole");
    // The next client gets a response.
    let mut stream = connect(&listener);
    send(&mut stream, "POST", CHAT, &chat_with(&json!({})).to_string());
    assert_eq!(receive(&mut stream).0, 200);
}

#[test]
fn requests_count_while_their_schemas_are_compiled() {
    let listener = listener(ConnectionLimits::default());
    let patterns = (1..=8).map(|n| json!({ "pattern": format!("^.*a.{{{n}}}b.*$") }));
    let schema = json!({ "type": "string", "allOf": patterns.collect::<Vec<_>>() });
    let named = json!({ "name": "slow", "schema": schema });
    let format = json!({ "type": "json_schema", "json_schema": named });
    let body = chat_with(&json!({ "response_format": format })).to_string();
    let post = |_| {
        let mut stream = connect(&listener);
        send(&mut stream, "POST", CHAT, &body);
        stream
    };
    let clients: Vec<TcpStream> = (0..12).map(post).collect();
    let busy = wait_until(&listener, |status| status["requests_free"] != 256);
    assert!(busy["requests_free"].as_u64().unwrap() < 256, "{busy}");
    drop(clients);
    let after = wait_until(&listener, is_at_rest);
    assert!(is_at_rest(&after), "{after}");
}

#[test]
fn a_connection_too_many_is_told_so_and_those_before_it_go_on() {
    let listener = listener(ConnectionLimits { count_max: 2, ..Default::default() });
    let (mut first, mut second) = (connect(&listener), connect(&listener));
    for stream in [&mut first, &mut second] {
        send(stream, "GET", "/health", "");
        assert_eq!(receive(stream).0, 200);
    }
    for _ in 0..3 {
        let mut third = connect(&listener);
        send(&mut third, "GET", "/health", "");
        third.shutdown(Shutdown::Write).unwrap();
        let (said, took) = rest(&mut third);
        assert!(said.starts_with("HTTP/1.1 503 ") && took < SOON, "{said}");
        let (head, body) = said.split_once("\r\n\r\n").unwrap();
        assert!(head.contains("\r\nRetry-After: 1\r\n"), "{head}");
        let error: Value = serde_json::from_str(body).unwrap();
        assert_eq!(error["error"]["code"], "busy");
    }
    for stream in [&mut first, &mut second] {
        send(stream, "POST", CHAT, &chat_with(&json!({ "max_tokens": 2 })).to_string());
        assert_eq!(receive(stream).0, 200);
    }
    drop(first);
    let end = Instant::now() + SOON;
    loop {
        let mut third = connect(&listener);
        send(&mut third, "GET", "/health", "");
        if receive(&mut third).0 == 200 {
            break;
        }
        assert!(Instant::now() < end, "its place is not free");
    }
}

#[test]
fn heads_with_too_many_lines_are_refused() {
    let listener = listener(ConnectionLimits::default());
    for (count, code) in [(98, "200"), (101, "431"), (2000, "431")] {
        let mut stream = connect(&listener);
        let lines: String = (0..count).map(|number| format!("X-{number}: 1\r\n")).collect();
        let head =
            format!("GET /health HTTP/1.1\r\nHost: localhost\r\n{lines}Connection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let (said, took) = rest(&mut stream);
        assert!(took < SOON);
        assert!(said.starts_with(&format!("HTTP/1.1 {code} ")), "{count} lines: {said}");
    }
}

#[test]
fn a_stream_under_way_ends_before_the_server_does_unless_it_takes_too_long() {
    let stream_of = |tokens: u64| {
        chat_with(&json!({ "max_tokens": tokens, "stream": true, "logit_bias": { "2": -100 } }))
    };
    let begun = |listener: &Listener, tokens: u64| {
        let mut stream = connect(listener);
        send(&mut stream, "POST", CHAT, &stream_of(tokens).to_string());
        let mut piece = [0; 512];
        assert!(stream.read(&mut piece).unwrap() > 0);
        stream
    };
    let patient = listener(ConnectionLimits::default());
    let mut stream = begun(&patient, 60);
    patient.stop();
    let (said, _) = rest(&mut stream);
    assert!(
        said.contains("\"finish_reason\":\"length\"") && said.contains("data: [DONE]"),
        "{said}"
    );
    patient.end();
    // A fast processor generates the answer in a third of a second.
    let drain_time = Duration::from_millis(20);
    let hasty = listener(ConnectionLimits { drain_time, ..Default::default() });
    let mut stream = begun(&hasty, 900);
    let started = Instant::now();
    hasty.end();
    assert!(started.elapsed() < SOON, "{:?}", started.elapsed());
    let (said, took) = rest(&mut stream);
    assert!(took < SOON && !said.contains("\"finish_reason\":\"length\""), "{said}");
    // The end of the runtime drops its tasks in any order: the answer is cut off or ends with this error.
    assert_eq!(said.contains("[DONE]"), said.contains("the server shut down before"), "{said}");
}

#[test]
fn whoever_leaves_while_the_prompt_is_computed_holds_nothing() {
    let listener = listener(ConnectionLimits::default());
    for _ in 0..8 {
        let mut stream = connect(&listener);
        let text = "a ship and a harbour ".repeat(120);
        let request = chat_with(&json!({ "messages": [{ "role": "user", "content": text }] }));
        send(&mut stream, "POST", CHAT, &request.to_string());
        thread::sleep(Duration::from_millis(20));
    }
    let after = wait_until(&listener, is_at_rest);
    assert!(is_at_rest(&after), "{after}");
    assert!(status(&listener)["idle_sessions"].as_u64().unwrap() <= 16);
}

#[test]
fn bodies_share_one_budget_and_release_it_once_they_are_parsed() {
    let limits = ConnectionLimits { bodies_bytes_max: 100_000, ..Default::default() };
    let listener = listener(limits);
    let head = |length: usize| {
        format!(
            "POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n\r\n"
        )
    };
    // Declared lengths reserve nothing of the budget.
    let mut declared: Vec<TcpStream> = (0..4).map(|_| connect(&listener)).collect();
    for stream in &mut declared {
        stream.write_all(head(80_000).as_bytes()).unwrap();
    }
    let body = chat_with(&json!({ "max_tokens": 1 })).to_string();
    let padded = format!("{body}{}", " ".repeat(95_000 - body.len()));
    let hold = || {
        let mut stream = connect(&listener);
        let part = format!("{}{}", head(padded.len()), &padded[..90_000]);
        stream.write_all(part.as_bytes()).unwrap();
        // The server must have read this part, since a large body read first would leave no budget for it.
        thread::sleep(Duration::from_millis(200));
        stream
    };
    let mut holder = hold();
    let large = || {
        let mut stream = connect(&listener);
        let padded = format!("{}{body}", " ".repeat(50_000));
        send(&mut stream, "POST", CHAT, &padded);
        let (mut head, mut line) = (String::new(), String::new());
        let mut reader = BufReader::new(&stream);
        while reader.read_line(&mut line).is_ok_and(|count| count > 2) {
            head += &std::mem::take(&mut line);
        }
        assert!(!head.contains(" 503 ") || head.contains("retry-after: 1"), "{head}");
        head
    };
    let end = Instant::now() + SOON;
    while !large().starts_with("HTTP/1.1 503") {
        assert!(Instant::now() < end, "the budget is not full");
        drop(holder);
        thread::sleep(Duration::from_millis(200));
        holder = hold();
    }
    // A small body still fits.
    let mut small = connect(&listener);
    send(&mut small, "POST", CHAT, &body);
    assert_eq!(receive(&mut small).0, 200);
    holder.write_all(&padded.as_bytes()[90_000..]).unwrap();
    assert_eq!(receive(&mut holder).0, 200);
    for _ in 0..5 {
        assert!(large().starts_with("HTTP/1.1 200"));
    }
}

#[test]
fn a_client_that_closes_its_sending_side_gets_its_answer() {
    let listener = listener(ConnectionLimits::default());
    for (method, path, body) in [
        ("GET", "/health", String::new()),
        ("POST", CHAT, chat_with(&json!({ "max_tokens": 20 })).to_string()),
        ("POST", CHAT, chat_with(&json!({ "max_tokens": 20, "stream": true })).to_string()),
    ] {
        let mut stream = connect(&listener);
        send(&mut stream, method, path, &body);
        stream.shutdown(Shutdown::Write).unwrap();
        let (said, took) = rest(&mut stream);
        assert!(said.starts_with("HTTP/1.1 200") && took < SOON, "{path}: {took:?} {said}");
        assert!(said.trim_end().ends_with(['}', '0']), "{path}: {said}");
    }
    // A client that has disconnected frees the model before its long generation is finished.
    let mut stream = connect(&listener);
    let long = json!({ "max_tokens": 900, "n": 8, "logit_bias": { "2": -100 } });
    send(&mut stream, "POST", CHAT, &chat_with(&long).to_string());
    wait_until(&listener, |status| status["requests_free"] != 256);
    drop(stream);
    let after = wait_until(&listener, is_at_rest);
    assert!(is_at_rest(&after), "{after}");
}

#[test]
fn a_refusal_reaches_a_client_that_is_still_sending() {
    let listener = listener(ConnectionLimits::default());
    for _ in 0..5 {
        let mut stream = connect(&listener);
        let body = vec![b' '; 12 << 20];
        let head = format!(
            "POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(&body).unwrap();
        assert_eq!(receive(&mut stream).0, 413);
    }
}

#[test]
fn encoded_bodies_are_refused() {
    let listener = listener(ConnectionLimits::default());
    for (header, code) in [
        ("Transfer-Encoding: gzip, chunked", 501),
        ("Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked", 501),
        ("Content-Length: 2\r\nContent-Encoding: gzip", 415),
        ("Content-Length: 2\r\nContent-Encoding: identity", 400),
        ("Transfer-Encoding: chunked", 400),
    ] {
        let mut stream = connect(&listener);
        let head = format!(
            "POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             {header}\r\n\r\n"
        );
        let body = if header.starts_with('T') { "2\r\n{}\r\n0\r\n\r\n" } else { "{}" };
        stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
        assert_eq!(receive(&mut stream).0, code, "{header}");
    }
}
