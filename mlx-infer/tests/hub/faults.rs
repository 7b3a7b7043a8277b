//! A hub that fails, refuses or lies.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use mlx_infer::hub::Name;
use mlx_infer::{CancelToken, ErrorKind};

use crate::mock::{COMMIT, Mock, Reply, Seen, etag, noise, part};
use crate::{CONFIG, blob, builder, get, name, pulled, refused};

const WEIGHTS: &str = "model.safetensors";

fn scripted(
    weights: &[u8],
    script: impl Fn(&Seen) -> Option<Reply> + Send + Sync + 'static,
) -> Mock {
    Mock::scripted(&[("config.json", CONFIG), (WEIGHTS, weights)], script)
}

/// Answers requests for the weights' bytes.
fn bytes(weights: &[u8], script: impl Fn(&Seen) -> Option<Reply> + Send + Sync + 'static) -> Mock {
    scripted(weights, move |seen| {
        script(seen).filter(|_| seen.is("GET", "/bytes/model.safetensors"))
    })
}

#[test]
fn a_cut_is_gone_on_from() {
    let weights = noise(2_500_000);
    let all = weights.clone();
    // Each connection brings 900,000 bytes at most.
    let mock = bytes(&weights, move |seen| {
        let reply = part(&all, seen.from());
        let (length, n) = (reply.body.len(), reply.body.len().min(900_000));
        Some(
            Reply {
                body: reply.body[..n].to_vec(),
                ..reply
            }
            .with("Content-Length", length.to_string()),
        )
    });
    let cache = tempfile::tempdir().unwrap();
    let (found, notes) = pulled(&mock, cache.path());
    assert_eq!(
        std::fs::read(found.unwrap().path().join(WEIGHTS)).unwrap(),
        weights
    );
    let log = mock.log();
    let from: Vec<usize> = log
        .iter()
        .filter(|seen| seen.at_bytes)
        .map(Seen::from)
        .collect();
    assert_eq!(from, [0, 900_000, 1_800_000]);
    assert_eq!(notes.len(), 2, "{notes:?}");
}

#[test]
fn an_earlier_part_is_gone_on_from_and_a_200_restarts() {
    let weights = noise(500_000);
    for answers_ranges in [true, false] {
        let all = weights.clone();
        let mock = bytes(&weights, move |_| (!answers_ranges).then(|| part(&all, 0)));
        let cache = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(blob(cache.path(), "")).unwrap();
        let unfinished = blob(
            cache.path(),
            &format!("{}.incomplete", etag(WEIGHTS, &weights)),
        );
        std::fs::write(&unfinished, &weights[..123_456]).unwrap();
        let found = pulled(&mock, cache.path()).0.unwrap();
        assert_eq!(std::fs::read(found.path().join(WEIGHTS)).unwrap(), weights);
        let asked = mock.log().into_iter().find(|seen| seen.at_bytes).unwrap();
        assert_eq!(asked.from(), 123_456);
        assert_eq!(mock.fetches(WEIGHTS), 1);
        assert!(!unfinished.exists());
    }
}

#[test]
fn an_earlier_part_that_is_wrong_is_fetched_again() {
    let weights = noise(500_000);
    for wrong in [vec![0; 123_456], vec![0; 600_000], vec![0; 500_000]] {
        let mock = Mock::new(&[("config.json", CONFIG), (WEIGHTS, &weights)]);
        let cache = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(blob(cache.path(), "")).unwrap();
        let unfinished = format!("{}.incomplete", etag(WEIGHTS, &weights));
        std::fs::write(blob(cache.path(), &unfinished), &wrong).unwrap();
        let found = pulled(&mock, cache.path()).0.unwrap();
        assert_eq!(std::fs::read(found.path().join(WEIGHTS)).unwrap(), weights);
    }
}

