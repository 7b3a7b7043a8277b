//! The body of a request: a JSON object whose keys are taken one by one. Keys that are left at the
//! end have no effect.

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tokio::time::timeout;

use crate::serve::http::error::ApiError;
use crate::serve::http::room::Long;
use crate::serve::http::trace::Trace;
use crate::serve::keep_alive::KeepAlive;
use crate::serve::state::{Asked, Served, Shared};

/// Keys that have no effect on the answer, on any route.
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

/// The value with which an unsupported key changes nothing. `null`, `false`, `""` and `[]` change
/// nothing either, unless the key is a switch that is on by default.
#[derive(Clone, Copy, Debug)]
enum Neutral {
    /// This number.
    Number(f64),
    /// `true`: the key is a switch that is on by default.
    True,
    /// Only the empty values.
    Empty,
}

/// Keys that would change the answer and are not supported, each with its neutral value.
const REFUSED: &[(&str, Neutral)] = &[
    ("audio", Neutral::Empty),
    ("beam_width", Neutral::Number(0.0)),
    ("best_of", Neutral::Number(1.0)),
    ("chat_template", Neutral::Empty),
    ("documents", Neutral::Empty),
    ("dynatemp_range", Neutral::Number(0.0)),
    ("echo", Neutral::Empty),
    ("functions", Neutral::Empty),
    ("include_stop_str_in_output", Neutral::Empty),
    ("length_penalty", Neutral::Number(1.0)),
    ("logprob_token_ids", Neutral::Empty),
    ("lora", Neutral::Empty),
    ("mirostat", Neutral::Number(0.0)),
    ("prediction", Neutral::Empty),
    ("prompt_logprobs", Neutral::Empty),
    ("return_token_ids", Neutral::Empty),
    ("return_tokens_as_token_ids", Neutral::Empty),
    ("skip_special_tokens", Neutral::True),
    ("suffix", Neutral::Empty),
    ("tfs_z", Neutral::Number(1.0)),
    ("thinking_token_budget", Neutral::Number(-1.0)),
    ("thinking_budget_tokens", Neutral::Number(-1.0)),
    ("reasoning_budget", Neutral::Number(-1.0)),
    ("reasoning_budget_tokens", Neutral::Number(-1.0)),
    ("top_a", Neutral::Number(0.0)),
    ("typ_p", Neutral::Number(1.0)),
    ("typical_p", Neutral::Number(1.0)),
    ("use_beam_search", Neutral::Empty),
    ("web_search_options", Neutral::Empty),
];

/// The header that names keys without effect.
const IGNORED: HeaderName = HeaderName::from_static("x-ignored-params");
/// The longest value of that header: clients refuse headers of many kilobytes.
const MAX_IGNORED: usize = 1024;

/// The keys of a request's body that are not taken yet.
#[derive(Debug)]
pub(crate) struct Fields {
    object: Map<String, Value>,
    long: Long,
    is_strict: bool,
    /// Parts of values that have no effect.
    without_effect: Vec<String>,
}

impl Fields {
    /// Parses a body.
    ///
    /// # Errors
    /// The body is not a JSON object.
    pub(crate) fn parse(body: &[u8], is_strict: bool, long: Long) -> Result<Self, ApiError> {
        let bad = |message| ApiError::new(StatusCode::BAD_REQUEST, message);
        match serde_json::from_slice(body) {
            Ok(Value::Object(object)) => Ok(Self {
                object,
                long,
                is_strict,
                without_effect: Vec::new(),
            }),
            Ok(_) => Err(bad("the body must be a JSON object".to_owned())),
            Err(error) => Err(bad(format!("the body is not valid JSON: {error}"))),
        }
    }

    /// The keys of an object in the body. [`absorb`](Self::absorb) ends its reading.
    pub(crate) fn inner(&self, object: Map<String, Value>) -> Self {
        Self {
            object,
            long: self.long.clone(),
            is_strict: self.is_strict,
            without_effect: Vec::new(),
        }
    }

    /// Ends the reading of an object in the body, which is the value of the key `name`. Its keys
    /// without effect are named as `name.key`.
    ///
    /// # Errors
    /// As [`end`](Self::end).
    pub(crate) fn absorb(
        &mut self,
        name: &str,
        inner: Self,
        harmless: &[&str],
    ) -> Result<(), ApiError> {
        let ignored = inner.ignored(harmless)?;
        let ignored = ignored.into_iter().map(|key| format!("{name}.{key}"));
        self.without_effect.extend(ignored);
        Ok(())
    }

    /// Whether the texts of the body may take long to tokenise, and the permits that it holds.
    pub(crate) fn long(&self) -> Long {
        self.long.clone()
    }

