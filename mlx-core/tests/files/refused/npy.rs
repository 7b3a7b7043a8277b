//! npy files.

use mlx_core::{Array, Result, load};

use super::check;
use crate::refusal;

/// An npy file with this header.
pub fn npy(header: &str, data: &[u8]) -> Vec<u8> {
    let len = (header.len() as u16).to_le_bytes();
    [b"\x93NUMPY\x01\x00", &len[..], header.as_bytes(), data].concat()
}

pub fn dictionary(descr: &str, fortran: &str, shape: &str) -> String {
    format!("{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, }}\n")
}

pub fn load_npy(bytes: &[u8]) -> Result<Array> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("a.npy");
    std::fs::write(&path, bytes)?;
    load(&path)?.into_array()
}

/// The refusal of a file with this dictionary.
fn one(descr: &str, fortran: &str, shape: &str, data: usize) -> String {
    refusal(load_npy(&npy(
        &dictionary(descr, fortran, shape),
        &vec![0; data],
    )))
}

/// The refusal of a file with this header.
fn header(text: &str) -> String {
    refusal(load_npy(&npy(text, &[])))
}

#[test]
fn bad_npy_headers_are_refused_by_name() {
    check(
        "a.npy: ",
        [
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
        ],
    );
}

#[test]
fn npy_arrays_that_do_not_fit_are_refused_by_name() -> Result<()> {
    check(
        "a.npy: ",
        [
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
        ],
    );
    // What Python also reads: other quotes, order and spaces.
    let odd = "{ \"shape\":(2 ,1),\"fortran_order\":True,'descr':\"f4\"}";
    assert_eq!(load_npy(&npy(odd, &[0; 8]))?.shape(), [2, 1]);
    Ok(())
}