#[test]
fn wrong_bytes_never_get_the_name() {
    let weights = noise(100_000);
    let mut wrong = weights.clone();
    wrong[77_777] ^= 1;
    let sent = wrong.clone();
    let mock = bytes(&weights, move |_| Some(part(&sent, 0)));
    let cache = tempfile::tempdir().unwrap();
    let error = pulled(&mock, cache.path()).0.unwrap_err().to_string();
    let (expected, found) = (etag(WEIGHTS, &weights), etag(WEIGHTS, &wrong));
    assert!(
        error.contains(&format!(
            "SHA-256 of what {WEIGHTS} sent is {found}, expected {expected}"
        )),
        "{error}"
    );
    let left: Vec<_> = std::fs::read_dir(blob(cache.path(), ""))
        .unwrap()
        .flatten()
        .collect();
    assert_eq!(left.len(), 1, "the configuration alone: {left:?}");
    // git's SHA-1 of a small file.
    let mock = scripted(&weights, |seen| {
        let tag = etag("config.json", CONFIG);
        seen.is("GET", "/resolve-cache/config.json")
            .then(|| Reply::new(200, vec![b' '; CONFIG.len()]).with("ETag", tag))
    });
    let error = refused(&mock).to_string();
    assert!(
        error.contains("git's SHA-1 of what config.json sent is"),
        "{error}"
    );
    assert!(!cache.path().join("models--org--name/refs/main").exists());
}

#[test]
fn more_and_fewer_bytes_than_told_are_errors() {
    let weights = noise(1000);
    let mock = bytes(&weights, |_| Some(Reply::new(200, noise(1001))));
    let error = refused(&mock).to_string();
    assert!(
        error.contains("sends more than the last of its 1000 bytes"),
        "{error}"
    );
    let mock = bytes(&weights, |seen| match seen.from() {
        0 => Some(Reply::new(200, noise(990))),
        from => Some(Reply::new(206, "").with("Content-Range", format!("bytes {from}-999/1000"))),
    });
    let error = refused(&mock).to_string();
    assert!(
        error.contains("ended after 990 of its 1000 bytes"),
        "{error}"
    );
    let mock = bytes(&weights, |seen| match seen.from() {
        0 => Some(Reply::new(200, noise(500))),
        _ => Some(Reply::new(206, noise(10)).with("Content-Range", "bytes 0-9/1000")),
    });
    let error = refused(&mock).to_string();
    assert!(error.contains("asked for bytes 500-999/1000"), "{error}");
}

#[test]
fn a_tag_that_is_no_checksum_is_said() {
    let weights = noise(1000);
    let mock = scripted(&weights, |seen| {
        seen.is("HEAD", "/resolve-cache/config.json")
            .then(|| Reply::new(200, CONFIG).with("ETag", "W/\"v1-2\""))
    });
    let cache = tempfile::tempdir().unwrap();
    let (found, notes) = pulled(&mock, cache.path());
    found.unwrap();
    assert!(
        notes.len() == 1 && notes[0].contains("no checksum (tag \"v1-2\")"),
        "{notes:?}"
    );
    assert!(blob(cache.path(), "v1-2").is_file());
    for tag in ["../../x", "a/b", ".x", "", "x y"] {
        let mock = scripted(&weights, move |seen| {
            seen.is("HEAD", "/resolve-cache/config.json")
                .then(|| Reply::new(200, CONFIG).with("ETag", tag))
        });
        let error = refused(&mock).to_string();
        assert!(error.contains("no tag (ETag)"), "{tag}: {error}");
    }
}

#[test]
fn names_that_leave_the_folder_are_refused() {
    let weights = noise(10);
    for file in ["../x.jinja", "/etc/x.json", "a/../../x.jinja"] {
        let mock = Mock::new(&[("config.json", CONFIG), (WEIGHTS, &weights), (file, b"x")]);
        let error = refused(&mock).to_string();
        assert!(
            error.contains(&format!("{file:?}, which leaves the model's folder")),
            "{error}"
        );
        assert_eq!(mock.log().len(), 1);
    }
    let index = br#"{"weight_map": {"w": "../../../x.safetensors"}}"#;
    let mock = Mock::new(&[
        ("config.json", CONFIG),
        ("model.safetensors.index.json", index),
    ]);
    let error = refused(&mock).to_string();
    assert!(
        error.contains("is not the name of a safetensors file"),
        "{error}"
    );
}

