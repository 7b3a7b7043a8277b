//! Access: API keys, requests at a time, and the `Host` of a server on this machine alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::http::{HeaderMap, StatusCode, header};
use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};

use super::error::ApiError;

/// The server's keys, as digests.
pub(super) struct Keys {
    digests: Vec<[u8; 32]>,
    /// Requests under way of each key; of all requests, if there are no keys.
    active: Vec<Arc<AtomicUsize>>,
    most: Option<usize>,
}

/// The place of a request among those of its key. Dropping it frees the place.
#[derive(Debug)]
pub(super) struct Permit(Arc<AtomicUsize>);

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Keys {
    pub(super) fn new(keys: &[String], most: Option<usize>) -> Self {
        Self {
            digests: keys.iter().map(|key| digest(key.trim())).collect(),
            active: (0..keys.len().max(1)).map(|_| Arc::default()).collect(),
            most,
        }
    }

    /// Whether requests need a key.
    pub(super) fn are_needed(&self) -> bool {
        !self.digests.is_empty()
    }

    /// The index of the key of a request: `Authorization: Bearer KEY` or `x-api-key: KEY`; 0 if none is needed. Every key is compared
    /// in constant time.
    ///
    /// # Errors
    /// 401.
    pub(super) fn check(&self, headers: &HeaderMap) -> Result<usize, ApiError> {
        if !self.are_needed() {
            return Ok(0);
        }
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let bearer = text("authorization").and_then(|value| {
            let (scheme, key) = value.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
        });
        let given: Vec<[u8; 32]> = [bearer, text("x-api-key").map(str::trim)]
            .into_iter()
            .flatten()
            .map(digest)
            .collect();
        let mut found = None;
        for (index, known) in self.digests.iter().enumerate() {
            let is_same = given.iter().fold(Choice::from(0), |same, given| {
                same | known[..].ct_eq(&given[..])
            });
            if bool::from(is_same) {
                found = Some(index);
            }
        }
        found.ok_or_else(|| {
            let message = match given.is_empty() {
                true => {
                    "this server needs an API key: Authorization: Bearer KEY, or x-api-key: KEY"
                }
                false => "the API key is not valid here",
            };
            ApiError::new(StatusCode::UNAUTHORIZED, message).with_code("invalid_api_key")
        })
    }

    /// A place among the requests of a key.
    ///
    /// # Errors
    /// 429: it has as many under way as it may have.
    pub(super) fn enter(&self, index: usize) -> Result<Permit, ApiError> {
        let active = &self.active[index];
        let before = active.fetch_add(1, Ordering::AcqRel);
        let permit = Permit(active.clone());
        match self.most {
            Some(most) if before >= most => Err(ApiError {
                retry_after: Some(1),
                ..ApiError::new(
                    StatusCode::TOO_MANY_REQUESTS,
                    format!("{most} requests of this key are under way, as many as it may have"),
                )
                .with_code("rate_limit_exceeded")
            }),
            _ => Ok(permit),
        }
    }
}

fn digest(key: &str) -> [u8; 32] {
    Sha256::digest(key.as_bytes()).into()
}

/// Refuses a `Host` that is not this machine. A server without keys on a loopback address trusts everything on the machine; a web page could
/// otherwise reach it by a name that its own DNS server resolves to 127.0.0.1 (DNS rebinding).
///
/// # Errors
/// 403.
pub(super) fn check_host(headers: &HeaderMap) -> Result<(), ApiError> {
    let host = headers
        .get(header::HOST)
        .map_or(Ok(""), |value| value.to_str());
    let host = host.unwrap_or("?");
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    };
    match name.to_ascii_lowercase().as_str() {
        "" | "localhost" | "127.0.0.1" | "[::1]" => Ok(()),
        name if name.ends_with(".localhost") => Ok(()),
        name if name.starts_with("127.") && name.parse::<std::net::Ipv4Addr>().is_ok() => Ok(()),
        _ => Err(ApiError::new(
            StatusCode::FORBIDDEN,
            format!(
                "this server answers to localhost, not to {host:?}; with an API key it answers to any name"
            ),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::{HeaderName, HeaderValue};

    fn headers(name: &'static str, value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(
            HeaderName::from_static(name),
            HeaderValue::from_static(value),
        )])
    }

    #[test]
    fn any_of_the_keys_is_enough() {
        let keys = Keys::new(&["one".into(), " two ".into()], None);
        for (name, value, index) in [
            ("authorization", "Bearer one", Some(0)),
            ("authorization", "bearer two", Some(1)),
            ("x-api-key", "two", Some(1)),
            ("authorization", "Bearer three", None),
            ("authorization", "one", None),
            ("x-api-key", "", None),
        ] {
            assert_eq!(keys.check(&headers(name, value)).ok(), index, "{value}");
        }
        assert_eq!(keys.check(&HeaderMap::new()).unwrap_err().status, 401);
        assert!(Keys::new(&[], None).check(&HeaderMap::new()).is_ok());
    }

    #[test]
    fn places_come_back() {
        let keys = Keys::new(&[], Some(1));
        let first = keys.enter(0).unwrap();
        let refused = keys.enter(0).unwrap_err();
        assert_eq!(
            (refused.status.as_u16(), refused.retry_after),
            (429, Some(1))
        );
        drop(first);
        assert!(keys.enter(0).is_ok());
    }

    #[test]
    fn foreign_hosts_are_refused() {
        for host in [
            "localhost:80",
            "127.0.0.1:8080",
            "[::1]:1",
            "a.localhost",
            "LOCALHOST",
        ] {
            assert!(check_host(&headers("host", host)).is_ok(), "{host}");
        }
        for host in [
            "evil.example",
            "127.0.0.1.evil.example:80",
            "localhost.evil",
        ] {
            assert_eq!(check_host(&headers("host", host)).unwrap_err().status, 403);
        }
    }
}
