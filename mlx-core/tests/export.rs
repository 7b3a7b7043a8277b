//! Functions in files: those that Python wrote give Python's results, those that this crate wrote
//! are read by its own reader, and malformed files are refused without a crash.

use std::path::PathBuf;

use mlx_core::export::{
    Exporter, ImportedFunction, export_function, export_to_dot, import_function,
};
use mlx_core::{Array, DType, ErrorKind, Result, Safetensors, arange, ones};
use proptest::prelude::*;

/// A file of `testdata/files`, which `xtask/golden/files.py` wrote.
fn golden(name: &str) -> PathBuf {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../testdata/files");
    PathBuf::from(root).join(name)
}

fn refusal<T>(result: Result<T>) -> String {
    result.map(drop).unwrap_err().to_string()
}

/// The arrays of the golden whose names begin with `prefix`, in order, with the rest of their names.
fn arrays(file: &Safetensors, prefix: &str) -> Result<Vec<(String, Array)>> {
    let names = file.names();
    let names = names.filter_map(|name| Some((name, name.strip_prefix(prefix)?)));
    let mut found: Vec<(String, Array)> = names
        .map(|(name, rest)| Ok((rest.to_owned(), file.array(name)?)))
        .collect::<Result<_>>()?;
    found.sort_by_key(|(rest, _)| rest.parse::<u32>().unwrap_or_default());
    Ok(found)
}

fn plain(named: Vec<(String, Array)>) -> Vec<Array> {
    named.into_iter().map(|(_, array)| array).collect()
}

fn assert_close(name: &str, found: &Array, expected: &Array) -> Result<()> {
    assert_eq!(found.dtype(), expected.dtype(), "{name}");
    assert_eq!(found.shape(), expected.shape(), "{name}");
    let same = match found.dtype().is_float() {
        true => found.allclose_with(expected, 1e-5, 1e-6, true)?,
        false => found.array_equal(expected)?,
    };
    assert!(same.item::<bool>()?, "{name}: {found}, expected {expected}");
    Ok(())
}

#[test]
fn functions_of_python_give_its_results() -> Result<()> {
    let file = Safetensors::open(golden("expected.safetensors"))?;
    let mut names: Vec<&str> = file
        .names()
        .filter_map(|name| Some(name.split_once('/')?.0))
        .filter(|name| name.ends_with(".mlxfn") && *name != "refused.mlxfn")
        .collect();
    names.dedup();
    assert_eq!(names.len(), 12);
    for name in names {
        let function = import_function(golden(name))?;
        let inputs = plain(arrays(&file, &format!("{name}/in."))?);
        let named = arrays(&file, &format!("{name}/named."))?;
        let expected = plain(arrays(&file, &format!("{name}/out."))?);
        let found = function.call_named(&inputs, &named)?;
        assert_eq!(found.len(), expected.len(), "{name}");
        for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert_close(&format!("{name} {i}"), found, expected)?;
        }
    }
    Ok(())
}

#[test]
fn calls_are_chosen_by_shapes_and_dtypes() -> Result<()> {
    let path = golden("named.mlxfn");
    let function = import_function(&path)?;
    let x = ones(&[3], DType::F32)?;
    let start = format!("{}: no function for ", path.display());
    for found in [
        refusal(function.call(std::slice::from_ref(&x))),
        refusal(function.call(&[x.clone(), x.clone()])),
        refusal(function.call_named(std::slice::from_ref(&x), [("z", &x)])),
        refusal(function.call_named(&[x.astype(DType::F16)?], [("y", &x)])),
        refusal(function.call_named(&[ones(&[4], DType::F32)?], [("y", &x)])),
    ] {
        assert!(found.starts_with(&start), "{found}");
        assert!(
            found.ends_with("the file has ([3] F32, y: [3] F32)"),
            "{found}"
        );
    }
    // One signature for all sizes.
    let shapeless = import_function(golden("shapeless.mlxfn"))?;
    for shape in [[2, 4], [1, 7], [5, 1]] {
        let x = ones(&shape, DType::F32)?;
        let expected = ones(&shape, DType::F32)?.multiply(0.0)?;
        assert_close("shapeless", &shapeless.call(&[x])?[0], &expected)?;
    }
    assert!(shapeless.call(&[x]).is_err());
    let found = refusal(import_function(golden("refused.mlxfn")));
    assert!(
        found.contains("node 1 of 2: Inverse: not read; read: Abs, ArcCos"),
        "{found}"
    );
    Ok(())
}