#[test]
fn refusals_say_what_to_do() {
    let weights = noise(10);
    let mut said = Vec::new();
    for (status, code, expected) in [
        (
            401,
            "RepoNotFound",
            &["(401", "gated, private or not there", "set HF_TOKEN"][..],
        ),
        (
            403,
            "GatedRepo",
            &["(403", "it is gated", "accept its licence at", "/org/name"],
        ),
        (404, "RepoNotFound", &["has no model org/name (404"]),
        (
            404,
            "RevisionNotFound",
            &["has org/name, but no such revision"],
        ),
        (400, "", &["answers 400"]),
    ] {
        let mock = scripted(&weights, move |seen| {
            let reply = Reply::new(status, "")
                .with("X-Error-Code", code)
                .with("X-Error-Message", "so it is");
            seen.path.starts_with("/api/").then_some(reply)
        });
        let error = refused(&mock);
        let expected_kind = if status == 404 {
            ErrorKind::Missing
        } else {
            ErrorKind::Network
        };
        assert_eq!(error.kind(), expected_kind, "{error}");
        for part in expected {
            assert!(error.to_string().contains(part), "{error}");
        }
        assert!(
            error.to_string().contains("so it is") || code != "RepoNotFound",
            "{error}"
        );
        assert_eq!(mock.log().len(), 1, "none is tried again");
        said.push(error.to_string());
    }
    let mock = scripted(&weights, |seen| {
        seen.is("HEAD", "config.json")
            .then(|| Reply::new(403, "").with("X-Error-Code", "GatedRepo"))
    });
    let error = refused(&mock).to_string();
    assert!(
        error.contains("it is gated") && error.contains("/org/name"),
        "{error}"
    );
}

#[test]
fn a_hub_that_is_busy_is_asked_again_when_it_says() {
    let weights = noise(10);
    let mock = scripted(&weights, |seen| {
        let busy = seen.path.starts_with("/api/models/") && seen.nth == 0;
        busy.then(|| Reply::new(429, "").with("Retry-After", "1"))
    });
    let cache = tempfile::tempdir().unwrap();
    let start = Instant::now();
    let (found, notes) = pulled(&mock, cache.path());
    found.unwrap();
    assert!(start.elapsed() >= Duration::from_secs(1));
    assert!(
        notes.len() == 1 && notes[0].contains("429") && notes[0].contains("in 1.0 s"),
        "{notes:?}"
    );

    let mock = scripted(&weights, |_| {
        Some(Reply::new(429, "").with("Retry-After", "3600"))
    });
    let error = refused(&mock).to_string();
    assert!(
        error.contains("too many requests (429") && error.contains("in 3600 s"),
        "{error}"
    );
    assert_eq!(mock.log().len(), 1);

    let mock = bytes(&weights, |seen| (seen.nth < 3).then(|| Reply::new(503, "")));
    let cache = tempfile::tempdir().unwrap();
    pulled(&mock, cache.path()).0.unwrap();
    assert_eq!(mock.fetches(WEIGHTS), 4);

    let mock = scripted(&weights, |_| Some(Reply::new(500, "")));
    assert!(refused(&mock).to_string().contains("answers 500"));
    assert_eq!(mock.log().len(), 6, "there is an end to it");
}

#[test]
fn the_token_stays_with_the_hub() {
    let weights = noise(10);
    let mock = Mock::new(&[("config.json", CONFIG), (WEIGHTS, &weights)]);
    let cache = tempfile::tempdir().unwrap();
    let hub = builder(&mock.url, cache.path())
        .token(Some("hf_secret".to_owned()))
        .build()
        .unwrap();
    assert!(!format!("{hub:?}").contains("hf_secret"));
    get(&hub).0.unwrap();
    let log = mock.log();
    assert!(log.iter().any(|seen| seen.at_bytes) && log.iter().any(|seen| !seen.at_bytes));
    for seen in &log {
        let token = seen.headers.get("authorization").map(String::as_str);
        assert_eq!(
            token,
            (!seen.at_bytes).then_some("Bearer hf_secret"),
            "{seen:?}"
        );
        assert_eq!(seen.headers["accept-encoding"], "identity");
    }
}

