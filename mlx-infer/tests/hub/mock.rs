//! A mock hub on the loopback interface with two listeners: one is the hub, the other serves the bytes of large files.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sha1::Sha1;
use sha2::{Digest, Sha256};

pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A request as it arrived.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Whether it arrived at the listener that serves bytes.
    pub at_bytes: bool,
    /// Whether it had the form of a request to a proxy.
    pub proxied: bool,
    pub method: String,
    pub path: String,
    pub headers: BTreeMap<String, String>,
    /// The number of earlier requests with the same method and path.
    pub nth: usize,
}

impl Seen {
    pub fn is(&self, method: &str, end: &str) -> bool {
        self.method == method && self.path.ends_with(end)
    }

    /// The first byte that is requested.
    pub fn from(&self) -> usize {
        let range = self.headers.get("range");
        let range = range.and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-'));
        range.map_or(0, |from| from.parse().unwrap())
    }
}

/// An answer.
#[derive(Clone, Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(&'static str, String)>,
    pub body: Vec<u8>,
    /// How long the connection stays open without a byte after the body.
    pub stall: Duration,
}

impl Reply {
    pub fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        let (body, stall) = (body.into(), Duration::ZERO);
        Self {
            status,
            headers: Vec::new(),
            body,
            stall,
        }
    }

    pub fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }
}

type Script = Box<dyn Fn(&Seen) -> Option<Reply> + Send + Sync>;

struct State {
    files: BTreeMap<String, Vec<u8>>,
    script: Script,
    log: Mutex<Vec<Seen>>,
    bytes_url: String,
}

pub struct Mock {
    pub url: String,
    state: Arc<State>,
}

/// The tag of a file: SHA-256 for weights, git's SHA-1 for others.
pub fn etag(name: &str, bytes: &[u8]) -> String {
    let hex = |digest: &[u8]| digest.iter().map(|b| format!("{b:02x}")).collect();
    if name.ends_with(".safetensors") {
        return hex(&Sha256::digest(bytes));
    }
    let mut hash = Sha1::new_with_prefix(format!("blob {}\0", bytes.len()));
    hash.update(bytes);
    hex(&hash.finalize())
}

/// Bytes without a pattern.
pub fn noise(n: usize) -> Vec<u8> {
    (0..n as u64)
        .map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 37) as u8)
        .collect()
}

impl Mock {
    /// A hub with the model org/name.
    pub fn new(files: &[(&str, &[u8])]) -> Self {
        Self::scripted(files, |_| None)
    }

    /// A hub that answers from a script, and for requests that the script leaves out like an
    /// ordinary hub.
    pub fn scripted(
        files: &[(&str, &[u8])],
        script: impl Fn(&Seen) -> Option<Reply> + Send + Sync + 'static,
    ) -> Self {
        let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let urls = [0, 1].map(|i| format!("http://{}", listeners[i].local_addr().unwrap()));
        let [url, bytes_url] = urls;
        let files = files
            .iter()
            .map(|(name, bytes)| ((*name).to_owned(), bytes.to_vec()));
        let state = Arc::new(State {
            files: files.collect(),
            script: Box::new(script),
            log: Mutex::default(),
            bytes_url,
        });
        for (at_bytes, listener) in [false, true].into_iter().zip(listeners) {
            let state = Arc::clone(&state);
            std::thread::spawn(move || {
                for stream in listener.incoming() {
                    let state = Arc::clone(&state);
                    std::thread::spawn(move || state.serve(stream.unwrap(), at_bytes));
                }
            });
        }
        Self { url, state }
    }

    /// The requests so far.
    pub fn log(&self) -> Vec<Seen> {
        self.state.log.lock().unwrap().clone()
    }

    /// The number of requests for the bytes of a file.
    pub fn fetches(&self, file: &str) -> usize {
        let bytes = |seen: &&Seen| seen.method == "GET" && seen.path == format!("/bytes/{file}");
        self.log().iter().filter(bytes).count()
    }
}

