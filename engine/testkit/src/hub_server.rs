//! Mock of the Hugging Face Hub on 127.0.0.1, with listings, redirects like those of the real Hub, ranges,
//! and faults on demand. Large files are served by a second host; sending it a token fails the test.

use sha1::Sha1;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Bytes sent after a file's end by [`HubFault::Endless`].
const ENDLESS: usize = 64 << 20;

/// Faulty behaviour of the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HubFault {
    #[default]
    Sound,
    /// The server reads the request for the listing but never answers.
    SilentListing,
    /// The listing never ends, at a moderate speed.
    EndlessListing,
    /// The server reads the request for a large file but never answers.
    SilentFile,
    /// A large file arrives byte by byte, with pauses.
    Trickle,
    /// A large file has extra bytes after its end.
    Endless,
    /// A large file redirects to itself.
    Loop,
    /// A large file redirects without a location.
    Nowhere,
    /// The listing is compressed although the request does not allow that.
    Compressed,
    /// The connection closes after this number of bytes of a large file, for each request.
    Short(usize),
}

/// Faults to produce, and observed requests.
#[derive(Default)]
pub struct HubState {
    /// Closes the connection after this number of bytes of a file's body, if it has more. Each entry is used
    /// once, in order for each file.
    pub cuts: Vec<(String, usize)>,
    /// Offsets of bytes that are served with changes.
    pub flips: Vec<(String, usize)>,
    /// Required token.
    pub token: Option<String>,
    pub manner: HubFault,
    /// Value sent as the content name of each file and as the commit.
    pub names: Option<String>,
    /// Signature of the addresses on the second host, which accepts no other; `x` by default.
    pub signature: Option<String>,
    /// Text sent instead of the listing.
    pub listing: Option<String>,
    /// Requests to the second host that carried credentials.
    pub leaks: Vec<String>,
    /// `GET path range` of each request.
    pub requests: Vec<String>,
    /// Bytes of bodies sent.
    pub served: usize,
}

pub struct Standin {
    pub address: String,
    pub state: Arc<Mutex<HubState>>,
}

struct Repository {
    id: String,
    commit: String,
    files: BTreeMap<String, Vec<u8>>,
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the Hub's name of a file's content: SHA-256 for weights, the git hash for other files.
pub fn blob_name(name: &str, content: &[u8]) -> String {
    if is_large(name) { hex(&Sha256::digest(content)) } else { git_name(content) }
}

fn git_name(content: &[u8]) -> String {
    let hash = Sha1::new().chain_update(format!("blob {}\0", content.len()));
    hex(&hash.chain_update(content).finalize())
}

fn is_large(name: &str) -> bool {
    [".safetensors", ".gguf", ".nest"].iter().any(|ending| name.ends_with(ending))
}

impl Standin {
    /// Serves one repository until the process ends.
    pub fn start(id: &str, commit: &str, files: BTreeMap<String, Vec<u8>>) -> Self {
        let listen = || TcpListener::bind("127.0.0.1:0").unwrap();
        let (hub, cdn) = (listen(), listen());
        let address = format!("http://{}", hub.local_addr().unwrap());
        // Differs in host name and port.
        let second = format!("http://localhost:{}", cdn.local_addr().unwrap().port());
        let state = Arc::new(Mutex::new(HubState::default()));
        let repository = Arc::new(Repository { id: id.into(), commit: commit.into(), files });
        let served = (repository.clone(), state.clone());
        serve(hub, move |stream| answer(stream, &served.0, &served.1, &second));
        let served = (repository, state.clone());
        serve(cdn, move |stream| answer_second(stream, &served.0, &served.1));
        Self { address, state }
    }

    /// Returns the bytes sent since the last call.
    pub fn served(&self) -> usize {
        std::mem::take(&mut self.state.lock().unwrap().served)
    }

    pub fn requests(&self) -> Vec<String> {
        self.state.lock().unwrap().requests.clone()
    }
}

impl Drop for Standin {
    fn drop(&mut self) {
        let leaks = &self.state.lock().unwrap_or_else(|state| state.into_inner()).leaks;
        assert!(leaks.is_empty() || std::thread::panicking(), "another host was shown: {leaks:?}");
    }
}

/// Answers each connection on a separate thread.
fn serve(listener: TcpListener, answer: impl Fn(&TcpStream) + Send + Sync + 'static) {
    let answer = Arc::new(answer);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let answer = answer.clone();
            std::thread::spawn(move || answer(&stream));
        }
    });
}

/// Returns whether a request belongs to a download of the whole file, as opposed to its header: it requests
/// the length or the bytes up to the end.
fn is_for_keeping(request: &Request, content: &[u8]) -> bool {
    match request.range {
        None | Some((_, None) | (0, Some(0))) => true,
        Some((_, Some(end))) => end + 1 >= content.len(),
    }
}