#[test]
fn what_is_written_is_read() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("f.mlxfn");
    let table = arange(0.0, 12.0, 1.0, DType::F32)?.reshape(&[4, 3])?;
    let w = table.t()?.multiply(0.1)?;
    let f = move |x: &[Array]| {
        // A fused operation, an index that is checked, a slice, and several results.
        let rows = table.take(&x[0], 0)?;
        let y = mlx_core::fast::rms_norm(&rows, None, 1e-5)?.matmul(&w)?;
        let last = y.slice_axis(-1, 2, 4)?.softmax(-1)?;
        Ok(vec![y, last])
    };
    let inputs = [Array::from_slice(&[0i32, 3, -1], &[3])?];
    let expected = f(&inputs)?;
    export_function(&path, f, &inputs)?;
    let found = import_function(&path)?.call(&inputs)?;
    assert_eq!(found.len(), 2);
    for (found, expected) in found.iter().zip(&expected) {
        assert_close("written", found, expected)?;
    }
    assert_eq!(std::fs::read_dir(folder.path())?.count(), 1);
    // Several signatures.
    let mut exporter = Exporter::new(&path, |x: &[Array]| Ok(vec![x[0].square()?]))?;
    for n in 1..4 {
        exporter.add(&[ones(&[n], DType::F32)?])?;
    }
    exporter.finish()?;
    let square = import_function(&path)?;
    assert_eq!(square.call(&[ones(&[2], DType::F32)?])?[0].shape(), [2]);
    assert!(square.call(&[ones(&[4], DType::F32)?]).is_err());
    // All sizes.
    let mut exporter = Exporter::shapeless(&path, |x: &[Array]| Ok(vec![x[0].add(&x[1])?]))?;
    exporter.add(&[ones(&[2, 2], DType::F32)?, ones(&[2, 1], DType::F32)?])?;
    exporter.finish()?;
    let sum = import_function(&path)?;
    let y = sum.call(&[ones(&[5, 3], DType::F32)?, ones(&[5, 1], DType::F32)?])?;
    assert_eq!(y[0].to_vec::<f32>()?, [2.0; 15]);
    Ok(())
}

#[test]
fn an_index_out_of_range_stays_in_range() -> Result<()> {
    // The check of an index cannot be written. What is written instead never leaves the array.
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("f.mlxfn");
    let table = arange(0.0, 4.0, 1.0, DType::F32)?;
    let f = move |x: &[Array]| Ok(vec![table.take(&x[0], 0)?]);
    let inputs = [Array::from_slice(
        &[0i64, 1, -1, -4, 4, -5, i64::MAX, i64::MIN],
        &[8],
    )?];
    export_function(&path, f, &inputs)?;
    let found = import_function(&path)?.call(&inputs)?[0].to_vec::<f32>()?;
    assert_eq!(found[..4], [0.0, 1.0, 3.0, 0.0]);
    assert!(
        found.iter().all(|value| (0.0..4.0).contains(value)),
        "{found:?}"
    );
    Ok(())
}

