//! npy files.

use mlx_core::{DType, Result, Safetensors, load, ones, save};

use crate::{assert_same, golden, refusal};

#[test]
fn files_of_numpy_and_mlx_are_read() -> Result<()> {
    let expected = Safetensors::open(golden("expected.safetensors"))?;
    let mut count = 0;
    for name in expected
        .names()
        .filter(|name| name.ends_with(".npy") && !name.contains('/'))
    {
        let found = load(golden(name))?.into_array()?;
        assert_same(name, &found, &expected.array(name)?)?;
        count += 1;
    }
    assert_eq!(count, 9);
    Ok(())
}

#[test]
fn what_mlx_cannot_hold_is_refused_by_name() {
    for (name, expected) in [
        ("refused_objects", "an array of Python objects is a pickle"),
        ("refused_fields", "header: structured arrays"),
        (
            "refused_texts",
            "dtype \"<U2\" is not supported; supported: b1, u1",
        ),
        ("refused_bytes", "dtype \"|S2\" is not supported"),
        ("refused_complex128", "dtype \"<c16\" is not supported"),
        ("refused_dates", "dtype \"<M8[D]\" is not supported"),
    ] {
        let path = golden(&format!("{name}.npy"));
        let found = refusal(load(&path));
        let expected = format!("{}: {expected}", path.display());
        assert!(found.starts_with(&expected), "{found:?}, not {expected:?}");
    }
}

#[test]
fn the_format_is_found_without_its_ending() -> Result<()> {
    let folder = tempfile::tempdir()?;
    for name in [
        "plain.npy",
        "numpy.npz",
        "llama.gguf",
        "expected.safetensors",
    ] {
        let path = folder.path().join("data");
        std::fs::copy(golden(name), &path)?;
        let (found, expected) = (load(&path)?, load(golden(name))?);
        assert_eq!(format!("{found:?}"), format!("{expected:?}"));
    }
    let path = folder.path().join("text.txt");
    std::fs::write(&path, "plain text")?;
    assert!(
        refusal(load(&path)).ends_with("of no format that is read: npy, npz, safetensors, gguf")
    );
    std::fs::write(&path, "")?;
    assert!(refusal(load(&path)).contains("text.txt"));
    assert!(refusal(load(folder.path().join("none.npy"))).contains("none.npy"));
    Ok(())
}

#[test]
fn a_loaded_file_says_what_it_holds() -> Result<()> {
    let array = load(golden("plain.npy"))?;
    let arrays = load(golden("mlx.npz"))?;
    assert_eq!(array.clone().into_array()?.shape(), [2, 3]);
    assert!(refusal(array.get("x")).contains("an npy file holds one array without a name"));
    assert!(refusal(array.into_arrays()).contains("into_array"));
    assert_eq!(arrays.get("x")?.shape(), [2, 3]);
    assert!(refusal(arrays.get("w")).contains("no array \"w\""));
    assert!(
        refusal(arrays.into_array())
            .contains("3 arrays with names, among them [\"x\", \"y\", \"z\"]")
    );
    Ok(())
}

#[test]
fn written_bytes_are_those_of_numpy() -> Result<()> {
    let folder = tempfile::tempdir()?;
    for name in ["plain.npy", "scalar.npy"] {
        let path = folder.path().join(name);
        save(&path, &load(golden(name))?.into_array()?)?;
        assert_eq!(
            std::fs::read(&path)?,
            std::fs::read(golden(name))?,
            "{name}"
        );
    }
    Ok(())
}

#[test]
fn a_failed_save_leaves_the_file_as_it_was() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("a.npy");
    save(&path, &ones(&[2], DType::F32)?)?;
    let before = std::fs::read(&path)?;
    let bad = ones(&[2], DType::F32)?.take(&mlx_core::Array::from_slice(&[7i32], &[1])?, 0)?;
    assert!(refusal(save(&path, &bad)).starts_with(&path.display().to_string()));
    assert_eq!(std::fs::read(&path)?, before);
    assert_eq!(std::fs::read_dir(folder.path())?.count(), 1);
    assert!(
        refusal(save(
            folder.path().join("none/a.npy"),
            &ones(&[1], DType::F32)?
        ))
        .contains("none")
    );
    Ok(())
}
