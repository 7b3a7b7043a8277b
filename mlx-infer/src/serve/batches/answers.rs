//! Answers the lines of a batch with the server's own routes, and appends the answers to files.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode, header};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tower::ServiceExt;

use super::lines::{BatchLine, LinesOf};
use crate::serve::http::Inside;
use crate::serve::http::error::{ApiError, NO_MEMORY, NOT_LOADED};
use crate::serve::http::fields::ignored_in;
use crate::serve::http::trace::new_id;

/// How often a request is tried for which there is no memory, or none for its model.
const TRIES: usize = 3;
/// The pause before a request is tried again that the server has no room for. It doubles with each
/// try.
const PAUSE: Duration = Duration::from_millis(200);
/// The longest pause, for a server that sleeps.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// A file of requests, and the files of their answers.
pub(crate) struct BatchJob<'a> {
    pub(crate) input: &'a Path,
    /// The route of all lines, if they have one.
    pub(crate) endpoint: Option<&'a str>,
    pub(crate) output: &'a Path,
    /// The file of requests that failed; it may be `output`.
    pub(crate) errors: &'a Path,
    /// Most requests at a time.
    pub(crate) at_once: usize,
}

/// The lines that have an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) completed: usize,
    pub(crate) failed: usize,
}

/// The answers of a job that are on disk.
struct Answers {
    output: File,
    errors: Option<File>,
    known: HashSet<String>,
    tally: Tally,
}

impl BatchJob<'_> {
    /// Answers all lines that have no answer yet, and appends each answer as it comes. `told` gets
    /// the counts after each. When `stopped` is ready, requests in progress are cancelled and get
    /// no answer. Returns whether all lines have an answer.
    ///
    /// # Errors
    /// A file cannot be read or written.
    pub(crate) async fn run(
        &self,
        router: &Router,
        stopped: impl Future<Output = ()>,
        mut told: impl FnMut(Tally),
    ) -> io::Result<bool> {
        let mut answers = Answers::open(self)?;
        let mut lines = LinesOf::open(self.input)?;
        let mut stopped = std::pin::pin!(stopped);
        // Dropping it cancels the requests in progress.
        let mut running = JoinSet::new();
        told(answers.tally);
        let mut is_read = false;
        loop {
            while !is_read && running.len() < self.at_once {
                match self.next(&mut lines, &answers.known)? {
                    Some(line) => {
                        running.spawn(answer(router.clone(), line));
                    }
                    None => is_read = true,
                }
            }
            tokio::select! {
                biased;
                () = &mut stopped => return Ok(false),
                done = running.join_next() => match done {
                    Some(Ok((failed, document))) => {
                        answers.add(failed, &document)?;
                        told(answers.tally);
                    }
                    // Handlers catch panics, so a task ends only with its answer.
                    Some(Err(error)) => return Err(io::Error::other(error)),
                    None => break,
                },
            }
        }
        answers.output.sync_all()?;
        answers.errors.as_ref().map_or(Ok(()), File::sync_all)?;
        Ok(true)
    }

    /// Appends an error to the file of failed requests for each line without an answer.
    ///
    /// # Errors
    /// A file cannot be read or written.
    pub(crate) fn fail_rest(&self, code: &str, message: &str) -> io::Result<Tally> {
        let mut answers = Answers::open(self)?;
        let mut lines = LinesOf::open(self.input)?;
        while let Some(line) = self.next(&mut lines, &answers.known)? {
            let error = json!({"code": code, "message": message});
            answers.add(true, &document(&line.custom_id, Value::Null, error))?;
        }
        Ok(answers.tally)
    }

    /// The next line without an answer.
    fn next(&self, lines: &mut LinesOf, known: &HashSet<String>) -> io::Result<Option<BatchLine>> {
        while let Some((number, text)) = lines.next()? {
            let line = BatchLine::parse(&text, self.endpoint).map_err(|fault| {
                // The file was checked before.
                let fault = fault.json(Some(number));
                io::Error::other(format!("{} has changed: {fault}", self.input.display()))
            })?;
            if !known.contains(&line.custom_id) {
                return Ok(Some(line));
            }
        }
        Ok(None)
    }
}

impl Answers {
    /// Opens the files and reads which lines have an answer. A last line that was not written to
    /// its end is removed.
    fn open(job: &BatchJob<'_>) -> io::Result<Self> {
        let (mut known, mut tally) = (HashSet::new(), Tally::default());
        let output = opened(job.output, &mut known, &mut tally)?;
        let errors = match job.errors == job.output {
            true => None,
            false => Some(opened(job.errors, &mut known, &mut tally)?),
        };
        Ok(Self {
            output,
            errors,
            known,
            tally,
        })
    }

    fn add(&mut self, failed: bool, document: &Value) -> io::Result<()> {
        let file = match (&mut self.errors, failed) {
            (Some(errors), true) => errors,
            _ => &mut self.output,
        };
        // In one write, so that a crash leaves at most one line unfinished.
        file.write_all(format!("{document}\n").as_bytes())?;
        match failed {
            true => self.tally.failed += 1,
            false => self.tally.completed += 1,
        }
        Ok(())
    }
}

