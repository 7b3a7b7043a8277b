//! Malformed files are refused by name, without reads past the end and without memory for what they only announce.

use mlx_core::files::Npz;
use mlx_core::gguf::Gguf;
use mlx_core::{Array, ErrorKind, Result, load};
use proptest::prelude::*;

use crate::{golden, refusal};

/// An npy file with this header.
fn npy(header: &str, data: &[u8]) -> Vec<u8> {
    let len = (header.len() as u16).to_le_bytes();
    [b"\x93NUMPY\x01\x00", &len[..], header.as_bytes(), data].concat()
}

fn dictionary(descr: &str, fortran: &str, shape: &str) -> String {
    format!("{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, }}\n")
}

fn load_npy(bytes: &[u8]) -> Result<Array> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("a.npy");
    std::fs::write(&path, bytes)?;
    load(&path)?.into_array()
}

#[test]
fn bad_npy_headers_are_refused_by_name() -> Result<()> {
    let one = |descr: &str, fortran: &str, shape: &str, data: usize| {
        refusal(load_npy(&npy(
            &dictionary(descr, fortran, shape),
            &vec![0; data],
        )))
    };
    let header = |text: &str| refusal(load_npy(&npy(text, &[])));
    for (found, expected) in [
        (
            refusal(load_npy(b"")),
            "the file ends within its header, after 0 bytes",
        ),
        (
            refusal(load_npy(b"\x93NUMPY")),
            "the file ends within its header",
        ),
        (
            refusal(load_npy(b"\x93NUMPX\x01\x00")),
            "does not begin with \\x93NUMPY",
        ),
        (
            refusal(load_npy(b"\x93NUMPY\x04\x00\x00\x00")),
            "version 4 of the npy format is not supported",
        ),
        (
            refusal(load_npy(b"\x93NUMPY\x01\x00\xff\xff{}")),
            "the file ends within its header",
        ),
        (
            refusal(load_npy(b"\x93NUMPY\x02\x00\xff\xff\xff\xff")),
            "header of 4294967295 bytes exceeds the limit",
        ),
        (header("{"), "expected a text, found \"\""),
        (header("{}"), "key \"descr\" is missing"),
        (
            header("{'descr': '<f4'}"),
            "key \"fortran_order\" is missing",
        ),
        (
            header("{'descr': '<f4', 'fortran_order': False}"),
            "key \"shape\" is missing",
        ),
        (
            header("{'descr': '<f4', 'descr': '<f4'}"),
            "key \"descr\" is given twice",
        ),
        (header("{'x': 1}"), "unknown key \"x\""),
        (header("{'descr': '<f4"), "a text does not end"),
        (
            header(&(dictionary("'<f4'", "False", "()") + "x")),
            "\"x\" follows the dictionary",
        ),
        (header("(1, 2)"), "expected \"{\", found \"(1, 2)\""),
        (
            one("'|O'", "False", "(1,)", 8),
            "an array of Python objects is a pickle",
        ),
        (
            one("'O'", "False", "(1,)", 8),
            "an array of Python objects is a pickle",
        ),
        (
            one("[('a', '<f4')]", "False", "(1,)", 4),
            "structured arrays",
        ),
        (
            one("'<f3'", "False", "(1,)", 3),
            "dtype \"<f3\" is not supported",
        ),
        (
            one("'<f16'", "False", "(1,)", 16),
            "dtype \"<f16\" is not supported",
        ),
        (
            one("''", "False", "(1,)", 16),
            "dtype \"\" is not supported",
        ),
        (one("'<f4'", "false", "(1,)", 4), "expected True or False"),
        (
            one("'<f4'", "False", "(-1,)", 4),
            "expected a size, found \"-1",
        ),
        (
            one("'<f4'", "False", "(1.5,)", 4),
            "expected \")\", found \".5",
        ),
        (
            one("'<f4'", "False", "(1, 2", 8),
            "expected a size, found \"}\"",
        ),
        (
            one("'<f4'", "False", "(2,)", 4),
            "F32 of shape [2] takes 8 bytes, but 4 follow the header",
        ),
        (
            one("'<f4'", "False", "(2,)", 9),
            "takes 8 bytes, but 9 follow",
        ),
        (
            one("'<f4'", "False", "(4294967296,)", 9),
            "shape [4294967296] is too large",
        ),
        (
            one("'<f4'", "False", "(99999999999999999999999,)", 9),
            "expected a size",
        ),
        (
            one("'<f8'", "False", "(2147483647, 2147483647, 2147483647)", 9),
            "is too large",
        ),
        (
            one("'<f4'", "False", &format!("({})", "1,".repeat(33)), 4),
            "at most 32 dimensions",
        ),
        (
            refusal(load_npy(&npy(
                &dictionary("'|b1'", "False", "(2,)"),
                &[1, 2],
            ))),
            "byte 2 where BOOL has 0 and 1",
        ),
    ] {
        assert!(
            found.contains(expected),
            "{found:?} should say {expected:?}"
        );
        assert!(found.contains("a.npy: "), "{found:?} names no file");
    }
    // What Python also reads: other quotes, order and spaces.
    let odd = "{ \"shape\":(2 ,1),\"fortran_order\":True,'descr':\"f4\"}";
    assert_eq!(load_npy(&npy(odd, &[0; 8]))?.shape(), [2, 1]);
    Ok(())
}

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

