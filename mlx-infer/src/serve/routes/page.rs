//! `GET /`: a page for people, in one document without outside requests.

use std::sync::LazyLock;

use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

/// The scripts, in the order in which they stand in the document.
const SCRIPTS: [&str; 8] = [
    include_str!("page/store.js"),
    include_str!("page/api.js"),
    include_str!("page/markdown.js"),
    include_str!("page/tokens.js"),
    include_str!("page/chat.js"),
    include_str!("page/classify.js"),
    include_str!("page/load.js"),
    include_str!("page/main.js"),
];
const STYLE: &str = include_str!("page/style.css");
const DOCUMENT: &str = include_str!("page/page.html");

/// The document, and the content security policy, which lets the browser run only the scripts in
/// it.
static PAGE: LazyLock<(String, String)> = LazyLock::new(|| {
    let script = format!("\"use strict\";\n{{\n{}}}\n", SCRIPTS.join("\n"));
    let hash = |text: &str| format!("'sha256-{}'", STANDARD.encode(Sha256::digest(text)));
    let policy = format!(
        "default-src 'none'; script-src {}; style-src {}; img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        hash(&script),
        hash(STYLE)
    );
    let document = DOCUMENT
        .replace("/*STYLE*/", STYLE)
        .replace("/*SCRIPT*/", &script);
    (document, policy)
});

pub(crate) async fn page() -> Response {
    let (document, policy) = &*PAGE;
    let policy = HeaderValue::from_static(policy);
    let headers: [(HeaderName, HeaderValue); 3] = [
        (
            header::CONTENT_TYPE,
            HeaderValue::from_static("text/html; charset=utf-8"),
        ),
        (header::CONTENT_SECURITY_POLICY, policy),
        (
            header::X_CONTENT_TYPE_OPTIONS,
            HeaderValue::from_static("nosniff"),
        ),
    ];
    (headers, document.as_str()).into_response()
}
