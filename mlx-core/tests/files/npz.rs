//! npz files.

use mlx_core::files::Npz;
use mlx_core::{ErrorKind, Result, load};

use crate::{Expected, golden, refusal};

#[test]
fn files_of_numpy_and_mlx_are_read() -> Result<()> {
    for (name, count) in [
        ("numpy.npz", 16),
        ("numpy_compressed.npz", 17),
        ("mlx.npz", 3),
        ("mlx_compressed.npz", 3),
    ] {
        let expected = Expected::of(name)?;
        let file = Npz::open(golden(name))?;
        let names: Vec<&str> = file.names().collect();
        assert_eq!(names, expected.names());
        assert_eq!(names.len(), count);
        for name in names {
            assert!(file.contains(name));
            expected.check(name, &file.array(name)?)?;
        }
        assert_eq!(load(golden(name))?.into_arrays()?.len(), count);
    }
    Ok(())
}

#[test]
fn compressed_entries_have_a_limit() -> Result<()> {
    let path = golden("numpy_compressed.npz");
    let file = Npz::open(&path)?.with_limit(20_127);
    let error = file.array("zeros").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Budget);
    let start = format!(
        "{}: entry \"zeros.npy\": 20128 bytes when decompressed",
        path.display()
    );
    assert!(error.to_string().starts_with(&start), "{error}");
    assert!(file.array("noise").is_ok());
    assert!(refusal(file.arrays()).contains("Npz::with_limit sets another limit"));
    let file = file.with_limit(20_128);
    assert_eq!(file.array("zeros")?.shape(), [20_000]);
    assert!(refusal(file.arrays()).contains("may expand to 20128"));
    assert!(refusal(file.array("none")).ends_with("no array \"none\""));
    // Without compression nothing expands.
    assert_eq!(
        Npz::open(golden("numpy.npz"))?
            .with_limit(0)
            .arrays()?
            .len(),
        16
    );
    Ok(())
}