#[test]
fn bad_archives_are_refused_by_name() -> Result<()> {
    let array = npy(&dictionary("'<f4'", "False", "(2,)"), &[0; 8]);
    let good = Zip::new()
        .stored("a.npy", &array)
        .stored("b.npy", &array)
        .end();
    assert_eq!(Npz::from_bytes(&good[..])?.arrays()?.len(), 2);
    let at = |what: &[u8]| {
        good.windows(what.len())
            .rposition(|window| window == what)
            .unwrap()
    };
    let with = |place: usize, bytes: &[u8]| {
        let mut changed = good.clone();
        changed[place..place + bytes.len()].copy_from_slice(bytes);
        changed
    };
    let (central, end) = (at(b"PK\x01\x02"), at(b"PK\x05\x06"));
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
    for (found, expected) in [
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
    ] {
        assert!(
            found.contains(expected),
            "{found:?} should say {expected:?}"
        );
        assert!(
            found.starts_with("npz in memory: "),
            "{found:?} names no file"
        );
    }
    // Two entries of the directory with one local entry (the names differ, or the content is shared).
    let first = at(b"PK\x01\x02") - 51;
    assert_eq!(&good[first..first + 4], b"PK\x01\x02");
    let overlapping = {
        let mut changed = good.clone();
        // The second entry takes the name and place of the first, and is told apart by nothing.
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

/// A GGUF file from its parts.
fn gguf(version: u32, tensors: u64, keys: u64, rest: &[&[u8]]) -> Vec<u8> {
    let mut bytes = b"GGUF".to_vec();
    bytes.extend(version.to_le_bytes());
    bytes.extend(tensors.to_le_bytes());
    bytes.extend(keys.to_le_bytes());
    bytes.extend(rest.concat());
    bytes
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

fn info(name: &str, shape: &[u64], kind: u32, offset: u64) -> Vec<u8> {
    let mut bytes = text(name);
    bytes.extend((shape.len() as u32).to_le_bytes());
    shape
        .iter()
        .for_each(|size| bytes.extend(size.to_le_bytes()));
    bytes.extend(kind.to_le_bytes());
    bytes.extend(offset.to_le_bytes());
    bytes
}

#[test]
fn bad_gguf_files_are_refused_by_name() {
    let bad = |bytes: &[u8]| refusal(Gguf::from_bytes(bytes));
    let key =
        |kind: u32, value: &[u8]| bad(&gguf(3, 0, 1, &[&text("k"), &kind.to_le_bytes(), value]));
    let list =
        |kind: u32, count: u64| key(9, &[&kind.to_le_bytes()[..], &count.to_le_bytes()].concat());
    let tensor = |shape: &[u64], kind, offset, data: usize| {
        let mut bytes = gguf(3, 1, 0, &[&info("t", shape, kind, offset)]);
        bytes.resize(bytes.len().next_multiple_of(32) + data, 0);
        bad(&bytes)
    };
    let two = |a: Vec<u8>, b: Vec<u8>| {
        let mut bytes = gguf(3, 2, 0, &[&a, &b]);
        bytes.resize(bytes.len().next_multiple_of(32) + 128, 0);
        bad(&bytes)
    };
    let alignment = |value: u32| {
        let value = value.to_le_bytes();
        bad(&gguf(
            3,
            0,
            1,
            &[&text("general.alignment"), &4u32.to_le_bytes(), &value],
        ))
    };
    let nested: Vec<u8> = (0..6)
        .flat_map(|_| [&9u32.to_le_bytes()[..], &1u64.to_le_bytes()].concat())
        .collect();
    for (found, expected) in [
        (bad(b""), "4 bytes at 0 reach beyond the file of 0 bytes"),
        (bad(b"GGUX\0\0\0\0"), "does not begin with \"GGUF\""),
        (
            bad(&gguf(1, 0, 0, &[])),
            "version 1 of GGUF is not supported",
        ),
        (
            bad(&gguf(3 << 24, 0, 0, &[])),
            "big-endian GGUF files are not supported",
        ),
        (
            bad(&gguf(3, 0, u64::MAX, &[])),
            "key 0 of 18446744073709551615: 8 bytes at 24",
        ),
        (
            bad(&gguf(3, u64::MAX, 0, &[])),
            "tensor 0 of 18446744073709551615",
        ),
        (
            bad(&gguf(3, 0, 1, &[&u64::MAX.to_le_bytes()])),
            "18446744073709551615 elements of at least 1 bytes exceed",
        ),
        (
            bad(&gguf(3, 0, 1, &[&2u64.to_le_bytes(), b"\xff\xfe"])),
            "is not UTF-8",
        ),
        (key(13, &[0; 8]), "key \"k\": a value of type 13"),
        (key(4, &[0; 3]), "key \"k\": 4 bytes at"),
        (key(7, &[2]), "key \"k\": byte 2 where Bool has 0 and 1"),
        (
            key(8, &9u64.to_le_bytes()),
            "key \"k\": 9 elements of at least 1 bytes",
        ),
        (
            list(8, u64::MAX),
            "key \"k\": 18446744073709551615 elements of at least 8 bytes",
        ),
        (
            list(10, 1 << 61),
            "elements of at least 8 bytes exceed the 0 bytes",
        ),
        (list(13, 0), "key \"k\": a value of type 13"),
        (key(9, &nested), "lists are nested deeper than 4"),
        (
            bad(&gguf(
                3,
                0,
                2,
                &[
                    &text("k"),
                    &0u32.to_le_bytes(),
                    &[1],
                    &text("k"),
                    &0u32.to_le_bytes(),
                    &[1],
                ],
            )),
            "key \"k\" is given twice",
        ),
        (
            alignment(0),
            "key \"general.alignment\" must be a power of two of type U32, found 0",
        ),
        (alignment(12), "found 12"),
        (alignment(1 << 30), "must be a power of two"),
        (
            tensor(&[2], 0, 0, 4),
            "tensor \"t\": 8 bytes at 0 are outside the data of 4 bytes",
        ),
        (tensor(&[2], 0, u64::MAX - 31, 8), "are outside the data"),
        (
            tensor(&[2], 0, 8, 64),
            "tensor \"t\": offset 8 is not a multiple of the alignment, 32",
        ),
        (
            tensor(&[1 << 40], 0, 0, 8),
            "shape [1099511627776] is too large",
        ),
        (
            tensor(&[1 << 30, 1 << 30, 1 << 30], 0, 0, 8),
            "is too large",
        ),
        (tensor(&[1; 9], 0, 0, 8), "9 dimensions, at most 8"),
        (
            tensor(&[2], 4, 0, 8),
            "type 4 is not supported; known: F32, F16, Q4_0",
        ),
        (
            tensor(&[31], 2, 0, 64),
            "rows of 31 elements do not divide into the blocks of Q4_0, which have 32",
        ),
        (tensor(&[], 2, 0, 64), "rows of 1 elements do not divide"),
        (
            two(info("a", &[2], 0, 0), info("a", &[2], 0, 32)),
            "tensor \"a\" is given twice",
        ),
        (
            two(info("a", &[16], 0, 0), info("b", &[2], 0, 32)),
            "tensor \"b\" overlaps tensor \"a\"",
        ),
    ] {
        assert!(
            found.contains(expected),
            "{found:?} should say {expected:?}"
        );
        assert!(
            found.starts_with("gguf in memory: "),
            "{found:?} names no file"
        );
    }
    // Names that MLX gives to scales and biases.
    let mut bytes = gguf(
        3,
        2,
        0,
        &[
            &info("a.weight", &[32], 2, 0),
            &info("a.scales", &[1], 0, 32),
        ],
    );
    bytes.resize(bytes.len().next_multiple_of(32) + 36, 0);
    let found = refusal(Gguf::from_bytes(bytes).and_then(|file| file.arrays()));
    assert!(
        found.contains("tensor \"a.weight\": its scales or biases have the name of another"),
        "{found}"
    );
}

/// Opens the file and reads everything. For any bytes this may fail, but may not crash, or find more than there is.
fn exercise(raw: &[u8]) {
    if let Ok(file) = Gguf::from_bytes(raw) {
        for name in file.names() {
            assert!(file.bytes(name).unwrap().len() <= raw.len());
            let _ = file.packed(name);
            if let Ok(array) = file.array(name) {
                assert_eq!(
                    array.equal(0).unwrap().to_vec::<bool>().unwrap().len(),
                    array.size()
                );
            }
        }
    }
    if let Ok(file) = Npz::from_bytes(raw) {
        let file = file.with_limit(1 << 24);
        for name in file.names() {
            if let Ok(array) = file.array(name) {
                assert_eq!(
                    array.equal(0).unwrap().to_vec::<bool>().unwrap().len(),
                    array.size()
                );
            }
        }
    }
    if raw.starts_with(b"\x93NUMPY")
        && let Ok(array) = load_npy(raw)
    {
        assert!(array.nbytes() <= raw.len());
        assert_eq!(
            array.equal(0).unwrap().to_vec::<bool>().unwrap().len(),
            array.size()
        );
    }
}

/// Small valid files of all kinds.
fn valid() -> impl Strategy<Value = Vec<u8>> {
    let names = [
        "plain.npy",
        "fortran.npy",
        "big_endian.npy",
        "mlx.npz",
        "mlx_compressed.npz",
        "mlx.gguf",
        "types.gguf",
    ];
    prop::sample::select(names.to_vec()).prop_map(|name| std::fs::read(golden(name)).unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn truncated_files(raw in valid(), keep in 0usize..4000) {
        let cut = &raw[..keep.min(raw.len() - 1)];
        exercise(cut);
        prop_assert!(Npz::from_bytes(cut).is_err());
    }

    #[test]
    fn changed_bytes(raw in valid(), changes in prop::collection::vec((0usize..4000, any::<u8>()), 1..4)) {
        let mut raw = raw;
        for (at, byte) in changes {
            let at = at % raw.len();
            raw[at] = byte;
        }
        exercise(&raw);
    }

    #[test]
    fn flipped_bits(raw in valid(), bits in prop::collection::vec(any::<u32>(), 1..4)) {
        let mut raw = raw;
        for bit in bits {
            let bit = bit as usize % (raw.len() * 8);
            raw[bit / 8] ^= 1 << (bit % 8);
        }
        exercise(&raw);
    }

    #[test]
    fn random_bytes(start in 0usize..4, rest in prop::collection::vec(any::<u8>(), 0..200)) {
        let start: &[u8] = [&b""[..], b"GGUF\x03\0\0\0", b"PK\x03\x04", b"\x93NUMPY\x01\0"][start];
        exercise(&[start, &rest].concat());
    }
}
