//! GGUF files.

use std::collections::BTreeMap;

use mlx_core::gguf::{Gguf, List, TensorType, Value, save};
use mlx_core::{Array, DType, ErrorKind, Result, dequantize, load, ones};

use crate::{Expected, assert_same, bits, golden, refusal};

#[test]
fn tensors_are_those_of_mlx() -> Result<()> {
    for (name, count) in [("llama.gguf", 17), ("mlx.gguf", 2)] {
        let expected = Expected::of(name)?;
        let arrays = load(golden(name))?.into_arrays()?;
        assert_eq!(arrays.keys().collect::<Vec<_>>(), expected.names());
        assert_eq!(arrays.len(), count);
        for (name, array) in &arrays {
            expected.check(name, array)?;
        }
    }
    Ok(())
}

#[test]
fn types_that_mlx_does_not_read() -> Result<()> {
    let file = Gguf::open(golden("types.gguf"))?;
    let expected = Expected::of("types.gguf")?;
    for name in ["bf16", "f64", "i64"] {
        expected.check(name, &file.array(name)?)?;
        assert!(file.packed(name)?.is_none());
    }
    assert_eq!(file.info("q5.weight")?, (TensorType::Q5_0, &[4, 64][..]));
    assert_eq!(file.info("k.weight")?, (TensorType::Q4_K, &[1, 256][..]));
    assert_eq!(file.bytes("k.weight")?, [0; 144]);
    let start = golden("types.gguf").display().to_string();
    for (name, kind) in [("q5.weight", "Q5_0"), ("k.weight", "Q4_K")] {
        let error = file.packed(name).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert_eq!(
            error.to_string(),
            format!(
                "{start}: tensor {name:?}: type {kind} is not supported; supported: F32, F16, BF16, F64, I8, I16, \
                 I32, I64, Q4_0, Q4_1, Q8_0"
            )
        );
        assert!(refusal(file.array(name)).ends_with("is stored in blocks, not as plain elements"));
    }
    assert!(refusal(file.arrays()).contains("\"k.weight\""));
    assert!(refusal(file.array("x")).ends_with("no tensor \"x\""));
    Ok(())
}

#[test]
fn packed_tensors_have_their_values() -> Result<()> {
    let file = Gguf::open(golden("llama.gguf"))?;
    let plain = file.array("f32")?;
    for (name, error) in [("Q4_0", 0.3), ("Q4_1", 0.2), ("Q8_0", 0.02)] {
        let (parts, scheme) = file.packed(&format!("{name}.weight"))?.unwrap();
        let values = dequantize(
            &parts.packed,
            &parts.scales,
            parts.biases.as_ref(),
            scheme,
            None,
        )?;
        let distance = values.astype(DType::F32)?.subtract(&plain)?.abs()?;
        let distance = distance.max(.., false)?.item::<f32>()?;
        assert!(distance < error, "{name}: {distance}");
    }
    Ok(())
}

#[test]
fn metadata_has_its_types() -> Result<()> {
    let file = Gguf::open(golden("llama.gguf"))?;
    assert_eq!(file.value::<&str>("general.architecture")?, "llama");
    assert_eq!(file.value::<u8>("v.u8")?, 200);
    assert_eq!(file.value::<i8>("v.i8")?, -100);
    assert_eq!(file.value::<u16>("v.u16")?, 60000);
    assert_eq!(file.value::<i16>("v.i16")?, -30000);
    assert_eq!(file.value::<u32>("v.u32")?, 4_000_000_000);
    assert_eq!(file.value::<i32>("v.i32")?, -2_000_000_000);
    assert_eq!(file.value::<u64>("v.u64")?, 1 << 63);
    assert_eq!(file.value::<i64>("v.i64")?, -(1 << 62));
    assert_eq!(file.value::<f32>("v.f32")?, 0.5);
    assert_eq!(file.value::<f64>("v.f32")?, 0.5);
    assert!(file.value::<bool>("v.bool")?);
    assert_eq!(file.value::<&str>("v.text")?, "ä 😀");
    assert_eq!(file.value::<&[String]>("v.texts")?, ["<s>", "</s>", "ä"]);
    assert_eq!(file.value::<&[i32]>("v.numbers")?, [1, 2, 3]);
    assert_eq!(file.value::<&[f32]>("v.floats")?, [0.5, 1.5]);
    assert_eq!(file.value::<&[bool]>("v.flags")?, [true, false]);
    // An integer of another type that fits, and one that does not.
    assert_eq!(file.value::<usize>("v.u8")?, 200);
    let start = golden("llama.gguf").display().to_string();
    assert_eq!(
        refusal(file.value::<u8>("v.u16")),
        format!("{start}: key \"v.u16\" is U16; expected an integer that fits u8")
    );
    assert!(
        refusal(file.value::<u32>("v.i8")).contains("is I8; expected an integer that fits u32")
    );
    assert!(refusal(file.value::<&str>("v.texts")).contains("is a list of Text; expected Text"));
    assert_eq!(
        refusal(file.value::<u32>("none")),
        format!("{start}: no key \"none\"")
    );
    assert_eq!(file.find::<u32>("none")?, None);
    assert_eq!(
        Gguf::open(golden("types.gguf"))?.value::<f64>("v.f64")?,
        0.1
    );
    let mlx = load(golden("mlx.gguf"))?;
    assert_eq!(mlx.metadata("name"), Some(&Value::from("mlx")));
    assert_eq!(mlx.metadata("number"), Some(&Value::from(3i32)));
    assert_eq!(
        mlx.metadata("numbers"),
        Some(&Value::from(vec![0.5f32, 2.0]))
    );
    assert_eq!(
        mlx.metadata("words"),
        Some(&Value::from(vec!["x".to_owned(), "yz".to_owned()]))
    );
    Ok(())
}

