//! Which form of an operation runs, and what layers share in the plain form of attention.

use mlx_core::fast::{self, Attention, Form, KeySlots, Mask, Op, Positions, plainly};
use mlx_core::{Array, DType, Error, ErrorKind, Result, graph_size};

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
