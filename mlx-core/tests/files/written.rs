//! npz files that are written here.

use std::collections::{BTreeMap, HashMap};

use mlx_core::files::Npz;
use mlx_core::{Array, DType, Result, load, ones, save_safetensors, savez, savez_compressed};

use crate::{assert_same, golden, refusal};

#[test]
fn what_is_written_is_read() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut arrays = Npz::open(golden("numpy_compressed.npz"))?.arrays()?;
    arrays.insert("bf16".into(), ones(&[3], DType::BF16)?);
    let path = folder.path().join("a.npz");
    let size = |path| Ok::<_, mlx_core::Error>(std::fs::metadata(path)?.len());
    savez(&path, &arrays)?;
    let stored = size(&path)?;
    for (name, array) in &load(&path)?.into_arrays()? {
        assert_same(name, array, &arrays[name])?;
    }
    // Elements begin at a multiple of 64 bytes, so that arrays can refer to the file.
    let bytes = std::fs::read(&path)?;
    let mut starts = bytes
        .windows(6)
        .enumerate()
        .filter(|(_, bytes)| *bytes == b"\x93NUMPY");
    assert_eq!(starts.clone().count(), arrays.len());
    assert!(starts.all(|(at, _)| at % 64 == 0));
    savez_compressed(&path, &arrays)?;
    assert!(size(&path)? < stored - 18_000);
    let read = load(&path)?.into_arrays()?;
    assert_eq!(read.len(), arrays.len());
    for (name, array) in &read {
        assert_same(name, array, &arrays[name])?;
    }
    // The same arrays give the same bytes.
    let other = folder.path().join("b.npz");
    savez_compressed(&other, &arrays)?;
    assert_eq!(std::fs::read(path)?, std::fs::read(other)?);
    Ok(())
}

#[test]
#[allow(
    clippy::needless_borrows_for_generic_args,
    reason = "the borrowed form is what is tested"
)]
fn lists_of_arrays_have_several_forms() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("a.npz");
    let a = ones(&[2], DType::F32)?;
    let check = |path| -> Result<()> {
        assert_eq!(Npz::open(path)?.array("a")?.shape(), [2]);
        Ok(())
    };
    savez(&path, &[("a", &a)])?;
    check(&path)?;
    savez(&path, [("a", &a)])?;
    check(&path)?;
    savez(&path, [("a", a.clone())])?;
    check(&path)?;
    savez(&path, vec![("a".to_owned(), &a)])?;
    check(&path)?;
    savez(&path, &HashMap::from([("a", a.clone())]))?;
    check(&path)?;
    savez(&path, BTreeMap::from([("a".to_owned(), a.clone())]))?;
    check(&path)?;
    let empty: [(&str, &Array); 0] = [];
    savez(&path, empty)?;
    assert_eq!(Npz::open(&path)?.names().len(), 0);
    save_safetensors(&path, &[("a", &a)])?;
    Ok(())
}

#[test]
fn names_that_lead_elsewhere_are_not_written() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("a.npz");
    let a = ones(&[2], DType::F32)?;
    for name in [
        "", "/a", "../a", "a/../b", "a//b", "a\\b", "c:a", "a\nb", "./a",
    ] {
        let found = refusal(savez(&path, [(name, &a)]));
        let start = format!("{}: array {name:?}: its name", path.display());
        // `.npy` follows the name, so that an empty one is a file.
        if name.is_empty() {
            continue;
        }
        assert!(found.starts_with(&start), "{found}");
    }
    let twice = refusal(savez(&path, [("a", &a), ("a", &a)]));
    assert!(
        twice.ends_with("array \"a\": its name is given twice"),
        "{twice}"
    );
    let long = "a".repeat(70_000);
    assert!(refusal(savez(&path, [(&long, &a)])).ends_with("a name of 70000 bytes is too long"));
    assert_eq!(std::fs::read_dir(folder.path())?.count(), 0);
    Ok(())
}
