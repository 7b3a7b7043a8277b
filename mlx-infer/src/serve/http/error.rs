//! The error of a request, in the JSON shapes of OpenAI's, Anthropic's and Ollama's APIs.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::error::{Error, ErrorKind};

/// The reason why a request was refused or ended early.
///
/// As a response it has no body: the outermost layer of the router ([`crate::serve::http`]) knows the route and the request's id, and writes the body
/// in the shape that the route's clients expect.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    /// The parameter that is at fault.
    pub(crate) param: Option<String>,
    /// A name for programs, such as `model_not_found`.
    pub(crate) code: Option<&'static str>,
    pub(crate) message: String,
    /// Seconds after which the same request may succeed.
    pub(crate) retry_after: Option<u64>,
}

/// The status of Anthropic's API for a server without capacity.
const OVERLOADED: u16 = 529;

/// The code of a request for which there is no memory.
pub(crate) const NO_MEMORY: &str = "insufficient_memory";
/// The code of a request whose model cannot be loaded.
pub(crate) const NOT_LOADED: &str = "model_not_loaded";

impl ApiError {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self {
            status,
            param: None,
            code: None,
            message: message.into(),
            retry_after: None,
        }
    }

    /// 400, with the parameter at fault.
    pub(crate) fn bad(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            param: Some(param.into()),
            ..Self::new(StatusCode::BAD_REQUEST, message)
        }
    }

    /// 503, to be tried again after this many seconds.
    pub(crate) fn later(seconds: u64, message: impl Into<String>) -> Self {
        Self {
            retry_after: Some(seconds),
            ..Self::new(StatusCode::SERVICE_UNAVAILABLE, message)
        }
    }

    /// 500: the server is at fault, and only its log has details.
    pub(crate) fn internal() -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "the server has failed")
    }

    #[must_use]
    pub(crate) fn with_code(mut self, code: &'static str) -> Self {
        self.code = Some(code);
        self
    }

    #[must_use]
    pub(crate) fn with_param(mut self, param: impl Into<String>) -> Self {
        self.param = Some(param.into());
        self
    }

    /// OpenAI's name for the kind.
    fn openai_type(&self) -> &'static str {
        match self.status.as_u16() {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            429 => "rate_limit_error",
            500 => "server_error",
            503 => "service_unavailable_error",
            _ => "invalid_request_error",
        }
    }

    /// Anthropic's name for the kind.
    fn anthropic_type(&self) -> &'static str {
        match self.status.as_u16() {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            413 => "request_too_large",
            429 => "rate_limit_error",
            500 => "api_error",
            503 => "overloaded_error",
            _ => "invalid_request_error",
        }
    }

    /// `{"error": {message, type, param, code}}`. An error of the server has the request's id
    /// instead of details.
    pub(crate) fn openai(&self, request_id: &str) -> Value {
        json!({"error": {
            "message": self.message_with_id(request_id),
            "type": self.openai_type(),
            "param": self.param,
            "code": self.code,
        }})
    }

    /// `{"type": "error", "error": {type, message}, "request_id"}`.
    pub(crate) fn anthropic(&self, request_id: &str) -> Value {
        json!({
            "type": "error",
            "error": {"type": self.anthropic_type(), "message": self.message_with_id(request_id)},
            "request_id": request_id,
        })
    }

    /// `{"error": message}`.
    pub(crate) fn ollama(&self, request_id: &str) -> Value {
        json!({"error": self.message_with_id(request_id)})
    }

    fn message_with_id(&self, request_id: &str) -> String {
        match self.status {
            StatusCode::INTERNAL_SERVER_ERROR => format!("{}; request {request_id}", self.message),
            _ => self.message.clone(),
        }
    }

    /// The status on a route of Anthropic's API.
    pub(crate) fn anthropic_status(&self) -> StatusCode {
        match self.status {
            StatusCode::SERVICE_UNAVAILABLE => {
                StatusCode::from_u16(OVERLOADED).unwrap_or(self.status)
            }
            status => status,
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = self.status.into_response();
        if let Some(seconds) = self.retry_after {
            let seconds = HeaderValue::from(seconds);
            response.headers_mut().insert(header::RETRY_AFTER, seconds);
        }
        response.extensions_mut().insert(self);
        response
    }
}

impl From<Error> for ApiError {
    /// An error of the library. The details of a failed computation are left out, because they
    /// belong in the server's log.
    fn from(error: Error) -> Self {
        match error.kind() {
            ErrorKind::Argument
            | ErrorKind::Format
            | ErrorKind::Unsupported
            | ErrorKind::Tokenizer
            | ErrorKind::Template
            | ErrorKind::Missing => {
                Self::new(StatusCode::BAD_REQUEST, without_folder(&error.to_string()))
            }
            ErrorKind::Busy => Self::later(1, error.to_string()),
            ErrorKind::Memory => Self::later(5, error.to_string()).with_code(NO_MEMORY),
            ErrorKind::Cancelled => Self::later(10, "the server is shutting down"),
            ErrorKind::Closed => Self::later(10, "the engine has ended"),
            ErrorKind::NotFinite => Self::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "the model gives numbers that are not finite",
            ),
            ErrorKind::Io | ErrorKind::Compute | ErrorKind::Network | ErrorKind::OutputClosed => {
                Self::internal()
            }
        }
    }
}

/// A message without the folder of the file that it begins with: clients need not know where the
/// server's files are.
fn without_folder(message: &str) -> String {
    let is_path = message.starts_with('/') || message.get(1..3) == Some(":\\");
    let ends = [": ", " has "].map(|end| message.find(end));
    match ends.into_iter().flatten().min() {
        Some(end) if is_path => {
            let (path, rest) = message.split_at(end);
            let name = path.rsplit(['/', '\\']).next().unwrap_or_default();
            format!("{name}{rest}")
        }
        _ => message.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_stay_here() {
        for (message, shown) in [
            (
                "/srv/models/x/chat_template.jinja: chat template: no",
                "chat_template.jinja: chat template: no",
            ),
            (
                "/srv/models/my model has no tokenizer.json",
                "my model has no tokenizer.json",
            ),
            ("C:\\models\\x\\tokenizer.json: bad", "tokenizer.json: bad"),
            (
                "top_p must be in (0, 1]: /a/b",
                "top_p must be in (0, 1]: /a/b",
            ),
        ] {
            assert_eq!(without_folder(message), shown);
        }
    }

    #[test]
    fn each_api_has_its_shape() {
        let error = ApiError::bad("top_p", "top_p must be in (0, 1], given 2");
        assert_eq!(
            error.openai("r-1"),
            json!({"error": {
                "message": "top_p must be in (0, 1], given 2",
                "type": "invalid_request_error", "param": "top_p", "code": null,
            }})
        );
        assert_eq!(
            error.ollama("r-1"),
            json!({"error": "top_p must be in (0, 1], given 2"})
        );
        let later = ApiError::later(3, "the queue is full");
        assert_eq!(later.anthropic_status().as_u16(), 529);
        assert_eq!(
            later.anthropic("r-1"),
            json!({
                "type": "error", "request_id": "r-1",
                "error": {"type": "overloaded_error", "message": "the queue is full"},
            })
        );
        assert_eq!(later.into_response().headers()[header::RETRY_AFTER], "3");
    }

    #[test]
    fn details_of_our_faults_stay_here() {
        let error = ApiError::from(Error::new(ErrorKind::Compute, "secret"));
        let body = error.openai("r-7").to_string();
        assert!(body.contains("r-7") && !body.contains("secret"), "{body}");
    }
}
