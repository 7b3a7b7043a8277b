//! Rules that change published tensors: the right rows in the right parameters, on dense and quantised tensors.

use std::collections::BTreeMap;

use mlx_core::ops::quantize::quantize_with;
use mlx_core::{
    Array, DType, Device, ErrorKind, QuantMode, Result, Safetensors, Scheme, memory, safetensors,
    zeros,
};
use mlx_nn::names::Gather;
use mlx_nn::{
    Checkpoint, FillOptions, Linear, Module, Param, Path, Rule, Rules, Visit, fill_lazily, module,
};

const SCHEME: Scheme = Scheme {
    mode: QuantMode::Affine,
    bits: 4,
    group_size: 32,
};

/// `[rows, columns]` numbers that encode their row and column.
fn matrix(rows: i32, columns: i32) -> Array {
    let values: Vec<f32> = (0..rows * columns)
        .map(|at| ((at * 37) % 101) as f32 / 8.0 - (at / columns) as f32)
        .collect();
    Array::from_slice(&values, &[rows, columns]).unwrap()
}

fn file(tensors: &[(&str, Array)]) -> Safetensors {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let arrays = tensors.iter().map(|(name, array)| (*name, array));
    safetensors::save(&path, arrays, &BTreeMap::new()).unwrap();
    Safetensors::open(path).unwrap()
}

fn read(module: &mut dyn Module, tensors: &[(&str, Array)], rules: &Rules) -> Result<()> {
    let checkpoint = Checkpoint::new("here", vec![file(tensors)], rules)?;
    let options = FillOptions {
        dtype: None,
        scheme: &|_| Ok(Some(SCHEME)),
        progress: &mut |_| (),
    };
    fill_lazily(module, &checkpoint, options)
}

fn values(module: &dyn Module) -> BTreeMap<String, Array> {
    struct Collect(BTreeMap<String, Array>);
    impl Visit for Collect {
        fn param(&mut self, path: &Path, param: &Param) -> Result<()> {
            self.0
                .insert(path.as_str().to_owned(), param.value().clone());
            Ok(())
        }
    }
    let mut collect = Collect(BTreeMap::new());
    module.visit(&mut Path::default(), &mut collect).unwrap();
    collect.0
}

fn equal(a: &Array, b: &Array) -> bool {
    a.dtype() == b.dtype() && a.array_equal(b).unwrap().item().unwrap()
}

struct Qkv {
    q: Linear,
    k: Linear,
}
module!(Qkv { q, k });

impl Qkv {
    /// Two parts with these numbers of outputs.
    fn new(q: i32, k: i32, bias: bool) -> Self {
        Self {
            q: Linear::empty(64, q, bias).unwrap(),
            k: Linear::empty(64, k, bias).unwrap(),
        }
    }
}

/// The rows of both parts, by a loop.
fn rows(groups: i32, parts: [i32; 2]) -> [Vec<i32>; 2] {
    let mut found = [Vec::new(), Vec::new()];
    let mut row = 0;
    for _ in 0..groups {
        for (part, &n) in parts.iter().enumerate() {
            found[part].extend(row..row + n);
            row += n;
        }
    }
    found
}

