//! Cases of `mlx_core::fast`, of updates in place and of transforms, for which there are no goldens of single calls.

use std::collections::BTreeSet;
use std::path::Path;

use mlx_core::ops::quantize::{QuantMode, Quantized, Scheme, quantize};
use mlx_core::transforms::{Compiled, compile, grad, vmap};
use mlx_core::{Array, DType, Result, fast, inplace, random};
use serde_json::{Value, json};

use crate::case::{Case, Op, Results, rows};

fn float(shape: &[i32]) -> Array {
    let key = random::Key::new(1).unwrap();
    let array = random::normal(&key, shape, DType::BF16, 0.0, 1.0).unwrap();
    mlx_core::eval([&array]).unwrap();
    array
}

fn ints(values: &[i32], shape: &[i32]) -> Array {
    Array::from_slice(values, shape).unwrap()
}

fn affine() -> Scheme {
    Scheme::new(QuantMode::Affine, 8, 32).unwrap()
}

fn packed(shape: &[i32]) -> Vec<Array> {
    let Quantized {
        packed,
        scales,
        biases,
    } = quantize(&float(shape), affine()).unwrap();
    let parts = vec![packed, scales, biases.unwrap()];
    mlx_core::eval(&parts).unwrap();
    parts
}

/// The cases that calls are made of.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut case = |op: &str, inputs: Vec<Array>, args: Value| {
        // More often than a golden, of which an operation has several.
        for _ in 0..12 {
            cases.push(Case::new(op, inputs.clone(), args.clone()));
        }
    };
    let with = |mut first: Vec<Array>, rest: Vec<Array>| {
        first.extend(rest);
        first
    };
    let (x, w) = (|| float(&[2, 3, 64]), || float(&[64]));
    let at = || ints(&[1, 0, 2], &[3]);
    case("fast::rms_norm", vec![x(), w()], json!([1e-5]));
    case("fast::layer_norm", vec![x(), w(), w()], json!([1e-5]));
    case("fast::linear", vec![x(), float(&[32, 64])], json!([]));
    case(
        "fast::quantized_linear",
        with(vec![x()], packed(&[32, 64])),
        json!([]),
    );
    case(
        "fast::experts_linear",
        vec![float(&[3, 1, 64]), float(&[4, 32, 64]), at()],
        json!([]),
    );
    let experts = with(vec![float(&[3, 1, 64])], packed(&[4, 32, 64]));
    case(
        "fast::quantized_experts_linear",
        with(experts, vec![at()]),
        json!([]),
    );
    case("fast::rows", vec![float(&[5, 64]), at()], json!([]));
    case(
        "fast::quantized_rows",
        with(packed(&[5, 64]), vec![at()]),
        json!(["BF16"]),
    );
    case("fast::blank", vec![], json!([[2, 3], "F16"]));
    for op in ["fast::swiglu", "fast::geglu", "fast::add"] {
        case(op, vec![x(), x()], json!([]));
    }
    case("fast::soft_cap", vec![x()], json!([5.0]));
    case("fast::rms_norm_add", vec![x(), w(), x()], json!([1e-5]));
    case(
        "fast::add_rms_norm",
        vec![x(), x(), w(), w()],
        json!([1e-5]),
    );
    let heads = || float(&[2, 2, 3, 64]);
    case(
        "fast::rope",
        vec![heads(), ints(&[3, 0], &[2])],
        json!([64, true, 10000.5, 1.0]),
    );
    let freqs = float(&[32]).astype(DType::F32).unwrap();
    case(
        "fast::heads",
        vec![float(&[2, 3, 128]), w(), freqs, ints(&[3, 0], &[2])],
        json!([64, 1e-5, 64]),
    );
    case(
        "fast::cross_entropy",
        vec![float(&[3, 64]), at()],
        json!([]),
    );
    for op in ["fast::attention", "fast::scaled_dot_product_attention"] {
        let mask = float(&[3, 5]);
        let inputs = vec![
            heads(),
            float(&[2, 1, 5, 64]),
            float(&[2, 1, 5, 64]),
            mask,
            float(&[2]),
        ];
        case(op, inputs, json!([0.5, 5.0, 0]));
    }
    let placed = || {
        vec![
            heads(),
            float(&[2, 1, 8, 64]),
            float(&[2, 1, 8, 64]),
            ints(&[3, 0], &[2]),
        ]
    };
    case("attention_placed", placed(), json!([0.5, 4, 0]));
    let rows = fast::pack(&float(&[2, 1, 8, 64]), affine()).unwrap();
    mlx_core::eval([&rows]).unwrap();
    let buffers = || vec![rows.clone(), rows.clone()];
    case(
        "fast::packed_attention",
        with(with(vec![heads()], buffers()), vec![ints(&[3, 0], &[2])]),
        json!([0.5, 4, 0]),
    );
    case("fast::pack", vec![x()], json!([]));
    case("fast::packed_words", vec![], json!([64, "BF16"]));
    case("fast::argmax", vec![x()], json!([]));
    case("fast::logsumexp", vec![x()], json!([]));
    case("fast::top", vec![x()], json!([3]));
    let logits = || float(&[2, 64]).astype(DType::F32).unwrap();
    let p = Array::from_slice(&[0.5f32, 0.9], &[2, 1]).unwrap();
    case("fast::nucleus", vec![logits(), p], json!([]));
    case(
        "store",
        vec![
            float(&[2, 1, 8, 64]),
            float(&[2, 1, 3, 64]),
            ints(&[3, 0], &[2]),
        ],
        json!([true, true]),
    );
    case(
        "store_packed",
        with(buffers(), vec![float(&[2, 1, 3, 64]), ints(&[3, 0], &[2])]),
        json!([true, true]),
    );
    case(
        "update_in_place",
        vec![float(&[4, 8]), float(&[2, 8])],
        json!([[1, 0], [3, 8]]),
    );
    case(
        "update_dynamic_in_place",
        vec![float(&[4, 8]), float(&[2, 8]), ints(&[1], &[1])],
        json!([[0]]),
    );
    case(
        "put_in_place",
        vec![float(&[4, 8]), ints(&[1; 8], &[1, 8]), float(&[1, 8])],
        json!([0]),
    );
    case(
        "scatter_in_place",
        vec![float(&[4, 8]), at(), float(&[3, 1, 8])],
        json!([[0]]),
    );
    case(
        "shapeless",
        vec![float(&[1, 2]), float(&[3, 2])],
        json!([0]),
    );
    case("grad_of_take", vec![float(&[4, 8]), at()], json!([0]));
    case("vmap_of_take", vec![float(&[4, 8]), at()], json!([0, 0]));
    cases
}

