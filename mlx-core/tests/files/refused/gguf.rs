//! GGUF files.

use mlx_core::gguf::Gguf;

use super::check;
use crate::refusal;

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
fn bad_gguf_metadata_is_refused_by_name() {
    let bad = |bytes: &[u8]| refusal(Gguf::from_bytes(bytes));
    let key =
        |kind: u32, value: &[u8]| bad(&gguf(3, 0, 1, &[&text("k"), &kind.to_le_bytes(), value]));
    let list =
        |kind: u32, count: u64| key(9, &[&kind.to_le_bytes()[..], &count.to_le_bytes()].concat());
    let nested: Vec<u8> = (0..6)
        .flat_map(|_| [&9u32.to_le_bytes()[..], &1u64.to_le_bytes()].concat())
        .collect();
    check(
        "gguf in memory: ",
        [
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
        ],
    );
}

#[test]
fn bad_gguf_tensors_are_refused_by_name() {
    let bad = |bytes: &[u8]| refusal(Gguf::from_bytes(bytes));
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
    check(
        "gguf in memory: ",
        [
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
        ],
    );
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
