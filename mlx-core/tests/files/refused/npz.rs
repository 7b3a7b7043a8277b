//! npz files.

use mlx_core::files::Npz;
use mlx_core::{ErrorKind, Result};

use super::check;
use super::npy::{dictionary, npy};
use crate::refusal;

/// An archive of stored entries, and what is changed in it.
struct Zip {
    bytes: Vec<u8>,
    directory: Vec<u8>,
    count: u16,
}

impl Zip {
    fn new() -> Self {
        Self {
            bytes: Vec::new(),
            directory: Vec::new(),
            count: 0,
        }
    }

    /// Adds an entry whose directory announces `size` bytes of content.
    fn add(mut self, name: &str, method: u16, packed: &[u8], size: u32, content: &[u8]) -> Self {
        let crc = crc(content);
        let shared = |bytes: &mut Vec<u8>| {
            for word in [20, 0, method, 0, 33] {
                bytes.extend(u16::to_le_bytes(word));
            }
            for word in [crc, packed.len() as u32, size] {
                bytes.extend(word.to_le_bytes());
            }
            bytes.extend((name.len() as u16).to_le_bytes());
            bytes.extend([0, 0]);
        };
        let offset = self.bytes.len() as u32;
        self.bytes.extend(b"PK\x03\x04");
        shared(&mut self.bytes);
        self.bytes.extend(name.as_bytes());
        self.bytes.extend(packed);
        self.directory.extend(b"PK\x01\x02\x14\x00");
        shared(&mut self.directory);
        self.directory.extend([0; 10]);
        self.directory.extend(offset.to_le_bytes());
        self.directory.extend(name.as_bytes());
        self.count += 1;
        self
    }

    fn stored(self, name: &str, content: &[u8]) -> Self {
        self.add(name, 0, content, content.len() as u32, content)
    }

    fn end(mut self) -> Vec<u8> {
        let start = self.bytes.len() as u32;
        self.bytes.extend(&self.directory);
        self.bytes.extend(b"PK\x05\x06\0\0\0\0");
        self.bytes.extend(self.count.to_le_bytes());
        self.bytes.extend(self.count.to_le_bytes());
        self.bytes
            .extend((self.directory.len() as u32).to_le_bytes());
        self.bytes.extend(start.to_le_bytes());
        self.bytes.extend([0, 0]);
        self.bytes
    }
}

/// CRC-32, a bit at a time.
fn crc(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| {
            crc >> 1 ^ (0xedb8_8320 * (crc & 1))
        })
    })
}

/// A block of deflate that holds its bytes as they are.
fn plain_deflate(content: &[u8]) -> Vec<u8> {
    let len = content.len() as u16;
    [&[1][..], &len.to_le_bytes(), &(!len).to_le_bytes(), content].concat()
}

fn open(bytes: &[u8]) -> String {
    refusal(Npz::from_bytes(bytes))
}

fn read(bytes: &[u8]) -> String {
    match Npz::from_bytes(bytes) {
        Ok(file) => refusal(file.arrays()),
        Err(error) => panic!("{error}"),
    }
}

/// An archive that has `array` as `a.npy` and as `b.npy`.
fn twice(array: &[u8]) -> Vec<u8> {
    Zip::new()
        .stored("a.npy", array)
        .stored("b.npy", array)
        .end()
}

/// The last place of `what` in `bytes`.
fn last_place(bytes: &[u8], what: &[u8]) -> usize {
    bytes
        .windows(what.len())
        .rposition(|window| window == what)
        .unwrap()
}

/// A copy of `good` with `bytes` at `place`.
fn overwritten(good: &[u8], place: usize, bytes: &[u8]) -> Vec<u8> {
    let mut changed = good.to_vec();
    changed[place..place + bytes.len()].copy_from_slice(bytes);
    changed
}

#[test]
fn bad_archives_are_refused_by_name() -> Result<()> {
    let array = npy(&dictionary("'<f4'", "False", "(2,)"), &[0; 8]);
    let good = twice(&array);
    assert_eq!(Npz::from_bytes(&good[..])?.arrays()?.len(), 2);
    let at = |what: &[u8]| last_place(&good, what);
    let with = |place: usize, bytes: &[u8]| overwritten(&good, place, bytes);
    let central = at(b"PK\x01\x02");
    for name in [
        "/a.npy",
        "../a.npy",
        "a/../b.npy",
        "a\\b.npy",
        "c:a.npy",
        "a//b.npy",
        "folder/",
    ] {
        let found = open(&Zip::new().stored(name, &array).end());
        assert!(
            found.contains(&format!("entry {name:?}: its name")),
            "{found}"
        );
    }
    check(
        "npz in memory: ",
        [
            (open(b""), "0 bytes are too few for a zip archive"),
            (open(&[0; 100]), "the record at its end is missing"),
            (
                open(&good[..good.len() - 1]),
                "the record at its end is missing",
            ),
            (
                open(
                    &Zip::new()
                        .stored("a.npy", &array)
                        .stored("a.npy", &array)
                        .end(),
                ),
                "entry \"a.npy\" is given twice",
            ),
            (
                open(&Zip::new().stored("a.txt", &array).end()),
                "entry \"a.txt\": its name does not end in .npy",
            ),
            (
                open(&Zip::new().add("a.npy", 12, &array, 8, &array).end()),
                "entry \"a.npy\": compression method 12 is not",
            ),
            (
                open(&Zip::new().add("a.npy", 0, &array, 8, &array).end()),
                "entry \"a.npy\": stored in",
            ),
            (
                open(&with(central + 8, &[1])),
                "entry \"b.npy\": encrypted entries",
            ),
            (
                open(&with(central + 42, &[0; 4])),
                "entry \"b.npy\": the directory and the entry itself give different names",
            ),
            (
                open(&with(central + 42, &[255; 3])),
                "entry \"b.npy\": the archive has",
            ),
        ],
    );
    Ok(())
}

