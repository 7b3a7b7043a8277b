//! Malformed safetensors files are refused by name, without reads past the end.

use mlx_core::safetensors::Safetensors;
use mlx_core::{ErrorKind, Result};
use proptest::prelude::*;

/// A file of `header` and `data`, as bytes.
fn file(header: &str, data: &[u8]) -> Vec<u8> {
    [
        &(header.len() as u64).to_le_bytes(),
        header.as_bytes(),
        data,
    ]
    .concat()
}

fn refusal(bytes: &[u8]) -> String {
    Safetensors::from_bytes(bytes)
        .map(drop)
        .unwrap_err()
        .to_string()
}

fn entry(name: &str, dtype: &str, shape: &str, start: usize, end: usize) -> String {
    format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{start},{end}]}}"#)
}

#[test]
fn bad_headers_are_refused_by_name() {
    let one = |dtype: &str, shape: &str, start, end, data: usize| {
        refusal(&file(
            &format!("{{{}}}", entry("w", dtype, shape, start, end)),
            &vec![0; data],
        ))
    };
    let cases = [
        (refusal(&[]), "0 bytes are too few"),
        (refusal(&[0; 8]), "does not begin with '{'"),
        (refusal(&[255; 9]), "exceeds the limit"),
        (
            refusal(&[200, 0, 0, 0, 0, 0, 0, 0, b'{']),
            "exceeds the file of 9 bytes",
        ),
        (refusal(&file("[]", &[])), "does not begin with '{'"),
        (refusal(&file("{", &[])), "EOF"),
        (refusal(&file("{} {}", &[])), "trailing characters"),
        (refusal(&file("{\"w\":3}", &[])), "\"w\": invalid type"),
        (
            refusal(&file("{\"__metadata__\":{\"a\":1}}", &[])),
            "\"__metadata__\": invalid type",
        ),
        (
            refusal(&file(&"{\"a\":".repeat(5000), &[])),
            "EOF while parsing",
        ),
        (
            refusal(&file("{}", &[0])),
            "tensors end at 0, but there are 1 bytes",
        ),
        (
            one("F4", "[2]", 0, 1, 1),
            "dtype \"F4\" is not supported; supported: BOOL",
        ),
        (one("f32", "[1]", 0, 4, 4), "dtype \"f32\" is not supported"),
        // The message names the tensor, and a text of the metadata is not taken for a dtype.
        (
            refusal(&file(
                &format!(
                    "{{\"__metadata__\":{{\"dtype\":\"x\"}},{},{}}}",
                    entry("v", "U8", "[1]", 0, 1),
                    entry("w", "F7", "[1]", 1, 2)
                ),
                &[0; 2],
            )),
            "tensor \"w\": dtype \"F7\" is not supported; supported: BOOL",
        ),
        (
            one("F32", "[2]", 0, 4, 4),
            "F32 of shape [2] takes 8 bytes, data_offsets give 4",
        ),
        (one("U8", "[4]", 0, 4, 3), "outside the data of 3 bytes"),
        (one("U8", "[1]", 2, 1, 3), "outside the data"),
        (one("U8", "[1]", 1, 2, 2), "leaves a hole before it"),
        (
            one("U8", "[1]", 0, 1, 2),
            "tensors end at 1, but there are 2",
        ),
        (one("U8", "[-1]", 0, 1, 1), "\"w\": invalid value"),
        (one("U8", "[1.5]", 0, 1, 1), "\"w\": invalid type"),
        (
            one("U8", "[4294967296]", 0, 1, 1),
            "shape [4294967296] is too large",
        ),
        (
            one("F64", "[2147483647,2147483647,2147483647]", 0, 8, 8),
            "is too large",
        ),
        (
            one("U8", &format!("{:?}", [1; 40]), 0, 1, 1),
            "40 dimensions",
        ),
    ];
    for (found, expected) in cases {
        assert!(
            found.contains(expected),
            "{found:?} should say {expected:?}"
        );
    }
    let two = |a: String, b: String| refusal(&file(&format!("{{{a},{b}}}"), &[0; 4]));
    let u8 = |name, start, end: usize| entry(name, "U8", &format!("[{}]", end - start), start, end);
    assert!(two(u8("a", 0, 3), u8("b", 2, 4)).contains("\"b\" overlaps"));
    assert!(two(u8("a", 0, 2), u8("a", 2, 4)).contains("\"a\" is given twice"));
    let metadata = "\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}".to_owned();
    assert!(two(metadata, u8("a", 0, 4)).contains("\"k\" is given twice"));
}

