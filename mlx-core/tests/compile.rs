//! Compiled functions. With compilation on, these tests run the C++ compiler, which the build needs as well.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use mlx_core::transforms::{Compiled, checkpoint_with, compile, grad_with};
use mlx_core::{Array, DType, Error, ErrorKind, Result, ones};

fn row(values: &[f32]) -> Array {
    Array::from_slice(values, &[values.len() as i32]).unwrap()
}

fn scalar(value: f32) -> Array {
    Array::scalar(value).unwrap()
}

#[test]
fn compiled_traces_once_for_each_shape() -> Result<()> {
    compile::set_enabled(true);
    let traces = Rc::new(RefCell::new(Vec::new()));
    let log = traces.clone();
    let f = Compiled::new(
        move |x: &[Array]| {
            log.borrow_mut().push(x[0].shape().to_vec());
            Ok(vec![x[0].multiply(&x[0])?.add(&x[0])?])
        },
        false,
    );
    for _ in 0..3 {
        assert_eq!(f.call(&[row(&[1.0, 2.0])])?[0].to_vec::<f32>()?, [2.0, 6.0]);
    }
    assert_eq!(f.call(&[row(&[3.0])])?[0].to_vec::<f32>()?, [12.0]);
    assert_eq!(*traces.borrow(), [vec![2], vec![1]]);
    assert_eq!(
        f.call(&[row(&[1.0, 2.0]).astype(DType::I32)?])?[0].to_vec::<i32>()?,
        [2, 6]
    );
    assert_eq!(traces.borrow().len(), 3);
    // Under grad the plain function is differentiated.
    let outer = |x: &[Array]| Ok(vec![f.call(x)?[0].sum(.., false)?]);
    assert_eq!(
        grad_with(outer, &[row(&[1.0, 2.0])], &[0])?[0].to_vec::<f32>()?,
        [3.0, 5.0]
    );

    let any = Compiled::new(|x| Ok(vec![x[0].multiply(&x[0])?.add(1.0)?]), true);
    assert_eq!(any.call(&[row(&[2.0])])?[0].to_vec::<f32>()?, [5.0]);
    assert_eq!(
        any.call(&[row(&[2.0, 3.0])])?[0].to_vec::<f32>()?,
        [5.0, 10.0]
    );
    compile::set_enabled(false);
    assert_eq!(any.call(&[row(&[3.0])])?[0].to_vec::<f32>()?, [10.0]);
    Ok(())
}

#[test]
fn a_failed_trace_is_not_served_as_done() -> Result<()> {
    compile::set_enabled(true);
    let fail = Rc::new(Cell::new(true));
    let failing = fail.clone();
    let f = Compiled::new(
        move |x: &[Array]| {
            if failing.get() {
                return Err(Error::new(ErrorKind::Invalid, "not yet"));
            }
            Ok(vec![x[0].add(1.0)?])
        },
        false,
    );
    assert_eq!(f.call(&[scalar(1.0)]).unwrap_err().to_string(), "not yet");
    assert_eq!(f.call(&[scalar(1.0)]).unwrap_err().to_string(), "not yet");
    fail.set(false);
    assert_eq!(f.call(&[scalar(1.0)])?[0].item::<f32>()?, 2.0);
    compile::set_enabled(false);
    Ok(())
}

#[test]
fn captures_live_as_long_as_the_compiled_function_and_no_longer() -> Result<()> {
    compile::set_enabled(true);
    let held = Rc::new(());
    let capture = held.clone();
    let f = Compiled::new(
        move |x: &[Array]| {
            let _ = &capture;
            Ok(vec![x[0].add(1.0)?])
        },
        false,
    );
    f.call(&[scalar(1.0)])?;
    drop(f);
    assert_eq!(Rc::strong_count(&held), 1);

    let capture = held.clone();
    let y = {
        let f = checkpoint_with(move |x: &[Array]| {
            let _ = &capture;
            Ok(vec![x[0].square()?])
        })?;
        f(&[row(&[1.0])])?
    };
    assert_eq!(y[0].item::<f32>()?, 1.0);
    drop(y);
    assert_eq!(Rc::strong_count(&held), 1);
    compile::set_enabled(false);
    Ok(())
}

/// MLX builds other graphs for arrays without elements, and it builds a graph for all shapes only once.
#[test]
fn a_graph_for_all_shapes_takes_arrays_without_elements() -> Result<()> {
    compile::set_enabled(true);
    type Function = fn(&Array) -> Result<Array>;
    let functions: [(&str, Function); 11] = [
        ("prod", |x| x.prod(-1, false)),
        ("max", |x| x.max(-1, false)),
        ("softmax", |x| x.softmax(-1)),
        ("cumsum", |x| x.cumsum(-1)),
        ("sort", |x| x.sort(-1)),
        ("argsort", |x| x.argsort(-1)),
        ("partition", |x| x.partition(0, -1)),
        ("argpartition", |x| x.argpartition(0, -1)),
        ("argmax", |x| x.argmax(-1, false)),
        ("logsumexp", |x| x.logsumexp(-1, false)),
        ("sum", |x| x.sum(-1, false)),
    ];
    for (name, f) in functions {
        let compiled = Compiled::new(move |x: &[Array]| Ok(vec![f(&x[0])?]), true);
        compiled.call(&[ones(&[1, 2], DType::BF16)?])?[0]
            .astype(DType::F32)?
            .to_vec::<f32>()?;
        for shape in [[3, 0], [0, 3], [0, 0]] {
            let y = compiled
                .call(&[ones(&shape, DType::BF16)?])
                .and_then(|y| y[0].astype(DType::F32)?.to_vec::<f32>());
            match name {
                "sum" => assert_eq!(y?, vec![0.0; shape[0] as usize], "{shape:?}"),
                "prod" => assert_eq!(y?, vec![1.0; shape[0] as usize], "{shape:?}"),
                "argmax" | "logsumexp" | "max" if shape[0] > 0 => {
                    let error = y.unwrap_err().to_string();
                    assert!(error.contains("has no result"), "{name}: {error}");
                }
                _ => assert!(y?.is_empty(), "{name} {shape:?}"),
            }
        }
        let y = compiled.call(&[ones(&[2, 2], DType::F32)?])?;
        let same = y[0].array_equal(&f(&ones(&[2, 2], DType::F32)?)?)?;
        assert!(same.item::<bool>()?, "{name}");
    }
    compile::set_enabled(false);
    Ok(())
}