#[test]
fn rows_are_split_and_joined_again() -> Result<()> {
    // All rows of q and then of k; head by head; rows of gate and up in turn.
    for (groups, parts) in [(1, [6, 2]), (4, [4, 2]), (8, [1, 1])] {
        let split = |from: &str| {
            Rule::split(from, groups, [("q.*", parts[0]), ("k.*", parts[1])]).written()
        };
        let rules = Rules::from([split("qk.*")]);
        let fused = matrix(groups * (parts[0] + parts[1]), 64);
        let packed = quantize_with(&fused, SCHEME)?;
        let bias = matrix(1, groups * (parts[0] + parts[1])).reshape(&[-1])?;
        let dense = [("qk.weight", fused), ("qk.bias", bias)];
        let quantized = [
            ("qk.weight", packed.packed),
            ("qk.scales", packed.scales),
            ("qk.biases", packed.biases.expect("affine has biases")),
        ];
        for (tensors, bias) in [(&dense[..], true), (&quantized[..], false)] {
            let mut module = Qkv::new(groups * parts[0], groups * parts[1], bias);
            read(&mut module, tensors, &rules)?;
            let found = values(&module);
            assert_eq!(found.len(), 2 * tensors.len());
            for (part, rows) in ["q", "k"].iter().zip(rows(groups, parts)) {
                let rows = Array::from_slice(&rows, &[rows.len() as i32])?;
                for (name, array) in tensors {
                    let expected = array.take(&rows, 0)?;
                    let name = name.replace("qk", part);
                    assert!(equal(&found[&name], &expected), "{groups} {parts:?} {name}");
                }
            }
            // The inverse table gives the published tensors again.
            let mut gather = Gather::default();
            let inverse = rules.inverse();
            for (name, array) in &found {
                gather.add(inverse.pieces(name).unwrap(), array)?;
            }
            assert_eq!(gather.names().count(), tensors.len());
            for (name, array) in tensors {
                let again = gather
                    .array(name, None, |array| Ok(array.clone()))?
                    .unwrap();
                assert!(equal(&again, array), "{groups} {parts:?} {name}");
            }
            // Joining gives the published tensors too, if the parts are read from a file.
            let mut whole = BTreeMap::from([(
                "qk",
                Linear::empty(64, groups * (parts[0] + parts[1]), bias)?,
            )]);
            let halves: Vec<(&str, Array)> = found
                .iter()
                .map(|(name, array)| (name.as_str(), array.clone()))
                .collect();
            let join = Rules::from([Rule::join(
                [("q.*", parts[0]), ("k.*", parts[1])],
                groups,
                "*",
            )]);
            read(whole.get_mut("qk").unwrap(), &halves, &join)?;
            let whole = values(&whole["qk"]);
            for (name, array) in tensors {
                assert!(
                    equal(&whole[name.trim_start_matches("qk.")], array),
                    "{name}"
                );
            }
        }
    }
    Ok(())
}

struct Odd {
    conv: Param,
    norm: Param,
    experts: Param,
}
module!(Odd {
    conv,
    norm,
    experts
});

fn odd() -> Odd {
    Odd {
        conv: Param::empty(&[6, 4, 1]).unwrap(),
        norm: Param::empty(&[4]).unwrap(),
        experts: Param::empty(&[3, 2, 4]).unwrap(),
    }
}

#[test]
fn tensors_are_transposed_added_to_stacked_and_dropped() -> Result<()> {
    let conv = matrix(6, 4).reshape(&[6, 1, 4])?;
    // bf16 cannot represent 1 + 2^-9, but f32 can: the sum is rounded last.
    let norm = Array::from_slice(&[0.5f32, -0.25, 2f32.powi(-9), 0.0], &[4])?;
    let mut tensors = vec![
        ("a.conv1d", conv.clone()),
        ("a.norm", norm.astype(DType::BF16)?),
        ("a.rotary", matrix(1, 1)),
    ];
    let names: Vec<String> = (0..3)
        .map(|index| format!("a.experts.{index}.up"))
        .collect();
    for (name, index) in names.iter().zip(0..) {
        tensors.push((name, matrix(2, 4).add(index as f32)?));
    }
    let rules = Rules::from([
        Rule::drop("*.rotary", "a buffer"),
        Rule::rename("a.*", "*"),
        Rule::rename("conv1d", "conv"),
        // Rules see the names that the rules above them made.
        Rule::transpose("conv", &[0, 2, 1]),
        Rule::add("norm", 1.0),
        Rule::stack("experts.#.up", "experts"),
    ]);
    let mut module = odd();
    read(&mut module, &tensors, &rules)?;
    let found = values(&module);
    assert!(equal(&found["conv"], &conv.reshape(&[6, 4, 1])?));
    assert_eq!(found["norm"].dtype(), DType::BF16);
    assert_eq!(
        found["norm"].astype(DType::F32)?.to_vec::<f32>()?,
        [1.5, 0.75, 1.0, 1.0]
    );
    for index in 0..3 {
        let item = found["experts"]
            .slice_axis(0, index, index + 1)?
            .squeeze(0)?;
        assert!(equal(&item, &matrix(2, 4).add(index as f32)?));
    }
    // In f32 no bits are lost.
    let checkpoint = Checkpoint::new("here", vec![file(&tensors)], &rules)?;
    let options = FillOptions {
        dtype: Some(DType::F32),
        scheme: &|_| Ok(None),
        progress: &mut |_| (),
    };
    fill_lazily(&mut module, &checkpoint, options)?;
    let norm = values(&module)["norm"].to_vec::<f32>()?;
    assert_eq!(norm[2], 1.0 + 2f32.powi(-9));
    Ok(())
}

