//! A prefix of all paths, for a proxy in front of the server that does not remove it.

use axum::Router;
use axum::extract::Request;
use axum::http::Uri;
use axum::http::uri::PathAndQuery;
use tower::ServiceExt;

/// Marks a request whose path does not begin with the prefix.
#[derive(Clone, Copy)]
pub(crate) struct Outside;

/// The routes of `inner` below `prefix`, such as `/llm`. A request with another path also gets to
/// `inner`, with the mark [`Outside`].
pub(crate) fn below(prefix: String, inner: Router) -> Router {
    Router::new().fallback(move |mut request: Request| {
        match stripped(request.uri(), &prefix) {
            Some(uri) => *request.uri_mut() = uri,
            None => {
                request.extensions_mut().insert(Outside);
            }
        }
        inner.clone().oneshot(request)
    })
}

/// The URI without the prefix of its path; `None` if it has another one.
fn stripped(uri: &Uri, prefix: &str) -> Option<Uri> {
    let rest = uri.path_and_query()?.as_str().strip_prefix(prefix)?;
    let rest = match rest.as_bytes().first() {
        Some(b'/') => rest.to_owned(),
        None | Some(b'?') => format!("/{rest}"),
        Some(_) => return None,
    };
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(PathAndQuery::try_from(rest).ok()?);
    Uri::from_parts(parts).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_at_a_slash() {
        let of = |path: &str| stripped(&path.parse().unwrap(), "/a/b").map(|uri| uri.to_string());
        assert_eq!(of("/a/b").as_deref(), Some("/"));
        assert_eq!(of("/a/b/").as_deref(), Some("/"));
        assert_eq!(of("/a/b?x=1").as_deref(), Some("/?x=1"));
        assert_eq!(
            of("/a/b/v1/models?x=%2F").as_deref(),
            Some("/v1/models?x=%2F")
        );
        for path in ["/a", "/", "/a/bc", "/v1/models", "/v1/a/b"] {
            assert_eq!(of(path), None, "{path}");
        }
        let absolute = of("http://host/a/b/x");
        assert_eq!(absolute.as_deref(), Some("http://host/x"));
    }
}