struct Request {
    path: String,
    range: Option<(usize, Option<usize>)>,
    authorization: Option<String>,
    cookie: Option<String>,
}

fn read_request(stream: &TcpStream) -> Option<Request> {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let path = lines.next()?.split(' ').nth(1)?.to_owned();
    let mut request = Request { path, range: None, authorization: None, cookie: None };
    for line in lines.take_while(|line| !line.is_empty()) {
        let (name, value) = line.split_once(": ")?;
        match name.to_ascii_lowercase().as_str() {
            "range" => {
                let (start, end) = value.strip_prefix("bytes=")?.split_once('-')?;
                request.range = Some((start.parse().ok()?, end.parse().ok()));
            }
            "authorization" => request.authorization = Some(value.to_owned()),
            "cookie" => request.cookie = Some(value.to_owned()),
            _ => {}
        }
    }
    Some(request)
}

fn answer(stream: &TcpStream, repository: &Repository, state: &Mutex<HubState>, second: &str) {
    let Some(request) = read_request(stream) else { return };
    let range = request.range.map_or(String::new(), |range| format!(" {range:?}"));
    let (expected, manner, names, listed) = {
        let mut state = state.lock().unwrap();
        state.requests.push(format!("{}{range}", request.path));
        (state.token.clone(), state.manner, state.names.clone(), state.listing.clone())
    };
    if expected.is_some_and(|t| request.authorization != Some(format!("Bearer {t}"))) {
        return send(stream, "401 Unauthorized", &[], b"{\"error\":\"Invalid credentials\"}");
    }
    let Repository { id, commit, files } = repository;
    let path = request.path.split('?').next().unwrap().to_owned();
    let known = |file: &str| files.get_key_value(file);
    let resolve = format!("/{id}/resolve/");
    if path.starts_with(&format!("/api/models/{id}/revision/")) {
        if manner == HubFault::SilentListing {
            return be_silent();
        }
        if manner == HubFault::EndlessListing {
            return send_without_end(stream);
        }
        let listing = listed.unwrap_or_else(|| listing(repository));
        if manner == HubFault::Compressed {
            let body = gzip(listing.as_bytes());
            return send(stream, "200 OK", &[("Content-Encoding", "gzip".into())], &body);
        }
        state.lock().unwrap().served += listing.len();
        return send(stream, "200 OK", &[], listing.as_bytes());
    }
    if let Some(rest) = path.strip_prefix(&resolve) {
        let Some((name, content)) = rest.split_once('/').and_then(|(_, name)| known(name)) else {
            return send(stream, "404 Not Found", &[], b"Entry not found");
        };
        // Large files are on another host, small ones behind a relative redirect.
        let etag = names.clone().unwrap_or_else(|| format!("\"{}\"", blob_name(name, content)));
        let (status, key, target) = if is_large(name) {
            let target = format!("{second}/cdn/{name}?signature={}", signature(state));
            ("302 Found", "X-Linked-Etag", target)
        } else {
            let target = format!("/api/resolve-cache/models/{id}/{commit}/{name}");
            ("307 Temporary Redirect", "ETag", target)
        };
        let commit = names.unwrap_or_else(|| commit.clone());
        let mut headers = vec![(key, etag), ("X-Repo-Commit", commit)];
        match manner {
            HubFault::Nowhere if is_large(name) && is_for_keeping(&request, content) => {}
            HubFault::Loop if is_large(name) && is_for_keeping(&request, content) => {
                headers.push(("Location", request.path));
            }
            _ => headers.push(("Location", target)),
        }
        return send(stream, status, &headers, b"");
    }
    let cached = format!("/api/resolve-cache/models/{id}/{commit}/");
    match path.strip_prefix(&cached).and_then(known) {
        Some(file) => send_file(stream, &request, repository, file, state),
        None => send(stream, "404 Not Found", &[], b"Repository not found"),
    }
}

fn signature(state: &Mutex<HubState>) -> String {
    state.lock().unwrap().signature.clone().unwrap_or_else(|| "x".into())
}

