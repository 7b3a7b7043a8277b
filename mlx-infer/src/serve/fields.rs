//! The body of a request: a JSON object whose keys are taken one by one. Those that are left at the end have no effect.

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tokio::time::timeout;

use super::error::ApiError;
use super::state::{Served, Shared};
use super::trace::Trace;

/// Keys that change nothing here, on any route.
const HARMLESS: &[&str] = &[
    "cache_control",
    "client_metadata",
    "metadata",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "store",
    "user",
    "verbosity",
];

/// Keys that would change the answer and are not supported.
const REFUSED: &[&str] = &[
    "audio",
    "beam_width",
    "best_of",
    "dry_multiplier",
    "functions",
    "length_penalty",
    "mirostat",
    "prediction",
    "suffix",
    "use_beam_search",
    "web_search_options",
];

/// The header that names keys without effect.
const IGNORED: HeaderName = HeaderName::from_static("x-ignored-params");
/// The longest value of that header: clients refuse headers of many kilobytes.
const MAX_IGNORED: usize = 1024;

/// Bytes of a body whose texts take a few milliseconds to tokenise.
const LONG: usize = 16 << 10;

/// The keys of a request's body that were not taken yet.
#[derive(Debug)]
pub(super) struct Fields {
    object: Map<String, Value>,
    is_long: bool,
    is_strict: bool,
}

impl Fields {
    /// # Errors
    /// The body is not a JSON object.
    pub(super) fn parse(body: &[u8], is_strict: bool) -> Result<Self, ApiError> {
        let bad = |message| ApiError::new(StatusCode::BAD_REQUEST, message);
        match serde_json::from_slice(body) {
            Ok(Value::Object(object)) => Ok(Self {
                object,
                is_long: body.len() > LONG,
                is_strict,
            }),
            Ok(_) => Err(bad("the body must be a JSON object".to_owned())),
            Err(error) => Err(bad(format!("the body is not valid JSON: {error}"))),
        }
    }

    /// Whether its texts may take long to tokenise.
    pub(super) fn is_long(&self) -> bool {
        self.is_long
    }

    /// Whether a key has a value that was not taken.
    pub(super) fn has(&self, name: &str) -> bool {
        self.object.get(name).is_some_and(|value| !value.is_null())
    }

    /// Takes a key; `null` is the same as none.
    ///
    /// # Errors
    /// It has a value of another type.
    pub(super) fn take<T: DeserializeOwned>(&mut self, name: &str) -> Result<Option<T>, ApiError> {
        match self.object.shift_remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => T::deserialize(value).map(Some).map_err(|error| {
                let what = in_plain_words(&error.to_string());
                ApiError::bad(name, format!("{name}: {what}"))
            }),
        }
    }

    /// Takes the first of several names for the same thing; the others are dropped.
    ///
    /// # Errors
    /// One has a value of another type.
    pub(super) fn any<T: DeserializeOwned>(
        &mut self,
        names: &[&str],
    ) -> Result<Option<T>, ApiError> {
        let mut found = None;
        for name in names {
            let next = self.take(name)?;
            found = found.or(next);
        }
        Ok(found)
    }

    /// Takes a key that must be there.
    ///
    /// # Errors
    /// It is not there, or has a value of another type.
    pub(super) fn require<T: DeserializeOwned>(&mut self, name: &str) -> Result<T, ApiError> {
        self.take(name)?
            .ok_or_else(|| ApiError::bad(name, format!("{name} is missing")))
    }

    /// Ends the reading: the header that names keys without effect, if there are any. `harmless` are keys of this route that change nothing.
    ///
    /// # Errors
    /// A key is not supported; with `--strict`, a key is not known.
    pub(super) fn end(self, harmless: &[&str]) -> Result<HeaderMap, ApiError> {
        let mut ignored = Vec::new();
        for (name, value) in &self.object {
            let is_harmless =
                HARMLESS.contains(&name.as_str()) || harmless.contains(&name.as_str());
            if is_harmless || value.is_null() {
                continue;
            }
            if REFUSED.contains(&name.as_str()) {
                if is_off(name, value) {
                    continue;
                }
                return Err(ApiError::bad(name, format!("{name} is not supported")));
            }
            if self.is_strict {
                let message = format!("{name} is not known, and this server runs with --strict");
                return Err(ApiError::bad(name, message));
            }
            ignored.push(name.as_str());
        }
        let mut headers = HeaderMap::new();
        name_ignored(&mut headers, &ignored);
        Ok(headers)
    }
}

/// What serde says of a value, with words for Rust's types.
fn in_plain_words(what: &str) -> String {
    let words = [
        ("expected usize", "expected a whole number from 0"),
        ("expected u32", "expected a whole number from 0"),
        ("expected i64", "expected a whole number"),
        ("expected f32", "expected a number"),
        ("expected a sequence", "expected a list"),
        ("expected a map", "expected an object"),
        ("invalid type: sequence", "invalid type: list"),
        ("invalid type: map", "invalid type: object"),
    ];
    let replaced = |text: String, (rust, plain): &(&str, &str)| text.replace(rust, plain);
    words.iter().fold(what.to_owned(), replaced)
}

/// Whether an unsupported key has its neutral value.
fn is_off(name: &str, value: &Value) -> bool {
    let neutral = match name {
        "best_of" | "length_penalty" => 1.0,
        _ => 0.0,
    };
    *value == false || *value == "" || value.as_f64() == Some(neutral)
}

