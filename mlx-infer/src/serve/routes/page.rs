//! `GET /`: a page for people, in one document without outside requests.

use std::sync::LazyLock;

use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

/// The scripts, in the order in which they stand in the document.
const SCRIPTS: [&str; 11] = [
    include_str!("page/store.js"),
    include_str!("page/api.js"),
    include_str!("page/formula.js"),
    include_str!("page/markdown.js"),
    include_str!("page/tokens.js"),
    include_str!("page/chat.js"),
    include_str!("page/chats.js"),
    include_str!("page/attach.js"),
    include_str!("page/classify.js"),
    include_str!("page/load.js"),
    include_str!("page/main.js"),
];
/// The libraries, each in an element of its own, and their places in the document. Their versions
/// are named in `page/vendor/make.sh`.
const LIBRARIES: [(&str, &str); 2] = [
    ("/*MARKED*/", include_str!("page/vendor/marked.js")),
    ("/*HIGHLIGHT*/", include_str!("page/vendor/highlight.js")),
];
const STYLE: &str = include_str!("page/style.css");
const DOCUMENT: &str = include_str!("page/page.html");

/// The document, and the content security policy, which lets the browser run only the scripts in
/// it.
static PAGE: LazyLock<(String, String)> = LazyLock::new(|| {
    let script = without_margins(&SCRIPTS.join("\n"));
    let script = format!("\"use strict\";\n{{\n{script}}}\n");
    let style = without_margins(STYLE);
    let hash = |text: &str| format!("'sha256-{}'", STANDARD.encode(Sha256::digest(text)));
    let policy = format!(
        "default-src 'none'; script-src {} {}; style-src {}; img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        hash(&script),
        LIBRARIES.map(|(_, text)| hash(text)).join(" "),
        hash(&style)
    );
    let mut document = DOCUMENT
        .replace("/*STYLE*/", &style)
        .replace("/*SCRIPT*/", &script);
    for (place, text) in LIBRARIES {
        document = document.replace(place, text);
    }
    (document, policy)
});

/// A text without the blanks around its lines, empty lines, and lines that are comments of scripts.
fn without_margins(text: &str) -> String {
    let lines = text.lines().map(str::trim);
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with("//"));
    lines.flat_map(|line| [line, "\n"]).collect()
}

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
