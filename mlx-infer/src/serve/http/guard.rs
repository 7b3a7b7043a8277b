//! Access: API keys, limits on concurrent requests, and the check of `Host` on a server for this
//! machine only.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use axum::http::{HeaderMap, StatusCode, Version, header};
use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};

use crate::serve::http::error::ApiError;

/// The server's keys, which can be replaced while it runs.
#[derive(Debug)]
pub(crate) struct Keys {
    known: RwLock<Vec<Key>>,
    /// The number of requests in progress, if the server has no keys.
    active: Arc<AtomicUsize>,
    most: Option<usize>,
}

/// A key.
#[derive(Clone, Debug)]
struct Key {
    digest: [u8; 32],
    /// The number of requests in progress with this key.
    active: Arc<AtomicUsize>,
}

/// The holder of a key: the counter of the requests in progress with that key.
#[derive(Clone, Debug)]
pub(crate) struct Holder(Arc<AtomicUsize>);

impl Holder {
    /// Whether both are the holder of the same key.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// The place of a request among those of its key. Dropping it frees the place.
#[derive(Debug)]
pub(crate) struct Permit(Arc<AtomicUsize>);

impl Permit {
    /// The holder of the key.
    pub(crate) fn holder(&self) -> Holder {
        Holder(self.0.clone())
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Keys {
    pub(crate) fn new(keys: &[String], most: Option<usize>) -> Self {
        let found = Self {
            known: RwLock::default(),
            active: Arc::default(),
            most,
        };
        found.replace(keys);
        found
    }

    /// Replaces the keys. Keys that stay keep the counters of their requests.
    pub(crate) fn replace(&self, keys: &[String]) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        let key = |key: &String| {
            let digest = digest(key.trim());
            let same = known.iter().find(|known| known.digest == digest).cloned();
            let active = Arc::default();
            same.unwrap_or(Key { digest, active })
        };
        *known = keys.iter().map(key).collect();
    }

    fn known(&self) -> RwLockReadGuard<'_, Vec<Key>> {
        self.known.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether requests need a key.
    pub(crate) fn are_needed(&self) -> bool {
        !self.known().is_empty()
    }

    /// The holder of the request's key: `Authorization: Bearer KEY` or `x-api-key: KEY`. It is
    /// compared with every key in constant time.
    ///
    /// # Errors
    /// Status 401: the key is missing or wrong.
    pub(crate) fn check(&self, headers: &HeaderMap) -> Result<Holder, ApiError> {
        let known = self.known();
        if known.is_empty() {
            return Ok(Holder(self.active.clone()));
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
        for key in known.iter() {
            let is_same = given.iter().fold(Choice::from(0), |same, given| {
                same | key.digest[..].ct_eq(&given[..])
            });
            if bool::from(is_same) {
                found = Some(Holder(key.active.clone()));
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

    /// A place among the concurrent requests of a key.
    ///
    /// # Errors
    /// Status 429: the key has as many requests in progress as it may have.
    pub(crate) fn enter(&self, holder: Holder) -> Result<Permit, ApiError> {
        let before = holder.0.fetch_add(1, Ordering::AcqRel);
        let permit = Permit(holder.0);
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

/// Refuses a request of HTTP/1.1 that does not have exactly one `Host` (RFC 9112, section 3.2). Of
/// two, this server and a proxy in front of it could each read another one.
///
/// # Errors
/// Status 400.
pub(crate) fn check_one_host(version: Version, headers: &HeaderMap) -> Result<(), ApiError> {
    let message = match headers.get_all(header::HOST).iter().count() {
        1 => return Ok(()),
        0 if version < Version::HTTP_11 => return Ok(()),
        0 => "the request has no Host header".to_owned(),
        n => format!("the request has {n} Host headers, expected one"),
    };
    Err(ApiError::new(StatusCode::BAD_REQUEST, message))
}

/// Refuses a `Host` that is not this machine. A server without keys on a loopback address trusts
/// every client on the machine; a web page could otherwise reach it under a name that its own DNS
/// server resolves to 127.0.0.1 (DNS rebinding).
///
/// # Errors
/// Status 403.
pub(crate) fn check_host(headers: &HeaderMap) -> Result<(), ApiError> {
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

/// Refuses a request of a web page from another origin. Requests without a body need no preflight,
/// so browsers send them for any page.
///
/// # Errors
/// Status 403.
pub(crate) fn check_origin(headers: &HeaderMap, allowed: &[String]) -> Result<(), ApiError> {
    let Some(origin) = headers.get(header::ORIGIN) else {
        return Ok(());
    };
    let text = origin.to_str().unwrap_or("?");
    let host = headers
        .get(header::HOST)
        .and_then(|host| host.to_str().ok());
    let is_own = text
        .split_once("://")
        .is_some_and(|(_, place)| Some(place) == host);
    match is_own || allowed.iter().any(|known| known == "*" || known == text) {
        true => Ok(()),
        false => Err(ApiError::new(
            StatusCode::FORBIDDEN,
            format!("web pages of {text:?} may not do this"),
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
        let [one, two] = [0, 1].map(|index| keys.known()[index].active.clone());
        for (name, value, holder) in [
            ("authorization", "Bearer one", Some(&one)),
            ("authorization", "bearer two", Some(&two)),
            ("x-api-key", "two", Some(&two)),
            ("authorization", "Bearer three", None),
            ("authorization", "one", None),
            ("x-api-key", "", None),
        ] {
            let found = keys.check(&headers(name, value)).ok();
            let is_same = match (&found, holder) {
                (Some(found), Some(holder)) => Arc::ptr_eq(&found.0, holder),
                (found, holder) => found.is_none() && holder.is_none(),
            };
            assert!(is_same, "{value}");
        }
        // The requests of a key that stays are still counted.
        let _permit = keys
            .enter(keys.check(&headers("x-api-key", "two")).unwrap())
            .unwrap();
        keys.replace(&["two".into(), "three".into()]);
        assert!(keys.check(&headers("x-api-key", "one")).is_err());
        assert!(keys.check(&headers("x-api-key", "three")).is_ok());
        assert_eq!(keys.known()[0].active.load(Ordering::Acquire), 1);
        assert_eq!(keys.check(&HeaderMap::new()).unwrap_err().status, 401);
        assert!(Keys::new(&[], None).check(&HeaderMap::new()).is_ok());
    }

    #[test]
    fn places_come_back() {
        let keys = Keys::new(&[], Some(1));
        let enter = || keys.enter(keys.check(&HeaderMap::new()).unwrap());
        let first = enter().unwrap();
        let refused = enter().unwrap_err();
        assert_eq!(
            (refused.status.as_u16(), refused.retry_after),
            (429, Some(1))
        );
        drop(first);
        assert!(enter().is_ok());
    }

    #[test]
    fn one_host_is_needed() {
        let two = |a, b| {
            let mut headers = headers("host", a);
            headers.append("host", HeaderValue::from_static(b));
            headers
        };
        let check =
            |version, headers| check_one_host(version, &headers).map_err(|error| error.status);
        assert_eq!(check(Version::HTTP_11, headers("host", "a")), Ok(()));
        assert_eq!(check(Version::HTTP_10, HeaderMap::new()), Ok(()));
        for (version, headers) in [
            (Version::HTTP_11, HeaderMap::new()),
            (Version::HTTP_11, two("localhost", "evil.example")),
            (Version::HTTP_10, two("localhost", "localhost")),
        ] {
            assert_eq!(check(version, headers), Err(StatusCode::BAD_REQUEST));
        }
    }

    #[test]
    fn pages_of_other_origins_are_refused() {
        let check = |origin: &'static str, allowed: &[&str]| {
            let mut headers = headers("host", "localhost:8080");
            headers.insert("origin", HeaderValue::from_static(origin));
            let allowed: Vec<String> = allowed.iter().map(|&one| one.to_owned()).collect();
            check_origin(&headers, &allowed).is_ok()
        };
        assert!(check_origin(&headers("host", "localhost:8080"), &[]).is_ok());
        assert!(check("http://localhost:8080", &[]));
        assert!(!check("http://localhost:9090", &[]) && !check("null", &[]));
        assert!(!check("https://evil.example", &["https://good.example"]));
        assert!(check("https://good.example", &["https://good.example"]));
        assert!(check("https://evil.example", &["*"]));
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
