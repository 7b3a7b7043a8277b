//! Faults that MLX itself would allow, and that must not occur.

use std::thread;

use mlx_core::device::Property;
use mlx_core::transforms::{Compiled, compile, grad_with, vmap_with};
use mlx_core::{Array, DType, Device, Error, ErrorKind, Result};

fn scalar(value: f32) -> Array {
    Array::scalar(value).unwrap()
}

/// MLX stores compiled functions by their address unless told otherwise: a function at the address of a dropped one
/// would get that one's graph.
#[test]
fn a_new_compiled_function_never_gets_an_old_graph() -> Result<()> {
    compile::set_enabled(true);
    for round in 0..20 {
        let f = Compiled::new(move |x| Ok(vec![x[0].add(round as f32)?]), false);
        assert_eq!(
            f.call(&[scalar(1.0)])?[0].item::<f32>()?,
            1.0 + round as f32
        );
    }
    // The same while other threads make and drop compiled functions.
    for round in 0..20 {
        let here = Compiled::new(move |x| Ok(vec![x[0].multiply(round as f32)?]), false);
        let there = thread::spawn(move || -> Result<f32> {
            let f = Compiled::new(move |x| Ok(vec![x[0].subtract(round as f32)?]), false);
            f.call(&[scalar(100.0)])?[0].item()
        });
        assert_eq!(
            here.call(&[scalar(2.0)])?[0].item::<f32>()?,
            2.0 * round as f32
        );
        assert_eq!(there.join().unwrap()?, 100.0 - round as f32);
    }
    compile::set_enabled(false);
    Ok(())
}

#[test]
fn errors_and_panics_cross_nested_closures() -> Result<()> {
    let deep = |x: &[Array]| {
        vmap_with(
            |x| grad_with(|_| Err(Error::new(ErrorKind::Io, "at the bottom")), x, &[0]),
            x,
            &[Some(0)],
            &[Some(0)],
        )
    };
    let x = [Array::from_slice(&[1.0f32, 2.0], &[2])?];
    for _ in 0..3 {
        let error = grad_with(deep, &x, &[0]).unwrap_err();
        assert_eq!(
            (error.kind(), error.to_string().as_str()),
            (ErrorKind::Io, "at the bottom")
        );
    }
    // MLX's own message also arrives from inside a closure.
    let error = grad_with(|x| Ok(vec![x[0].reshape(&[3])?]), &x, &[0]).unwrap_err();
    assert!(error.to_string().contains("reshape"), "{error}");
    Ok(())
}

/// A view may begin between the elements of another dtype, and any byte may be read as a bool.
#[test]
fn views_of_bytes_read_right() -> Result<()> {
    let bytes = Array::from_slice(&[9u8, 1, 0, 0, 0, 2, 1, 0, 0], &[9])?;
    let view = bytes.slice(&[1], &[9])?.view(DType::U32)?;
    assert_eq!(view.address()? % 4, 1, "the case that this is about");
    assert_eq!(view.to_vec::<u32>()?, [1, 258]);
    assert_eq!(view.slice(&[1], &[2])?.item::<u32>()?, 258);
    let bools = bytes.view(DType::Bool)?.to_vec::<bool>()?;
    assert_eq!(
        bools,
        [true, true, false, false, false, true, true, false, false]
    );
    Ok(())
}

/// A closure that MLX keeps may outlive the transform, the function and other arrays of its graph.
#[test]
fn kept_closures_live_as_long_as_their_graph() -> Result<()> {
    let weight = Array::from_slice(&[2.0f32, 3.0], &[2])?;
    let slopes = {
        let f = mlx_core::transforms::custom_vjp_with(
            |x| Ok(vec![x[0].sum(.., false)?]),
            move |p, c, _| Ok(vec![weight.multiply(&p[0])?.multiply(&c[0])?]),
        )?;
        let inner = |x: &[Array]| Ok(vec![grad_with(|x| f(x), x, &[0])?[0].sum(.., false)?]);
        grad_with(inner, &[Array::from_slice(&[1.0f32, 1.0], &[2])?], &[0])?
    };
    assert_eq!(slopes[0].to_vec::<f32>()?, [2.0, 3.0]);
    Ok(())
}

#[test]
fn handles_are_never_null() -> Result<()> {
    // Getters, failed calls and empty results: each returns an array or an error.
    let x = scalar(1.0);
    assert!(vmap_with(|_| Ok(vec![]), &[x.expand_dims(0)?], &[Some(0)], &[])?.is_empty());
    assert!(x.reshape(&[2]).is_err());
    let (values, grads) =
        mlx_core::transforms::value_and_grad_with(|x| Ok(x.to_vec()), &[x], &[0])?;
    assert_eq!(
        (values[0].item::<f32>()?, grads[0].item::<f32>()?),
        (1.0, 1.0)
    );
    Ok(())
}

#[test]
fn devices_say_what_they_are() -> Result<()> {
    let info = Device::CPU.info()?;
    assert!(
        matches!(info.get("device_name"), Some(Property::Text(name)) if !name.is_empty()),
        "{info:?}"
    );
    if !Device::GPU.is_available()? {
        assert!(Device::GPU.set_default().is_err());
    }
    Ok(())
}
