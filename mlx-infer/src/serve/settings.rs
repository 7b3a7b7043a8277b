//! The settings of the server.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::engine::EngineOptions;
use crate::error::{Error, Result};
use crate::request::json_options::RequestOptions;
use crate::serve::http::tls::TlsFiles;

/// The name that stands for the first model, unless a model has it.
pub(super) const DEFAULT: &str = "default";

/// The settings of the server.
#[derive(Clone, Debug, PartialEq)]
pub struct ServeOptions {
    /// The address to listen at; port 0 takes a free one.
    pub address: SocketAddr,
    /// The path of a unix socket to listen at, instead of the address.
    pub unix_socket: Option<PathBuf>,
    /// The files of a certificate, with which connections are encrypted (TLS 1.2 and 1.3).
    pub tls: Option<TlsFiles>,
    /// The folder of files and batches. Without one, their routes are not there.
    pub batch_dir: Option<PathBuf>,
    /// The folder in which adapters are that clients load and unload. Without one, requests to do so are refused.
    pub adapters_dir: Option<PathBuf>,
    /// The beginning of all paths, as in `/llm`; empty for none.
    pub path_prefix: String,
    /// The names that requests may give for the model; answers contain the first.
    pub names: Vec<String>,
    /// Keys, one of which a request must have. Without keys every request is answered.
    pub keys: Vec<String>,
    /// Allow an address that other machines can reach although there is no key.
    pub insecure: bool,
    /// Origins of web pages that may send requests (`https://example.org`); `*` allows all.
    pub cors_origins: Vec<String>,
    /// Refuse requests with unknown keys, instead of listing the keys in a header.
    pub strict: bool,
    /// Most tokens of an answer if the request gives no number.
    pub max_output: usize,
    /// Most tokens of reasoning of an answer whose request gives no number. `None` for no limit; a
    /// model without marks of reasoning refuses a limit when it is loaded.
    pub reasoning_budget: Option<usize>,
    /// Most concurrent requests with one key.
    pub key_requests: Option<usize>,
    /// Options for parameters that a request does not give. They take precedence over the
    /// checkpoint's generation_config.json.
    pub defaults: RequestOptions,
    /// How long requests in progress may continue after the server was told to end.
    pub drain: Duration,
    /// How long the head of a request and its body may each take to arrive, and how long a client
    /// may read no byte of its answer. An idle connection is closed after this time.
    pub client_timeout: Duration,
    /// A stream without an event for this long gets a comment, so that no proxy closes its
    /// connection as idle.
    pub ping: Duration,
    /// The options of the engine.
    pub engine: EngineOptions,
    /// Write a line to stderr for each request.
    pub log: bool,
    /// Write these lines as JSON objects.
    pub json_log: bool,
    /// The address of an OpenTelemetry collector that gets the traces of requests (OTLP over HTTP),
    /// such as `http://localhost:4318`. Needs the feature `otel`.
    #[cfg(feature = "otel")]
    pub otlp_endpoint: Option<String>,
}

impl Default for ServeOptions {
    /// Port 8080, reachable from this machine only.
    fn default() -> Self {
        Self {
            address: SocketAddr::from(([127, 0, 0, 1], 8080)),
            unix_socket: None,
            tls: None,
            batch_dir: None,
            adapters_dir: None,
            path_prefix: String::new(),
            names: vec![DEFAULT.to_owned()],
            keys: Vec::new(),
            insecure: false,
            cors_origins: Vec::new(),
            strict: false,
            max_output: 16_384,
            reasoning_budget: None,
            key_requests: None,
            defaults: RequestOptions::default(),
            drain: Duration::from_secs(30),
            // Proxies keep idle connections for 60 seconds, and must close them before the server
            // does.
            client_timeout: Duration::from_secs(75),
            ping: Duration::from_secs(5),
            engine: EngineOptions::default(),
            log: true,
            json_log: false,
            #[cfg(feature = "otel")]
            otlp_endpoint: None,
        }
    }
}

impl ServeOptions {
    /// Checks all settings.
    ///
    /// # Errors
    /// A value is out of range, or other machines could reach the server without a key.
    pub fn check(&self) -> Result<()> {
        let is_local = self.unix_socket.is_some() || self.address.ip().is_loopback();
        if !is_local && self.keys.is_empty() && !self.insecure {
            return Err(Error::argument(format!(
                "{} can be reached from other machines, and there is no API key; give one, or --insecure to serve without",
                self.address
            )));
        }
        let is_path = |text: &str| {
            let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._~".contains(c);
            let parts = text.strip_prefix('/').map(|rest| rest.split('/'));
            let is_part =
                |part: &str| part.chars().all(is_plain) && !["", ".", ".."].contains(&part);
            parts.is_some_and(|mut parts| parts.all(is_part))
        };
        if !self.path_prefix.is_empty() && !is_path(&self.path_prefix) {
            return Err(Error::argument(format!(
                "path_prefix must be a path of letters, digits and -._~ as in /llm, given {:?}",
                self.path_prefix
            )));
        }
        #[cfg(feature = "otel")]
        if let Some(endpoint) = &self.otlp_endpoint
            && !["http://", "https://"]
                .iter()
                .any(|scheme| endpoint.starts_with(scheme))
        {
            return Err(Error::argument(format!(
                "otlp_endpoint must be a URL such as http://localhost:4318, given {endpoint:?}"
            )));
        }
        if self.names.iter().any(String::is_empty) || self.names.is_empty() {
            return Err(Error::argument("the model needs a name that is not empty"));
        }
        let taken = |(name, _): &&(String, _)| self.names.contains(name);
        if let Some((name, _)) = self.engine.adapters.iter().find(taken) {
            return Err(Error::argument(format!(
                "adapter {name:?} has the name of the model"
            )));
        }
        if self.engine.adapters.iter().any(|(name, _)| name == DEFAULT) {
            return Err(Error::argument(format!(
                "adapter {DEFAULT:?} has a name that stands for the model"
            )));
        }
        if self.keys.iter().any(|key| key.trim().is_empty()) {
            return Err(Error::argument("an API key is empty"));
        }
        for (name, time) in [("client_timeout", self.client_timeout), ("ping", self.ping)] {
            if time.is_zero() {
                return Err(Error::argument(format!("{name} must be more than 0")));
            }
        }
        for (name, value) in [
            ("max_output", Some(self.max_output)),
            ("key_requests", self.key_requests),
        ] {
            if value == Some(0) {
                return Err(Error::argument(format!(
                    "{name} must be at least 1, given 0"
                )));
            }
        }
        self.engine.check()?;
        self.defaults.clone().over(&Default::default()).check()
    }
}
