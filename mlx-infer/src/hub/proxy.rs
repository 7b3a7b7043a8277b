//! Plain HTTP through a proxy.
//!
//! ureq asks every proxy for a tunnel (CONNECT), which proxies refuse for port 80. A request without TLS goes to the
//! proxy itself, with the whole address in its first line (RFC 9112, "absolute-form").

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use ureq::config::Config;
use ureq::http::{HeaderValue, Uri, uri};
use ureq::unversioned::resolver::DefaultResolver;
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, NextTimeout, RustlsConnector, TcpConnector, Transport,
};
use ureq::{Agent, Error, Proxy, ProxyProtocol};

/// The variables that name a proxy for `http://` addresses, first to last.
const VARIABLES: [&str; 4] = ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"];

/// The proxy of the environment for `http://` addresses.
pub(super) struct PlainProxy {
    agent: Agent,
    proxy: Proxy,
    /// The value of `Proxy-Authorization`.
    pub(super) authorization: Option<HeaderValue>,
}

impl PlainProxy {
    /// `None` if no variable names a proxy, or if the first one that does names one for another
    /// protocol than HTTP.
    pub(super) fn from_env(config: Config) -> Option<Self> {
        let value = VARIABLES
            .iter()
            .filter_map(|name| std::env::var(name).ok())
            .find(|value| !value.is_empty())?;
        let proxy = Proxy::new(&value).ok()?;
        if !matches!(proxy.protocol(), ProxyProtocol::Http | ProxyProtocol::Https) {
            return None;
        }
        let authorization = proxy.username().and_then(|user| {
            let pair = format!("{user}:{}", proxy.password().unwrap_or_default());
            let value = format!("Basic {}", BASE64_STANDARD.encode(pair));
            let mut value = HeaderValue::from_str(&value).ok()?;
            value.set_sensitive(true);
            Some(value)
        });
        let connector =
            ().chain(TcpConnector::default())
                .chain(RustlsConnector::default())
                .chain(AbsoluteForm);
        Some(Self {
            agent: Agent::with_parts(config, connector, DefaultResolver::default()),
            proxy,
            authorization,
        })
    }

    /// Whether the request for `url` goes through the proxy: it is plain HTTP, and `NO_PROXY` does
    /// not name its host.
    pub(super) fn serves(&self, url: &Uri) -> bool {
        // `Proxy::new` does not read NO_PROXY.
        let is_direct = Proxy::try_from_env().is_some_and(|proxy| proxy.is_no_proxy(url));
        url.scheme() == Some(&uri::Scheme::HTTP) && !is_direct
    }

    /// The agent. It connects to the proxy's address and sends the server's name as `Host`.
    pub(super) fn agent(&self) -> &Agent {
        &self.agent
    }

    /// Host and port, for messages.
    pub(super) fn name(&self) -> String {
        format!("{}:{}", self.proxy.host(), self.proxy.port())
    }

    /// The address that the request for `url` is sent to.
    pub(super) fn address(&self, url: &Uri) -> Option<Uri> {
        let scheme = match self.proxy.protocol() {
            ProxyProtocol::Https => uri::Scheme::HTTPS,
            _ => uri::Scheme::HTTP,
        };
        Uri::builder()
            .scheme(scheme)
            .authority(self.name())
            .path_and_query(url.path_and_query().map_or("/", |path| path.as_str()))
            .build()
            .ok()
    }
}

/// Writes the server's name before the path of each request.
#[derive(Debug)]
struct AbsoluteForm;

impl<In: Transport> Connector<In> for AbsoluteForm {
    type Out = Absolute<In>;

    fn connect(
        &self,
        _: &ConnectionDetails<'_>,
        chained: Option<In>,
    ) -> Result<Option<Self::Out>, Error> {
        Ok(chained.map(Absolute))
    }
}

#[derive(Debug)]
struct Absolute<T>(T);

impl<T: Transport> Transport for Absolute<T> {
    fn buffers(&mut self) -> &mut dyn Buffers {
        self.0.buffers()
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        let output = self.0.buffers().output();
        let amount = match place_and_host(&output[..amount]) {
            Some((at, host)) => {
                let prefix = format!("http://{host}");
                let Some(room) = output.get_mut(at..amount + prefix.len()) else {
                    return Err(Error::Other("the address of a request is too long".into()));
                };
                room.copy_within(..amount - at, prefix.len());
                room[..prefix.len()].copy_from_slice(prefix.as_bytes());
                amount + prefix.len()
            }
            None => amount,
        };
        self.0.transmit_output(amount, timeout)
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        self.0.await_input(timeout)
    }

    fn is_open(&mut self) -> bool {
        self.0.is_open()
    }
}

/// The position of the path in a request, and its `Host`. `None` if these bytes begin no request.
/// The hub's requests have no body, so each write begins with a request.
fn place_and_host(request: &[u8]) -> Option<(usize, String)> {
    let text = std::str::from_utf8(request).ok()?;
    let mut lines = text.split("\r\n");
    let (method, target) = lines.next()?.split_once(' ')?;
    if !target.starts_with('/') {
        return None;
    }
    let host = lines.find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("host")
            .then(|| value.trim().to_owned())
    })?;
    Some((method.len() + 1, host))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_told_from_other_bytes() {
        let request = b"GET /a?b HTTP/1.1\r\naccept: */*\r\nHost: hub.test:81\r\n\r\n";
        assert_eq!(place_and_host(request), Some((4, "hub.test:81".to_owned())));
        for other in [&b"GET /a HTTP/1.1\r\n\r\n"[..], b"host: x\r\n", b"\xff /"] {
            assert_eq!(place_and_host(other), None);
        }
    }
}
