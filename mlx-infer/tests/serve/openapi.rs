//! `/openapi.json` names all routes and parameters, and the server answers as it says.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::client::{SERVER, TestServer};

fn source(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn document() -> Value {
    let answer = SERVER.get("/openapi.json");
    assert_eq!(answer.status, 200);
    answer.json()
}

#[test]
fn all_routes_are_in_the_document() {
    let document = document();
    assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));
    let table = source("src/serve/routes.rs");
    let (of_server, of_apis) = table.split_once("fn of_apis()").unwrap();
    let routes = |text: &str, prefix: &str| -> Vec<String> {
        let mut parts = text.split(".route(");
        parts.next();
        let path = |part: &str| part.split('"').nth(1).unwrap().replace("{*", "{");
        parts
            .map(|part| format!("{prefix}{}", path(part)))
            .collect()
    };
    let routes: BTreeSet<String> = [routes(of_server, ""), routes(of_apis, "/v1")]
        .concat()
        .into_iter()
        .collect();
    let paths = document["paths"].as_object().unwrap();
    let named: BTreeSet<String> = paths.keys().cloned().collect();
    assert_eq!(named, routes);
    // A method of the document is one of the route, and no other is.
    for (path, methods) in paths {
        let known = methods.as_object().unwrap();
        for method in ["get", "post", "delete", "put"] {
            let path = path.replace("{id}", "none").replace("{name}", "tiny");
            let answer = SERVER.send(&method.to_uppercase(), &path, &[], "");
            assert_eq!(
                answer.status == 405,
                !known.contains_key(method),
                "{method} {path}"
            );
        }
    }
}

/// The parameters of the guide's table are in the schemas of requests.
#[test]
fn all_parameters_of_the_guide_are_in_the_document() {
    let document = document();
    let mut named = BTreeSet::new();
    for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
        if name.ends_with("Request") || name.ends_with("Parameters") {
            named.extend(schema["properties"].as_object().unwrap().keys().cloned());
        }
    }
    let guide = source("../docs/guide/serving.md");
    let (_, table) = guide
        .split_once("| parameter | range; default | meaning |")
        .unwrap();
    let rows = table
        .lines()
        .skip(2)
        .take_while(|line| line.starts_with('|'));
    let mut count = 0;
    for row in rows {
        for word in row.split('|').nth(1).unwrap().split('`').skip(1).step_by(2) {
            // `reasoning.max_tokens` is a key of an object.
            let key = word.split('.').next().unwrap();
            assert!(named.contains(key), "{word}");
            count += 1;
        }
    }
    assert!(count > 50, "{count}");
}

/// Each example is answered, with all keys that the document promises.
#[test]
fn the_examples_of_the_document_are_answered() {
    let document = document();
    let mut count = 0;
    for (path, methods) in document["paths"].as_object().unwrap() {
        let content = &methods["post"]["requestBody"]["content"]["application/json"];
        let example = &content["example"];
        if example.is_null() {
            continue;
        }
        count += 1;
        let answer = SERVER.post(path, example);
        // The built-in model has no marks of a gap, and no head that scores pairs.
        let refusal = match path.as_str() {
            "/infill" => Some("no marks of a gap"),
            "/v1/rerank" | "/v2/rerank" | "/v1/score" => Some("does not score pairs"),
            _ => None,
        };
        if let Some(words) = refusal {
            assert!(answer.body.contains(words), "{path}: {}", answer.body);
            continue;
        }
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        let schema = &methods["post"]["responses"]["200"]["content"]["application/json"]["schema"];
        let schema = schema["$ref"].as_str().unwrap().rsplit('/').next().unwrap();
        let schema = &document["components"]["schemas"][schema];
        let answer = answer.json();
        for key in schema["required"].as_array().unwrap() {
            assert!(
                answer.get(key.as_str().unwrap()).is_some(),
                "{path}: {key}: {answer}"
            );
        }
    }
    assert_eq!(count, 16);
}

/// Requests that are made from the document, by schemathesis: none is a failure of the server, and
/// each answer has a status, a type and a form of the document. `cargo xtask test` names a Python
/// that has the package.
#[test]
fn the_server_answers_as_the_document_says() {
    let Some(python) = std::env::var_os("MLX_TEST_PYTHON") else {
        eprintln!("left out: MLX_TEST_PYTHON names no Python with schemathesis");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start(|options| {
        options.batch_dir = Some(folder.path().join("batches"));
        options.max_output = 8;
    });
    let checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,response_schema_conformance,unsupported_method";
    let output = Command::new(Path::new(&python).with_file_name("schemathesis"))
        .args(["run", &format!("http://{}/openapi.json", server.address)])
        .args(["--checks", checks, "--phases", "examples,coverage,fuzzing"])
        .args([
            "--max-examples",
            "12",
            "--seed",
            "1",
            "--max-time",
            "25",
            "--no-color",
        ])
        .args(["--suppress-health-check", "all", "--warnings", "off"])
        // 501 here, because the server cannot load its model again; the tool takes that for a
        // failure. The tests of several models send it.
        .args(["--exclude-path", "/sleep"])
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("NO_PROXY", "127.0.0.1")
        .current_dir(folder.path())
        .output()
        .unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stdout}\n{stderr}");
    assert!(stdout.contains("generated"), "{stdout}");
}
