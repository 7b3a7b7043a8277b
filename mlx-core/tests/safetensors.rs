//! Safetensors files: written and read back, and compared with the reference crate.

use std::collections::BTreeMap;
use std::path::PathBuf;

use mlx_core::safetensors::{Safetensors, Writer, save};
use mlx_core::{Array, Complex64, DType, ErrorKind, Result};
use tempfile::TempDir;

/// A file of `header` and `data`, as bytes.
fn file(header: &str, data: &[u8]) -> Vec<u8> {
    [
        &(header.len() as u64).to_le_bytes(),
        header.as_bytes(),
        data,
    ]
    .concat()
}

fn folder() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    (folder, path)
}

fn entry(name: &str, dtype: &str, shape: &str, start: usize, end: usize) -> String {
    format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{start},{end}]}}"#)
}

fn samples() -> Vec<(&'static str, Array)> {
    let floats = Array::from_slice(&[1.5f32, -2.0, 0.25, 4.0, 5.0, 6.0], &[2, 3]).unwrap();
    let mut all: Vec<(&str, Array)> = DType::ALL
        .iter()
        .filter(|&&dtype| !matches!(dtype, DType::Bool | DType::C64))
        .map(|&dtype| (dtype.name(), floats.abs().unwrap().astype(dtype).unwrap()))
        .collect();
    all.push((
        "BOOL",
        Array::from_slice(&[true, false, true], &[3]).unwrap(),
    ));
    let complex = [Complex64 { re: 1.0, im: -2.0 }];
    all.push(("C64", Array::from_slice(&complex, &[1, 1]).unwrap()));
    all.push(("scalar", Array::scalar(7i32).unwrap()));
    all.push(("empty", mlx_core::zeros(&[0, 4], DType::F16).unwrap()));
    all.push(("turned", floats.transpose(&[1, 0]).unwrap()));
    all.push(("slice", floats.slice(&[0, 1], &[2, 3]).unwrap()));
    all.push((
        "spread",
        Array::scalar(9u8).unwrap().broadcast_to(&[2, 2]).unwrap(),
    ));
    all.push(("lazy \"quoted\" ü", floats.add(1.0).unwrap()));
    all
}

fn bytes(array: &Array) -> Vec<u8> {
    if array.size() == 0 {
        return Vec::new();
    }
    // A dtype that is read as bytes: one more axis of the element's size, or none if that is one byte.
    array
        .contiguous()
        .unwrap()
        .reshape(&[-1])
        .unwrap()
        .view(DType::U8)
        .unwrap()
        .to_vec()
        .unwrap()
}

#[test]
fn what_is_saved_is_read_back() -> Result<()> {
    let (_folder, path) = folder();
    let arrays = samples();
    let metadata = BTreeMap::from([("format".to_owned(), "mlx".to_owned())]);
    save(
        &path,
        arrays.iter().map(|(name, array)| (*name, array)),
        &metadata,
    )?;

    let read = Safetensors::open(&path)?;
    assert_eq!(read.metadata(), &metadata);
    assert_eq!(read.names().len(), arrays.len());
    for (name, array) in &arrays {
        assert_eq!(read.info(name)?, (array.dtype(), array.shape()), "{name}");
        let back = read.array(name)?;
        assert_eq!(
            (back.dtype(), back.shape()),
            (array.dtype(), array.shape()),
            "{name}"
        );
        assert_eq!(bytes(&back), bytes(array), "{name}");
    }

    // The reference implementation agrees.
    let raw = std::fs::read(&path)?;
    let reference = safetensors::SafeTensors::deserialize(&raw).unwrap();
    assert_eq!(reference.names().len(), arrays.len());
    for (name, array) in &arrays {
        let tensor = reference.tensor(name).unwrap();
        assert_eq!(tensor.data(), bytes(array), "{name}");
        let shape: Vec<usize> = array.shape().iter().map(|&size| size as usize).collect();
        assert_eq!(tensor.shape(), shape, "{name}");
    }
    Ok(())
}