#[test]
fn bad_entries_are_refused_by_name() -> Result<()> {
    let array = npy(&dictionary("'<f4'", "False", "(2,)"), &[0; 8]);
    let good = twice(&array);
    assert_eq!(Npz::from_bytes(&good[..])?.arrays()?.len(), 2);
    let at = |what: &[u8]| last_place(&good, what);
    let with = |place: usize, bytes: &[u8]| overwritten(&good, place, bytes);
    let (central, end) = (at(b"PK\x01\x02"), at(b"PK\x05\x06"));
    check(
        "npz in memory: ",
        [
            (
                open(&with(central + 10, &[8])),
                "entry \"b.npy\": the directory and the entry itself give different methods",
            ),
            (open(&with(end + 4, &[1])), "archives of several disks"),
            (
                open(&with(end + 8, &[3, 0, 3, 0])),
                "no entry of the directory",
            ),
            (
                open(&with(end + 8, &[1, 0, 1, 0])),
                "bytes follow the last entry",
            ),
            (
                open(&with(end + 16, &[255; 4])),
                "does not end where its last record begins",
            ),
            (
                open(&with(
                    central + 20,
                    &[&u32::to_le_bytes(60_000)[..], &u32::to_le_bytes(60_000)].concat(),
                )),
                "entry \"b.npy\": 60000 bytes at",
            ),
            (
                read(&with(central + 16, &[1, 2, 3, 4])),
                "entry \"b.npy\": checksum",
            ),
            (
                read(&Zip::new().stored("a.npy", &array[..30]).end()),
                "entry \"a.npy\": the file ends within its header",
            ),
            (
                read(&Zip::new().stored("a.npy", b"{}").end()),
                "entry \"a.npy\": not an npy file",
            ),
            (
                read(
                    &Zip::new()
                        .stored(
                            "a.npy",
                            &npy(&dictionary("'|O'", "False", "(1,)"), b"pickle"),
                        )
                        .end(),
                ),
                "entry \"a.npy\": an array of Python objects is a pickle",
            ),
        ],
    );
    // Two entries of the directory with one local entry (the names differ, or the content is shared).
    let first = at(b"PK\x01\x02") - 51;
    assert_eq!(&good[first..first + 4], b"PK\x01\x02");
    let overlapping = {
        let mut changed = good.clone();
        // The second entry takes the name and place of the first, so that nothing distinguishes the
        // two.
        let (name, place) = (first + 46, first + 42);
        let (name, place) = (
            good[name..name + 5].to_vec(),
            good[place..place + 4].to_vec(),
        );
        changed[central + 46..central + 51].copy_from_slice(&name);
        changed[central + 42..central + 46].copy_from_slice(&place);
        changed
    };
    assert!(
        open(&overlapping).contains("overlaps entry \"a.npy\""),
        "{}",
        open(&overlapping)
    );
    Ok(())
}

#[test]
fn compressed_content_is_checked() -> Result<()> {
    let array = npy(&dictionary("'<f4'", "False", "(2,)"), &[0; 8]);
    let len = array.len() as u32;
    let packed = plain_deflate(&array);
    let zip = |packed: &[u8], size: u32| Zip::new().add("a.npy", 8, packed, size, &array).end();
    assert_eq!(Npz::from_bytes(zip(&packed, len))?.array("a")?.shape(), [2]);
    let huge = npy(&dictionary("'<f4'", "False", "(400000000,)"), &[]);
    let huge = Zip::new()
        .add("a.npy", 8, &plain_deflate(&huge), u32::MAX - 1, &huge)
        .end();
    for (found, expected) in [
        (read(&zip(&packed, len - 1)), "more content than its"),
        (
            read(&zip(&packed, len + 1)),
            "takes 8 bytes, but 9 follow the header",
        ),
        (
            read(&zip(&packed[..packed.len() - 3], len)),
            "its compressed content is cut off",
        ),
        (read(&zip(&[], len)), "its compressed content is cut off"),
        (
            read(&zip(&[7; 20], len)),
            "its compressed content is not deflate",
        ),
        (
            read(&zip(&[&packed[..], &[0]].concat(), len)),
            "1 bytes follow its compressed content",
        ),
        (read(&huge), "4294967294 bytes when decompressed"),
    ] {
        assert!(
            found.contains(expected),
            "{found:?} should say {expected:?}"
        );
    }
    let error = Npz::from_bytes(&huge[..])?.array("a").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Budget);
    // Within the limit, but the content does not follow: nothing of its size was allocated.
    let found = refusal(Npz::from_bytes(huge)?.with_limit(u64::MAX).array("a"));
    assert!(found.contains("takes 1600000000 bytes, but"), "{found}");
    Ok(())
}