/// Opens a file of answers for more of them, and counts those that it has.
fn opened(path: &Path, known: &mut HashSet<String>, tally: &mut Tally) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let mut file = options
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)?;
    let length = whole(&mut file)?;
    file.set_len(length)?;
    let mut lines = LinesOf::of_answers(path)?;
    while let Some((number, text)) = lines.next()? {
        let document: Value = serde_json::from_slice(&text).unwrap_or_default();
        let Some(id) = document["custom_id"].as_str() else {
            let message = format!("{}: line {number} is not an answer", path.display());
            return Err(io::Error::other(message));
        };
        known.insert(id.to_owned());
        match is_failed(&document) {
            true => tally.failed += 1,
            false => tally.completed += 1,
        }
    }
    file.seek(SeekFrom::End(0))?;
    Ok(file)
}

/// The length of a file up to the end of its last whole line.
fn whole(file: &mut File) -> io::Result<u64> {
    const BLOCK: u64 = 64 << 10;
    let mut end = file.metadata()?.len();
    while end > 0 {
        let start = end.saturating_sub(BLOCK);
        let mut block = vec![0; (end - start) as usize];
        file.seek(SeekFrom::Start(start))?;
        file.read_exact(&mut block)?;
        if let Some(at) = block.iter().rposition(|&byte| byte == b'\n') {
            return Ok(start + at as u64 + 1);
        }
        end = start;
    }
    Ok(0)
}

fn is_failed(document: &Value) -> bool {
    document["response"]["status_code"] != 200
}

/// A line of the output.
fn document(custom_id: &str, response: Value, error: Value) -> Value {
    json!({"id": new_id("batch_req_"), "custom_id": custom_id, "response": response, "error": error})
}

/// Whether a request failed, and the line of its answer.
async fn answer(router: Router, line: BatchLine) -> (bool, Value) {
    let Answered {
        status,
        request_id,
        ignored,
        body,
    } = respond(&router, &line).await;
    let mut response = json!({
        "status_code": status.as_u16(),
        "request_id": request_id,
        "body": body,
    });
    if !ignored.is_empty() {
        response[IGNORED_KEY] = ignored.into();
    }
    (
        status != StatusCode::OK,
        document(&line.custom_id, response, Value::Null),
    )
}

/// The key of a line's response for what its header `x-ignored-params` has: parameters without
/// effect.
const IGNORED_KEY: &str = "ignored_params";

/// What a route answered.
struct Answered {
    status: StatusCode,
    request_id: String,
    /// The parameters without effect.
    ignored: Vec<String>,
    body: Value,
}

/// Sends a request to its route, again while the server has no room for it or sleeps.
async fn respond(router: &Router, line: &BatchLine) -> Answered {
    if line.body.get("stream") == Some(&Value::Bool(true)) {
        let request_id = new_id("req_");
        let error = ApiError::bad("stream", "the answers of a batch are not streamed");
        return Answered {
            status: error.status,
            body: error.openai(&request_id),
            request_id,
            ignored: Vec::new(),
        };
    }
    let body = serde_json::to_vec(&line.body).unwrap_or_default();
    let (mut tries, mut pause) = (0, PAUSE);
    loop {
        let mut request = Request::post(&line.url)
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::CONTENT_LENGTH, body.len())
            .header(header::HOST, "localhost")
            .body(Body::from(body.clone()))
            .expect("the routes of the table are valid URLs");
        request.extensions_mut().insert(Inside);
        let Ok(response) = router.clone().oneshot(request).await;
        let status = response.status();
        let id = response.headers().get("x-request-id");
        let id = id
            .and_then(|id| id.to_str().ok())
            .unwrap_or_default()
            .to_owned();
        let ignored = ignored_in(response.headers());
        // The body of an answer is in memory already.
        let bytes = to_bytes(response.into_body(), usize::MAX)
            .await
            .unwrap_or_default();
        let answer: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        let code = answer["error"]["code"].as_str().unwrap_or_default();
        tries += usize::from([NO_MEMORY, NOT_LOADED].contains(&code));
        if status != StatusCode::SERVICE_UNAVAILABLE || tries == TRIES {
            return Answered {
                status,
                request_id: id,
                ignored,
                body: answer,
            };
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unfinished_line_is_removed_and_others_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("answers");
        let line = |id: &str, status: u16| {
            document(id, json!({"status_code": status}), Value::Null).to_string()
        };
        let whole = format!("{}\n{}\n", line("a", 200), line("b", 400));
        for rest in ["", "{\"id\"", &"x".repeat(200_000)] {
            std::fs::write(&path, format!("{whole}{rest}")).unwrap();
            let (mut known, mut tally) = (HashSet::new(), Tally::default());
            opened(&path, &mut known, &mut tally).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), whole);
            assert_eq!(
                tally,
                Tally {
                    completed: 1,
                    failed: 1
                }
            );
            assert!(known.contains("a") && known.contains("b") && known.len() == 2);
        }
        // The vectors of many texts are longer than the body of a request may be.
        let long = json!({"status_code": 200, "body": "x".repeat(crate::serve::MAX_BODY)});
        let long = document("c", long, Value::Null);
        std::fs::write(&path, format!("{long}\n")).unwrap();
        let mut known = HashSet::new();
        opened(&path, &mut known, &mut Tally::default()).unwrap();
        assert!(known.contains("c"));
        std::fs::write(&path, "{}\n").unwrap();
        assert!(opened(&path, &mut HashSet::new(), &mut Tally::default()).is_err());
    }
}