#[test]
fn what_is_written_is_read() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("a.gguf");
    let source = Gguf::open(golden("llama.gguf"))?;
    let mut metadata = source.metadata().clone();
    metadata.insert("v.f64".into(), Value::from(0.1f64));
    let nested = List::Lists(vec![
        List::U8(vec![1, 2]),
        List::Text(vec!["a".into()]),
        List::F64(vec![]),
    ]);
    metadata.insert("v.lists".into(), Value::from(nested));
    let mut arrays: BTreeMap<String, Array> = BTreeMap::new();
    for dtype in [
        DType::F16,
        DType::BF16,
        DType::F32,
        DType::F64,
        DType::I8,
        DType::I16,
        DType::I32,
        DType::I64,
    ] {
        let values = Array::from_slice(&[1i32, -2, 3, 4, -5, 6], &[1, 2, 3])?;
        arrays.insert(format!("{dtype}"), values.astype(dtype)?);
    }
    arrays.insert("scalar".into(), Array::scalar(2.5f32)?);
    arrays.insert("empty".into(), ones(&[0, 3], DType::F32)?);
    arrays.insert(
        "transposed".into(),
        Array::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2])?.t()?,
    );
    save(&path, &arrays, &metadata)?;
    let file = Gguf::open(&path)?;
    assert_eq!(file.metadata(), &metadata);
    assert_eq!(
        file.names().collect::<Vec<_>>(),
        arrays.keys().collect::<Vec<_>>()
    );
    for (name, array) in &arrays {
        assert_same(name, &file.array(name)?, array)?;
    }
    assert_eq!(
        bits(&load(&path)?.into_arrays()?["scalar"])?,
        2.5f32.to_le_bytes()
    );

    let before = std::fs::read(&path)?;
    let one = |dtype| ones(&[1], dtype);
    let none = BTreeMap::new();
    let alignment = BTreeMap::from([("general.alignment".to_owned(), Value::from(8u32))]);
    let deep = (0..5).fold(List::U8(vec![]), |list, _| List::Lists(vec![list]));
    let deep = BTreeMap::from([("deep".to_owned(), Value::from(deep))]);
    for (result, expected) in [
        (
            save(&path, &[("a", one(DType::U8)?)], &none),
            "tensor \"a\": dtype U8 is not supported; supported: F16",
        ),
        (
            save(
                &path,
                &[("a", one(DType::F32)?), ("a", one(DType::F32)?)],
                &none,
            ),
            "tensor \"a\": its name is given twice",
        ),
        (
            save(&path, &[("a", ones(&[1; 9], DType::F32)?)], &none),
            "9 dimensions, at most 8",
        ),
        (
            save(&path, &[("a", one(DType::F32)?)], &alignment),
            "key \"general.alignment\" is decided by the writer",
        ),
        (
            save(&path, &[("a", one(DType::F32)?)], &deep),
            "key \"deep\": lists are nested more than four deep",
        ),
    ] {
        let found = refusal(result);
        assert!(found.starts_with(&path.display().to_string()), "{found}");
        assert!(
            found.contains(expected),
            "{found:?} should say {expected:?}"
        );
        assert_eq!(std::fs::read(&path)?, before);
    }
    assert_eq!(std::fs::read_dir(folder.path())?.count(), 1);
    Ok(())
}
