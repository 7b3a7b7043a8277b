//! A hub that fails, refuses, or sends false data.

use std::time::{Duration, Instant};

use mlx_infer::ErrorKind;

use crate::mock::{Mock, Reply, Seen, etag, noise, part};
use crate::{CONFIG, blob, pulled, refused};

pub const WEIGHTS: &str = "model.safetensors";

pub fn scripted(
    weights: &[u8],
    script: impl Fn(&Seen) -> Option<Reply> + Send + Sync + 'static,
) -> Mock {
    Mock::scripted(&[("config.json", CONFIG), (WEIGHTS, weights)], script)
}

/// Answers requests for the weights' bytes.
pub fn bytes(
    weights: &[u8],
    script: impl Fn(&Seen) -> Option<Reply> + Send + Sync + 'static,
) -> Mock {
    scripted(weights, move |seen| {
        script(seen).filter(|_| seen.is("GET", "/bytes/model.safetensors"))
    })
}

#[test]
fn a_cut_is_gone_on_from() {
    let weights = noise(2_500_000);
    let all = weights.clone();
    // Each connection sends 900,000 bytes at most.
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
    // The SHA-1 that git computes of a small file.
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
