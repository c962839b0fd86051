//! A small stand-in for the Hugging Face Hub on 127.0.0.1: listing, redirects as the real one gives
//! them, ranges, and faults on demand.

use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// What the server does wrong, and what it saw.
#[derive(Default)]
pub struct State {
    /// Close the connection after so many bytes of a file's body if it has more; each entry is used
    /// once, those of a file in their order.
    pub cuts: Vec<(String, usize)>,
    /// Bytes of files that are served changed.
    pub flips: Vec<(String, usize)>,
    /// Token that must be presented.
    pub token: Option<String>,
    /// `GET path range` of every request.
    pub requests: Vec<String>,
    /// Bytes of bodies that were sent.
    pub served: usize,
}

pub struct Standin {
    pub address: String,
    pub state: Arc<Mutex<State>>,
}

struct Repository {
    id: String,
    commit: String,
    files: BTreeMap<String, Vec<u8>>,
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The name the Hub gives a file's content: SHA-256 for weights, 40 digits for the rest.
pub fn blob_name(name: &str, content: &[u8]) -> String {
    let hash = hex(&Sha256::digest(content));
    if is_large(name) { hash } else { hash[..40].to_owned() }
}

fn is_large(name: &str) -> bool {
    [".safetensors", ".gguf", ".nest"].iter().any(|ending| name.ends_with(ending))
}

impl Standin {
    /// Serves one repository until the process ends.
    pub fn start(id: &str, commit: &str, files: BTreeMap<String, Vec<u8>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::new(Mutex::new(State::default()));
        let repository = Repository { id: id.into(), commit: commit.into(), files };
        let server = (Arc::new(repository), state.clone(), address.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (repository, state, address) = server.clone();
                std::thread::spawn(move || answer(&stream, &repository, &state, &address));
            }
        });
        Self { address, state }
    }

    /// Bytes that were sent since this was asked last.
    pub fn served(&self) -> usize {
        std::mem::take(&mut self.state.lock().unwrap().served)
    }

    pub fn requests(&self) -> Vec<String> {
        self.state.lock().unwrap().requests.clone()
    }
}

struct Request {
    path: String,
    range: Option<(usize, Option<usize>)>,
    authorization: Option<String>,
}

fn read_request(stream: &TcpStream) -> Option<Request> {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let path = lines.next()?.split(' ').nth(1)?.to_owned();
    let mut request = Request { path, range: None, authorization: None };
    for line in lines.take_while(|line| !line.is_empty()) {
        let (name, value) = line.split_once(": ")?;
        match name.to_ascii_lowercase().as_str() {
            "range" => {
                let (start, end) = value.strip_prefix("bytes=")?.split_once('-')?;
                request.range = Some((start.parse().ok()?, end.parse().ok()));
            }
            "authorization" => request.authorization = Some(value.to_owned()),
            _ => {}
        }
    }
    Some(request)
}