fn option(c: &Case, index: usize) -> Option<f32> {
    Some(c.float(index) as f32).filter(|number| *number != 0.0)
}

fn placed<'a>(c: &'a Case, offsets: &'a Array) -> fast::Attention<'a> {
    let slots = [
        fast::KeySlots::Straight,
        fast::KeySlots::Ring,
        fast::KeySlots::Behind,
    ];
    fast::Attention {
        scale: c.float(0) as f32,
        soft_cap: None,
        mask: fast::Mask::Placed(fast::Placed {
            offsets,
            window: (c.int(1) != 0).then(|| c.int(1)),
            slots: slots[c.int(2).rem_euclid(3) as usize],
        }),
        sinks: None,
    }
}

fn mask(c: &Case) -> fast::Mask<'_> {
    match c.int(2).rem_euclid(3) {
        0 => fast::Mask::Array(c.x(3)),
        1 => fast::Mask::Causal,
        _ => fast::Mask::None,
    }
}

fn store(c: &Case, buffers: [&Array; 2], new: usize, scheme: Option<Scheme>) -> Result<Vec<Array>> {
    let (new, offsets) = ((c.x(new), c.x(new)), c.x(new + 1));
    let copy = inplace::store_in_copy((buffers[0], buffers[1]), new, offsets, c.bool(0), scheme)?;
    let owned = (buffers[0].copy()?, buffers[1].copy()?);
    let place = inplace::store_in_place(owned, new, offsets, c.bool(0), scheme)?;
    Ok([copy.list(), place.list()].concat())
}

