//! Requests to a hub: redirects, and which servers get the token.

use std::fmt;
use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant};

use mlx_core::files;
use serde_json::Value;
use ureq::http::{HeaderMap, Method, Request, Response, Uri, header};
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Body};

use super::address::{Origin, encode, is_file_name, origin, redirect};
use super::fault::{Answer, Fault, Retries, passing};
use super::name::is_commit;
use super::proxy::PlainProxy;
use super::{Name, OnProgress};
use crate::error::{Error, ErrorKind, Result};
use crate::request::cancel::CancelToken;

/// The public hub, and the address to which mirrors redirect.
const HUBS: [&str; 2] = ["https://huggingface.co", "https://hf.co"];
const MAX_REDIRECTS: usize = 10;
/// How often a wait checks for cancellation.
const SLICE: Duration = Duration::from_millis(50);
/// Largest list of a model's files, and largest file of certificates.
const MAX_JSON_BYTES: u64 = 64 << 20;

/// A commit, and the names of its files.
pub(super) struct Revision {
    pub(super) commit: String,
    pub(super) files: Vec<String>,
}

/// A file of a hub.
pub(super) struct Remote {
    pub(super) name: String,
    pub(super) url: String,
    /// Its tag, which is its name in the cache.
    pub(super) etag: String,
    pub(super) bytes: u64,
}

/// The purpose of a request, which decides where a redirect may lead.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Purpose {
    /// An answer of the hub. A redirect to another host is refused.
    Json,
    /// Information about a file. The redirect to its bytes carries it.
    Head,
    /// The bytes of a file from an offset on. A redirect may lead to any host; other hosts do not get the token.
    Bytes(u64),
}

pub(super) struct Client {
    agent: Agent,
    plain_proxy: Option<PlainProxy>,
    pub(super) endpoint: String,
    hubs: Vec<Origin>,
    pub(super) token: Option<String>,
    pub(super) pause: Duration,
    cancel: CancelToken,
}

impl fmt::Debug for Client {
    /// Shows the client without its token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("endpoint", &self.endpoint)
            .finish_non_exhaustive()
    }
}

impl Client {
    pub(super) fn new(
        endpoint: &str,
        token: Option<String>,
        timeout: Duration,
        pause: Duration,
        certificates: Option<&Path>,
        cancel: CancelToken,
    ) -> Result<Self> {
        let endpoint = endpoint.trim_end_matches('/');
        let hub = |url: &str| url.parse::<Uri>().ok().and_then(|url| origin(&url));
        let own = hub(endpoint).filter(|_| !endpoint.contains(['?', '#'])).ok_or_else(|| {
            Error::argument(format!("the hub's address (HF_ENDPOINT) must begin with https:// or http:// and a host, given {endpoint:?}"))
        })?;
        let roots = certificates.map(read_certificates).transpose()?;
        let settings = || {
            let config = Agent::config_builder()
                .http_status_as_error(false)
                .max_redirects(0)
                .accept_encoding("identity")
                .user_agent(concat!("mlx-infer/", env!("CARGO_PKG_VERSION")))
                .timeout_connect(Some(timeout))
                .timeout_per_read(Some(timeout))
                .timeout_per_write(Some(timeout));
            match &roots {
                Some(roots) => {
                    config.tls_config(TlsConfig::builder().root_certs(roots.clone()).build())
                }
                None => config,
            }
        };
        Ok(Self {
            agent: settings().build().into(),
            plain_proxy: PlainProxy::from_env(settings().proxy(None).build()),
            endpoint: endpoint.to_owned(),
            hubs: HUBS.into_iter().filter_map(hub).chain([own]).collect(),
            token,
            pause,
            cancel,
        })
    }

    /// The commit and files of a revision. A failed request is retried if `patient`.
    pub(super) fn revision(
        &self,
        name: &Name,
        patient: bool,
        on_progress: &mut OnProgress<'_>,
    ) -> Answer<Revision> {
        let revision = encode(name.revision(), false);
        let url = format!(
            "{}/api/models/{}/revision/{revision}",
            self.endpoint,
            name.repo()
        );
        let json = self.patiently(patient, on_progress, || {
            let (response, _) = self.send(name, &url, Purpose::Json)?;
            let body = response
                .into_body()
                .into_with_config()
                .limit(MAX_JSON_BYTES);
            body.read_to_vec()
                .map_err(|error| self.unreachable(&url, &error))
        })?;
        let json: Value = serde_json::from_slice(&json)
            .map_err(|error| Error::format(format!("{url}: not valid json: {error}")))?;
        let commit = json["sha"].as_str().filter(|sha| is_commit(sha));
        let files = json["siblings"].as_array().map(|files| {
            let name = |file: &Value| file["rfilename"].as_str().map(str::to_owned);
            files.iter().filter_map(name).collect()
        });
        match (commit, files) {
            (Some(commit), Some(files)) => Ok(Revision {
                commit: commit.to_owned(),
                files,
            }),
            _ => Err(Error::format(format!(
                "{url}: no commit (sha) and files (siblings) in the answer"
            ))
            .into()),
        }
    }