/// Answers as the second host, which serves large files to anyone with the address.
fn answer_second(stream: &TcpStream, repository: &Repository, state: &Mutex<HubState>) {
    let Some(request) = read_request(stream) else { return };
    let range = request.range.map_or(String::new(), |range| format!(" {range:?}"));
    let credentials = request.authorization.as_ref().or(request.cookie.as_ref());
    let manner = {
        let mut state = state.lock().unwrap();
        state.requests.push(format!("{}{range}", request.path));
        if let Some(credentials) = credentials {
            state.leaks.push(format!("{credentials} for {}", request.path));
        }
        state.manner
    };
    if credentials.is_some() {
        return send(stream, "400 Bad Request", &[], b"Only one auth mechanism allowed");
    }
    let path = request.path.split('?').next().unwrap();
    let signed = format!("?signature={}", signature(state));
    let name = path.strip_prefix("/cdn/").filter(|_| request.path.ends_with(&signed));
    match name.and_then(|name| repository.files.get_key_value(name)) {
        Some((_, content))
            if manner == HubFault::SilentFile && is_for_keeping(&request, content) =>
        {
            be_silent();
        }
        Some(file) => send_file(stream, &request, repository, file, state),
        None => send(stream, "403 Forbidden", &[], b"Access denied"),
    }
}

/// Encodes bytes in the gzip format (RFC 1952), in uncompressed blocks.
fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];
    let blocks = bytes.chunks(0xffff);
    let last = blocks.len().saturating_sub(1);
    for (number, block) in blocks.enumerate() {
        let length = block.len() as u16;
        out.push(u8::from(number == last));
        out.extend(length.to_le_bytes());
        out.extend((!length).to_le_bytes());
        out.extend(block);
    }
    let step = |crc: u32| if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
    let crc =
        bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), |c, _| step(c)));
    out.extend((!crc).to_le_bytes());
    out.extend((bytes.len() as u32).to_le_bytes());
    out
}

fn send_without_end(mut stream: &TcpStream) {
    let spaces = [b' '; 128 << 10];
    let mut more = stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n");
    while more.is_ok() {
        std::thread::sleep(Duration::from_millis(50));
        more = stream.write_all(&spaces);
    }
}

/// Sleeps for longer than any client should wait.
fn be_silent() {
    std::thread::sleep(Duration::from_secs(600));
}

fn send_file(
    mut stream: &TcpStream,
    request: &Request,
    repository: &Repository,
    (name, content): (&String, &Vec<u8>),
    shared: &Mutex<HubState>,
) {
    let start = request.range.map_or(0, |(start, _)| start);
    if start >= content.len() {
        return send(stream, "416 Range Not Satisfiable", &[], b"");
    }
    let end = request.range.and_then(|(_, end)| end).map_or(content.len(), |end| end + 1);
    let mut body = content[start..end.min(content.len())].to_vec();
    let mut state = shared.lock().unwrap();
    for (_, at) in state.flips.iter().filter(|(file, _)| file == name) {
        if let Some(byte) = at.checked_sub(start).and_then(|at| body.get_mut(at)) {
            *byte ^= 1;
        }
    }
    let cut = state.cuts.iter().position(|(file, _)| file == name);
    let cut = cut.filter(|&at| state.cuts[at].1 < body.len() && body.len() > 1);
    let mut sent = cut.map_or(body.len(), |at| state.cuts.remove(at).1.min(body.len()));
    let is_faulty = is_large(name) && is_for_keeping(request, content);
    let manner = if is_faulty { state.manner } else { HubFault::Sound };
    if let HubFault::Short(bytes) = manner {
        sent = sent.min(bytes);
    }
    state.served += sent;
    let names = state.names.clone();
    drop(state);
    let head = format!(
        "HTTP/1.1 206 Partial Content\r\nContent-Length: {}\r\nContent-Range: bytes {start}-{}/{}\r\n\
         ETag: {}\r\nX-Repo-Commit: {}\r\nConnection: close\r\n\r\n",
        body.len() + if manner == HubFault::Endless { ENDLESS } else { 0 },
        start + body.len() - 1,
        content.len(),
        names.clone().unwrap_or_else(|| format!("\"{}\"", blob_name(name, content))),
        names.unwrap_or_else(|| repository.commit.clone()),
    );
    let _ = stream.write_all(head.as_bytes());
    if manner == HubFault::Trickle {
        let pause = || std::thread::sleep(Duration::from_millis(20));
        let one = |byte: &u8| stream.write_all(&[*byte]).map(|()| pause());
        let _ = body.iter().try_for_each(one);
        return;
    }
    let _ = stream.write_all(&body[..sent]);
    if manner == HubFault::Endless {
        let chunk = vec![0; 1 << 20];
        let sent = (0..ENDLESS >> 20).take_while(|_| stream.write_all(&chunk).is_ok()).count();
        shared.lock().unwrap().served += sent << 20;
    }
}

fn send(mut stream: &TcpStream, status: &str, headers: &[(&str, String)], body: &[u8]) {
    let mut head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n", body.len());
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    let _ = stream.write_all((head + "Connection: close\r\n\r\n").as_bytes());
    let _ = stream.write_all(body);
}

/// Returns the response to `/api/models/{id}/revision/{revision}?blobs=true`, with the relevant keys.
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
