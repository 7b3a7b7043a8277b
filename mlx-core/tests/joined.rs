//! Operations that join a norm and products: one node, with the bits of separate operations.

use mlx_core::fast::{self, Form, Gate, Matrix, NormOf, NormProducts, Op, plainly};
use mlx_core::ops::quantize::{QuantMode, Scheme, quantize_with};
use mlx_core::random::{self, Key};
use mlx_core::transforms::{Compiled, grad_with, vmap_with};
use mlx_core::{Array, DType, Result, eval, graph_size};

const TYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

fn normal(seed: u64, shape: &[i32], dtype: DType) -> Result<Array> {
    random::normal(&Key::new(seed)?, shape, DType::F32)?.astype(dtype)
}

fn bits(a: &Array) -> Result<Vec<u32>> {
    let a = a.astype(DType::F32)?.to_vec::<f32>()?;
    Ok(a.into_iter().map(f32::to_bits).collect())
}

fn all_bits(all: &[Array]) -> Result<Vec<Vec<u32>>> {
    all.iter().map(bits).collect()
}

fn list(of: NormProducts) -> Vec<Array> {
    [vec![of.sum, of.normed], of.products].concat()
}

fn is_plain(op: Op) -> Result<bool> {
    Ok(fast::form(op)? == Form::Plain)
}

/// The inputs of a norm.
struct Inputs {
    x: Array,
    residual: Array,
    inner: Array,
    weight: Array,
}

impl Inputs {
    fn new(shape: &[i32], dtype: DType) -> Result<Self> {
        let n = shape[shape.len() - 1];
        let made = Self {
            x: normal(1, shape, dtype)?,
            residual: normal(2, shape, dtype)?,
            inner: normal(3, &[n], dtype)?,
            weight: normal(4, &[n], dtype)?,
        };
        eval([&made.x, &made.residual, &made.inner, &made.weight])?;
        Ok(made)
    }

    /// The norm of x without and with a weight, of a sum, and of a sum with an inner norm.
    fn norms(&self) -> [NormOf<'_>; 4] {
        let weighted = NormOf {
            x: &self.x,
            residual: None,
            inner: None,
            weight: Some(&self.weight),
            eps: 1e-5,
        };
        let sum = NormOf {
            residual: Some(&self.residual),
            ..weighted
        };
        let bare = NormOf {
            weight: None,
            ..weighted
        };
        let normed = NormOf {
            inner: Some(&self.inner),
            ..sum
        };
        [bare, weighted, sum, normed]
    }
}

/// The sum and its norm as operations of their own.
fn separately(of: &NormOf<'_>) -> Result<(Array, Array)> {
    match (of.residual, of.weight) {
        (Some(residual), Some(weight)) => fast::add_norm(of.x, residual, of.inner, weight, of.eps),
        _ => Ok((of.x.clone(), fast::rms_norm(of.x, of.weight, of.eps)?)),
    }
}

const FOUR: Scheme = Scheme {
    group_size: 32,
    bits: 4,
    mode: QuantMode::Affine,
};

/// Matrices with `rows` rows each, dense or packed.
struct Matrices(Vec<Vec<Array>>);

impl Matrices {
    fn new(rows: &[i32], n: i32, dtype: DType, is_packed: bool) -> Result<Self> {
        let of = |(seed, &rows): (u64, &i32)| {
            let w = normal(seed, &[rows, n], dtype)?;
            let parts = match is_packed {
                false => vec![w],
                true => {
                    let parts = quantize_with(&w, FOUR)?;
                    let biases = parts.biases.expect("affine codes have biases");
                    vec![parts.packed, parts.scales, biases]
                }
            };
            eval(&parts)?;
            Ok(parts)
        };
        Ok(Self((10..).zip(rows).map(of).collect::<Result<_>>()?))
    }

    fn get(&self) -> Vec<Matrix<'_>> {
        self.0.iter().map(|parts| matrix(parts)).collect()
    }
}

fn matrix(parts: &[Array]) -> Matrix<'_> {
    match parts {
        [packed, scales, biases] => Matrix::Quantized {
            packed,
            scales,
            biases: Some(biases),
            scheme: FOUR,
        },
        parts => Matrix::Dense(&parts[0]),
    }
}