#[test]
fn the_reference_implementation_is_read() -> Result<()> {
    let data: Vec<u8> = (0..24).collect();
    let view = |dtype, shape: &[usize], data| {
        safetensors::tensor::TensorView::new(dtype, shape.to_vec(), data).unwrap()
    };
    let tensors = [
        ("a", view(safetensors::Dtype::F32, &[2, 3], &data[..])),
        ("b", view(safetensors::Dtype::F8_E4M3, &[3], &data[..3])),
        ("c", view(safetensors::Dtype::I64, &[1], &data[..8])),
    ];
    let raw = safetensors::serialize(tensors, None).unwrap();
    let read = Safetensors::from_bytes(raw)?;
    assert_eq!(read.names().collect::<Vec<_>>(), ["a", "b", "c"]);
    assert_eq!(bytes(&read.array("a")?), data);
    assert_eq!(read.info("b")?, (DType::U8, &[3][..]));
    assert_eq!(read.stored_dtype("b")?, "F8_E4M3");
    assert_eq!(
        read.array("c")?.to_vec::<i64>()?,
        [i64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7])]
    );
    Ok(())
}

#[test]
fn files_do_not_depend_on_the_order_of_arrays() -> Result<()> {
    let (_folder, path) = folder();
    let arrays = samples();
    save(
        &path,
        arrays.iter().map(|(name, array)| (*name, array)),
        &BTreeMap::new(),
    )?;
    let first = std::fs::read(&path)?;
    save(
        &path,
        arrays.iter().rev().map(|(name, array)| (*name, array)),
        &BTreeMap::new(),
    )?;
    assert_eq!(std::fs::read(&path)?, first);
    Ok(())
}