#[test]
fn a_failed_export_leaves_the_file_as_it_was() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("f.mlxfn");
    let x = [ones(&[2, 2], DType::F32)?];
    export_function(&path, |x: &[Array]| Ok(vec![x[0].exp()?]), &x)?;
    let before = std::fs::read(&path)?;
    let failing = [
        refusal(export_function(&path, |_: &[Array]| Ok(vec![]), &x)),
        refusal(export_function(
            &path,
            |x: &[Array]| Ok(vec![x[0].matmul(&ones(&[3], DType::F32)?)?]),
            &x,
        )),
        refusal(export_function(
            &path,
            |x: &[Array]| {
                x[0].to_vec::<f32>()?;
                Ok(vec![x[0].clone()])
            },
            &x,
        )),
        refusal(export_function(
            &path,
            |x: &[Array]| Ok(vec![mlx_core::linalg::lu_factor(&x[0])?.0]),
            &x,
        )),
    ];
    for found in failing {
        assert!(found.starts_with(&path.display().to_string()), "{found}");
        assert_eq!(std::fs::read(&path)?, before);
    }
    let mut exporter = Exporter::new(&path, |x: &[Array]| Ok(vec![x[0].exp()?]))?;
    exporter.add(&x)?;
    assert!(refusal(exporter.add(&x)).contains("same signature"));
    assert!(refusal(exporter.add(&x)).contains("an earlier signature failed"));
    assert!(refusal(exporter.finish()).contains("a signature failed, so there is no file"));
    assert_eq!(std::fs::read(&path)?, before);
    assert_eq!(std::fs::read_dir(folder.path())?.count(), 1);
    // The thread computes as before.
    assert_eq!(x[0].exp()?.shape(), [2, 2]);
    let error = x[0]
        .take(&Array::from_slice(&[7i32], &[1])?, 0)?
        .to_vec::<f32>()
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Eval);
    Ok(())
}

#[test]
fn a_panic_in_the_function_is_resumed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("f.mlxfn");
    let x = [ones(&[2], DType::F32).unwrap()];
    let run = || export_function(&path, |_: &[Array]| panic!("within the function"), &x);
    let payload = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).unwrap_err();
    assert_eq!(
        *payload.downcast_ref::<&str>().unwrap(),
        "within the function"
    );
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn graphs_are_drawn_with_their_names() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("graph.dot");
    let x = ones(&[2], DType::F32)?;
    let y = x.exp()?.add(&x)?;
    export_to_dot(&path, [("result", &y)])?;
    let text = std::fs::read_to_string(&path)?;
    for part in ["digraph", "Exp", "Add", "result"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(refusal(export_to_dot(&path, [("a\0b", &y)])).contains("NUL"));
    assert!(refusal(export_to_dot(folder.path().join("none/g.dot"), [("y", &y)])).contains("none"));
    assert_eq!(std::fs::read_to_string(&path)?, text);
    assert_eq!(std::fs::read_dir(folder.path())?.count(), 1);
    Ok(())
}

/// Reads the bytes, and calls the function if they are a valid file. For any bytes this may fail,
/// but may not crash.
fn exercise(raw: &[u8], inputs: &[Array]) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("f.mlxfn");
    std::fs::write(&path, raw).unwrap();
    let call = |function: ImportedFunction| function.call(inputs);
    if let Ok(results) = import_function(&path).and_then(call) {
        for result in results {
            let _ = result
                .astype(DType::F32)
                .and_then(|result| result.to_vec::<f32>());
        }
    }
}

fn case(index: usize) -> (Vec<u8>, Vec<Array>) {
    let names = [
        "mlp",
        "lookup",
        "reductions",
        "sorted",
        "shapes",
        "places",
        "convolution",
        "integers",
        "quantised",
    ];
    let name = format!("{}.mlxfn", names[index % names.len()]);
    let file = Safetensors::open(golden("expected.safetensors")).unwrap();
    let inputs = plain(arrays(&file, &format!("{name}/in.")).unwrap());
    (std::fs::read(golden(&name)).unwrap(), inputs)
}