#[test]
fn redirects_lead_to_the_hub_only() {
    let weights = noise(10);
    let elsewhere = Mock::new(&[("config.json", CONFIG), (WEIGHTS, &weights)]);
    let url = elsewhere.url.clone();
    let mock = scripted(&weights, move |seen| {
        seen.path
            .starts_with("/api/models/")
            .then(|| Reply::new(302, "").with("Location", format!("{url}{}", seen.path)))
    });
    let error = refused(&mock).to_string();
    assert!(
        error.contains("redirects to 127.0.0.1, which is not the hub"),
        "{error}"
    );
    assert!(elsewhere.log().is_empty());
    // A redirect of a file to elsewhere that tells nothing of it.
    let url = elsewhere.url.clone();
    let mock = scripted(&weights, move |seen| {
        seen.is("HEAD", "config.json")
            .then(|| Reply::new(302, "").with("Location", format!("{url}/x")))
    });
    assert!(refused(&mock).to_string().contains("which is not the hub"));
    // A model that was renamed.
    let mock = scripted(&weights, |seen| {
        let renamed = seen.path.strip_prefix("/api/models/old/");
        renamed.map(|rest| Reply::new(307, "").with("Location", format!("/api/models/org/{rest}")))
    });
    let cache = tempfile::tempdir().unwrap();
    let hub = builder(&mock.url, cache.path()).build().unwrap();
    let old = Name::parse("old/name").unwrap();
    assert!(
        hub.get(&old, &mut |_| ()).is_err(),
        "its files are not there: the mock knows org/name"
    );
    assert!(
        mock.log()[1]
            .path
            .starts_with("/api/models/org/name/revision/")
    );
    let mock = scripted(&weights, |seen| {
        Some(Reply::new(302, "").with("Location", seen.path.clone()))
    });
    let error = refused(&mock).to_string();
    assert!(error.contains("more than 10 redirects"), "{error}");
    for place in ["file:///etc/passwd", "gopher://x/y"] {
        let mock = bytes(&weights, move |_| {
            Some(Reply::new(302, "").with("Location", place))
        });
        let error = refused(&mock).to_string();
        assert!(error.contains("which is no address"), "{error}");
    }
}

#[test]
fn answers_that_make_no_sense_are_errors() {
    let weights = noise(10);
    for (body, expected) in [
        ("<html>", "not valid json"),
        ("{}", "no commit (sha)"),
        (r#"{"sha": "../../x", "siblings": []}"#, "no commit (sha)"),
        (
            r#"{"sha": "0123456789abcdef0123456789abcdef01234567"}"#,
            "files (siblings)",
        ),
    ] {
        let mock = scripted(&weights, move |seen| {
            seen.path
                .starts_with("/api/models/")
                .then(|| Reply::new(200, body))
        });
        let error = refused(&mock).to_string();
        assert!(error.contains(expected), "{error}");
    }
    for (header, value, expected) in [
        (
            "X-Linked-Size",
            "60000000000",
            "model.safetensors has 60.0 GB",
        ),
        ("X-Linked-Size", "-1", "does not tell the size"),
        (
            "X-Repo-Commit",
            "ffff456789abcdef0123456789abcdef01234567",
            "is of commit \"ffff",
        ),
    ] {
        let tag = etag(WEIGHTS, &weights);
        let mock = scripted(&weights, move |seen| {
            let reply = Reply::new(302, "")
                .with("Location", "http://127.0.0.1:1/x")
                .with("X-Linked-Etag", tag.clone());
            let reply = reply.with(header, value);
            let reply = if header == "X-Linked-Size" {
                reply
            } else {
                reply.with("X-Linked-Size", "10")
            };
            seen.is("HEAD", WEIGHTS).then_some(reply)
        });
        let error = refused(&mock).to_string();
        assert!(error.contains(expected), "{error}");
    }
    let mock = scripted(&weights, |seen| {
        seen.is("HEAD", "/resolve-cache/config.json").then(|| {
            Reply::new(200, "")
                .with("ETag", "x")
                .with("Content-Length", "300000000")
        })
    });
    let error = refused(&mock).to_string();
    assert!(
        error.contains("config.json has 300000000 bytes; expected at most"),
        "{error}"
    );
}

#[test]
fn a_server_that_falls_silent_is_left_and_a_cancel_keeps_what_came() {
    let weights = noise(3_000_000);
    let all = weights.clone();
    let mock = bytes(&weights, move |seen| {
        let reply = part(&all, seen.from());
        let length = reply.body.len().to_string();
        let silent = Reply {
            body: reply.body[..1_000_000].to_vec(),
            stall: Duration::from_secs(30),
            ..reply
        };
        (seen.nth == 0).then(|| silent.with("Content-Length", length))
    });
    let cache = tempfile::tempdir().unwrap();
    let hub = builder(&mock.url, cache.path())
        .timeout(Duration::from_millis(300))
        .build()
        .unwrap();
    let start = Instant::now();
    get(&hub).0.unwrap();
    assert!(start.elapsed() < Duration::from_secs(10));
    let resumed = mock.log().into_iter().rfind(|seen| seen.at_bytes).unwrap();
    assert_eq!(resumed.from(), 1_000_000);

    let mock = Mock::new(&[("config.json", CONFIG), (WEIGHTS, &weights)]);
    let cache = tempfile::tempdir().unwrap();
    let cancel = CancelToken::new();
    let hub = builder(&mock.url, cache.path())
        .cancel(cancel.clone())
        .build()
        .unwrap();
    let done = Arc::new(Mutex::new(0));
    let error = hub.get(&name(), &mut |progress| {
        if let mlx_infer::hub::Progress::Bytes(n) = progress
            && n > 1000
        {
            *done.lock().unwrap() = n;
            cancel.cancel();
        }
    });
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Cancelled);
    let unfinished = blob(
        cache.path(),
        &format!("{}.incomplete", etag(WEIGHTS, &weights)),
    );
    assert_eq!(
        std::fs::metadata(unfinished).unwrap().len(),
        *done.lock().unwrap()
    );
    cancel.reset();
    let found = hub.get(&name(), &mut |_| ()).unwrap();
    assert_eq!(std::fs::read(found.path().join(WEIGHTS)).unwrap(), weights);
}

