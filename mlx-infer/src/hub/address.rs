//! Addresses: origins, redirects, and names in them.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use ureq::http::Uri;

/// Scheme, host and port.
#[derive(PartialEq)]
pub(super) struct Origin(String, String, u16);

/// The origin of an HTTP address.
pub(super) fn origin(url: &Uri) -> Option<Origin> {
    let scheme = url
        .scheme_str()
        .filter(|scheme| ["http", "https"].contains(scheme))?;
    let port = url
        .port_u16()
        .unwrap_or(if scheme == "http" { 80 } else { 443 });
    let host = url.host().filter(|host| !host.is_empty())?;
    Some(Origin(scheme.to_owned(), host.to_lowercase(), port))
}

/// The target of a `Location` header, relative to `url`.
pub(super) fn redirect(url: &Uri, location: &str) -> Option<Uri> {
    let scheme = url.scheme_str()?;
    let absolute = match location {
        _ if location.starts_with("//") => format!("{scheme}:{location}"),
        _ if location.starts_with('/') => format!("{scheme}://{}{location}", url.authority()?),
        _ if location.contains("://") => location.to_owned(),
        _ => {
            let folder = url.path().rsplit_once('/')?.0;
            format!("{scheme}://{}{folder}/{location}", url.authority()?)
        }
    };
    let url: Uri = absolute.parse().ok()?;
    origin(&url).map(|_| url)
}

/// The characters that are escaped in a part of an address: all but the unreserved characters of
/// RFC 3986.
const PART: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~');
/// As [`PART`], with `/` between folders.
const FOLDERS: &AsciiSet = &PART.remove(b'/');

/// A text as a part of an address. `/` is kept if it separates folders.
pub(super) fn encode(text: &str, folders: bool) -> String {
    utf8_percent_encode(text, if folders { FOLDERS } else { PART }).to_string()
}

/// Whether a tag can be the name of a file in the cache.
pub(super) fn is_file_name(text: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    (1..=128).contains(&text.len()) && text.chars().all(fits) && !text.starts_with('.')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_and_addresses() {
        let url: Uri = "https://hub.example:8/org/name/resolve/x/f"
            .parse()
            .unwrap();
        for (location, expected) in [
            ("/a?b", "https://hub.example:8/a?b"),
            ("//other.example/a", "https://other.example/a"),
            ("http://other.example/a", "http://other.example/a"),
            ("g", "https://hub.example:8/org/name/resolve/x/g"),
        ] {
            assert_eq!(redirect(&url, location).unwrap(), expected, "{location}");
        }
        for location in ["file:///etc/passwd", "https://", ""] {
            let found = redirect(&url, location);
            assert!(
                found.is_none() || location.is_empty(),
                "{location}: {found:?}"
            );
        }
        assert_eq!(encode("refs/pr/1", false), "refs%2Fpr%2F1");
        assert_eq!(encode("a b/c%ä.json", true), "a%20b/c%25%C3%A4.json");
        assert_eq!(encode("A-z_0.9~", false), "A-z_0.9~");
        assert_eq!(
            encode("?#[]@!$&'()*+,;=:\0\n", true),
            "%3F%23%5B%5D%40%21%24%26%27%28%29%2A%2B%2C%3B%3D%3A%00%0A"
        );
    }
}