#[test]
fn bad_files_are_refused_by_name() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("f.mlxfn");
    let (good, inputs) = case(0);
    let read = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        refusal(import_function(&path))
    };
    let version = 8 + good[0] as usize;
    let with = |at: usize, bytes: &[u8]| {
        let mut changed = good.clone();
        changed[at..at + bytes.len()].copy_from_slice(bytes);
        changed
    };
    for (found, expected) in [
        (read(b""), "not an exported function"),
        (
            read(b"GGUF\x03\0\0\0\0\0\0\0\0\0\0\0"),
            "not an exported function",
        ),
        (
            read(&good[..good.len() - 1]),
            "function 0 of 1 (written by MLX 0.32",
        ),
        (
            read(&[&good[..], &[0]].concat()),
            "1 bytes follow the last function",
        ),
        (read(&with(version, &2i32.to_le_bytes())), "function 1 of 2"),
        (read(&with(version, &(-1i32).to_le_bytes())), "-1 functions"),
        (
            read(&with(version + 4, &[2])),
            "byte 2 where a truth value has 0 and 1",
        ),
        (
            read(&with(version + 5, &[255; 8])),
            "18446744073709551615 elements of at least 1 bytes",
        ),
    ] {
        assert!(found.starts_with(&path.display().to_string()), "{found}");
        assert!(
            found.contains(expected),
            "{found:?} should say {expected:?}"
        );
    }
    // The file states other sizes than the operations have: the last node's shape [2, 3] as [9, 3].
    let shape: Vec<u8> = [
        2u64.to_le_bytes().to_vec(),
        2i32.to_le_bytes().to_vec(),
        3i32.to_le_bytes().to_vec(),
    ]
    .concat();
    let at = good
        .windows(shape.len())
        .rposition(|window| window == shape)
        .unwrap();
    std::fs::write(&path, with(at + 8, &9i32.to_le_bytes()))?;
    let error = import_function(&path)?.call(&inputs).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Format);
    assert!(error.to_string().contains("(Softmax): gives"), "{error}");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn truncated_files(index in 0usize..9, keep in 0usize..2600) {
        let (raw, inputs) = case(index);
        exercise(&raw[..keep.min(raw.len() - 1)], &inputs);
    }

    #[test]
    fn changed_bytes(index in 0usize..9, changes in prop::collection::vec((0usize..2600, any::<u8>()), 1..3)) {
        let (mut raw, inputs) = case(index);
        for (at, byte) in changes {
            let at = at % raw.len();
            raw[at] = byte;
        }
        exercise(&raw, &inputs);
    }

    #[test]
    fn flipped_bits(index in 0usize..9, bits in prop::collection::vec(any::<u32>(), 1..3)) {
        let (mut raw, inputs) = case(index);
        for bit in bits {
            let bit = bit as usize % (raw.len() * 8);
            raw[bit / 8] ^= 1 << (bit % 8);
        }
        exercise(&raw, &inputs);
    }
}

/// A file with one operation, as MLX writes it on a GPU: `inputs`, the operation's name and state, and its result.
fn one_operation(inputs: &[Array], name: &str, state: &[&[u8]], result: &Array) -> Vec<u8> {
    let number = |n: usize| (n as u64).to_le_bytes().to_vec();
    let text = |text: &str| [number(text.len()), text.as_bytes().to_vec()].concat();
    let stated = |array: &Array| {
        let mut bytes = number(array.ndim());
        for size in array.shape() {
            bytes.extend(size.to_le_bytes());
        }
        bytes.extend((array.dtype() as i32).to_le_bytes());
        bytes.push(array.dtype().size() as u8);
        bytes
    };
    let ids = |count: usize| [number(count), (0..count).flat_map(number).collect()].concat();
    let last = inputs.len();
    let mut file = text("0.32.4");
    file.extend(1i32.to_le_bytes());
    file.push(0);
    file.extend(text(""));
    file.extend(number(0));
    file.extend(ids(last));
    file.extend(number(last));
    inputs.iter().for_each(|input| file.extend(stated(input)));
    file.extend([number(1), number(last), number(last + 1)].concat());
    for id in 0..last {
        file.extend(number(id));
        file.extend([0, 0]);
    }
    file.extend(number(last));
    file.push(1);
    file.extend(ids(last));
    // Stream 0 of GPU 0.
    for part in [0i32, 1, 0] {
        file.extend(part.to_le_bytes());
    }
    file.extend(text(name));
    file.extend(state.concat());
    file.extend(number(0));
    file.extend(stated(result));
    file
}

