//! npy, npz and GGUF: files of NumPy, MLX and the package gguf are read, files that this crate
//! wrote are read by its own readers and have NumPy's bytes, and malformed files are refused by
//! name.

mod gguf;
mod npy;
mod npz;
mod refused;
mod written;

use std::path::PathBuf;

use mlx_core::{Array, DType, Result, Safetensors};

/// A file of `testdata/files`, which `xtask/golden/files.py` wrote.
fn golden(name: &str) -> PathBuf {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../testdata/files");
    PathBuf::from(root).join(name)
}

/// The bytes of the elements in row-major order.
fn bits(array: &Array) -> Result<Vec<u8>> {
    if array.size() == 0 {
        return Ok(Vec::new());
    }
    array
        .reshape(&[array.size() as i32])?
        .view(DType::U8)?
        .to_vec()
}

/// Both arrays have the same dtype, shape and bits.
fn assert_same(name: &str, found: &Array, expected: &Array) -> Result<()> {
    assert_eq!(found.dtype(), expected.dtype(), "{name}");
    assert_eq!(found.shape(), expected.shape(), "{name}");
    assert_eq!(bits(found)?, bits(expected)?, "{name}");
    Ok(())
}

/// The names under which the golden has the arrays of a file, and a way to compare them.
struct Expected {
    file: Safetensors,
    prefix: String,
}

impl Expected {
    fn of(name: &str) -> Result<Self> {
        Ok(Self {
            file: Safetensors::open(golden("expected.safetensors"))?,
            prefix: format!("{name}/"),
        })
    }

    fn names(&self) -> Vec<&str> {
        let names = self.file.names();
        names
            .filter_map(|name| name.strip_prefix(&self.prefix))
            .collect()
    }

    fn check(&self, name: &str, found: &Array) -> Result<()> {
        let name = format!("{}{name}", self.prefix);
        let expected = self.file.array(&name)?;
        // The golden has the bits of F64.
        if found.dtype() == DType::F64 {
            assert_eq!(expected.dtype(), DType::U64, "{name}");
            assert_eq!(found.shape(), expected.shape(), "{name}");
            assert_eq!(bits(found)?, bits(&expected)?, "{name}");
            return Ok(());
        }
        assert_same(&name, found, &expected)
    }
}

/// The message of a failure.
fn refusal<T>(result: Result<T>) -> String {
    result.map(drop).unwrap_err().to_string()
}