#[test]
fn threads_and_a_moved_branch() {
    let weights = noise(400_000);
    let mock = Arc::new(Mock::new(&[("config.json", CONFIG), (WEIGHTS, &weights)]));
    let cache = tempfile::tempdir().unwrap();
    let good = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                pulled(&mock, cache.path()).0.unwrap();
                good.fetch_add(1, Ordering::Relaxed);
            });
        }
    });
    assert_eq!(good.load(Ordering::Relaxed), 4);
    assert_eq!(mock.fetches(WEIGHTS), 1);
    // Another commit with one file changed: only that one is fetched; the old snapshot stays.
    let new = "f".repeat(40);
    let at = new.clone();
    let moved = Mock::scripted(
        &[("config.json", b"{}"), (WEIGHTS, &weights)],
        move |seen| {
            let siblings = r#"[{"rfilename": "config.json"}, {"rfilename": "model.safetensors"}]"#;
            if seen.path.starts_with("/api/models/") {
                return Some(Reply::new(
                    200,
                    format!(r#"{{"sha": "{at}", "siblings": {siblings}}}"#),
                ));
            }
            let file = seen
                .path
                .strip_prefix(&format!("/org/name/resolve/{at}/"))?;
            let (tag, size) = match file {
                "config.json" => (etag(file, b"{}"), 2),
                _ => (etag(file, &noise(400_000)), 400_000),
            };
            let body = if seen.method == "GET" {
                b"{}".to_vec()
            } else {
                Vec::new()
            };
            Some(
                Reply::new(200, body)
                    .with("ETag", tag)
                    .with("Content-Length", size.to_string()),
            )
        },
    );
    let found = pulled(&moved, cache.path()).0.unwrap();
    assert_eq!((found.commit(), found.fetched_bytes()), (new.as_str(), 2));
    assert_eq!(std::fs::read(found.path().join(WEIGHTS)).unwrap(), weights);
    let list = builder(&mock.url, cache.path())
        .build()
        .unwrap()
        .cached()
        .unwrap();
    let revisions: Vec<_> = list
        .iter()
        .map(|model| (model.commit.as_str(), model.revisions.len()))
        .collect();
    assert_eq!(revisions, [(COMMIT, 0), (new.as_str(), 1)]);
}
