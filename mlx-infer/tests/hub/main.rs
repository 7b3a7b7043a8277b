//! Models by name, from a mock hub on the loopback interface.
#![cfg(feature = "cli")]

#[cfg(unix)]
mod command;
mod faults;
mod mock;
#[cfg(unix)]
mod python;
mod redirects;

use std::path::Path;
use std::time::Duration;

use mlx_infer::hub::{Hub, HubBuilder, Name, Progress, Snapshot};
use mlx_infer::{Error, Result};

use mock::{COMMIT, Mock, etag, noise};

pub(crate) const CONFIG: &[u8] = br#"{"model_type": "llama"}"#;

pub(crate) fn name() -> Name {
    Name::parse("org/name").unwrap()
}

pub(crate) fn builder(url: &str, cache: &Path) -> HubBuilder {
    Hub::builder()
        .endpoint(url)
        .cache(cache)
        .token(None)
        .offline(false)
        .timeout(Duration::from_secs(20))
        .retry_pause(Duration::from_millis(1))
}

/// The result of a call, and the notes that it gave.
pub(crate) fn get(hub: &Hub) -> (Result<Snapshot>, Vec<String>) {
    let mut notes = Vec::new();
    let found = hub.get(&name(), &mut |progress| {
        if let Progress::Note(note) = progress {
            notes.push(note.to_owned());
        }
    });
    (found, notes)
}

pub(crate) fn pulled(mock: &Mock, cache: &Path) -> (Result<Snapshot>, Vec<String>) {
    get(&builder(&mock.url, cache).build().unwrap())
}

pub(crate) fn refused(mock: &Mock) -> Error {
    let cache = tempfile::tempdir().unwrap();
    pulled(mock, cache.path()).0.unwrap_err()
}

pub(crate) fn blob(cache: &Path, tag: &str) -> std::path::PathBuf {
    cache.join("models--org--name/blobs").join(tag)
}

/// Of a repository with several quantisations the one that the name chooses is fetched, and kept for offline use.
#[test]
fn a_quantisation_is_fetched_alone() {
    let (small, large) = (noise(2000), noise(3000));
    let mock = Mock::new(&[
        ("README.md", b"x"),
        ("m-Q4_0.gguf", &small),
        ("m-Q8_0.gguf", &large),
    ]);
    let cache = tempfile::tempdir().unwrap();
    let online = builder(&mock.url, cache.path()).build().unwrap();
    let get = |hub: &Hub, name: &str| hub.get(&Name::parse(name).unwrap(), &mut |_| ());
    let found = get(&online, "org/name:q4_0").unwrap();
    assert_eq!(found.path().file_name().unwrap(), "m-Q4_0.gguf");
    assert_eq!((found.commit(), found.fetched_bytes()), (COMMIT, 2000));
    assert_eq!(std::fs::read(found.path()).unwrap(), small);
    assert!(!found.path().with_file_name("m-Q8_0.gguf").exists());
    assert!(online.cached().unwrap()[0].missing.is_empty());
    for name in ["org/name", "org/name:Q5_0"] {
        let error = get(&online, name).unwrap_err().to_string();
        assert!(error.contains("m-Q4_0, m-Q8_0"), "{name}: {error}");
    }
    let offline = builder(&mock.url, cache.path())
        .offline(true)
        .build()
        .unwrap();
    assert_eq!(get(&offline, "org/name:Q4_0").unwrap().path(), found.path());
    let error = get(&offline, "org/name:Q8_0").unwrap_err().to_string();
    assert!(
        error.contains("org/name:Q8_0 is not in the cache"),
        "{error}"
    );
}

