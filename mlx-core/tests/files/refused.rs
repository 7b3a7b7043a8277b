//! Malformed files are refused by name, without reads past the end and without memory for what they only announce.

mod gguf;
mod npy;
mod npz;

use mlx_core::files::Npz;
use mlx_core::gguf::Gguf;
use proptest::prelude::*;

use crate::golden;
use npy::load_npy;

/// Each message says what is expected, and begins with or contains the name of its file.
fn check<const N: usize>(label: &str, cases: [(String, &str); N]) {
    for (found, expected) in cases {
        assert!(
            found.contains(expected),
            "{found:?} should say {expected:?}"
        );
        assert!(found.contains(label), "{found:?} names no file");
    }
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
