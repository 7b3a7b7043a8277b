//! A server in this process, and a client for it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::Deref;
use std::sync::LazyLock;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mlx_infer::serve::{PoolOptions, PooledModel, ServeOptions, Server, Stopper};
use mlx_infer::{BackEnd, LoadedModel, Result};
use serde_json::Value;

/// A client of the server at an address.
#[derive(Clone, Copy, Debug)]
pub struct Client {
    pub address: SocketAddr,
}

/// A server of the built-in model.
pub struct TestServer {
    pub client: Client,
    stopper: Stopper,
    thread: Option<JoinHandle<Result<()>>>,
}

/// A server that most tests share.
pub static SERVER: LazyLock<TestServer> = LazyLock::new(|| TestServer::start(|_| ()));

/// A response, read to its end.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    /// The data of each event; the last one, `[DONE]`, is checked and left out.
    pub fn chunks(&self) -> Vec<Value> {
        let mut data: Vec<&str> = (self.body.lines())
            .filter_map(|line| line.strip_prefix("data: "))
            .collect();
        assert_eq!(data.pop(), Some("[DONE]"), "{}", self.body);
        data.iter().map(|text| parsed(text)).collect()
    }

    /// Name and data of each event.
    pub fn events(&self) -> Vec<(String, Value)> {
        let events = self.body.split("\n\n").filter(|event| !event.is_empty());
        let event = |event: &str| {
            let (name, data) = event.split_once('\n').unwrap();
            let name = name.strip_prefix("event: ").unwrap();
            (
                name.to_owned(),
                parsed(data.strip_prefix("data: ").unwrap()),
            )
        };
        events.map(event).collect()
    }
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

impl Client {
    pub fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[], "")
    }

    pub fn post(&self, path: &str, body: &Value) -> Answer {
        let headers = [("Content-Type", "application/json")];
        self.send("POST", path, &headers, &body.to_string())
    }

    /// The answer to a request that succeeds.
    pub fn ok(&self, path: &str, body: &Value) -> Value {
        let answer = self.post(path, body);
        assert_eq!(answer.status, 200, "{body}: {}", answer.body);
        answer.json()
    }

    /// Sends a request of these bytes and reads the answer until the server closes the connection.
    pub fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let mut stream = self.open(method, path, headers, body);
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        answer(&bytes)
    }

    /// Sends these bytes as they are and reads the answer until the server closes the connection.
    pub fn raw(&self, text: &str) -> Answer {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.write_all(text.as_bytes()).unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        answer(&bytes)
    }

    /// Sends a request and leaves the answer to the caller.
    pub fn open(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> BufReader<TcpStream> {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        let mut text = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n");
        if headers.iter().all(|(name, _)| *name != "Host") {
            text += "Host: localhost\r\n";
        }
        for (name, value) in headers {
            text += &format!("{name}: {value}\r\n");
        }
        text += &format!("Content-Length: {}\r\n\r\n", body.len());
        stream.write_all(text.as_bytes()).unwrap();
        // A server that refuses a request by its head may close the connection before the body is
        // written.
        let _ = stream.write_all(body.as_bytes());
        BufReader::new(stream)
    }
}

impl Deref for TestServer {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl TestServer {
    pub fn start(change: impl FnOnce(&mut ServeOptions)) -> Self {
        Self::of(LoadedModel::load_default, change)
    }

    /// A server of another model.
    pub fn of<M: Into<BackEnd>>(
        load: impl FnOnce() -> Result<M> + Send + 'static,
        change: impl FnOnce(&mut ServeOptions),
    ) -> Self {
        Self::running(change, move |server| server.run(load))
    }

    /// A server of several models.
    pub fn pool(
        models: Vec<PooledModel>,
        pool: PoolOptions,
        change: impl FnOnce(&mut ServeOptions),
    ) -> Self {
        Self::running(change, move |server| server.run_pool(models, pool, |_| ()))
    }

    fn running(
        change: impl FnOnce(&mut ServeOptions),
        run: impl FnOnce(Server) -> Result<()> + Send + 'static,
    ) -> Self {
        let mut options = ServeOptions {
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            names: vec!["tiny".to_owned(), "org/tiny".to_owned()],
            log: false,
            ..Default::default()
        };
        change(&mut options);
        let server = Server::bind(options).unwrap();
        let (address, stopper) = (server.address(), server.stopper());
        let thread = std::thread::spawn(move || run(server));
        let server = Self {
            client: Client { address },
            stopper,
            thread: Some(thread),
        };
        server.until(|| server.get("/ready").status == 200);
        server
    }

    /// Waits until the condition holds.
    pub fn until(&self, mut is_so: impl FnMut() -> bool) {
        let start = Instant::now();
        while !is_so() {
            assert!(
                start.elapsed() < Duration::from_secs(60),
                "it takes too long"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The value of a metric, summed over its labels.
    pub fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics").body;
        let lines = text.lines().filter(|line| {
            let rest = line.strip_prefix(name);
            rest.is_some_and(|rest| rest.starts_with('{'))
        });
        let value = |line: &str| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap();
        lines.map(value).sum()
    }

    pub fn stop(&self) {
        self.stopper.stop();
    }

    /// Waits for the end of a server that was stopped.
    pub fn join(mut self) -> Result<()> {
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.stopper.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

pub fn answer(bytes: &[u8]) -> Answer {
    let mut reader = BufReader::new(bytes);
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    let status = line
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok());
    let status = status.unwrap_or_else(|| panic!("no status in {line:?}"));
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        match line.trim_end().split_once(": ") {
            Some((name, value)) => headers.push((name.to_owned(), value.to_owned())),
            None => break,
        }
    }
    let mut rest = Vec::new();
    reader.read_to_end(&mut rest).unwrap();
    let is_chunked = headers.contains(&("transfer-encoding".to_owned(), "chunked".to_owned()));
    let body = if is_chunked { unchunked(&rest) } else { rest };
    Answer {
        status,
        headers,
        body: String::from_utf8(body).unwrap(),
    }
}

fn unchunked(mut rest: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    while let Some(end) = rest.windows(2).position(|window| window == b"\r\n") {
        let size = str::from_utf8(&rest[..end]).unwrap();
        let size = usize::from_str_radix(size, 16).unwrap();
        body.extend_from_slice(&rest[end + 2..end + 2 + size]);
        rest = &rest[end + 4 + size..];
    }
    body
}

/// Reads a stream to its first event.
pub fn at_first_event(mut stream: BufReader<TcpStream>) -> BufReader<TcpStream> {
    let mut line = String::new();
    while !line.starts_with("data:") {
        line.clear();
        assert!(stream.read_line(&mut line).unwrap() > 0, "the stream ended");
    }
    stream
}