#[test]
fn a_model_lies_in_the_cache_as_huggingface_hub_lays_it() {
    let (a, b) = (noise(3_000_000), noise(70_000));
    let index = br#"{"weight_map": {"x": "model-1.safetensors", "y": "model-2.safetensors"}}"#;
    let mock = Mock::new(&[
        ("config.json", CONFIG),
        ("README.md", b"no"),
        ("pytorch_model.bin", b"never"),
        ("additional_chat_templates/rag.jinja", b"{{ x }}"),
        ("model.safetensors.index.json", index),
        ("model-1.safetensors", &a),
        ("model-2.safetensors", &b),
    ]);
    let cache = tempfile::tempdir().unwrap();
    let (found, notes) = pulled(&mock, cache.path());
    let found = found.unwrap();
    assert_eq!(notes, [""; 0]);
    assert_eq!(found.commit(), COMMIT);
    let root = cache.path().join("models--org--name");
    assert_eq!(found.path(), root.join("snapshots").join(COMMIT));
    assert_eq!(
        std::fs::read_to_string(root.join("refs/main")).unwrap(),
        COMMIT
    );
    for (file, bytes) in [
        ("config.json", CONFIG),
        ("additional_chat_templates/rag.jinja", b"{{ x }}"),
        ("model.safetensors.index.json", index),
        ("model-1.safetensors", &a),
        ("model-2.safetensors", &b),
    ] {
        let path = found.path().join(file);
        assert_eq!(std::fs::read(&path).unwrap(), bytes, "{file}");
        let up = "../".repeat(2 + file.matches('/').count());
        let link = format!("{up}blobs/{}", etag(file, bytes));
        assert_eq!(std::fs::read_link(&path).unwrap(), Path::new(&link));
    }
    let sum = CONFIG.len() + 7 + index.len() + a.len() + b.len();
    assert_eq!(found.fetched_bytes(), sum as u64);
    for never in ["README.md", "pytorch_model.bin"] {
        assert!(!found.path().join(never).exists());
        assert!(
            !mock.log().iter().any(|seen| seen.path.ends_with(never)),
            "{never}"
        );
    }
    let blobs = std::fs::read_dir(root.join("blobs")).unwrap();
    assert_eq!(blobs.count(), 5, "nothing unfinished is left");

    // The second call requests only the revision; for a commit there is no request.
    let before = mock.log().len();
    let (again, _) = pulled(&mock, cache.path());
    assert_eq!(again.unwrap().fetched_bytes(), 0);
    assert_eq!(mock.log().len(), before + 1);
    let list = builder(&mock.url, cache.path())
        .build()
        .unwrap()
        .cached()
        .unwrap();
    assert_eq!(list.len(), 1);
    assert_eq!(
        (list[0].name.as_str(), list[0].commit.as_str()),
        ("org/name", COMMIT)
    );
    assert_eq!(
        (&list[0].revisions[..], list[0].bytes),
        (&["main".to_owned()][..], sum as u64)
    );
    assert_eq!(list[0].missing, [""; 0]);
}

#[test]
fn a_commit_that_is_complete_needs_no_hub() {
    let weights = noise(1000);
    let files: [(&str, &[u8]); 3] = [
        ("config.json", CONFIG),
        ("tokenizer.json", b"{}"),
        ("model.safetensors", &weights),
    ];
    let mock = Mock::new(&files);
    let cache = tempfile::tempdir().unwrap();
    let hub = builder(&mock.url, cache.path()).build().unwrap();
    let at = Name::parse(&format!("org/name@{COMMIT}")).unwrap();
    hub.get(&at, &mut |_| ()).unwrap();
    assert!(!cache.path().join("models--org--name/refs").exists());
    let before = mock.log().len();
    hub.get(&at, &mut |_| ()).unwrap();
    assert_eq!(mock.log().len(), before);
    let branch = Name::parse("org/name@refs/pr/1").unwrap();
    hub.get(&branch, &mut |_| ()).unwrap();
    assert!(mock.log()[before].path.ends_with("/revision/refs%2Fpr%2F1"));
    let kept = cache.path().join("models--org--name/refs/refs/pr/1");
    assert_eq!(std::fs::read_to_string(kept).unwrap(), COMMIT);
}

#[test]
fn offline_the_cache_is_all_there_is() {
    let weights = noise(1000);
    let mock = Mock::new(&[("config.json", CONFIG), ("model.safetensors", &weights)]);
    let cache = tempfile::tempdir().unwrap();
    let offline = builder(&mock.url, cache.path())
        .offline(true)
        .build()
        .unwrap();
    let error = get(&offline).0.unwrap_err().to_string();
    assert!(
        error.contains("org/name is not in the cache") && error.contains("HF_HUB_OFFLINE"),
        "{error}"
    );
    pulled(&mock, cache.path()).0.unwrap();
    let before = mock.log().len();
    let found = get(&offline).0.unwrap();
    assert_eq!(found.commit(), COMMIT);
    assert!(offline.pull(&name(), &mut |_| ()).is_ok());
    std::fs::remove_file(found.path().join("model.safetensors")).unwrap();
    let error = get(&offline).0.unwrap_err().to_string();
    assert!(error.contains("missing: model.safetensors"), "{error}");
    assert_eq!(mock.log().len(), before);
}