impl State {
    fn serve(&self, mut stream: TcpStream, at_bytes: bool) {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) == 0 {
            return;
        }
        let mut words = line.split_whitespace().map(str::to_owned);
        let (method, path) = (words.next().unwrap(), words.next().unwrap());
        // A proxy gets the whole address.
        let (proxied, path) = match path.strip_prefix("http://") {
            Some(rest) => (true, rest[rest.find('/').unwrap()..].to_owned()),
            None => (false, path),
        };
        let at_bytes = at_bytes || (proxied && path.starts_with("/bytes/"));
        let mut headers = BTreeMap::new();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            match line.trim().split_once(':') {
                Some((name, value)) => headers.insert(name.to_lowercase(), value.trim().to_owned()),
                None => break,
            };
        }
        let seen = {
            let mut log = self.log.lock().unwrap();
            let nth = log
                .iter()
                .filter(|seen| (&seen.method, &seen.path) == (&method, &path))
                .count();
            let seen = Seen {
                at_bytes,
                proxied,
                method,
                path,
                headers,
                nth,
            };
            log.push(seen.clone());
            seen
        };
        let reply = (self.script)(&seen).unwrap_or_else(|| self.answer(&seen));
        let mut head = format!("HTTP/1.1 {} Mock\r\nConnection: close\r\n", reply.status);
        for (name, value) in &reply.headers {
            head += &format!("{name}: {value}\r\n");
        }
        if !reply
            .headers
            .iter()
            .any(|(name, _)| *name == "Content-Length")
        {
            head += &format!("Content-Length: {}\r\n", reply.body.len());
        }
        head += "\r\n";
        // The client may have closed the connection.
        let _ = stream.write_all(head.as_bytes());
        if seen.method != "HEAD" {
            let _ = stream.write_all(&reply.body);
        }
        if !reply.stall.is_zero() {
            let _ = stream.set_read_timeout(Some(reply.stall));
            let _ = stream.read(&mut [0]);
        }
    }

    fn answer(&self, seen: &Seen) -> Reply {
        if seen.at_bytes {
            let file = seen.path.strip_prefix("/bytes/").unwrap();
            return part(&self.files[file], seen.from());
        }
        let path = seen.path.as_str();
        if path.starts_with("/api/models/org/name/revision/") {
            let siblings: Vec<_> = self
                .files
                .keys()
                .map(|name| serde_json::json!({"rfilename": name}))
                .collect();
            return Reply::new(
                200,
                serde_json::json!({"sha": COMMIT, "siblings": siblings}).to_string(),
            );
        }
        if let Some(file) = path.strip_prefix("/api/resolve-cache/") {
            let bytes = &self.files[file];
            return part(bytes, seen.from())
                .with("ETag", format!("\"{}\"", etag(file, bytes)))
                .with("X-Repo-Commit", COMMIT);
        }
        let file = path.strip_prefix("/org/name/resolve/").and_then(|rest| {
            let of_commit = rest.strip_prefix(COMMIT);
            of_commit
                .or_else(|| rest.strip_prefix("main"))?
                .strip_prefix('/')
        });
        let Some(bytes) = file.and_then(|file| self.files.get(file)) else {
            return Reply::new(404, "").with("X-Error-Code", "RepoNotFound");
        };
        let file = file.unwrap();
        if !file.ends_with(".safetensors") {
            return Reply::new(307, "").with("Location", format!("/api/resolve-cache/{file}"));
        }
        Reply::new(302, "")
            .with("Location", format!("{}/bytes/{file}", self.bytes_url))
            .with("X-Linked-Etag", format!("\"{}\"", etag(file, bytes)))
            .with("X-Linked-Size", bytes.len().to_string())
            .with("X-Repo-Commit", COMMIT)
    }
}

/// Bytes from an offset on.
pub fn part(bytes: &[u8], from: usize) -> Reply {
    if from == 0 {
        return Reply::new(200, bytes);
    }
    let range = format!("bytes {from}-{}/{}", bytes.len() - 1, bytes.len());
    Reply::new(206, &bytes[from..]).with("Content-Range", range)
}