    /// Tag and size of a file.
    pub(super) fn file(
        &self,
        name: &Name,
        commit: &str,
        file: &str,
        on_progress: &mut OnProgress<'_>,
    ) -> Result<Remote> {
        let url = format!(
            "{}/{}/resolve/{commit}/{}",
            self.endpoint,
            name.repo(),
            encode(file, true)
        );
        let headers = self.patiently(true, on_progress, || {
            self.send(name, &url, Purpose::Head)
                .map(|(_, headers)| headers)
        })?;
        let get = |key: &str| headers.get(key).and_then(|value| value.to_str().ok());
        let fail = |what: String| Error::format(format!("{url}: {what}"));
        let etag = get("x-linked-etag").or_else(|| get("etag"));
        let etag = etag.map(|etag| etag.trim_start_matches("W/").trim_matches('"'));
        let etag = etag.filter(|etag| is_file_name(etag)).ok_or_else(|| {
            fail(format!(
                "the answer has no tag (ETag) that can be a file's name, but {etag:?}"
            ))
        })?;
        let bytes = get("x-linked-size").or_else(|| get("content-length"));
        let bytes = bytes.and_then(|bytes| bytes.parse().ok());
        let bytes = bytes.ok_or_else(|| fail("the answer does not tell the size".to_owned()))?;
        if let Some(other) = get("x-repo-commit").filter(|other| *other != commit) {
            return Err(fail(format!("the answer is of commit {other:?}")));
        }
        Ok(Remote {
            name: file.to_owned(),
            url,
            etag: etag.to_owned(),
            bytes,
        })
    }

    /// The bytes of a file. They start at the offset only if the status is 206.
    pub(super) fn bytes(&self, remote: &Remote, from: u64) -> Answer<(Response<Body>, HeaderMap)> {
        self.send(&remote.name, &remote.url, Purpose::Bytes(from))
    }

    /// The error for a failure while a body is read.
    pub(super) fn unreachable(&self, url: &str, error: &dyn fmt::Display) -> Fault {
        let host = url
            .parse::<Uri>()
            .ok()
            .and_then(|url| url.authority().map(|host| host.to_string()));
        passing(format!(
            "cannot read from {}: {error}",
            host.as_deref().unwrap_or(url)
        ))
    }

    /// Sends a request and follows its redirects. Returns the headers of the last answer, with those about the file
    /// from earlier answers.
    fn send(
        &self,
        what: &dyn fmt::Display,
        url: &str,
        purpose: Purpose,
    ) -> Answer<(Response<Body>, HeaderMap)> {
        let mut facts = HeaderMap::new();
        let mut url: Uri = url
            .parse()
            .map_err(|error| Error::format(format!("{url}: {error}")))?;
        for _ in 0..=MAX_REDIRECTS {
            self.check_cancelled()?;
            let response = self.send_once(&url, purpose)?;
            let status = response.status();
            for (key, value) in response.headers() {
                let of_file = key.as_str().starts_with("x-linked-") || key == "x-repo-commit";
                if of_file || !status.is_redirection() || purpose != Purpose::Head {
                    facts.insert(key, value.clone());
                }
            }
            if status.is_success() {
                return Ok((response, facts));
            }
            let location = response.headers().get(header::LOCATION);
            let Some(location) = location.filter(|_| status.is_redirection()) else {
                return Err(self.refused(what, &url, &response, purpose));
            };
            let next = redirect(&url, location.to_str().unwrap_or_default()).ok_or_else(|| {
                Error::format(format!(
                    "{url}: redirects to {location:?}, which is no address"
                ))
            })?;
            if !self.is_hub(&next)
                && purpose == Purpose::Head
                && facts.contains_key("x-linked-etag")
            {
                return Ok((response, facts));
            }
            let falls = url.scheme_str() == Some("https") && next.scheme_str() != Some("https");
            if falls || (!self.is_hub(&next) && !matches!(purpose, Purpose::Bytes(_))) {
                let host = next.host().unwrap_or_default();
                let why = if falls {
                    "without TLS"
                } else {
                    "which is not the hub"
                };
                let message = format!("{what}: {url} redirects to {host}, {why}; not followed");
                return Err(Error::new(ErrorKind::Network, message).into());
            }
            url = next;
        }
        let message = format!("{what}: more than {MAX_REDIRECTS} redirects, the last to {url}");
        Err(Error::new(ErrorKind::Network, message).into())
    }

