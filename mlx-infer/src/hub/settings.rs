//! Settings of a hub: its address, the cache, and the access token.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use mlx_core::files;

use super::Hub;
use super::http::Client;
use crate::error::{Error, Result};
use crate::request::cancel::CancelToken;

/// The default hub.
const ENDPOINT: &str = "https://huggingface.co";
/// How long a request waits for bytes.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Largest file with a token.
const MAX_TOKEN_BYTES: u64 = 64 << 10;

/// Settings of a [`Hub`].
#[derive(Clone, Debug)]
pub struct HubBuilder {
    endpoint: String,
    cache: Option<PathBuf>,
    token: Token,
    offline: bool,
    timeout: std::result::Result<Duration, String>,
    pause: Duration,
    certificates: Option<PathBuf>,
    cancel: CancelToken,
}

#[derive(Clone)]
enum Token {
    None,
    Is(String),
    File(PathBuf),
}

impl std::fmt::Debug for Token {
    /// Shows the settings without the token.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::None => "None",
            Self::Is(_) => "Is(..)",
            Self::File(_) => "File(..)",
        })
    }
}

impl HubBuilder {
    /// The settings of the environment.
    pub(super) fn from_env() -> Self {
        let variables = std::env::vars_os();
        let variables = variables.filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        });
        Self::from_variables(&variables.collect())
    }

    fn from_variables(variables: &HashMap<String, String>) -> Self {
        let get = |name: &str| variables.get(name).filter(|value| !value.is_empty());
        let path = |name: &str| get(name).map(|text| expand(text, get("HOME")));
        let is_on = |name: &str| {
            get(name).is_some_and(|value| {
                ["1", "ON", "YES", "TRUE"].contains(&value.to_uppercase().as_str())
            })
        };
        let home = path("HF_HOME").or_else(|| {
            let caches = path("XDG_CACHE_HOME").or_else(|| Some(path("HOME")?.join(".cache")));
            Some(caches?.join("huggingface"))
        });
        let of_home = |name: &str| home.as_ref().map(|home| home.join(name));
        let token = match get("HF_TOKEN").or_else(|| get("HUGGING_FACE_HUB_TOKEN")) {
            Some(token) => Token::Is(token.clone()),
            None => path("HF_TOKEN_PATH")
                .or_else(|| of_home("token"))
                .map_or(Token::None, Token::File),
        };
        let timeout = get("HF_HUB_DOWNLOAD_TIMEOUT").map_or(Ok(TIMEOUT), |text| {
            let seconds = text.parse().ok().filter(|&seconds| seconds > 0);
            seconds.map(Duration::from_secs).ok_or_else(|| {
                format!("HF_HUB_DOWNLOAD_TIMEOUT must be a number of seconds, given {text:?}")
            })
        });
        Self {
            endpoint: get("HF_ENDPOINT")
                .map_or(ENDPOINT, String::as_str)
                .to_owned(),
            cache: path("HF_HUB_CACHE")
                .or_else(|| path("HUGGINGFACE_HUB_CACHE"))
                .or_else(|| of_home("hub")),
            token: if is_on("HF_HUB_DISABLE_IMPLICIT_TOKEN") {
                Token::None
            } else {
                token
            },
            offline: is_on("HF_HUB_OFFLINE") || is_on("TRANSFORMERS_OFFLINE"),
            timeout,
            pause: Duration::from_secs(1),
            certificates: path("SSL_CERT_FILE"),
            cancel: CancelToken::new(),
        }
    }

    /// The hub, such as `https://hub.example`.
    #[must_use]
    pub fn endpoint(mut self, url: impl Into<String>) -> Self {
        self.endpoint = url.into();
        self
    }

    /// The folder of the cache.
    #[must_use]
    pub fn cache(mut self, folder: impl Into<PathBuf>) -> Self {
        self.cache = Some(folder.into());
        self
    }

    /// The access token; `None` sends none.
    #[must_use]
    pub fn token(mut self, token: Option<String>) -> Self {
        self.token = token.map_or(Token::None, Token::Is);
        self
    }

    /// Whether only the cache is used.
    #[must_use]
    pub fn offline(mut self, offline: bool) -> Self {
        self.offline = offline;
        self
    }

    /// The time without a byte after which a request is retried.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Ok(timeout);
        self
    }

    /// How long the first retry waits; each further one waits twice as long.
    #[must_use]
    pub fn retry_pause(mut self, pause: Duration) -> Self {
        self.pause = pause;
        self
    }

    /// Makes requests and waits end with an error of kind
    /// [`Cancelled`](crate::ErrorKind::Cancelled). The bytes of a file that were received are kept
    /// and not downloaded again.
    #[must_use]
    pub fn cancel(mut self, cancel: CancelToken) -> Self {
        self.cancel = cancel;
        self
    }

    /// The hub.
    ///
    /// # Errors
    /// A setting cannot be used, or there is no folder for the cache.
    pub fn build(self) -> Result<Hub> {
        let cache = self.cache.ok_or_else(|| {
            Error::argument("no folder for the cache of models: none of HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME and HOME is set")
        })?;
        let token = match self.token {
            Token::None => None,
            Token::Is(token) => Some(token),
            Token::File(path) => files::read_if_present(&path, MAX_TOKEN_BYTES)?
                .map(|bytes| String::from_utf8_lossy(&bytes).into_owned()),
        };
        let token = token.map(|token| token.trim().to_owned());
        let token = token.filter(|token| !token.is_empty());
        if let Some(token) = &token
            && !token.bytes().all(|b| b.is_ascii_graphic())
        {
            return Err(Error::argument(
                "the access token has characters that no token has (HF_TOKEN, HF_TOKEN_PATH)",
            ));
        }
        let timeout = self.timeout.map_err(Error::argument)?;
        Ok(Hub {
            client: Client::new(
                &self.endpoint,
                token,
                timeout,
                self.pause,
                self.certificates.as_deref(),
                self.cancel,
            )?,
            cache,
            offline: self.offline,
        })
    }
}