#[test]
fn products_of_norms_are_those_of_separate_operations() -> Result<()> {
    let is_plain = is_plain(Op::Linear)? || is_plain(Op::Norm)?;
    for dtype in TYPES {
        for shape in [[1, 1, 64], [2, 3, 64], [1, 150, 96]] {
            let inputs = Inputs::new(&shape, dtype)?;
            for (count, is_packed) in [(1, false), (3, false), (1, true), (3, true)] {
                let matrices = Matrices::new(&[40, 24, 24][..count], shape[2], dtype, is_packed)?;
                let matrices = matrices.get();
                for (which, of) in inputs.norms().iter().enumerate() {
                    let what = format!(
                        "norm {which} of {shape:?}, {count} matrices, {is_packed}, {dtype}"
                    );
                    let all = list(fast::norm_linear(of, &matrices)?);
                    let (sum, normed) = separately(of)?;
                    let mut wanted = vec![sum, normed.clone()];
                    wanted.extend(fast::linear_many(&normed, &matrices)?);
                    assert_eq!(all.len(), wanted.len(), "{what}");
                    if !is_plain && dtype != DType::F32 {
                        assert_eq!(graph_size(&all)?, 1, "{what}");
                    }
                    assert!(graph_size(&all)? <= graph_size(&wanted)?, "{what}");
                    let kinds = |all: &[Array]| -> Vec<_> {
                        all.iter()
                            .map(|a| (a.shape().to_vec(), a.dtype()))
                            .collect()
                    };
                    assert_eq!(kinds(&all), kinds(&wanted), "{what}");
                    assert!(all_bits(&all)? == all_bits(&wanted)?, "{what}");
                }
            }
        }
    }
    Ok(())
}

#[test]
fn gates_of_norms_are_those_of_separate_operations() -> Result<()> {
    let is_plain = is_plain(Op::Linear)? || is_plain(Op::Norm)?;
    for dtype in TYPES {
        for shape in [[1, 1, 64], [2, 3, 64]] {
            let inputs = Inputs::new(&shape, dtype)?;
            for is_packed in [false, true] {
                let matrices = Matrices::new(&[40, 40], shape[2], dtype, is_packed)?;
                let matrices = matrices.get();
                for gate in [Gate::Silu, Gate::GeluTanh] {
                    for of in &inputs.norms() {
                        let both = [&matrices[0], &matrices[1]];
                        let found = list(fast::norm_gated_linear(gate, of, both)?);
                        let (sum, normed) = separately(of)?;
                        let y = fast::gated_linear(gate, &normed, &matrices[0], &matrices[1])?;
                        assert_eq!(found.len(), 3);
                        if !is_plain && dtype != DType::F32 {
                            assert_eq!(graph_size(&found)?, 1, "{shape:?}, {dtype}");
                        }
                        assert!(
                            all_bits(&found)? == all_bits(&[sum, normed, y])?,
                            "{shape:?}, {dtype}, packed {is_packed}, {gate:?}"
                        );
                    }
                }
            }
        }
    }
    Ok(())
}

#[test]
fn layouts_of_norms_do_not_matter() -> Result<()> {
    let dtype = DType::BF16;
    let inputs = Inputs::new(&[1, 3, 64], dtype)?;
    let turned = |x: &Array| x.swapaxes(-1, -2)?.contiguous()?.swapaxes(-1, -2);
    let strided = |x: &Array| {
        let twice = mlx_core::ops::stack(&[x, x], -1)?;
        twice.take(&Array::scalar(0i32)?, -1)
    };
    let matrices = Matrices::new(&[24, 24], 64, dtype, false)?;
    let views = Inputs {
        x: turned(&inputs.x)?,
        residual: turned(&inputs.residual)?,
        inner: strided(&inputs.inner)?,
        weight: strided(&inputs.weight)?,
    };
    for (of, view) in inputs.norms().iter().zip(&views.norms()) {
        let [a, b] = [of, view].map(|of| fast::norm_linear(of, &matrices.get()).map(list));
        assert_eq!(all_bits(&a?)?, all_bits(&b?)?);
    }
    Ok(())
}