    fn send_once(&self, url: &Uri, purpose: Purpose) -> Answer<Response<Body>> {
        let method = if purpose == Purpose::Head {
            Method::HEAD
        } else {
            Method::GET
        };
        let proxy = self.plain_proxy.as_ref().filter(|proxy| proxy.serves(url));
        let mut request = Request::builder().method(method);
        request = match proxy.and_then(|proxy| Some((proxy, proxy.address(url)?))) {
            Some((proxy, address)) => {
                if let Some(value) = &proxy.authorization {
                    request = request.header(header::PROXY_AUTHORIZATION, value);
                }
                let host = url.authority().map_or("", |authority| authority.as_str());
                let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
                request.uri(address).header(header::HOST, host)
            }
            None => request.uri(url),
        };
        if let Some(token) = self.token.as_ref().filter(|_| self.is_hub(url)) {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        if let Purpose::Bytes(from @ 1..) = purpose {
            request = request.header(header::RANGE, format!("bytes={from}-"));
        }
        let request = request
            .body(())
            .map_err(|error| Error::format(format!("{url}: {error}")))?;
        let agent = proxy.map_or(&self.agent, PlainProxy::agent);
        agent.run(request).map_err(|error| {
            let through = match proxy {
                Some(proxy) => Some(proxy.name()),
                None => self.tunnel(url),
            };
            let error_text = match through {
                Some(proxy) => format!("through the proxy {proxy}: {error}"),
                None => error.to_string(),
            };
            let fault = self.unreachable(&url.to_string(), &error_text);
            let is_passing =
                !matches!(error, ureq::Error::Rustls(_) | ureq::Error::InvalidProxyUrl);
            Fault {
                is_passing,
                ..fault
            }
        })
    }

    /// The proxy that tunnels connections to an address, for messages.
    fn tunnel(&self, url: &Uri) -> Option<String> {
        let proxy = self.agent.config().proxy()?;
        (!proxy.is_no_proxy(url)).then(|| format!("{}:{}", proxy.host(), proxy.port()))
    }

    /// Whether an address belongs to the hub, which gets the token.
    pub(super) fn is_hub(&self, url: &Uri) -> bool {
        origin(url).is_some_and(|origin| self.hubs.contains(&origin))
    }

    fn patiently<T>(
        &self,
        patient: bool,
        on_progress: &mut OnProgress<'_>,
        mut attempt: impl FnMut() -> Answer<T>,
    ) -> Answer<T> {
        let mut retries = self.retries();
        loop {
            match attempt() {
                Err(fault) if patient => retries.after(fault, on_progress)?,
                done => return done,
            }
        }
    }

    /// The retries of one request.
    pub(super) fn retries(&self) -> Retries<'_> {
        Retries {
            client: self,
            done: 0,
        }
    }

    pub(super) fn check_cancelled(&self) -> Result<()> {
        match self.cancel.is_cancelled() {
            true => Err(Error::new(ErrorKind::Cancelled, "cancelled")),
            false => Ok(()),
        }
    }

    /// Waits, unless it is cancelled.
    pub(super) fn wait(&self, time: Duration) -> Result<()> {
        let end = Instant::now() + time;
        loop {
            self.check_cancelled()?;
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(SLICE));
        }
    }
}

fn read_certificates(path: &Path) -> Result<RootCerts> {
    let pem = files::read(path, MAX_JSON_BYTES)?;
    let mut found = Vec::new();
    for item in parse_pem(&pem) {
        let item = item.map_err(|error| {
            Error::format(format!("{} (SSL_CERT_FILE): {error}", path.display()))
        })?;
        if let PemItem::Certificate(certificate) = item {
            found.push(certificate);
        }
    }
    if found.is_empty() {
        let message = format!(
            "{} (SSL_CERT_FILE) has no certificate in PEM form",
            path.display()
        );
        return Err(Error::format(message));
    }
    Ok(found.into())
}

/// Reads until the buffer is full or the input ends. An interruption by a signal does not end it.
pub(super) fn fill(reader: &mut impl Read, buffer: &mut [u8]) -> std::io::Result<usize> {
    loop {
        match reader.read(buffer) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            read => return read,
        }
    }
}
