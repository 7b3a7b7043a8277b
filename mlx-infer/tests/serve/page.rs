//! The page.

use crate::client::SERVER;

#[test]
fn the_page_is_one_document_that_asks_nobody_else() {
    let answer = SERVER.get("/");
    assert_eq!(
        answer.header("content-type"),
        Some("text/html; charset=utf-8")
    );
    let policy = answer.header("content-security-policy").unwrap();
    assert!(
        policy.starts_with("default-src 'none'; script-src 'sha256-"),
        "{policy}"
    );
    assert!(answer.body.len() < 100_000);
    assert!(!answer.body.contains("/*SCRIPT*/") && !answer.body.contains("/*STYLE*/"));
    for outside in ["http://", "https://", "src=\"", "@import", "url("] {
        let found = answer.body.matches(outside).count();
        let of_svg = answer.body.matches("http://www.w3.org/2000/svg").count();
        assert_eq!(
            found - if outside == "http://" { of_svg } else { 0 },
            0,
            "{outside}"
        );
    }
}