    /// Whether a key is there, has a value other than `null`, and is not taken yet.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.object.get(name).is_some_and(|value| !value.is_null())
    }

    /// Takes a key; `null` counts as absent.
    ///
    /// # Errors
    /// It has a value of another type.
    pub(crate) fn take<T: DeserializeOwned>(&mut self, name: &str) -> Result<Option<T>, ApiError> {
        match self.object.shift_remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => read(value).map(Some).map_err(|error| {
                let what = in_plain_words(&error.to_string());
                ApiError::bad(name, format!("{name}: {what}"))
            }),
        }
    }

    /// Reports a part of a key's value as without effect, as [`end`](Self::end) reports keys.
    ///
    /// # Errors
    /// The server runs with `--strict`.
    pub(crate) fn without_effect(&mut self, name: &str) -> Result<(), ApiError> {
        if self.is_strict {
            let message = format!("{name} has no effect here, and this server runs with --strict");
            return Err(ApiError::bad(name, message));
        }
        self.without_effect.push(name.to_owned());
        Ok(())
    }

    /// Reports the keys of an object in the body that are not in `known` as without effect, as
    /// `name.key`. A key with `null`, `false` or an empty value asks for nothing.
    ///
    /// # Errors
    /// The server runs with `--strict`.
    pub(crate) fn name_others(
        &mut self,
        name: &str,
        object: &Map<String, Value>,
        known: &[&str],
    ) -> Result<(), ApiError> {
        let others = object
            .iter()
            .filter(|(key, value)| !known.contains(&key.as_str()) && !Neutral::Empty.is(value));
        for (key, _) in others {
            self.without_effect(&format!("{name}.{key}"))?;
        }
        Ok(())
    }

    /// Takes the first of several names of the same parameter; the values of the other names are
    /// dropped.
    ///
    /// # Errors
    /// One has a value of another type.
    pub(crate) fn any<T: DeserializeOwned>(
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
    pub(crate) fn require<T: DeserializeOwned>(&mut self, name: &str) -> Result<T, ApiError> {
        self.take(name)?
            .ok_or_else(|| ApiError::bad(name, format!("{name} is missing")))
    }

    /// Ends the reading. Returns the header that names keys without effect, if there are any. The
    /// keys in `harmless` change nothing on this route and are not named.
    ///
    /// # Errors
    /// A key is not supported; with `--strict`, a key is not known.
    pub(crate) fn end(self, harmless: &[&str]) -> Result<HeaderMap, ApiError> {
        let mut headers = HeaderMap::new();
        name_ignored(&mut headers, &self.ignored(harmless)?);
        Ok(headers)
    }

    /// The keys without effect.
    fn ignored(&self, harmless: &[&str]) -> Result<Vec<&str>, ApiError> {
        let mut ignored: Vec<&str> = self.without_effect.iter().map(String::as_str).collect();
        for (name, value) in &self.object {
            let is_harmless =
                HARMLESS.contains(&name.as_str()) || harmless.contains(&name.as_str());
            if is_harmless || value.is_null() {
                continue;
            }
            if let Some((_, neutral)) = REFUSED.iter().find(|(known, _)| known == name) {
                if neutral.is(value) {
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
        Ok(ignored)
    }
}

/// Reads a value; whole numbers may be written as `4.0`, as some clients do.
fn read<T: DeserializeOwned>(value: Value) -> Result<T, serde_json::Error> {
    match T::deserialize(&value) {
        Ok(read) => Ok(read),
        Err(error) => match with_integers(&value) {
            Some(value) => T::deserialize(value).map_err(|_| error),
            None => Err(error),
        },
    }
}

/// An error text of serde, with plain words for Rust's types.
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
    let text = words.iter().fold(what.to_owned(), replaced);
    match text.split_once("expected struct ") {
        // The name of the struct is the last word, or its place follows.
        Some((before, after)) => {
            let rest = after.trim_start_matches(|c: char| c.is_alphanumeric() || c == '_');
            format!("{before}expected an object{rest}")
        }
        None => text,
    }
}

impl Neutral {
    fn is(self, value: &Value) -> bool {
        let is_empty = match value {
            Value::Null => true,
            Value::Bool(is_on) => !is_on,
            Value::String(text) => text.is_empty(),
            Value::Array(list) => list.is_empty(),
            // `web_search_options: {}` asks for a search.
            Value::Object(_) | Value::Number(_) => false,
        };
        match self {
            Self::Number(neutral) => is_empty || value.as_f64() == Some(neutral),
            Self::True => value.is_null() || *value == true,
            Self::Empty => is_empty,
        }
    }
}

/// The value with whole numbers that are written as `4.0` turned into integers. `None` if there are
/// none.
fn with_integers(value: &Value) -> Option<Value> {
    match value {
        Value::Number(number) if number.is_f64() => {
            let number = number.as_f64()?;
            // Integers up to 2^53 are exact.
            let is_whole = number.fract() == 0.0 && number.abs() <= 9_007_199_254_740_992.0;
            is_whole.then(|| Value::from(number as i64))
        }
        Value::Array(list) => {
            let changed: Vec<Option<Value>> = list.iter().map(with_integers).collect();
            changed.iter().any(Option::is_some).then(|| {
                let pairs = changed.into_iter().zip(list);
                pairs
                    .map(|(new, old)| new.unwrap_or_else(|| old.clone()))
                    .collect()
            })
        }
        Value::Object(object) => {
            let mut changed = object.clone();
            let mut is_changed = false;
            for value in changed.values_mut() {
                if let Some(new) = with_integers(value) {
                    (*value, is_changed) = (new, true);
                }
            }
            is_changed.then_some(Value::Object(changed))
        }
        _ => None,
    }
}

/// Adds names of parameters without effect to the header that lists them. Names that a header
/// cannot hold, and those that do not fit, are left out.
pub(crate) fn name_ignored(headers: &mut HeaderMap, names: &[impl AsRef<str>]) {
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

/// The parameters without effect that the header lists.
pub(crate) fn ignored_in(headers: &HeaderMap) -> Vec<String> {
    let names = headers.get(IGNORED).and_then(|value| value.to_str().ok());
    let names = names.into_iter().flat_map(|names| names.split(','));
    names.map(str::to_owned).collect()
}

/// A request for the model: its body, and the model that it asks for.
pub(crate) struct Ask {
    pub(crate) app: Shared,
    pub(crate) trace: Trace,
    pub(crate) served: Served,
    /// The keys of the body, without `model`.
    pub(crate) fields: Fields,
}

impl FromRequest<Shared> for Ask {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &Shared) -> Result<Self, ApiError> {
        let trace = request.extensions().get::<Trace>().cloned();
        let trace = trace.ok_or_else(ApiError::internal)?;
        let mut fields = Fields::from_request(request, app).await?;
        let model: Option<String> = fields.take("model")?;
        let asked = app.asked(model.as_deref())?;
        // A server with one model keeps it, and names the key as any other that it does not know.
        let keep_alive = match app.pool.is_on_demand() {
            true => KeepAlive::take(&mut fields)?,
            false => None,
        };
        Self::of(app, trace, &asked, keep_alive, fields).await
    }
}

impl Ask {
    /// A request for a model. It waits until the model is in memory.
    ///
    /// # Errors
    /// The model cannot be loaded, or the server takes no requests.
    pub(crate) async fn of(
        app: &Shared,
        trace: Trace,
        asked: &Asked,
        keep_alive: Option<KeepAlive>,
        mut fields: Fields,
    ) -> Result<Self, ApiError> {
        if app.pool.is_on_demand() {
            trace.serve(&asked.name);
        }
        let mut asked = asked.clone();
        app.choose_adapter(&mut asked, &mut fields)?;
        let asked = &asked;
        let served = match app.try_acquire(asked, keep_alive)? {
            Some(served) => served,
            None => {
                // Requests for other models tokenise meanwhile.
                let length = fields.long.rest();
                let served = app.acquire(asked, keep_alive).await?;
                if let Some(length) = length {
                    fields.long = app.room.go_on(fields.long, length).await;
                }
                served
            }
        };
        Ok(Self {
            app: app.clone(),
            trace,
            served,
            fields,
        })
    }
}

/// Whether a body is that of curl's `-d`, which calls it a form, for a route of Ollama: its documentation has such
/// commands. A browser sends forms of any page without asking first, so its forms are refused.
fn is_of_curl(request: &Request, content: &str) -> bool {
    let is_form = content.eq_ignore_ascii_case("application/x-www-form-urlencoded");
    let is_of_ollama = request.uri().path().split('/').any(|part| part == "api");
    let mut of_browsers = ["origin", "sec-fetch-site"].iter();
    let is_of_browser = of_browsers.any(|name| request.headers().contains_key(*name));
    is_form && is_of_ollama && !is_of_browser
}

impl FromRequest<Shared> for Fields {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &Shared) -> Result<Self, ApiError> {
        let content = request.headers().get(header::CONTENT_TYPE);
        let content = content.and_then(|value| value.to_str().ok()).unwrap_or("");
        let content = content.split(';').next().unwrap_or("").trim();
        if !content.eq_ignore_ascii_case("application/json") && !is_of_curl(&request, content) {
            let message = "expected a body with Content-Type: application/json";
            return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
        }
        let encoding = request.headers().get(header::CONTENT_ENCODING);
        if let Some(encoding) = encoding.filter(|encoding| *encoding != "identity") {
            let message = format!("a body with Content-Encoding {encoding:?} is not supported");
            return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
        }
        let too_large = || {
            let message = format!("the body is larger than {} bytes", crate::serve::MAX_BODY);
            ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message)
        };
        // Refused before the client sends the body.
        let length = request.headers().get(header::CONTENT_LENGTH);
        let length = length.and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
        if length.is_some_and(|length| length > crate::serve::MAX_BODY as u64) {
            return Err(too_large());
        }
        let admitted = app.room.admit(length.map(|length| length as usize))?;
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
        let long = app.room.enter(admitted, body.len()).await;
        Self::parse(&body, app.settings.strict, long)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fields(json: &str, is_strict: bool) -> Fields {
        Fields::parse(json.as_bytes(), is_strict, Long::default()).unwrap()
    }

    #[test]
    fn null_is_absent_and_types_are_named() {
        let mut body = fields(r#"{"a": null, "b": "x"}"#, false);
        assert_eq!(body.take::<u32>("a").unwrap(), None);
        let error = body.take::<u32>("b").unwrap_err();
        assert_eq!(error.param.as_deref(), Some("b"));
        let message = "b: invalid type: string \"x\", expected a whole number from 0";
        assert_eq!(error.message, message);

        #[derive(Debug, serde::Deserialize)]
        struct Inner {}
        let error = fields(r#"{"c": true}"#, false).take::<Inner>("c");
        let message = "c: invalid type: boolean `true`, expected an object";
        assert_eq!(error.unwrap_err().message, message);
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
        // A value that is neutral does not make an unknown key known.
        let strict = fields(r#"{"temprature": 0}"#, true).end(&[]);
        assert_eq!(strict.unwrap_err().param.as_deref(), Some("temprature"));
        let strict = fields(r#"{"user": "x", "colour": 1}"#, true).end(&[]);
        assert_eq!(strict.unwrap_err().param.as_deref(), Some("colour"));
        let refused = fields(r#"{"suffix": "x"}"#, false).end(&[]);
        assert_eq!(refused.unwrap_err().message, "suffix is not supported");
        assert!(
            fields(
                r#"{"suffix": null, "mirostat": 0, "use_beam_search": false, "length_penalty": 1.0, "best_of": 1,
                    "skip_special_tokens": true, "typical_p": 1, "top_a": 0, "chat_template": "",
                    "prompt_logprobs": false, "return_token_ids": false, "logprob_token_ids": [], "lora": [],
                    "thinking_token_budget": -1}"#,
                false
            )
                .end(&[])
                .unwrap()
                .is_empty()
        );
        for body in [
            r#"{"skip_special_tokens": false}"#,
            r#"{"typical_p": 0.1}"#,
            r#"{"top_a": 0.2}"#,
            r#"{"chat_template": "{{ 1 }}"}"#,
            // 0 asks for the log probability of each token of the prompt itself.
            r#"{"prompt_logprobs": 0}"#,
            r#"{"return_token_ids": true}"#,
            r#"{"logprob_token_ids": [1]}"#,
            r#"{"lora": [{"id": 0, "scale": 1}]}"#,
            r#"{"thinking_token_budget": 0}"#,
        ] {
            let error = fields(body, false).end(&[]).unwrap_err();
            assert!(error.message.ends_with(" is not supported"), "{body}");
            assert!(body.contains(error.param.as_deref().unwrap()), "{body}");
        }
    }

    #[test]
    fn whole_numbers_may_have_a_fraction_of_zero() {
        let mut body = fields(r#"{"a": 4.0, "b": [1.0, 2], "c": 4.5, "d": 1e300}"#, false);
        assert_eq!(body.take::<usize>("a").unwrap(), Some(4));
        assert_eq!(body.take::<Vec<u32>>("b").unwrap(), Some(vec![1, 2]));
        assert!(body.take::<usize>("c").is_err() && body.take::<usize>("d").is_err());
    }

    #[test]
    fn parts_without_effect_are_named_or_refused() {
        let mut lax = fields("{}", false);
        lax.without_effect("thinking.budget_tokens").unwrap();
        assert_eq!(lax.end(&[]).unwrap()[IGNORED], "thinking.budget_tokens");
        let inner = json!({"a": 1, "b": {}, "c": null, "d": false, "e": 0, "f": []});
        let mut lax = fields("{}", false);
        lax.name_others("x", inner.as_object().unwrap(), &["a"])
            .unwrap();
        assert_eq!(lax.end(&[]).unwrap()[IGNORED], "x.b,x.e");
        let strict = fields("{}", true).name_others("x", inner.as_object().unwrap(), &["a", "b"]);
        assert_eq!(strict.unwrap_err().param.as_deref(), Some("x.e"));
        let strict = fields("{}", true).without_effect("thinking.budget_tokens");
        assert_eq!(
            strict.unwrap_err().param.as_deref(),
            Some("thinking.budget_tokens")
        );
    }
}