#[test]
fn axes_of_files_are_those_of_the_parameter() -> Result<()> {
    let shape = [6, 4, 1];
    let rules = Rules::from([Rule::reshape("conv", &shape).written()]);
    let tensors = |conv: Array| {
        let others = [("norm", &[4][..]), ("experts", &[3, 2, 4])];
        let others = others.map(|(name, shape)| (name, zeros(shape, DType::F32).unwrap()));
        [others.to_vec(), vec![("conv", conv)]].concat()
    };
    for files in [&[24][..], &[1, 4, 6], &shape] {
        let mut module = odd();
        read(&mut module, &tensors(matrix(6, 4).reshape(files)?), &rules)?;
        assert!(equal(
            &values(&module)["conv"],
            &matrix(6, 4).reshape(&shape)?
        ));
    }
    let error = read(&mut odd(), &tensors(matrix(6, 5)), &rules).unwrap_err();
    let error = error.to_string();
    assert!(
        error.contains("conv: [6, 5] cannot be reshaped to [6, 4, 1]"),
        "{error}"
    );
    // A written file keeps the axes of the parameter.
    let back = rules.inverse();
    assert_eq!(back, rules);
    Ok(())
}

#[test]
fn what_does_not_fit_the_rules_is_in_the_report() {
    let rules = Rules::from([
        Rule::transpose("conv", &[0, 2, 1]),
        Rule::add("norm", 1.0),
        Rule::stack("experts.#", "experts"),
    ]);
    let tensors = [
        ("conv", matrix(6, 4)),
        (
            "norm",
            matrix(1, 4)
                .reshape(&[4])
                .unwrap()
                .astype(DType::U32)
                .unwrap(),
        ),
        ("experts.0", matrix(2, 4)),
        ("experts.2", matrix(2, 4)),
    ];
    let error = read(&mut odd(), &tensors, &rules).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Format);
    for part in [
        "3 misshapen",
        "conv: [6, 4] has no axes [0, 2, 1]",
        "norm: packed [4] cannot be transposed or added to",
        "item 2 of the stack",
    ] {
        assert!(error.to_string().contains(part), "{error}");
    }
    // Rows that cannot be divided evenly, and a missing part.
    let split = Rules::from([Rule::split("qk.*", 1, [("q.*", 2), ("k.*", 1)])]);
    let error = read(
        &mut Qkv::new(2, 1, false),
        &[("qk.weight", matrix(4, 64))],
        &split,
    );
    let error = error.unwrap_err().to_string();
    assert!(
        error.contains("[4, 64] cannot be split into 1 groups of [2, 1] rows"),
        "{error}"
    );
    let join = Rules::from([Rule::join([("q.*", 2), ("k.*", 1)], 1, "*")]);
    let mut whole = Linear::empty(64, 3, false).unwrap();
    let error = read(&mut whole, &[("q.weight", matrix(2, 64))], &join).unwrap_err();
    assert!(
        error.to_string().contains("weight: without k.weight"),
        "{error}"
    );
    let twice = [("q.weight", matrix(2, 64)), ("x.weight", matrix(2, 64))];
    let rules = Rules::from([Rule::rename("x.*", "q.*")]);
    let error = read(&mut Qkv::new(2, 2, false), &twice, &rules).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("two tensors claim to be q.weight"),
        "{error}"
    );
}

