//! The gradients of operations with kernels are those of the plain form in F32.

use mlx_core::fast::{
    self, Attention, Gate, KeySlots, Mask, Matrix, Positions, Projection, Rope, plainly,
};
use mlx_core::transforms::grad_with;
use mlx_core::{Array, DType, Result, eval};

use super::{FOUR, HALVES, Weights, close, noise, on_cpu, on_gpu, periods, schemes};

/// Compares the gradients of `f` with respect to each of `args` alone and to all of them with those of `plain`, in F32. A gradient that is
/// asked for alone is that of a node whose other inputs are not traced.
fn check(
    what: &str,
    args: &[Array],
    tolerance: f32,
    f: impl Fn(&[Array]) -> Result<Array>,
    plain: impl Fn(&[Array]) -> Result<Array>,
) -> Result<()> {
    let wide: Vec<Array> = args
        .iter()
        .map(|a| a.astype(DType::F32))
        .collect::<Result<_>>()?;
    let mut asked: Vec<Vec<usize>> = (0..args.len()).map(|at| vec![at]).collect();
    asked.push((0..args.len()).collect());
    // A plain sum has cotangents that are broadcast.
    for weighted in [true, false] {
        let total = |y: Array| -> Result<Vec<Array>> {
            let y = y.astype(DType::F32)?;
            let y = match weighted {
                true => y.multiply(&noise(99, y.shape(), DType::F32)?)?,
                false => y,
            };
            Ok(vec![y.sum(.., false)?])
        };
        for at in &asked {
            let found = grad_with(|a: &[Array]| total(f(a)?), args, at)?;
            // On the CPU, where MLX compiles no kernels.
            let wanted = on_cpu(|| {
                let wanted = plainly(|| grad_with(|a: &[Array]| total(plain(a)?), &wide, at))?;
                eval(&wanted)?;
                Ok(wanted)
            })?;
            for (i, (found, wanted)) in found.iter().zip(&wanted).enumerate() {
                let dtype = args[at[i]].dtype();
                assert_eq!(found.dtype(), dtype, "{what}");
                let what = format!("{what}: gradient {} of {at:?}, weighted {weighted}", at[i]);
                close(&what, found, wanted, tolerance)?;
            }
        }
    }
    Ok(())
}

#[test]
fn of_products() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    for (dtype, tolerance) in HALVES {
        for m in [3, 200] {
            let (x, w, v) = (
                noise(1, &[2, m, 384], dtype)?,
                noise(2, &[64, 384], dtype)?,
                noise(3, &[64, 384], dtype)?,
            );
            let linear = |a: &[Array]| fast::linear(&a[0], &a[1]);
            check(
                &format!("{dtype} linear {m}"),
                &[x.clone(), w.clone()],
                tolerance,
                linear,
                linear,
            )?;
            let gated = |a: &[Array]| {
                fast::gated_linear(
                    Gate::GeluTanh,
                    &a[0],
                    &Matrix::Dense(&a[1]),
                    &Matrix::Dense(&a[2]),
                )
            };
            check(
                &format!("{dtype} gated {m}"),
                &[x, w, v],
                2.0 * tolerance,
                gated,
                gated,
            )?;
        }
    }
    Ok(())
}

#[test]
fn of_packed_products() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    for (dtype, tolerance) in HALVES {
        for scheme in schemes() {
            // The last has rows of one group in groups of 128.
            for (m, n, k) in [(3, 40, 384), (200, 96, 640), (5, 48, 128)] {
                let what = format!("{dtype} {scheme:?} {m} {n} {k}");
                let x = noise(1, &[m, k], dtype)?;
                let (a, b) = (
                    Weights::new(2, n, k, dtype, Some(scheme))?,
                    Weights::new(3, n, k, dtype, Some(scheme))?,
                );
                check(
                    &what,
                    std::slice::from_ref(&x),
                    tolerance,
                    |args| {
                        let both = fast::linear_many(&args[0], &[a.matrix(), b.matrix()])?;
                        both[0].add(&both[1])
                    },
                    |args| fast::linear(&args[0], &a.wide)?.add(&fast::linear(&args[0], &b.wide)?),
                )?;
                check(
                    &format!("{what} gated"),
                    &[x],
                    2.0 * tolerance,
                    |args| fast::gated_linear(Gate::Silu, &args[0], &a.matrix(), &b.matrix()),
                    |args| {
                        let of = |w: &Array| fast::linear(&args[0], w);
                        fast::gated(Gate::Silu, &of(&a.wide)?, &of(&b.wide)?)
                    },
                )?;
            }
        }
    }
    Ok(())
}

