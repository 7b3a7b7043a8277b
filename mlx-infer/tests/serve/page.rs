//! The page at `/`.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::json;

use crate::client::{SERVER, TestServer};
use crate::scripted::{Fault, Scripted};

#[test]
fn the_page_is_one_document_without_outside_requests() {
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
    assert!(answer.body.len() < 200_000, "{}", answer.body.len());
    for place in ["SCRIPT", "STYLE", "MARKED", "HIGHLIGHT"] {
        assert!(!answer.body.contains(&format!("/*{place}*/")), "{place}");
    }
    // The libraries have addresses in their texts, and the policy keeps them from asking for any.
    // Nothing in a library may end its element.
    let scripts: Vec<&str> = answer.body.split("<script>").collect();
    let [before, marked, highlight, script] = scripts[..] else {
        panic!("{} scripts", scripts.len() - 1);
    };
    for library in [marked, highlight] {
        let (text, rest) = library.split_once("</script").unwrap();
        assert!(text.starts_with("// ") && text.ends_with(";\n"), "{rest}");
        assert_eq!(rest.trim(), ">");
        assert!(!text.contains("<!--"));
    }
    let own = [before, script].concat();
    for outside in ["http://", "https://", "src=\"", "@import", "url("] {
        let found = own.matches(outside).count();
        let names = ["http://www.w3.org/2000/svg", "http://www.w3.org/1998/Math"];
        let of_names: usize = names.iter().map(|name| own.matches(name).count()).sum();
        assert_eq!(
            found - if outside == "http://" { of_names } else { 0 },
            0,
            "{outside}"
        );
    }
}

/// The libraries are those that npm has under their versions. Without npm the test prints that it was
/// left out.
#[test]
fn the_libraries_are_those_of_their_versions() {
    let vendor = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/serve/routes/page/vendor");
    let made = Command::new("sh")
        .arg(vendor.join("make.sh"))
        .arg("--check")
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&made.stderr);
    match made.status.code() {
        Some(0) => {}
        Some(3) => eprintln!("left out: npm cannot install the libraries: {stderr}"),
        code => panic!(
            "{code:?}: {} {stderr}",
            String::from_utf8_lossy(&made.stdout)
        ),
    }
}

/// An installed Chromium.
pub fn chromium() -> Option<std::path::PathBuf> {
    let folders = std::env::var_os("PATH")?;
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let candidates = std::env::split_paths(&folders)
        .flat_map(|folder| names.map(|name| folder.join(name)))
        .filter(|path| path.is_file());
    candidates.into_iter().next()
}

/// `cargo xtask test` names a Python that has playwright. Without it or without Chromium the test
/// prints that it was left out.
#[test]
fn the_page_works_in_a_browser() {
    let (Some(python), Some(chromium)) = (std::env::var_os("MLX_TEST_PYTHON"), chromium()) else {
        eprintln!("left out: there is no MLX_TEST_PYTHON, or no Chromium");
        return;
    };
    let closed = TestServer::start(|options| options.keys = vec!["sesame".to_owned()]);
    let slow = Scripted::start("qwen3", &[], &["<|im_end|>"], |_| ());
    let asked = json!({"messages": [{"role": "user", "content": "Why?"}], "max_tokens": 1});
    let prompt = slow.server.ok("/v1/chat/completions", &asked)["usage"]["prompt_tokens"].clone();
    let more = " and so on".repeat(200);
    let pieces = [
        "<think>\n",
        "I add.",
        "\n</think>",
        "\n\n",
        "**It** is 42.",
        &more,
    ];
    slow.says(prompt.as_u64().unwrap() as usize, &pieces);
    slow.fault(Fault::Slow(Duration::from_millis(40)));
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/serve/page.py");
    let output = Command::new(python)
        .arg(script)
        .args([SERVER.address, closed.address].map(|address| format!("http://{address}")))
        .arg("sesame")
        .arg(format!("http://{}", slow.server.address))
        .arg(chromium)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    assert_eq!(String::from_utf8_lossy(&output.stdout).lines().count(), 19);
}