#[test]
fn transforms_of_products_of_norms_are_those_of_plain_operations() -> Result<()> {
    for dtype in [DType::F32, DType::BF16] {
        let Inputs {
            x,
            residual,
            inner,
            weight,
        } = Inputs::new(&[2, 3, 32], dtype)?;
        let args = [x, residual, inner, weight, normal(9, &[8, 32], dtype)?];
        let all = |a: &[Array]| {
            let of = NormOf {
                x: &a[0],
                residual: Some(&a[1]),
                inner: Some(&a[2]),
                weight: Some(&a[3]),
                eps: 1e-5,
            };
            let w = Matrix::Dense(&a[4]);
            let many = fast::norm_linear(&of, &[w, w])?;
            let gated = fast::norm_gated_linear(Gate::Silu, &of, [&w, &w])?;
            Ok(vec![
                many.sum,
                many.normed,
                many.products[1].clone(),
                gated.products[0].clone(),
            ])
        };
        let wide = |a: &[Array]| -> Result<Vec<Array>> {
            a.iter().map(|a| a.astype(DType::F32)).collect()
        };
        let close = |found: &[Array], wanted: &[Array], what: &str| -> Result<()> {
            let tolerance = if dtype == DType::F32 { 2e-4 } else { 0.1 };
            for (i, (found, wanted)) in found.iter().zip(wanted).enumerate() {
                let floats = |a: &Array| a.astype(DType::F32)?.to_vec::<f32>();
                for (a, b) in floats(found)?.iter().zip(floats(wanted)?) {
                    assert!(
                        (a - b).abs() <= tolerance * b.abs().max(1.0),
                        "{what} {i}, {dtype}: {a} and {b}"
                    );
                }
            }
            Ok(())
        };
        let wanted = plainly(|| all(&args))?;
        close(&all(&args)?, &wanted, "values")?;
        close(&Compiled::new(all, false).call(&args)?, &wanted, "compiled")?;
        let separate = |a: &[Array]| -> Result<Vec<Array>> {
            let (sum, normed) = fast::add_norm(&a[0], &a[1], Some(&a[2]), &a[3], 1e-5)?;
            let w = Matrix::Dense(&a[4]);
            let product = fast::linear_many(&normed, &[w, w])?.remove(1);
            let gated = fast::gated_linear(Gate::Silu, &normed, &w, &w)?;
            Ok(vec![sum, normed, product, gated])
        };
        let total = |ys: Vec<Array>| -> Result<Vec<Array>> {
            let mut total = Array::scalar(0.0f32)?;
            for y in ys {
                let weighted = y
                    .astype(DType::F32)?
                    .multiply(normal(8, y.shape(), DType::F32)?)?;
                total = total.add(weighted.sum(.., false)?)?;
            }
            Ok(vec![total])
        };
        let which = [0, 1, 2, 3, 4];
        let found = grad_with(|a| total(all(a)?), &args, &which)?;
        let of_separate = grad_with(|a| total(separate(a)?), &args, &which)?;
        if dtype == DType::F32 {
            let plain = grad_with(|a| plainly(|| total(all(a)?)), &args, &which)?;
            close(&found, &plain, "gradients")?;
        }
        // A norm that is read twice has two nodes here and one there, so sums of cotangents are rounded in another order.
        let exact = grad_with(|a| total(separate(&wide(a)?)?), &args, &which)?;
        for (found, (separate, exact)) in found.iter().zip(of_separate.iter().zip(&exact)) {
            let off = |a: &Array| -> Result<f32> {
                let a = a.astype(DType::F32)?.subtract(&exact.astype(DType::F32)?)?;
                a.abs()?.max(.., false)?.item::<f32>()
            };
            let (off, most) = (off(found)?, off(separate)?);
            assert!(
                off <= 2.0 * most + 1e-4,
                "gradients, {dtype}: {off} and {most}"
            );
        }
        let rows = |a: &[Array]| all(&[&a[..2], &args[2..]].concat());
        let found = vmap_with(rows, &args[..2], &[Some(0), Some(0)], &[Some(0); 4])?;
        close(&found, &wanted, "vmap")?;
    }
    Ok(())
}

#[test]
fn norms_that_no_product_can_have_are_refused() -> Result<()> {
    let inputs = Inputs::new(&[1, 64], DType::BF16)?;
    let [bare, _, sum, normed] = inputs.norms();
    let narrow = normal(1, &[8, 32], DType::BF16)?;
    let w = normal(1, &[8, 64], DType::BF16)?;
    let of = |of: &NormOf<'_>, w: &Array| fast::norm_linear(of, &[Matrix::Dense(w)]).err();
    assert!(of(&bare, &w).is_none());
    assert!(of(&bare, &narrow).is_some());
    for fault in [
        NormOf {
            residual: None,
            ..normed
        },
        NormOf {
            weight: None,
            ..sum
        },
        NormOf {
            weight: Some(&narrow),
            ..sum
        },
        NormOf {
            residual: Some(&narrow),
            ..sum
        },
    ] {
        assert!(of(&fault, &w).is_some(), "{fault:?}");
    }
    Ok(())
}