/// MLX's fused kernels take the larger of the sizes 0 and 1.
#[test]
fn shapeless_functions_of_empty_arrays_have_the_right_shape() -> Result<()> {
    compile::set_enabled(true);
    let f = Compiled::new(
        |x: &[Array]| Ok(vec![x[0].sum(-2, true)?.add(&x[0])?.exp()?.reshape(&[-1])?]),
        true,
    );
    // A captured array without elements.
    let empty = mlx_core::zeros(&[0, 8], DType::F32)?;
    let g = Compiled::new(
        move |x: &[Array]| Ok(vec![x[0].add(&empty)?.exp()?.negative()?]),
        true,
    );
    for _ in 0..2 {
        let rows = ones(&[1, 2, 8], DType::F32)?;
        let found = f.call(&[rows])?[0].to_vec::<f32>()?;
        assert!(found.len() == 16 && found.iter().all(|x| (x - 3f32.exp()).abs() < 1e-4));
        let none = mlx_core::zeros(&[1, 0, 8], DType::F32)?;
        let found = f.call(&[none])?.remove(0);
        assert_eq!(found.shape(), [0]);
        assert!(found.to_vec::<f32>()?.is_empty());
        let row = ones(&[1, 8], DType::F32)?;
        let found = g.call(&[row])?.remove(0);
        assert_eq!(found.shape(), [0, 8]);
        assert!(found.to_vec::<f32>()?.is_empty());
    }
    compile::set_enabled(false);
    Ok(())
}

/// A graph for all shapes that was traced with equal shapes has no broadcasts. With an axis of size
/// 1 in one input the call gives what the function itself gives.
#[test]
fn shapeless_functions_traced_with_equal_shapes_do_not_read_past_an_input() -> Result<()> {
    type Function = fn(&[Array]) -> Result<Vec<Array>>;
    let all: [(&str, Function); 9] = [
        ("one", |x| Ok(vec![x[0].add(&x[1])?])),
        ("fused", |x| {
            Ok(vec![x[0].add(&x[1])?.exp()?.multiply(&x[1])?])
        }),
        ("compared", |x| Ok(vec![x[0].less(&x[1])?])),
        ("selected", |x| {
            Ok(vec![x[0].less(1.5)?.select(&x[1], &x[0])?])
        }),
        ("two results", |x| {
            let (quotient, rest) = x[0].divmod(&x[1])?;
            Ok(vec![quotient, rest])
        }),
        ("product", |x| {
            Ok(vec![x[0].matmul(&x[1].swapaxes(-1, -2)?)?])
        }),
        ("joined", |x| {
            Ok(vec![mlx_core::concat(&[&x[0], &x[1]], 0)?])
        }),
        ("reduced", |x| {
            Ok(vec![x[0].subtract(&x[1])?.sum(-1, false)?])
        }),
        ("power", |x| Ok(vec![x[0].power(&x[1])?])),
    ];
    compile::set_enabled(true);
    // Memory that is not zeros, so that a read past an input shows.
    let noise: Vec<Array> = (1..64)
        .map(|n| mlx_core::full(&[n * 16], -1e30, DType::F32))
        .collect::<Result<_>>()?;
    mlx_core::eval(&noise)?;
    drop(noise);
    let array = |shape: &[i32]| {
        let size: i32 = shape.iter().product();
        let values: Vec<f32> = (0..size).map(|i| 1.0 + (i % 5) as f32 * 0.5).collect();
        Array::from_slice(&values, shape)
    };
    let mut same = 0;
    for (name, function) in all {
        for (one, two) in [
            ([3, 64], [1, 64]),
            ([1, 64], [3, 64]),
            ([3, 1], [3, 64]),
            ([3, 64], [3, 1]),
            ([1, 1], [3, 64]),
            ([3, 64], [1, 1]),
            ([4, 1], [1, 64]),
        ] {
            let f = Compiled::new(function, true);
            f.call(&[array(&[3, 64])?, array(&[3, 64])?])?;
            let inputs = [array(&one)?, array(&two)?];
            let what = format!("{name}, {one:?}, {two:?}");
            let found = f.call(&inputs).and_then(|y| mlx_core::eval(&y).map(|()| y));
            let wanted = function(&inputs);
            assert_eq!(found.is_ok(), wanted.is_ok(), "{what}: {found:?}");
            let (Ok(found), Ok(wanted)) = (found, wanted) else {
                continue;
            };
            for (found, wanted) in found.iter().zip(&wanted) {
                assert_eq!(found.shape(), wanted.shape(), "{what}");
                let f32s = |a: &Array| a.astype(DType::F32)?.to_vec::<f32>();
                assert_eq!(f32s(found)?, f32s(wanted)?, "{what}");
            }
            same += 1;
        }
    }
    compile::set_enabled(false);
    assert!(same > 40, "{same}");
    Ok(())
}