#[test]
fn messages_name_file_and_tensor() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("100%s%n.safetensors");
    std::fs::write(
        &path,
        file(
            &format!("{{{}}}", entry("%s%n", "BOOL", "[2]", 0, 2)),
            &[1, 2],
        ),
    )?;
    let read = Safetensors::open(&path)?;
    let error = read.array("%s%n").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Format);
    let expected = format!(
        "{}: tensor \"%s%n\": byte 2 where BOOL has 0 and 1",
        path.display()
    );
    assert_eq!(error.to_string(), expected);
    assert_eq!(
        read.array("x").unwrap_err().to_string(),
        format!("{}: no tensor \"x\"", path.display())
    );
    assert!(
        Safetensors::open(folder.path())
            .unwrap_err()
            .to_string()
            .contains("not a file")
    );
    assert!(
        Safetensors::open(folder.path().join("none"))
            .unwrap_err()
            .to_string()
            .contains("none")
    );
    Ok(())
}

fn valid() -> Vec<u8> {
    let header = format!(
        "{{\"__metadata__\":{{\"a\":\"b\"}},{},{},{}}}",
        entry("x", "F32", "[2,2]", 0, 16),
        entry("y", "BOOL", "[3]", 16, 19),
        entry("z", "BF16", "[1,1,2]", 19, 23),
    );
    file(&header, &[1; 23])
}

/// Opens the file and reads everything. For any bytes this may fail, but may not crash.
fn exercise(raw: &[u8]) {
    let Ok(read) = Safetensors::from_bytes(raw) else {
        return;
    };
    for name in read.names() {
        let (dtype, shape) = read.info(name).unwrap();
        let size: usize = shape.iter().map(|&size| size as usize).product();
        assert!(size * dtype.size() <= raw.len());
        if let Ok(array) = read.array(name) {
            // Touches every element.
            let nonzero = array.not_equal(0).unwrap().to_vec::<bool>().unwrap();
            assert_eq!(nonzero.len(), size);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn truncated_files(keep in 0usize..400) {
        let raw = valid();
        let cut = &raw[..keep.min(raw.len() - 1)];
        prop_assert!(Safetensors::from_bytes(cut).is_err());
    }

    #[test]
    fn changed_bytes(changes in prop::collection::vec((0usize..400, any::<u8>()), 1..4)) {
        let mut raw = valid();
        for (at, byte) in changes {
            let at = at % raw.len();
            raw[at] = byte;
        }
        exercise(&raw);
    }

    #[test]
    fn flipped_bits(bits in prop::collection::vec(0usize..3200, 1..4)) {
        let mut raw = valid();
        for bit in bits {
            let bit = bit % (raw.len() * 8);
            raw[bit / 8] ^= 1 << (bit % 8);
        }
        exercise(&raw);
    }

    #[test]
    fn random_bytes(raw in prop::collection::vec(any::<u8>(), 0..100)) {
        exercise(&raw);
    }

    #[test]
    fn random_headers(
        dtype in "(F32|U8|BOOL|BF16|I64)",
        shape in prop::collection::vec(0u64..5, 0..4),
        start in 0usize..40,
        end in 0usize..40,
    ) {
        exercise(&file(&format!("{{{}}}", entry("w", &dtype, &format!("{shape:?}"), start, end)), &[1; 32]));
    }
}
