//! The cases of [`fused`](super::fused) from which calls are made.

use mlx_core::ops::quantize::{QuantMode, Quantized, Scheme, quantize_with};
use mlx_core::{Array, DType, fast, random};
use serde_json::{Value, json};

use crate::case::Case;

fn float(shape: &[i32]) -> Array {
    let key = random::Key::new(1).unwrap();
    let array = random::normal(&key, shape, DType::BF16).unwrap();
    mlx_core::eval([&array]).unwrap();
    array
}

fn ints(values: &[i32], shape: &[i32]) -> Array {
    Array::from_slice(values, shape).unwrap()
}

/// The scheme of all quantised matrices and packed rows.
pub fn affine() -> Scheme {
    Scheme::new(32, 8, QuantMode::Affine).unwrap()
}

fn packed(shape: &[i32]) -> Vec<Array> {
    let Quantized {
        packed,
        scales,
        biases,
    } = quantize_with(&float(shape), affine()).unwrap();
    let parts = vec![packed, scales, biases.unwrap()];
    mlx_core::eval(&parts).unwrap();
    parts
}

/// The cases from which calls are made.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut case = |op: &str, inputs: Vec<Array>, args: Value| {
        // More often than a golden, because an operation has several goldens.
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
    for op in ["fast::layer_norm", "fast::layer_norm_rounded_once"] {
        case(op, vec![x(), w(), w()], json!([1e-5]));
    }
    case("fast::gated_norm", vec![x(), x(), w()], json!([4, 1e-5]));
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
    case("fast::norm_add", vec![x(), w(), x()], json!([1e-5]));
    case("fast::add_norm", vec![x(), x(), w(), w()], json!([1e-5]));
    let inputs = vec![x(), x(), w(), w(), float(&[32, 64])];
    case("fast::norm_linear", inputs.clone(), json!([1e-5]));
    case("fast::norm_gated_linear", inputs, json!([1e-5]));
    case(
        "fast::causal_conv",
        vec![float(&[2, 6, 17]), float(&[4, 17]), float(&[17])],
        json!([true]),
    );
    let number = || float(&[4]).astype(DType::F32).unwrap();
    let state = || float(&[2, 4, 5, 8]).astype(DType::F32).unwrap();
    let gates = || float(&[2, 3, 4]);
    let inputs = vec![
        float(&[2, 3, 52]),
        gates(),
        gates(),
        number(),
        number(),
        state(),
        ints(&[3, 1], &[2]),
    ];
    case("fast::gated_delta", inputs, json!([2]));
    let mut inputs = vec![float(&[2, 3, 52]), gates()];
    inputs.extend([number(), number(), number(), state(), ints(&[3, 1], &[2])]);
    case("fast::scan", inputs, json!([2, 0.0, 5.0]));
    let step = |pool: Array| vec![ints(&[0, 2, 3], &[3]), pool, ints(&[1, -1], &[2])];
    let mut inputs = vec![float(&[1, 4, 17]), float(&[4, 17]), float(&[17])];
    inputs.extend(step(float(&[3, 3, 17])));
    inputs.push(ints(&[1, 0], &[2]));
    case("fast::ragged_conv", inputs, json!([true, 2]));
    let gates = || float(&[1, 4, 4]);
    let pool = || float(&[3, 4, 5, 8]).astype(DType::F32).unwrap();
    let mut inputs = vec![float(&[1, 4, 52]), gates(), gates(), number(), number()];
    inputs.extend(step(pool()));
    inputs.push(ints(&[2, 1, 0, -1], &[4]));
    case("fast::ragged_delta", inputs, json!([2, 8, 2]));
    let mut inputs = vec![float(&[1, 4, 52]), gates(), number(), number(), number()];
    inputs.extend(step(pool()));
    inputs.push(ints(&[1, 0], &[2]));
    case("fast::ragged_scan", inputs, json!([2, 8, 0.0, 5.0, 2]));
    let heads = || float(&[2, 2, 3, 64]);
    for name in ["fast::rope", "fast::rope_with"] {
        case(
            name,
            vec![heads(), ints(&[3, 0], &[2])],
            json!([64, true, 10000.5, 1.0]),
        );
    }
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
    let freqs = float(&[32]).astype(DType::F32).unwrap();
    let inputs = vec![
        float(&[2, 3, 128]),
        w(),
        freqs,
        ints(&[3, 0], &[2]),
        float(&[2, 2, 3, 64]),
    ];
    case(
        "fast::heads_and_store",
        inputs.clone(),
        json!([64, 1e-5, 64, true, 8]),
    );
    case("fast::store_heads", inputs, json!([64, 1e-5, 64, true, 8]));
    // Rows of two tokens and one, in pages of 16, and a token of no row.
    let rows = || {
        vec![
            ints(&[0, 2, 3], &[3]),
            ints(&[15, 4], &[2]),
            ints(&[2, 0, 1, 3], &[2, 2]),
        ]
    };
    let pool = || float(&[4, 2, 16, 64]);
    let tokens = || float(&[1, 2, 4, 64]);
    let columns = float(&[1, 4, 32]).astype(DType::F32).unwrap();
    let inputs = with(vec![tokens(), pool(), pool()], rows());
    case(
        "fast::paged_attention",
        with(inputs, vec![columns.clone()]),
        json!([0.5, 0, 8]),
    );
    let packed_pool = || fast::pack(&pool(), affine()).unwrap();
    let inputs = with(vec![tokens(), packed_pool(), packed_pool()], rows());
    case("paged_packed", inputs, json!([0.5, 7, 0]));
    let inputs = with(vec![tokens(), pool()], rows());
    case("fast::paged_latents", inputs, json!([0.5, 0, 0, 32]));
    let starts = || ints(&[0, 2, 3], &[3]);
    case(
        "fast::ragged_attention",
        vec![tokens(), tokens(), tokens(), starts(), columns.clone()],
        json!([0.5, 0, 0]),
    );
    let inputs = vec![tokens(), tokens(), tokens(), starts(), columns.clone()];
    case("both_directions", inputs, json!([0.5, 2, 1, 2]));
    let inputs = vec![tokens(), tokens(), starts()];
    case("fast::ragged_latents", inputs, json!([0.5, 3, 2, 32]));
    let inputs = with(vec![pool(), pool(), tokens()], rows());
    case("fast::paged_store", inputs, json!([]));
    let inputs = with(vec![pool(), tokens()], rows());
    case("fast::paged_keep", inputs, json!([true]));
    for name in ["fast::paged_store_heads", "fast::paged_heads_and_store"] {
        let freqs = float(&[32]).astype(DType::F32).unwrap();
        let positions = ints(&[15, 16, 4, 0], &[1, 4]);
        let inputs = vec![float(&[1, 4, 128]), w(), freqs, positions, pool(), tokens()];
        case(name, with(inputs, rows()), json!([64, 1e-5, 64]));
    }
    case(
        "fast::linear_many",
        with(vec![x(), float(&[32, 64])], packed(&[32, 64])),
        json!([]),
    );
    let both = with(packed(&[32, 64]), packed(&[32, 64]));
    case("fast::gated_linear", with(vec![x()], both), json!([true]));
    let both = with(packed(&[4, 32, 64]), packed(&[4, 32, 64]));
    let experts = with(vec![float(&[3, 1, 64])], both);
    case(
        "fast::gated_experts",
        with(experts, vec![at()]),
        json!([true]),
    );
    let scores = vec![float(&[3, 8]), float(&[8])];
    case("fast::route", scores, json!([2, 4, 2, true]));
    let outputs = vec![float(&[3, 2, 64]), float(&[3, 2])];
    case("fast::weighted_sum", outputs, json!([]));
    case("fast::gated", vec![x(), x()], json!([]));
    case("fast::gelu", vec![x()], json!([]));
    case(
        "fast::draw",
        vec![float(&[2, 64])],
        json!([0.7, 0.9, 0.05, 5]),
    );
    case("fast::allow", vec![float(&[2, 64])], json!([5, 2]));
    case(
        "plain",
        vec![
            float(&[3, 1, 64]),
            float(&[4, 32, 64]),
            at(),
            float(&[5, 64]),
        ],
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
    case("fast::unpack", vec![rows.clone()], json!(["BF16"]));
    case("fast::packed_words", vec![], json!([64, "BF16"]));
    case("fast::argmax", vec![x()], json!([]));
    case("fast::logsumexp", vec![x()], json!([]));
    case("fast::top", vec![x()], json!([3]));
    let logits = || float(&[2, 64]).astype(DType::F32).unwrap();
    let p = Array::from_slice(&[0.5f32, 0.9], &[2, 1]).unwrap();
    case("fast::nucleus", vec![logits(), p], json!([]));
    case(
        "fast::store",
        vec![
            float(&[2, 1, 8, 64]),
            float(&[2, 1, 3, 64]),
            ints(&[3, 0], &[2]),
        ],
        json!([true, 8]),
    );
    case(
        "store_packed",
        with(buffers(), vec![float(&[2, 1, 3, 64]), ints(&[3, 0], &[2])]),
        json!([true, 8]),
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
    let keys = || Array::from_slice(&[1u32, 2, 3, 4, 5, 6], &[3, 2]).unwrap();
    case("fast::gumbel", vec![keys()], json!([4]));
    case("vmap_of_bits", vec![keys()], json!([0]));
    case("grad_of_take", vec![float(&[4, 8]), at()], json!([0]));
    case("vmap_of_take", vec![float(&[4, 8]), at()], json!([0, 0]));
    // Once, because the compiler of MLX's fused kernels takes long.
    let fused = vec![float(&[3, 1, 8]), float(&[1, 2, 8])];
    cases.push(Case::new("shapeless_fused", fused, json!([])));
    cases
}
