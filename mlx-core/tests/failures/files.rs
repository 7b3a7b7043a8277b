//! Files that are not regular files, that are too long, and that change while they are in use.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::path::Path;
use std::process::Command;

use mlx_core::safetensors::{NonFinite, save};
use mlx_core::{Array, DType, ErrorKind, Result, Safetensors, eval, files, ones};

fn pipe(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

#[test]
fn only_ordinary_files_are_read() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let at = |name: &str| folder.path().join(name);
    pipe(&at("pipe"));
    std::os::unix::fs::symlink("/dev/zero", at("zeros"))?;
    std::os::unix::fs::symlink("text", at("link"))?;
    std::fs::write(at("text"), "12345")?;
    let _socket = std::os::unix::net::UnixListener::bind(at("socket"))?;
    for (name, kind) in [
        ("pipe", "pipe"),
        ("zeros", "device"),
        ("socket", "socket"),
        ("", "folder"),
    ] {
        let expected = format!("{}: not a file but a {kind}", at(name).display());
        for error in [
            files::read(at(name), 10).unwrap_err(),
            files::read_if_present(at(name), 10).unwrap_err(),
            files::open(at(name), 10).unwrap_err(),
            Safetensors::open(at(name)).unwrap_err(),
        ] {
            assert_eq!(
                (error.kind(), error.to_string()),
                (ErrorKind::Io, expected.clone())
            );
        }
    }
    assert_eq!(files::read(at("link"), 5)?, b"12345");
    assert_eq!(files::read_if_present(at("none"), 5)?, None);
    assert!(files::read(at("none"), 5).is_err());
    let error = files::read(at("link"), 4).unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("link: 5 bytes; expected at most 4"),
        "{error}"
    );
    // The system reports a length of zero.
    if cfg!(target_os = "linux") {
        assert!(files::read("/proc/self/status", 10).is_err());
        assert!(!files::read("/proc/self/status", 1 << 20)?.is_empty());
    }
    Ok(())
}

#[test]
fn a_file_that_is_truncated_in_use_is_an_error() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("model.safetensors");
    let n = 1 << 20;
    save(
        &path,
        [
            ("a", &ones(&[n], DType::F32)?),
            ("b", &ones(&[4], DType::F32)?),
        ],
        &BTreeMap::new(),
    )?;
    {
        let file = Safetensors::open(&path)?;
        let (a, b) = (file.array("a")?, file.array("b")?);
        assert_eq!(b.sum(.., false)?.item::<f32>()?, 4.0);
        OpenOptions::new().write(true).open(&path)?.set_len(8192)?;
        let expected = format!(
            "{}: the file became shorter while it was in use",
            path.display()
        );
        for error in [
            a.sum(.., false)?.item::<f32>().unwrap_err(),
            a.to_vec::<f32>().unwrap_err(),
            ones(&[4], DType::F32)?.to_vec::<f32>().unwrap_err(),
        ] {
            assert_eq!(
                (error.kind(), error.to_string()),
                (ErrorKind::Io, expected.clone())
            );
        }
    }
    // No handle of the file is left.
    assert_eq!(ones(&[4], DType::F32)?.add(1.0)?.to_vec::<f32>()?, [2.0; 4]);
    // Another file takes its place.
    save(&path, [("a", &ones(&[n], DType::F32)?)], &BTreeMap::new())?;
    let again = Safetensors::open(&path)?.array("a")?;
    assert_eq!(again.sum(.., false)?.item::<f32>()?, n as f32);
    Ok(())
}

#[test]
fn nan_and_infinity_are_found_in_every_type() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("model.safetensors");
    let mut values: Vec<f32> = (0..400_000).map(|i| i as f32 % 1000.0 - 500.0).collect();
    let array = |values: &[f32]| Array::from_slice(values, &[values.len() as i32]);
    let finite = array(&values)?;
    for i in [7, 1000, 262_143, 262_144, 399_999] {
        values[i] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY][i % 3];
    }
    let broken = array(&values)?;
    for dtype in [DType::F16, DType::BF16, DType::F32] {
        let (x, y) = (finite.astype(dtype)?, broken.astype(dtype)?);
        eval([&x, &y])?;
        save(
            &path,
            [("x", &x), ("ids", &y.view(DType::U8)?)],
            &BTreeMap::new(),
        )?;
        assert_eq!(Safetensors::open(&path)?.non_finite()?, None, "{dtype}");
        save(&path, [("x", &x), ("y", &y), ("a", &y)], &BTreeMap::new())?;
        let found = NonFinite {
            first: "a".into(),
            tensors: 2,
            elements: 10,
        };
        assert_eq!(
            Safetensors::open(&path)?.non_finite()?,
            Some(found),
            "{dtype}"
        );
    }
    // Dtypes for which MLX has no arrays: F64, which becomes bytes, and 8-bit floats.
    let file = |dtype: &str, data: &[u8], n: usize| {
        let header = format!(
            r#"{{"t":{{"dtype":"{dtype}","shape":[{n}],"data_offsets":[0,{}]}}}}"#,
            data.len()
        );
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        bytes.extend(data);
        Safetensors::from_bytes(bytes)
    };
    let doubles: Vec<u8> = [1.0, f64::NAN, f64::MAX, f64::INFINITY]
        .iter()
        .flat_map(|x| x.to_le_bytes())
        .collect();
    let all: Vec<u8> = (0..=255).collect();
    for (dtype, data, n, expected) in [
        ("F64", &doubles, 4, 2),
        ("F8_E4M3", &all, 256, 2),
        ("F8_E5M2", &all, 256, 8),
        ("F8_E8M0", &all, 256, 1),
        ("F8_E4M3FNUZ", &all, 256, 1),
        ("F8_E5M2FNUZ", &all, 256, 1),
        ("I8", &all, 256, 0),
    ] {
        let found = file(dtype, data, n)?
            .non_finite()?
            .map_or(0, |found| found.elements);
        assert_eq!(found, expected, "{dtype}");
    }
    Ok(())
}
