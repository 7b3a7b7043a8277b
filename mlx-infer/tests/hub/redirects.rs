//! A hub that redirects, sends malformed answers, or stops sending.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use mlx_infer::hub::Name;
use mlx_infer::{CancelToken, ErrorKind};

use crate::faults::{WEIGHTS, bytes, scripted};
use crate::mock::{COMMIT, Mock, Reply, etag, noise, part};
use crate::{CONFIG, blob, builder, get, name, pulled, refused};

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
    // A redirect of a file to another host, with no information about the file.
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
    // Another commit with one changed file: only that file is downloaded, and the old snapshot stays.
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