pub fn rows() -> Vec<(&'static str, Op)> {
    rows! {
        "fast::rms_norm" => |c| fast::rms_norm(c.x(0), Some(c.x(1)), c.float(0) as f32);
        "fast::layer_norm" => |c| fast::layer_norm(c.x(0), Some(c.x(1)), Some(c.x(2)), c.float(0) as f32);
        "fast::linear" => |c| fast::linear(c.x(0), c.x(1));
        "fast::quantized_linear" => |c| fast::quantized_linear(c.x(0), c.x(1), c.x(2), Some(c.x(3)), affine());
        "fast::experts_linear" => |c| fast::experts_linear(c.x(0), c.x(1), c.x(2));
        "fast::quantized_experts_linear" => |c| {
            fast::quantized_experts_linear(c.x(0), c.x(1), c.x(2), Some(c.x(3)), c.x(4), affine())
        };
        "fast::rows" => |c| fast::rows(c.x(0), c.x(1));
        "fast::quantized_rows" => |c| fast::quantized_rows(c.x(0), c.x(1), Some(c.x(2)), c.x(3), affine(), c.dtype(0));
        "fast::blank" => |c| fast::blank(&c.ints(0), c.dtype(1));
        "fast::swiglu" => |c| fast::swiglu(c.x(0), c.x(1));
        "fast::geglu" => |c| fast::geglu(c.x(0), c.x(1));
        "fast::add" => |c| fast::add(c.x(0), c.x(1));
        "fast::soft_cap" => |c| fast::soft_cap(c.x(0), c.float(0) as f32);
        "fast::rms_norm_add" => |c| fast::rms_norm_add(c.x(0), c.x(1), c.x(2), c.float(0) as f32);
        "fast::add_rms_norm" => |c| {
            fast::add_rms_norm(c.x(0), c.x(1), Some(c.x(2)), c.x(3), c.float(0) as f32)
        };
        "fast::rope" => |c| {
            let (base, scale) = (option(c, 2), c.float(3) as f32);
            let rope = fast::Rope { dims: c.int(0), traditional: c.bool(1), base, scale, freqs: None };
            fast::rope(c.x(0), &rope, c.x(1))
        };
        "fast::heads" => |c| {
            fast::heads(c.x(0), c.int(0), Some((c.x(1), c.float(1) as f32)), c.int(2), c.x(2), c.x(3))
        };
        "fast::cross_entropy" => |c| fast::cross_entropy(c.x(0), c.x(1));
        "fast::attention" => |c| {
            let (scale, soft_cap) = (c.float(0) as f32, option(c, 1));
            let options = fast::Attention { scale, soft_cap, mask: mask(c), sinks: Some(c.x(4)) };
            fast::attention(c.x(0), c.x(1), c.x(2), &options)
        };
        "fast::scaled_dot_product_attention" => |c| {
            fast::scaled_dot_product_attention(c.x(0), c.x(1), c.x(2), c.float(0) as f32, mask(c), Some(c.x(4)))
        };
        "attention_placed" => |c| fast::attention(c.x(0), c.x(1), c.x(2), &placed(c, c.x(3)));
        "fast::packed_attention" => |c| {
            fast::packed_attention(c.x(0), c.x(1), c.x(2), affine(), &placed(c, c.x(3)))
        };
        "fast::pack" => |c| fast::pack(c.x(0), affine());
        "fast::packed_words" => |c| fast::packed_words(c.int(0), c.dtype(1), affine()).map(|_| Vec::new());
        "fast::argmax" => |c| fast::argmax(c.x(0));
        "fast::logsumexp" => |c| fast::logsumexp(c.x(0));
        "fast::top" => |c| fast::top(c.x(0), c.int(0) as usize);
        "fast::nucleus" => |c| fast::nucleus(c.x(0), c.x(1));
        "store" => |c| store(c, [c.x(0), c.x(0)], 1, None);
        "store_packed" => |c| store(c, [c.x(0), c.x(1)], 2, Some(affine()));
        "update_in_place" => |c| inplace::slice_update_in_place(c.x(0).copy()?, c.x(1), &c.ints(0), &c.ints(1));
        "update_dynamic_in_place" => |c| {
            inplace::slice_update_dynamic_in_place(c.x(0).copy()?, c.x(1), c.x(2), &c.ints(0))
        };
        "put_in_place" => |c| inplace::put_along_axis_in_place(c.x(0).copy()?, c.x(1), c.x(2), c.int(0));
        "scatter_in_place" => |c| inplace::scatter_in_place(c.x(0).copy()?, &[c.x(1)], c.x(2), &c.ints(0));
        "shapeless" => |c| {
            compile::set_enabled(true);
            let axis = c.int(0);
            let f = Compiled::new(
                move |x| Ok(vec![x[0].sum(axis, false)?, x[0].max(axis, true)?, x[0].softmax(axis, true)?]),
                true,
            );
            let first = f.call(&[c.x(0).clone()]);
            let second = f.call(&[c.x(1).clone()]);
            compile::set_enabled(false);
            Ok::<_, mlx_core::Error>([first.unwrap_or_default(), second.unwrap_or_default()].concat())
        };
        "grad_of_take" => |c| {
            let (at, axis) = (c.x(1).clone(), c.int(0));
            grad(|x| x[0].take(&at, axis)?.sum(.., false).map(Results::list), &c.inputs[..1], &[0])
        };
        "vmap_of_take" => |c| {
            let axis = c.int(0);
            vmap(|x| x[0].take(&x[1], axis).map(Results::list), &c.inputs, &[Some(c.int(1)), None], &[Some(0)])
        };
    }
}

/// Functions of `fast` that take no array of numbers, or are called by another name.
const OTHERWISE: [&str; 4] = [
    "fast::together",
    "fast::draw",
    "fast::has_kernels",
    "fast::check_packing",
];

/// What is called of `fast`.
pub fn names() -> BTreeSet<String> {
    let rows = rows().into_iter().map(|(name, _)| name.to_owned());
    rows.chain(OTHERWISE.map(str::to_owned)).collect()
}

/// The public functions of `fast`.
pub fn public() -> BTreeSet<String> {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = vec![src.join("fast.rs")];
    for entry in std::fs::read_dir(src.join("fast")).unwrap() {
        files.push(entry.unwrap().path());
    }
    files.retain(|file| file.is_file() && !file.ends_with("plain.rs"));
    let text: String = files
        .iter()
        .map(|file| std::fs::read_to_string(file).unwrap())
        .collect();
    text.lines()
        .filter_map(|line| line.strip_prefix("pub fn "))
        .map(|line| {
            format!(
                "fast::{}",
                line.split(['(', '<']).next().unwrap_or_default()
            )
        })
        .collect()
}