/// A path with `~` for the home folder.
fn expand(text: &str, home: Option<&String>) -> PathBuf {
    match (text.strip_prefix('~'), home) {
        (Some(""), Some(home)) => PathBuf::from(home),
        (Some(rest), Some(home)) if rest.starts_with('/') => Path::new(home).join(&rest[1..]),
        _ => PathBuf::from(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn builder(variables: &[(&str, &str)]) -> HubBuilder {
        let owned = |&(name, value): &(&str, &str)| (name.to_owned(), value.to_owned());
        HubBuilder::from_variables(&variables.iter().map(owned).collect())
    }

    #[test]
    fn the_cache_is_where_huggingface_hub_has_it() {
        let home = ("HOME", "/h");
        for (variables, expected) in [
            (vec![home], "/h/.cache/huggingface/hub"),
            (vec![home, ("XDG_CACHE_HOME", "/x")], "/x/huggingface/hub"),
            (
                vec![home, ("HF_HOME", "~/f"), ("XDG_CACHE_HOME", "/x")],
                "/h/f/hub",
            ),
            (
                vec![home, ("HF_HOME", "/f"), ("HUGGINGFACE_HUB_CACHE", "/o")],
                "/o",
            ),
            (
                vec![
                    home,
                    ("HUGGINGFACE_HUB_CACHE", "/o"),
                    ("HF_HUB_CACHE", "/c"),
                ],
                "/c",
            ),
        ] {
            let cache = builder(&variables).cache.unwrap();
            assert_eq!(cache, Path::new(expected), "{variables:?}");
        }
        let error = builder(&[]).build().unwrap_err().to_string();
        assert!(error.contains("HF_HUB_CACHE"), "{error}");
    }

    #[test]
    fn switches_and_tokens() {
        for (value, expected) in [
            ("1", true),
            ("yes", true),
            ("True", true),
            ("0", false),
            ("", false),
        ] {
            assert_eq!(
                builder(&[("HF_HUB_OFFLINE", value)]).offline,
                expected,
                "{value}"
            );
        }
        let of = |variables: &[(&str, &str)]| match builder(variables).token {
            Token::None => "-".to_owned(),
            Token::Is(token) => token,
            Token::File(path) => path.display().to_string(),
        };
        let file = ("HF_TOKEN_PATH", "/t");
        assert_eq!(of(&[("HF_TOKEN", "a"), file]), "a");
        assert_eq!(of(&[("HF_TOKEN", ""), file]), "/t");
        assert_eq!(of(&[("HF_HOME", "/f")]), "/f/token");
        assert_eq!(
            of(&[("HF_TOKEN", "a"), ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")]),
            "-"
        );
        assert!(!format!("{:?}", builder(&[("HF_TOKEN", "secret")])).contains("secret"));
        let cache = ("HF_HUB_CACHE", "/c");
        let fails = |variable| builder(&[cache, variable]).build().unwrap_err().to_string();
        assert!(fails(("HF_HUB_DOWNLOAD_TIMEOUT", "x")).contains("number of seconds"));
        assert!(fails(("HF_TOKEN", "a\nb")).contains("HF_TOKEN"));
        assert!(fails(("HF_ENDPOINT", "ftp://x")).contains("HF_ENDPOINT"));
        assert!(fails(("SSL_CERT_FILE", "/no/such")).contains("/no/such"));
    }
}
