//! Which form of an operation runs, and what layers share in the plain form of attention.

use mlx_core::fast::{self, Attention, Form, KeySlots, Mask, Op, Positions, plainly};
use mlx_core::random::{self, Key};
use mlx_core::{Array, DType, Error, ErrorKind, Result, eval, graph_size};

const OPS: [Op; 12] = [
    Op::Attention,
    Op::Conv,
    Op::Delta,
    Op::Experts,
    Op::Gated,
    Op::Linear,
    Op::Lookup,
    Op::Loss,
    Op::Norm,
    Op::Rope,
    Op::Sample,
    Op::Store,
];

#[test]
fn forms_are_those_of_the_stream_and_of_what_is_asked_for() -> Result<()> {
    let off = std::env::var("MLX_CPU_KERNELS").as_deref() == Ok("off");
    let wanted = if off { Form::Plain } else { Form::Cpu };
    for op in OPS {
        assert_eq!(fast::form(op)?, wanted, "{op:?}");
        let inner = plainly(|| {
            let nested = plainly(|| fast::form(op))?;
            Ok([nested, fast::form(op)?])
        })?;
        assert_eq!(inner, [Form::Plain; 2], "{op:?}");
        // An error ends the plain form too.
        let failed: Result<()> = plainly(|| Err(Error::new(ErrorKind::Invalid, "no")));
        assert!(failed.is_err());
        assert_eq!(fast::form(op)?, wanted, "{op:?}");
    }
    Ok(())
}

#[test]
fn layers_of_a_step_share_one_dense_mask() -> Result<()> {
    let x = mlx_core::ones(&[2, 1, 3, 16], DType::F32)?;
    let offsets = Array::from_slice(&[0i32, 5], &[2])?;
    let mask = || Mask::Positions(Positions::new(&offsets, Some(4), KeySlots::Ring));
    let attend = |mask: Mask| {
        let options = Attention {
            scale: 1.0,
            soft_cap: None,
            mask,
            sinks: None,
        };
        plainly(|| fast::attention(&x, &x, &x, &options))
    };
    let shared = mask();
    let together = graph_size(&[attend(shared.clone())?, attend(shared)?])?;
    let apart = graph_size(&[attend(mask())?, attend(mask())?])?;
    let one = graph_size(&[attend(mask())?])?;
    assert!(together < apart, "{together} and {apart} operations");
    assert!(together < 2 * one, "{together} for two, {one} for one");
    Ok(())
}

/// The norm of a sum that is not computed yet has a node of its own: it changes nothing of what the caller holds.
#[test]
fn a_norm_leaves_the_sum_before_it_alone() -> Result<()> {
    if fast::form(Op::Norm)? == Form::Plain {
        return Ok(());
    }
    for dtype in [DType::F32, DType::BF16] {
        let normal = |seed, shape: &[i32]| {
            random::normal(&Key::new(seed)?, shape, DType::F32)?.astype(dtype)
        };
        let (x, y) = (normal(1, &[3, 40])?, normal(2, &[3, 40])?);
        let (inner, outer) = (normal(3, &[40])?, normal(4, &[40])?);
        eval([&x, &y, &inner, &outer])?;
        let bits = |a: &Array| -> Result<Vec<u32>> {
            let a = a.astype(DType::F32)?.to_vec::<f32>()?;
            Ok(a.into_iter().map(f32::to_bits).collect())
        };
        for with_inner in [false, true] {
            let sum = || match with_inner {
                false => fast::add(&x, &y),
                true => fast::norm_add(&x, &inner, &y, 1e-5),
            };
            let norm = |sum: &Array, eps| fast::rms_norm(sum, Some(&outer), eps);
            let apart = sum()?;
            eval([&apart])?;
            let wanted = (bits(&apart)?, bits(&norm(&apart, 1e-5)?)?);
            let lazy = sum()?;
            // Another handle of the sum, made before it has a norm, and a second norm of it.
            let (before, first) = (lazy.clone(), norm(&lazy, 1e-5)?);
            let second = norm(&lazy, 1e-2)?;
            assert_eq!(graph_size([&before])?, 1);
            assert_eq!(graph_size([&lazy, &first])?, 2);
            assert_eq!(graph_size([&lazy, &first, &second])?, 3);
            // The sum is evaluated without its norms.
            eval([&before])?;
            assert_eq!(graph_size([&lazy])?, 0);
            assert_eq!(graph_size([&first])?, 1);
            assert_eq!((bits(&before)?, bits(&first)?), wanted);
            assert_eq!(bits(&second)?, bits(&norm(&apart, 1e-2)?)?);
            // add_norm is asked for by name: one node with the same bits.
            let inner = with_inner.then_some(&inner);
            let (sum, normed) = fast::add_norm(&x, &y, inner, &outer, 1e-5)?;
            assert_eq!(graph_size([&sum, &normed])?, 1);
            assert_eq!((bits(&sum)?, bits(&normed)?), wanted);
        }
    }
    Ok(())
}