#[test]
fn without_a_network_the_copy_in_the_cache_is_used_and_that_is_said() {
    let weights = noise(1000);
    let mock = Mock::new(&[("config.json", CONFIG), ("model.safetensors", &weights)]);
    let cache = tempfile::tempdir().unwrap();
    pulled(&mock, cache.path()).0.unwrap();
    // A port that was free a moment ago refuses connections.
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let hub = builder(&format!("http://127.0.0.1:{port}"), cache.path())
        .build()
        .unwrap();
    let (found, notes) = get(&hub);
    assert_eq!(found.unwrap().commit(), COMMIT);
    assert!(
        notes.len() == 1 && notes[0].contains("using the copy of org/name"),
        "{notes:?}"
    );
    assert_eq!(
        hub.pull(&name(), &mut |_| ()).unwrap_err().kind(),
        mlx_infer::ErrorKind::Network
    );
    let empty = tempfile::tempdir().unwrap();
    let hub = builder(&format!("http://127.0.0.1:{port}"), empty.path())
        .build()
        .unwrap();
    let error = get(&hub).0.unwrap_err();
    assert_eq!(error.kind(), mlx_infer::ErrorKind::Network);
    assert!(
        error.to_string().contains(&format!("127.0.0.1:{port}")),
        "{error}"
    );
}

#[test]
#[cfg(unix)]
fn a_shared_store_is_read_and_never_written() {
    let weights = noise(1000);
    let tag = etag("model.safetensors", &weights);
    let mock = Mock::new(&[("config.json", CONFIG), ("model.safetensors", &weights)]);
    let cache = tempfile::tempdir().unwrap();
    let shared = cache.path().join("blobs/ab");
    std::fs::create_dir_all(&shared).unwrap();
    std::fs::create_dir_all(blob(cache.path(), "")).unwrap();
    let stored = shared.join(&tag);
    std::fs::write(&stored, &weights).unwrap();
    std::os::unix::fs::symlink(&stored, blob(cache.path(), &tag)).unwrap();
    let found = pulled(&mock, cache.path()).0.unwrap();
    assert_eq!(found.fetched_bytes(), CONFIG.len() as u64);
    assert_eq!(mock.fetches("model.safetensors"), 0);
    assert_eq!(
        std::fs::read(found.path().join("model.safetensors")).unwrap(),
        weights
    );

    // An incomplete snapshot is replaced in this cache, and left unchanged in the other.
    std::fs::remove_file(found.path().join("model.safetensors")).unwrap();
    std::fs::write(&stored, b"short").unwrap();
    let found = pulled(&mock, cache.path()).0.unwrap();
    assert_eq!(
        std::fs::read(found.path().join("model.safetensors")).unwrap(),
        weights
    );
    assert_eq!(std::fs::read(&stored).unwrap(), b"short");
    assert!(
        std::fs::symlink_metadata(blob(cache.path(), &tag))
            .unwrap()
            .is_file()
    );
}

#[test]
#[cfg(unix)]
fn links_that_lead_out_of_the_cache_are_refused() {
    use std::os::unix::fs::symlink;
    let weights = noise(1000);
    let tag = etag("model.safetensors", &weights);
    let mock = Mock::new(&[("config.json", CONFIG), ("model.safetensors", &weights)]);
    let refused = |link: &str| {
        let (cache, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let path = cache.path().join(link);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let target = match link.ends_with(".lock") {
            true => other.path().join("made"),
            false => other.path().to_owned(),
        };
        symlink(target, &path).unwrap();
        let error = pulled(&mock, cache.path()).0.unwrap_err().to_string();
        assert!(
            error.contains(&format!("{} is a link", path.display())),
            "{error}"
        );
        assert_eq!(
            std::fs::read_dir(other.path()).unwrap().count(),
            0,
            "{link}"
        );
    };
    refused(&format!(".locks/models--org--name/{tag}.lock"));
    refused("models--org--name/snapshots");
    refused(&format!("models--org--name/snapshots/{COMMIT}"));
}