/// Adds names of what had no effect to the header that tells of them. Names that cannot stand in a header, and those for which it has no room,
/// are left out.
pub(super) fn name_ignored(headers: &mut HeaderMap, names: &[impl AsRef<str>]) {
    let known = headers.get(IGNORED).and_then(|value| value.to_str().ok());
    let mut all = known.unwrap_or_default().to_owned();
    for name in names.iter().map(AsRef::as_ref) {
        let is_text = name.is_ascii() && HeaderValue::from_str(name).is_ok();
        if is_text && all.len() + name.len() < MAX_IGNORED {
            all += if all.is_empty() { "" } else { "," };
            all += name;
        }
    }
    if !all.is_empty()
        && let Ok(value) = HeaderValue::from_str(&all)
    {
        headers.insert(IGNORED, value);
    }
}

/// A request for the model: its body, and the model that it names.
pub(super) struct Ask {
    pub(super) app: Shared,
    pub(super) trace: Trace,
    pub(super) served: Served,
    /// The keys of the body, without `model`.
    pub(super) fields: Fields,
}

impl FromRequest<Shared> for Ask {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &Shared) -> Result<Self, ApiError> {
        let trace = request.extensions().get::<Trace>().cloned();
        let mut fields = Fields::from_request(request, app).await?;
        let model: Option<String> = fields.take("model")?;
        Ok(Self {
            app: app.clone(),
            trace: trace.ok_or_else(ApiError::internal)?,
            served: app.served(model.as_deref())?,
            fields,
        })
    }
}

impl FromRequest<Shared> for Fields {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &Shared) -> Result<Self, ApiError> {
        let content = request.headers().get(header::CONTENT_TYPE);
        let content = content.and_then(|value| value.to_str().ok()).unwrap_or("");
        let content = content.split(';').next().unwrap_or("").trim();
        if !content.eq_ignore_ascii_case("application/json") {
            let message = "expected a body with Content-Type: application/json";
            return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
        }
        let encoding = request.headers().get(header::CONTENT_ENCODING);
        if let Some(encoding) = encoding.filter(|encoding| *encoding != "identity") {
            let message = format!("a body with Content-Encoding {encoding:?} is not supported");
            return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
        }
        let too_large = || {
            let message = format!("the body is larger than {} bytes", super::MAX_BODY);
            ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message)
        };
        // Refused before the client sends it.
        let length = request.headers().get(header::CONTENT_LENGTH);
        let length = length.and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
        if length.is_some_and(|length| length > super::MAX_BODY as u64) {
            return Err(too_large());
        }
        let limit = app.settings.client_timeout;
        let body = timeout(limit, Bytes::from_request(request, app)).await;
        let body = body.map_err(|_| {
            let message = format!("the body did not come within {} s", limit.as_secs_f32());
            ApiError::new(StatusCode::REQUEST_TIMEOUT, message)
        })?;
        let body = body.map_err(|rejection| match rejection.status() {
            StatusCode::PAYLOAD_TOO_LARGE => too_large(),
            _ => ApiError::new(StatusCode::BAD_REQUEST, "the body cannot be read"),
        })?;
        Self::parse(&body, app.settings.strict)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(json: &str, is_strict: bool) -> Fields {
        Fields::parse(json.as_bytes(), is_strict).unwrap()
    }

    #[test]
    fn null_is_absent_and_types_are_named() {
        let mut body = fields(r#"{"a": null, "b": "x"}"#, false);
        assert_eq!(body.take::<u32>("a").unwrap(), None);
        let error = body.take::<u32>("b").unwrap_err();
        assert_eq!(error.param.as_deref(), Some("b"));
        let message = "b: invalid type: string \"x\", expected a whole number from 0";
        assert_eq!(error.message, message);
    }

    #[test]
    fn the_header_of_keys_without_effect_stays_short() {
        let names: Vec<String> = (0..1000).map(|at| format!("key{at}")).collect();
        let mut headers = HeaderMap::new();
        name_ignored(&mut headers, &names);
        name_ignored(&mut headers, &["last"]);
        let value = headers[IGNORED].to_str().unwrap();
        assert!(value.len() <= MAX_IGNORED && value.starts_with("key0,key1,"));
    }

    #[test]
    fn keys_without_effect_are_named_or_refused() {
        let headers = fields(
            r#"{"user": "x", "colour": 0, "größe": 1, "n2": false}"#,
            false,
        );
        assert_eq!(headers.end(&[]).unwrap()[IGNORED], "colour,n2");
        // A value that is off says nothing of a key that is not known.
        let strict = fields(r#"{"temprature": 0}"#, true).end(&[]);
        assert_eq!(strict.unwrap_err().param.as_deref(), Some("temprature"));
        let strict = fields(r#"{"user": "x", "colour": 1}"#, true).end(&[]);
        assert_eq!(strict.unwrap_err().param.as_deref(), Some("colour"));
        let refused = fields(r#"{"suffix": "x"}"#, false).end(&[]);
        assert_eq!(refused.unwrap_err().message, "suffix is not supported");
        assert!(
            fields(
                r#"{"suffix": null, "mirostat": 0, "use_beam_search": false, "length_penalty": 1.0, "best_of": 1}"#,
                false
            )
                .end(&[])
                .unwrap()
                .is_empty()
        );
    }
}
