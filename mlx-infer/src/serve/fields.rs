//! The body of a request: a JSON object whose keys are taken one by one. Those that are left at the end have no effect.

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tokio::time::timeout;

use super::error::ApiError;
use super::state::Shared;

/// Keys that change nothing here, on any route.
const HARMLESS: &[&str] = &[
    "cache_control",
    "client_metadata",
    "metadata",
    "model",
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
    "length_penalty",
    "mirostat",
    "prediction",
    "suffix",
    "use_beam_search",
    "web_search_options",
];

/// The header that names keys without effect.
const IGNORED: HeaderName = HeaderName::from_static("x-ignored-params");

/// The keys of a request's body that were not taken yet.
#[derive(Debug)]
pub(super) struct Fields {
    object: Map<String, Value>,
    is_strict: bool,
}

impl Fields {
    /// # Errors
    /// The body is not a JSON object.
    pub(super) fn parse(body: &[u8], is_strict: bool) -> Result<Self, ApiError> {
        let bad = |message| ApiError::new(StatusCode::BAD_REQUEST, message);
        match serde_json::from_slice(body) {
            Ok(Value::Object(object)) => Ok(Self { object, is_strict }),
            Ok(_) => Err(bad("the body must be a JSON object".to_owned())),
            Err(error) => Err(bad(format!("the body is not valid JSON: {error}"))),
        }
    }

    /// Takes a key; `null` is the same as none.
    ///
    /// # Errors
    /// It has a value of another type.
    pub(super) fn take<T: DeserializeOwned>(&mut self, name: &str) -> Result<Option<T>, ApiError> {
        match self.object.shift_remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => T::deserialize(value)
                .map(Some)
                .map_err(|error| ApiError::bad(name, format!("{name}: {error}"))),
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

    /// The model that is asked for.
    ///
    /// # Errors
    /// It is not a text.
    pub(super) fn model(&mut self) -> Result<Option<String>, ApiError> {
        self.take("model")
    }

    /// Ends the reading: the header that names keys without effect, if there are any. `harmless` are keys of this route that change nothing.
    ///
    /// # Errors
    /// A key is not supported; with `--strict`, a key is not known.
    pub(super) fn end(self, harmless: &[&str]) -> Result<HeaderMap, ApiError> {
        let mut ignored = Vec::new();
        for (name, value) in &self.object {
            let is_off = matches!(value, Value::Null | Value::Bool(false))
                || value.as_f64() == Some(0.0)
                || (name == "best_of" && value.as_u64() == Some(1))
                || (name == "length_penalty" && value.as_f64() == Some(1.0));
            if HARMLESS.contains(&name.as_str()) || harmless.contains(&name.as_str()) || is_off {
                continue;
            }
            if REFUSED.contains(&name.as_str()) {
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

/// Adds names of what had no effect to the header that tells of them. Names that cannot stand in a header are left out.
pub(super) fn name_ignored(headers: &mut HeaderMap, names: &[impl AsRef<str>]) {
    let known = headers.get(IGNORED).and_then(|value| value.to_str().ok());
    let names = names.iter().map(AsRef::as_ref);
    let all: Vec<&str> = known.into_iter().chain(names).collect();
    if !all.is_empty()
        && let Ok(value) = HeaderValue::from_str(&all.join(","))
    {
        headers.insert(IGNORED, value);
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
        let limit = app.settings.client_timeout;
        let body = timeout(limit, Bytes::from_request(request, app)).await;
        let body = body.map_err(|_| {
            let message = format!("the body did not come within {} s", limit.as_secs_f32());
            ApiError::new(StatusCode::REQUEST_TIMEOUT, message)
        })?;
        let body = body.map_err(|rejection| match rejection.status() {
            StatusCode::PAYLOAD_TOO_LARGE => ApiError::new(
                StatusCode::PAYLOAD_TOO_LARGE,
                format!("the body is larger than {} bytes", super::MAX_BODY),
            ),
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
        assert!(error.message.starts_with("b: invalid type: string"));
    }

    #[test]
    fn keys_without_effect_are_named_or_refused() {
        let headers = fields(r#"{"user": "x", "colour": 1, "n2": 2}"#, false).end(&[]);
        assert_eq!(headers.unwrap()[IGNORED], "colour,n2");
        let strict = fields(r#"{"user": "x", "colour": 1}"#, true).end(&[]);
        assert_eq!(strict.unwrap_err().param.as_deref(), Some("colour"));
        let refused = fields(r#"{"suffix": "x"}"#, false).end(&[]);
        assert_eq!(refused.unwrap_err().message, "suffix is not supported");
        assert!(
            fields(r#"{"suffix": null, "mirostat": 0}"#, false)
                .end(&[])
                .unwrap()
                .is_empty()
        );
    }
}