#[test]
fn fused_operations_of_a_gpu_are_read() -> Result<()> {
    use mlx_core::fast::{self, Mask, Rope};

    let folder = tempfile::tempdir()?;
    let path = folder.path().join("f.mlxfn");
    let numbers = arange(0.0, 48.0, 1.0, DType::F32)?.multiply(0.1)?.sin()?;
    let x = numbers.reshape(&[1, 2, 3, 8])?;
    let (weight, bias) = (
        ones(&[8], DType::F32)?.multiply(0.5)?,
        ones(&[8], DType::F32)?,
    );
    let none = Array::scalar(1.0f32)?;
    let offset = Array::scalar(3i32)?;
    let eps = 1e-5f32.to_le_bytes();
    let (one, half) = (1.0f32.to_le_bytes(), 0.5f32.to_le_bytes());
    let base = 10_000f32.to_le_bytes();
    let rope = Rope {
        dims: 4,
        traditional: false,
        base: Some(10_000.0),
        scale: 1.0,
        freqs: None,
    };
    type Case<'a> = (&'a str, Vec<Array>, Vec<&'a [u8]>, Array);
    let cases: [Case<'_>; 6] = [
        (
            "RMSNorm",
            vec![x.clone(), weight.clone()],
            vec![&eps],
            fast::rms_norm(&x, Some(&weight), 1e-5)?,
        ),
        (
            "RMSNorm",
            vec![x.clone(), none.clone()],
            vec![&eps],
            fast::rms_norm(&x, None, 1e-5)?,
        ),
        (
            "LayerNorm",
            vec![x.clone(), weight.clone(), bias.clone()],
            vec![&eps],
            fast::layer_norm(&x, Some(&weight), Some(&bias), 1e-5)?,
        ),
        (
            "RoPE",
            vec![x.clone(), offset.clone()],
            vec![&[4, 0, 0, 0], &[0], &base, &one, &[1]],
            fast::rope_with(&x, &rope, &offset)?,
        ),
        (
            "ScaledDotProductAttention",
            vec![x.clone(), x.clone(), x.clone()],
            vec![&half, &[1], &[0], &[0], &[0]],
            fast::scaled_dot_product_attention(&x, &x, &x, 0.5, Mask::Causal, None)?,
        ),
        (
            "ScaledDotProductAttention",
            vec![x.clone(), x.clone(), x.clone(), ones(&[2], DType::F32)?],
            vec![&half, &[0], &[1], &[0], &[0]],
            fast::scaled_dot_product_attention(
                &x,
                &x,
                &x,
                0.5,
                Mask::None,
                Some(&ones(&[2], DType::F32)?),
            )?,
        ),
    ];
    for (name, inputs, state, expected) in cases {
        std::fs::write(&path, one_operation(&inputs, name, &state, &expected))?;
        let found = import_function(&path)?.call(&inputs)?;
        assert_close(name, &found[0], &expected)?;
    }
    // A rotation backwards, and attention with a second result, are refused by name.
    let backwards: [&[u8]; 5] = [&[4, 0, 0, 0], &[0], &base, &one, &[0]];
    std::fs::write(
        &path,
        one_operation(&[x.clone(), offset], "RoPE", &backwards, &x),
    )?;
    assert!(refusal(import_function(&path)).ends_with("RoPE: a rotation backwards is not read"));
    Ok(())
}