#[test]
fn of_experts() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    let indices = Array::from_slice(&[0u32, 3, 1, 1, 2, 0], &[3, 2])?;
    // In one type: MLX compiles `gather_mm` for each type, alignment and order of its operands, and each takes up to a minute.
    for (dtype, tolerance) in HALVES.into_iter().take(1) {
        let x = noise(1, &[3, 1, 1, 128], dtype)?;
        let dense = noise(2, &[4, 64, 128], dtype)?;
        let f = |a: &[Array]| fast::experts_linear(&a[0], &a[1], &indices);
        check(
            &format!("{dtype} experts"),
            &[x.clone(), dense.clone()],
            tolerance,
            f,
            f,
        )?;
        // Matrices whose sides are no multiples of 8.
        let (x, odd) = (
            noise(1, &[3, 1, 1, 20], dtype)?,
            noise(2, &[4, 12, 20], dtype)?,
        );
        check(&format!("{dtype} odd experts"), &[x, odd], tolerance, f, f)?;
        for (k, scheme) in [(128, FOUR), (64, FOUR)] {
            let x = noise(1, &[3, 1, 1, k], dtype)?;
            let rows = Weights::new(2, 4 * 64, k, dtype, Some(scheme))?;
            let Matrix::Quantized {
                packed,
                scales,
                biases,
                ..
            } = rows.matrix()
            else {
                unreachable!("packed");
            };
            let of_four = |a: &Array| a.reshape(&[4, 64, -1]);
            let (packed, scales) = (of_four(packed)?, of_four(scales)?);
            let biases = biases.map(of_four).transpose()?;
            let wide = of_four(&rows.wide)?;
            check(
                &format!("{dtype} packed experts {k}"),
                &[x],
                tolerance,
                |a| {
                    fast::quantized_experts_linear(
                        &a[0],
                        &packed,
                        &scales,
                        biases.as_ref(),
                        &indices,
                        scheme,
                    )
                },
                |a| fast::experts_linear(&a[0], &wide, &indices),
            )?;
        }
    }
    Ok(())
}

#[test]
fn of_norms_and_gates() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    for (dtype, tolerance) in HALVES {
        let (x, y, w, v) = (
            noise(1, &[5, 1152], dtype)?,
            noise(2, &[5, 1152], dtype)?,
            noise(3, &[1152], dtype)?,
            noise(4, &[1152], dtype)?,
        );
        type Case<'a> = (&'a str, Vec<&'a Array>, fn(&[Array]) -> Result<Array>);
        let cases: [Case<'_>; 8] = [
            ("rms_norm", vec![&x, &w], |a| {
                fast::rms_norm(&a[0], Some(&a[1]), 1e-6)
            }),
            ("rms_norm alone", vec![&x], |a| {
                fast::rms_norm(&a[0], None, 1e-6)
            }),
            ("norm_add", vec![&x, &w, &y], |a| {
                fast::norm_add(&a[0], &a[1], &a[2], 1e-6)
            }),
            ("add_norm", vec![&x, &y, &w, &v], |a| {
                let (sum, normed) = fast::add_norm(&a[0], &a[1], Some(&a[2]), &a[3], 1e-6)?;
                sum.add(&normed)
            }),
            ("add", vec![&x, &y], |a| fast::add(&a[0], &a[1])),
            ("swiglu", vec![&x, &y], |a| fast::swiglu(&a[0], &a[1])),
            ("geglu", vec![&x, &y], |a| fast::geglu(&a[0], &a[1])),
            ("soft_cap", vec![&x], |a| fast::soft_cap(&a[0], 0.7)),
        ];
        for (name, args, f) in cases {
            let args: Vec<Array> = args.into_iter().cloned().collect();
            check(&format!("{dtype} {name}"), &args, 3.0 * tolerance, f, f)?;
        }
    }
    Ok(())
}