#[test]
fn adapters_of_fused_matrices_are_split_where_that_is_exact() -> Result<()> {
    let rules = Rules::from([
        Rule::split("*.qk.*", 2, [("*.q.*", 2), ("*.k.*", 1)]),
        Rule::transpose("t.weight", &[1, 0]),
        Rule::transpose("c.weight", &[0, 2, 1]),
    ]);
    let (a, b, m) = (matrix(64, 4), matrix(4, 6), matrix(1, 6).reshape(&[6])?);
    for (piece, columns) in rules
        .modules("l.qk")
        .unwrap()
        .iter()
        .zip([[0, 1, 3, 4].as_slice(), &[2, 5]])
    {
        let columns = Array::from_slice(columns, &[columns.len() as i32])?;
        assert!(equal(&piece.adapter("lora_a", &a)?.unwrap(), &a));
        assert!(equal(
            &piece.adapter("lora_b", &b)?.unwrap(),
            &b.take(&columns, 1)?
        ));
        assert!(equal(
            &piece.adapter("m", &m)?.unwrap(),
            &m.take(&columns, 0)?
        ));
    }
    // A layer has the same inputs and outputs however its matrix is stored.
    let transposed = &rules.modules("t").unwrap()[0];
    for (part, array) in [("lora_a", &a), ("lora_b", &b), ("m", &m)] {
        assert!(equal(&transposed.adapter(part, array)?.unwrap(), array));
    }
    let convolution = &rules.modules("c").unwrap()[0];
    assert!(convolution.adapter("lora_a", &a)?.is_none());
    Ok(())
}

/// On the CPU parts of a fused matrix are views of the mapped file: loading them allocates nothing.
#[test]
fn contiguous_rows_are_not_copied() -> Result<()> {
    if Device::GPU.is_available()? {
        return Ok(());
    }
    let (q, k) = (3072, 1024);
    let rules = Rules::from([Rule::split("qk.*", 1, [("q.*", q), ("k.*", k)])]);
    let checkpoint = {
        let tensors = [("qk.weight", matrix(q + k, 64))];
        Checkpoint::new("here", vec![file(&tensors)], &rules)?
    };
    let mut module = Qkv::new(q, k, false);
    let before = memory::active()?;
    let options = FillOptions {
        dtype: None,
        scheme: &|_| Ok(None),
        progress: &mut |_| (),
    };
    fill_lazily(&mut module, &checkpoint, options)?;
    drop(checkpoint);
    let values = values(&module);
    mlx_core::eval(values.values())?;
    let allocated = memory::active()?.saturating_sub(before);
    assert!(allocated < 1 << 16, "{allocated} bytes");
    assert!(equal(
        &values["k.weight"],
        &matrix(q + k, 64).slice_axis(0, q, q + k)?
    ));
    Ok(())
}

#[test]
fn bytes_of_packed_codes_become_words() -> Result<()> {
    struct Words {
        weight: Param,
    }
    module!(Words { weight });
    let bytes: Vec<u8> = (0..16).collect();
    let rules = Rules::from([Rule::words("blocks"), Rule::rename("blocks", "weight")]);
    let mut words = Words {
        weight: Param::empty(&[1, 4])?,
    };
    let blocks = Array::from_slice(&bytes, &[1, 2, 8])?;
    read(&mut words, &[("blocks", blocks)], &rules)?;
    // The first byte is the lowest.
    assert_eq!(
        words.weight.value().to_vec::<u32>()?,
        [0x0302_0100, 0x0706_0504, 0x0b0a_0908, 0x0f0e_0d0c]
    );
    let floats = Array::from_slice(&[0.0f32; 16], &[1, 2, 8])?;
    let error = read(&mut words, &[("blocks", floats)], &rules).unwrap_err();
    assert!(
        error.to_string().contains("no bytes of packed codes"),
        "{error}"
    );
    Ok(())
}