fn answer(stream: &TcpStream, repository: &Repository, state: &Mutex<State>, address: &str) {
    let Some(request) = read_request(stream) else { return };
    let range = request.range.map_or(String::new(), |range| format!(" {range:?}"));
    let expected = {
        let mut state = state.lock().unwrap();
        state.requests.push(format!("{}{range}", request.path));
        state.token.clone()
    };
    if expected.is_some_and(|t| request.authorization != Some(format!("Bearer {t}"))) {
        return send(stream, "401 Unauthorized", &[], b"{\"error\":\"Invalid credentials\"}");
    }
    let Repository { id, commit, files } = repository;
    let path = request.path.split('?').next().unwrap().to_owned();
    let known = |file: &str| files.get_key_value(file);
    let resolve = format!("/{id}/resolve/");
    if path.starts_with(&format!("/api/models/{id}/revision/")) {
        let listing = listing(repository);
        state.lock().unwrap().served += listing.len();
        return send(stream, "200 OK", &[], listing.as_bytes());
    }
    if let Some(rest) = path.strip_prefix(&resolve) {
        let Some((name, content)) = rest.split_once('/').and_then(|(_, name)| known(name)) else {
            return send(stream, "404 Not Found", &[], b"Entry not found");
        };
        // Large files lie on another host, small ones behind a relative redirect.
        let etag = format!("\"{}\"", blob_name(name, content));
        let (status, key, target) = if is_large(name) {
            ("302 Found", "X-Linked-Etag", format!("{address}/cdn/{name}?signature=x"))
        } else {
            let target = format!("/api/resolve-cache/models/{id}/{commit}/{name}");
            ("307 Temporary Redirect", "ETag", target)
        };
        let headers = [("Location", target), (key, etag), ("X-Repo-Commit", commit.clone())];
        return send(stream, status, &headers, b"");
    }
    let cached = format!("/api/resolve-cache/models/{id}/{commit}/");
    let name = path.strip_prefix(&cached).or_else(|| path.strip_prefix("/cdn/"));
    match name.and_then(known) {
        Some((name, content)) => send_file(stream, &request, repository, (name, content), state),
        None => send(stream, "404 Not Found", &[], b"Repository not found"),
    }
}

fn send_file(
    mut stream: &TcpStream,
    request: &Request,
    repository: &Repository,
    (name, content): (&String, &Vec<u8>),
    state: &Mutex<State>,
) {
    let start = request.range.map_or(0, |(start, _)| start);
    if start >= content.len() {
        return send(stream, "416 Range Not Satisfiable", &[], b"");
    }
    let end = request.range.and_then(|(_, end)| end).map_or(content.len(), |end| end + 1);
    let mut body = content[start..end.min(content.len())].to_vec();
    let mut state = state.lock().unwrap();
    for (_, at) in state.flips.iter().filter(|(file, _)| file == name) {
        if let Some(byte) = at.checked_sub(start).and_then(|at| body.get_mut(at)) {
            *byte ^= 1;
        }
    }
    let cut = state.cuts.iter().position(|(file, _)| file == name);
    let cut = cut.filter(|&at| state.cuts[at].1 < body.len() && body.len() > 1);
    let sent = cut.map_or(body.len(), |at| state.cuts.remove(at).1.min(body.len()));
    state.served += sent;
    drop(state);
    let head = format!(
        "HTTP/1.1 206 Partial Content\r\nContent-Length: {}\r\nContent-Range: bytes {start}-{}/{}\r\n\
         ETag: \"{}\"\r\nX-Repo-Commit: {}\r\nConnection: close\r\n\r\n",
        body.len(),
        start + body.len() - 1,
        content.len(),
        blob_name(name, content),
        repository.commit,
    );
    let _ = stream.write_all(head.as_bytes());
    let _ = stream.write_all(&body[..sent]);
}

fn send(mut stream: &TcpStream, status: &str, headers: &[(&str, String)], body: &[u8]) {
    let mut head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n", body.len());
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    let _ = stream.write_all((head + "Connection: close\r\n\r\n").as_bytes());
    let _ = stream.write_all(body);
}

/// The answer to `/api/models/{id}/revision/{revision}?blobs=true`, with the keys that matter.
fn listing(repository: &Repository) -> String {
    let siblings = repository.files.iter().map(|(name, content)| {
        let (size, blob) = (content.len(), blob_name(name, content));
        let large = serde_json::json!({"sha256": blob, "size": size, "pointerSize": 135});
        let lfs = if is_large(name) { large } else { serde_json::Value::Null };
        serde_json::json!({"rfilename": name, "size": size, "blobId": &blob[..40], "lfs": lfs})
    });
    let siblings: Vec<_> = siblings.collect();
    serde_json::json!({
        "id": repository.id, "modelId": repository.id, "sha": repository.commit, "private": false,
        "gated": false, "library_name": "transformers", "siblings": siblings,
    })
    .to_string()
}