#[test]
fn of_heads_and_ropes() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    let all = periods(32)?;
    let offsets = Array::from_slice(&[3i32, 9], &[2])?;
    for (dtype, tolerance) in HALVES {
        for dims in [64, 32] {
            let freqs = all.slice_axis(0, 0, dims / 2)?;
            let x = noise(1, &[2, 4, 3 * 64], dtype)?;
            let w = noise(2, &[64], dtype)?;
            let heads = |a: &[Array]| {
                fast::heads(&Projection {
                    x: &a[0],
                    head_dim: 64,
                    norm: a.get(1).map(|w| (w, 1e-6)),
                    dims,
                    freqs: &freqs,
                    offsets: &offsets,
                })
            };
            check(
                &format!("{dtype} heads {dims}"),
                std::slice::from_ref(&x),
                2.0 * tolerance,
                heads,
                heads,
            )?;
            check(
                &format!("{dtype} normed heads {dims}"),
                &[x, w],
                2.0 * tolerance,
                heads,
                heads,
            )?;
            let rope = |a: &[Array]| {
                let how = Rope {
                    dims,
                    traditional: false,
                    base: None,
                    scale: 1.0,
                    freqs: Some(&freqs),
                };
                fast::rope_with(&a[0], &how, &offsets)
            };
            let x = noise(3, &[2, 3, 4, 64], dtype)?;
            check(&format!("{dtype} rope {dims}"), &[x], tolerance, rope, rope)?;
        }
    }
    Ok(())
}

#[test]
fn of_attention() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    let at = Array::from_slice(&[0i32, 0], &[2])?;
    for (dtype, tolerance) in HALVES {
        for (d, heads, kv_heads) in [(64, 4, 2), (256, 4, 1)] {
            let args = [
                noise(1, &[2, heads, 40, d], dtype)?,
                noise(2, &[2, kv_heads, 40, d], dtype)?,
                noise(3, &[2, kv_heads, 40, d], dtype)?,
            ];
            for mask in [
                Mask::Causal,
                Mask::Positions(Positions::new(&at, Some(24), KeySlots::Straight)),
            ] {
                for soft_cap in [None, Some(5.0)] {
                    let f = |a: &[Array]| {
                        let options = Attention {
                            scale: (d as f32).powf(-0.5),
                            soft_cap,
                            mask: mask.clone(),
                            sinks: None,
                        };
                        fast::attention(&a[0], &a[1], &a[2], &options)
                    };
                    let what = format!("{dtype} attention {d} {soft_cap:?}");
                    check(&what, &args, 3.0 * tolerance, f, f)?;
                }
            }
        }
    }
    Ok(())
}

#[test]
fn of_gates() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    for (dtype, tolerance) in HALVES {
        for kind in [Gate::Silu, Gate::GeluTanh] {
            // Large numbers, where the derivative is 0 or 1, and rows that are not dense.
            let wide = noise(1, &[2, 5, 96], dtype)?.multiply(6.0)?;
            let (x, up) = (wide.slice_axis(2, 0, 40)?, noise(2, &[2, 5, 40], dtype)?);
            let f = |a: &[Array]| fast::gated(kind, &a[0], &a[1]);
            check(&format!("{dtype} {kind:?}"), &[x, up], tolerance, f, f)?;
        }
    }
    Ok(())
}

#[test]
fn of_embeddings_and_losses() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    let ids = Array::from_slice(&[5u32, 0, 63, 5], &[2, 2])?;
    for (dtype, tolerance) in HALVES {
        let table = noise(1, &[64, 128], dtype)?;
        let rows = |a: &[Array]| fast::rows(&a[0], &ids);
        check(&format!("{dtype} rows"), &[table], tolerance, rows, rows)?;
        let logits = noise(2, &[2, 2, 1000], dtype)?;
        let loss = |a: &[Array]| fast::cross_entropy(&a[0], &ids);
        check(&format!("{dtype} loss"), &[logits], tolerance, loss, loss)?;
    }
    let logits = noise(2, &[2, 2, 1000], DType::F32)?;
    let loss = |a: &[Array]| fast::cross_entropy(&a[0], &ids);
    check("loss", &[logits], 1e-4, loss, loss)
}
