//! The lines of a batch: a JSON object with `custom_id`, `method`, `url` and `body` each.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use serde_json::{Map, Value, json};

use crate::serve::MAX_BODY;

/// The routes that a line may name.
pub(crate) const ROUTES: &[&str] = &[
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    EMBEDDINGS,
];
/// The route whose lines generate nothing.
pub(crate) const EMBEDDINGS: &str = "/v1/embeddings";

/// Most faults of a file that are listed.
const MAX_FAULTS: usize = 20;

/// A request of a batch.
#[derive(Debug)]
pub(crate) struct BatchLine {
    pub(crate) custom_id: String,
    pub(crate) url: String,
    pub(crate) body: Map<String, Value>,
}

/// The reason why a line is not a request.
#[derive(Debug, PartialEq)]
pub(crate) struct LineFault {
    /// A name for programs, as OpenAI's API has it.
    code: &'static str,
    message: String,
    /// The key at fault.
    param: Option<&'static str>,
}

impl LineFault {
    fn new(code: &'static str, param: Option<&'static str>, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            param,
        }
    }

    /// An entry of a batch's `errors`.
    pub(crate) fn json(&self, line: Option<usize>) -> Value {
        json!({"code": self.code, "line": line, "message": self.message, "param": self.param})
    }
}

impl BatchLine {
    /// Reads a line. `endpoint` is the route of its batch; without one, each line names its own.
    ///
    /// # Errors
    /// It is not a JSON object with these keys, or names another route.
    pub(crate) fn parse(text: &[u8], endpoint: Option<&str>) -> Result<Self, LineFault> {
        let parsed = serde_json::from_slice(text).map_err(|error| {
            let message = format!("the line is not valid JSON: {error}");
            LineFault::new("invalid_json_line", None, message)
        })?;
        let Value::Object(mut object) = parsed else {
            let message = "the line must be a JSON object";
            return Err(LineFault::new("invalid_json_line", None, message));
        };
        let mut text = |name: &'static str| match object.shift_remove(name) {
            Some(Value::String(text)) if !text.is_empty() => Ok(text),
            None | Some(Value::Null) => {
                let message = format!("{name} is missing");
                Err(LineFault::new(
                    "missing_required_parameter",
                    Some(name),
                    message,
                ))
            }
            Some(_) => {
                let message = format!("{name} must be a text that is not empty");
                Err(LineFault::new("invalid_type", Some(name), message))
            }
        };
        let custom_id = text("custom_id")?;
        let (method, url) = (text("method")?, text("url")?);
        if method != "POST" {
            let message = format!("method must be POST, given {method:?}");
            return Err(LineFault::new("invalid_method", Some("method"), message));
        }
        if let Some(endpoint) = endpoint.filter(|endpoint| *endpoint != url) {
            let message = format!("url must be that of the batch, {endpoint}, given {url:?}");
            return Err(LineFault::new("mismatched_url", Some("url"), message));
        }
        if !ROUTES.contains(&url.as_str()) {
            let message = format!("url must be one of {}, given {url:?}", ROUTES.join(", "));
            return Err(LineFault::new("invalid_url", Some("url"), message));
        }
        let body = match object.shift_remove("body") {
            Some(Value::Object(body)) => body,
            _ => {
                let message = "body must be an object";
                return Err(LineFault::new("invalid_type", Some("body"), message));
            }
        };
        if let Some(key) = object.keys().next() {
            let message = format!("{key:?} is not a key of a line");
            return Err(LineFault::new("unknown_parameter", None, message));
        }
        Ok(Self {
            custom_id,
            url,
            body,
        })
    }
}

/// The lines of a file with their numbers from 1; blank ones are left out.
pub(crate) struct LinesOf {
    reader: BufReader<File>,
    number: usize,
    /// Most bytes of a line.
    most: usize,
}

impl LinesOf {
    /// Opens a file of requests. A line may have as many bytes as a body.
    ///
    /// # Errors
    /// It cannot be read, or is not an ordinary file.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        Self::up_to(path, MAX_BODY)
    }

    /// Opens a file of answers. A line may have any length: the vectors of many texts are long.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub(crate) fn of_answers(path: &Path) -> io::Result<Self> {
        Self::up_to(path, usize::MAX)
    }

    fn up_to(path: &Path, most: usize) -> io::Result<Self> {
        let file = File::open(path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::other("it is not an ordinary file"));
        }
        Ok(Self {
            reader: BufReader::new(file),
            number: 0,
            most,
        })
    }

    /// The next line without its end; a line of too many bytes is an error.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn next(&mut self) -> io::Result<Option<(usize, Vec<u8>)>> {
        loop {
            let mut line = Vec::new();
            let mut limited = self
                .reader
                .by_ref()
                .take((self.most as u64).saturating_add(1));
            if limited.read_until(b'\n', &mut line)? == 0 {
                return Ok(None);
            }
            self.number += 1;
            if line.len() > self.most {
                let message = format!("line {} has more than {} bytes", self.number, self.most);
                return Err(io::Error::other(message));
            }
            if !line.trim_ascii().is_empty() {
                return Ok(Some((self.number, line)));
            }
        }
    }
}