#[test]
fn metadata_is_written_in_the_order_of_its_keys() -> Result<()> {
    let (_folder, path) = folder();
    let metadata: BTreeMap<String, String> = (0..9)
        .map(|i| (format!("k{i}"), "\"ü".to_owned()))
        .collect();
    save(&path, [("a", &Array::scalar(7u8)?)], &metadata)?;
    let raw = std::fs::read(&path)?;
    let pairs: Vec<String> = metadata
        .keys()
        .map(|key| format!(r#""{key}":"\"ü""#))
        .collect();
    let header = format!(
        r#"{{"__metadata__":{{{}}},{}}}"#,
        pairs.join(","),
        entry("a", "U8", "[]", 0, 1)
    );
    let padding = " ".repeat(header.len().next_multiple_of(8) - header.len());
    assert_eq!(raw, file(&(header + &padding), &[7]));
    assert_eq!(Safetensors::open(&path)?.metadata(), &metadata);
    Ok(())
}

#[test]
fn mapped_arrays_share_the_file_and_outlive_it() -> Result<()> {
    let (_folder, path) = folder();
    let values: Vec<f32> = (0..1000).map(|value| value as f32).collect();
    let weight = Array::from_slice(&values, &[10, 100])?;
    save(&path, [("w", &weight)], &BTreeMap::new())?;
    let read = Safetensors::open(&path)?;
    let (one, two) = (read.array("w")?, read.array("w")?);
    drop(read);
    // The file is in memory once, whatever the number of arrays.
    assert_eq!(one.address()?, two.address()?);
    // Replacing the file does not change the mapped data.
    save(&path, [("w", &weight.add(1.0)?)], &BTreeMap::new())?;
    std::fs::remove_file(&path)?;
    assert_eq!(one.to_vec::<f32>()?, values);

    // MLX must not write into the file's memory, even when nothing else needs the array.
    let address = one.address()?;
    drop(two);
    let sum = one.add(1.0)?;
    drop(one);
    assert_ne!(sum.address()?, address);
    assert_eq!(sum.to_vec::<f32>()?[999], 1000.0);
    Ok(())
}

#[test]
fn unaligned_tensors_are_copied() -> Result<()> {
    // Three bytes before the floats.
    let header = format!(
        "{{{},{}}}",
        entry("a", "U8", "[3]", 0, 3),
        entry("b", "F32", "[1]", 3, 7)
    );
    let raw = file(&header, &[&[1, 2, 3], &2.5f32.to_le_bytes()[..]].concat());
    let read = Safetensors::from_bytes(raw)?;
    assert_eq!(read.array("b")?.item::<f32>()?, 2.5);
    assert_eq!(read.array("a")?.to_vec::<u8>()?, [1, 2, 3]);
    // In several parts, the last of which ends within a word; and without elements.
    let numbers: Vec<u16> = (0..2_000_003u32).map(|i| (i * 7) as u16).collect();
    let end = 1 + 2 * numbers.len();
    let header = format!(
        "{{{},{},{},{}}}",
        entry("a", "U8", "[1]", 0, 1),
        entry("b", "U16", &format!("[{}]", numbers.len()), 1, end),
        entry("begins as b", "U16", "[0]", 1, 1),
        entry("c", "U16", "[0]", end, end)
    );
    let bytes: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
    // `b` begins one byte after a header of even length.
    let header = format!("{header:<0$}", header.len().next_multiple_of(2));
    let raw = file(&header, &[&[9], &bytes[..]].concat());
    let (_folder, path) = folder();
    std::fs::write(&path, &raw)?;
    for read in [Safetensors::from_bytes(raw)?, Safetensors::open(&path)?] {
        // One by one; moved first, and then again after the moved data is read.
        let alone = read.array("b")?;
        read.prepare(read.names())?;
        let (first, second) = (read.array("b")?, read.array("b")?);
        assert_ne!(first.address()?, second.address()?);
        // A tensor that could stay mapped is moved together with enough others that cannot, but not on its own.
        let (moved, mapped) = (read.array("a")?, read.array("a")?);
        assert_ne!(moved.address()?, mapped.address()?);
        read.prepare(["a"])?;
        assert_eq!(mapped.address()?, read.array("a")?.address()?);
        for array in [moved, mapped] {
            assert_eq!(array.to_vec::<u8>()?, [9]);
        }
        assert_eq!(read.array("c")?.to_vec::<u16>()?, [0u16; 0]);
        assert!(read.prepare(["absent"]).is_err());
        drop(read);
        for array in [alone, first, second] {
            assert_eq!(array.to_vec::<u16>()?, numbers);
        }
    }
    // Moving reads the file again: a file that was truncated in between is an error, and does not end the process.
    let read = Safetensors::open(&path)?;
    std::fs::File::options()
        .write(true)
        .open(&path)?
        .set_len(1000)?;
    let error = read.prepare(["b"]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Format);
    assert!(error.to_string().contains("model.safetensors"), "{error}");
    assert_eq!(read.array("b").unwrap_err().kind(), ErrorKind::Format);
    Ok(())
}

#[test]
fn packed_weights_begin_with_a_cache_line() -> Result<()> {
    let header = format!(
        "{{{},{}}}",
        entry("codes", "U32", "[3]", 0, 12),
        entry("norm", "F32", "[2]", 12, 20)
    );
    // Numbers begin four bytes after a cache line: aligned for their type.
    let begin = (8 + header.len()).next_multiple_of(64) + 4;
    let header = format!("{header:<0$}", begin - 8);
    let codes = [7u32, 8, 9].map(u32::to_le_bytes);
    let norm = [1.5f32, 2.5].map(f32::to_le_bytes);
    let raw = file(
        &header,
        &[codes.as_flattened(), norm.as_flattened()].concat(),
    );
    let (_folder, path) = folder();
    std::fs::write(&path, &raw)?;
    let read = Safetensors::open(&path)?;
    assert_eq!(read.array("codes")?.address()? % 64, 4);
    read.prepare(["norm"])?;
    assert_eq!(read.array("norm")?.address()? % 64, 16);
    read.prepare(["codes"])?;
    let moved = read.array("codes")?;
    assert_eq!(moved.address()? % 64, 0);
    assert_eq!(moved.to_vec::<u32>()?, [7, 8, 9]);
    assert_eq!(read.array("norm")?.to_vec::<f32>()?, [1.5, 2.5]);
    Ok(())
}

#[test]
fn embedded_files_are_used_where_they_are() -> Result<()> {
    let raw: &'static [u8] =
        file(&format!("{{{}}}", entry("a", "U8", "[2]", 0, 2)), &[7, 8]).leak();
    let array = Safetensors::from_static(raw)?.array("a")?;
    assert_eq!(array.address()?, raw.as_ptr().addr() + raw.len() - 2);
    assert_eq!(array.to_vec::<u8>()?, [7, 8]);
    Ok(())
}

/// MLX writes `null` where there is no metadata.
#[test]
fn metadata_may_be_null() -> Result<()> {
    let json = format!(
        "{{\"__metadata__\":null,{}}}",
        entry("a", "U8", "[2]", 0, 2)
    );
    let read = Safetensors::from_bytes(file(&json, &[7, 8]))?;
    assert!(read.metadata().is_empty());
    assert_eq!(read.array("a")?.to_vec::<u8>()?, [7, 8]);
    Ok(())
}

#[test]
fn saving_fails_without_a_trace() -> Result<()> {
    let (folder, path) = folder();
    let one = Array::scalar(1.0f32)?;
    let none = BTreeMap::new();
    save(&path, [("a", &one)], &none)?;
    let before = std::fs::read(&path)?;

    let twice = save(&path, [("a", &one), ("a", &one)], &none).unwrap_err();
    assert!(
        twice.to_string().contains("\"a\" is given twice"),
        "{twice}"
    );
    let reserved = save(&path, [("__metadata__", &one)], &none).unwrap_err();
    assert!(reserved.to_string().contains("is reserved"), "{reserved}");
    let broken = mlx_core::linalg::inv(&mlx_core::zeros(&[2, 2], DType::F32)?)?;
    let failed = save(&path, [("a", &one), ("b", &broken)], &none).unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::Eval);
    assert!(failed.to_string().contains("tensor \"b\""), "{failed}");
    let nowhere = folder.path().join("no such folder").join("100%s%n");
    let missing = save(&nowhere, [("a", &one)], &none).unwrap_err();
    assert!(missing.to_string().contains("100%s%n"), "{missing}");

    assert_eq!(std::fs::read(&path)?, before);
    assert_eq!(
        std::fs::read_dir(folder.path())?.count(),
        1,
        "nothing is left behind"
    );
    Ok(())
}

#[test]
fn tensors_written_one_by_one_make_the_same_file() -> Result<()> {
    let (folder, path) = folder();
    let all = samples();
    save(
        &path,
        all.iter().map(|(name, array)| (*name, array)),
        &BTreeMap::new(),
    )?;
    let whole = std::fs::read(&path).unwrap();
    let tensors = || {
        all.iter()
            .map(|(name, array)| (*name, array.dtype(), array.shape()))
    };
    let mut writer = Writer::new(&path, tensors(), &BTreeMap::new())?;
    for (name, array) in all.iter().rev() {
        writer.write(name, array)?;
    }
    writer.finish()?;
    assert!(std::fs::read(&path).unwrap() == whole);

    // The error names the fault, and the old file stays.
    let mut writer = Writer::new(&path, tensors(), &BTreeMap::new())?;
    let (name, array) = (all[0].0, &all[0].1);
    writer.write(name, array)?;
    for (name, expected) in [
        (name, "not one of those left"),
        ("other", "not one of those left"),
        (all[1].0, "was announced as"),
    ] {
        let message = writer.write(name, array).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    }
    let message = writer.finish().unwrap_err().to_string();
    assert!(message.contains("tensors are not written"), "{message}");
    assert!(std::fs::read(&path).unwrap() == whole);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    Ok(())
}