/// Reads all lines of a file. Returns their number, and what is wrong with the file: no line, too
/// many, lines that are no requests, or two with the same `custom_id`.
///
/// # Errors
/// The file cannot be read.
pub(crate) fn check(
    path: &Path,
    endpoint: Option<&str>,
    most: usize,
) -> io::Result<(usize, Vec<Value>)> {
    let mut lines = LinesOf::open(path)?;
    let (mut total, mut faults, mut ids) = (0, Vec::new(), HashSet::new());
    while let Some((number, line)) = lines.next()? {
        total += 1;
        let fault = match BatchLine::parse(&line, endpoint) {
            Err(fault) => fault,
            Ok(line) if ids.contains(&line.custom_id) => {
                let message = format!("custom_id {:?} is that of an earlier line", line.custom_id);
                LineFault::new("duplicate_custom_id", Some("custom_id"), message)
            }
            Ok(line) => {
                ids.insert(line.custom_id);
                continue;
            }
        };
        if faults.len() < MAX_FAULTS {
            faults.push(fault.json(Some(number)));
        }
    }
    let of_all = match total {
        0 => Some(LineFault::new("empty_file", None, "the file has no line")),
        n if n > most => {
            let message = format!("the file has {n} lines, a batch at most {most}");
            Some(LineFault::new("too_many_lines", None, message))
        }
        _ => None,
    };
    faults.extend(of_all.map(|fault| fault.json(None)));
    Ok((total, faults))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_are_no_requests_are_named() {
        let code = |text: &str| {
            let parsed = BatchLine::parse(text.as_bytes(), Some("/v1/completions"));
            parsed
                .map(|line| line.custom_id)
                .map_err(|fault| fault.code)
        };
        let good = r#"{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {}}"#;
        assert_eq!(code(good), Ok("a".to_owned()));
        for (from, to, expected) in [
            ("{\"custom", "{custom", "invalid_json_line"),
            (good, "[]", "invalid_json_line"),
            ("custom_id", "id", "missing_required_parameter"),
            ("\"a\"", "1", "invalid_type"),
            ("\"a\"", "\"\"", "invalid_type"),
            ("POST", "GET", "invalid_method"),
            ("completions", "responses", "mismatched_url"),
            ("{}", "[]", "invalid_type"),
            ("\"body\": {}", "\"x\": {}", "invalid_type"),
            ("{}}", "{}, \"x\": 1}", "unknown_parameter"),
        ] {
            assert_eq!(code(&good.replace(from, to)), Err(expected), "{to}");
        }
        let other = good.replace("/v1/completions", "/v1/models");
        let fault = BatchLine::parse(other.as_bytes(), None).unwrap_err();
        assert!(fault.code == "invalid_url" && fault.message.contains("/v1/responses"));
    }

    #[test]
    fn a_file_is_checked_as_a_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lines");
        let line = |id: &str| {
            json!({"custom_id": id, "method": "POST", "url": "/v1/completions", "body": {}})
                .to_string()
        };
        let checked = |text: &str| {
            std::fs::write(&path, text).unwrap();
            let (total, faults) = check(&path, None, 3).unwrap();
            let faults = faults
                .iter()
                .map(|fault| (fault["line"].as_u64(), fault["code"].clone()));
            (total, faults.collect::<Vec<_>>())
        };
        let good = format!("{}\n\n{}", line("a"), line("b"));
        assert_eq!(checked(&good), (2, Vec::new()));
        let twice = format!("{good}\n{}\n", line("a"));
        assert_eq!(
            checked(&twice),
            (3, vec![(Some(4), "duplicate_custom_id".into())])
        );
        assert_eq!(checked("\n"), (0, vec![(None, "empty_file".into())]));
        let long = format!("{good}\n{}\n{}", line("c"), line("d"));
        assert_eq!(checked(&long), (4, vec![(None, "too_many_lines".into())]));
        let big = "x".repeat(MAX_BODY + 1);
        std::fs::write(&path, big).unwrap();
        assert!(check(&path, None, 3).is_err());
    }
}
