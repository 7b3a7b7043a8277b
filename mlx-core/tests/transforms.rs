//! Function transforms, by themselves and inside each other.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::slice::from_ref;

use mlx_core::transforms::{
    Compiled, checkpoint_with, compile, custom_vjp_with, grad_with, jvp_with, value_and_grad_with,
    vjp_with, vmap_with,
};
use mlx_core::{Array, Error, ErrorKind, Result, eval};

fn row(values: &[f32]) -> Array {
    Array::from_slice(values, &[values.len() as i32]).unwrap()
}

fn scalar(value: f32) -> Array {
    Array::scalar(value).unwrap()
}

/// sum(x³), whose gradient is 3x².
fn cubes(x: &[Array]) -> Result<Vec<Array>> {
    Ok(vec![x[0].multiply(&x[0])?.multiply(&x[0])?.sum(.., false)?])
}

fn message<T>(result: Result<T>) -> String {
    result
        .err()
        .map(|error| error.to_string())
        .unwrap_or_default()
}

#[test]
fn derivatives() -> Result<()> {
    let x = row(&[1.0, 2.0, 3.0]);
    let (outputs, d) = vjp_with(cubes, from_ref(&x), &[scalar(2.0)])?;
    assert_eq!(outputs[0].item::<f32>()?, 36.0);
    assert_eq!(d[0].to_vec::<f32>()?, [6.0, 24.0, 54.0]);

    let (outputs, d) = jvp_with(cubes, from_ref(&x), &[row(&[1.0, 0.0, 1.0])])?;
    assert_eq!(outputs[0].item::<f32>()?, 36.0);
    assert_eq!(d[0].item::<f32>()?, 30.0);

    assert_eq!(
        grad_with(cubes, &[x], &[0])?[0].to_vec::<f32>()?,
        [3.0, 12.0, 27.0]
    );
    Ok(())
}

#[test]
fn gradients_come_in_the_order_asked_for() -> Result<()> {
    // a²b + c, passed with an auxiliary output.
    let f = |x: &[Array]| {
        let value = x[0].square()?.multiply(&x[1])?.add(&x[2])?;
        Ok(vec![value.clone(), value.multiply(10.0)?])
    };
    let args = [scalar(3.0), scalar(5.0), scalar(7.0)];
    let (values, grads) = value_and_grad_with(f, &args, &[2, 0, 1])?;
    let numbers = |arrays: &[Array]| {
        arrays
            .iter()
            .map(|a| a.item::<f32>())
            .collect::<Result<Vec<_>>>()
    };
    assert_eq!(numbers(&values)?, [52.0, 520.0]);
    assert_eq!(numbers(&grads)?, [1.0, 30.0, 9.0]);

    assert!(message(value_and_grad_with(f, &args, &[])).contains("at least one"));
    assert!(message(value_and_grad_with(f, &args, &[3])).contains("argument number 3"));
    assert!(message(value_and_grad_with(f, &args, &[1, 1])).contains("given twice"));
    let vector = |x: &[Array]| Ok(vec![x[0].clone()]);
    assert!(message(grad_with(vector, &[row(&[1.0, 2.0])], &[0])).contains("scalar first output"));
    assert!(message(grad_with(|_| Ok(vec![]), &args, &[0])).contains("at least one array"));
    Ok(())
}

#[test]
fn closures_borrow_and_change_their_surroundings() -> Result<()> {
    let weight = row(&[2.0, 3.0]);
    let mut calls = 0;
    let f = |x: &[Array]| {
        calls += 1;
        Ok(vec![x[0].multiply(&weight)?.sum(.., false)?])
    };
    let d = grad_with(f, &[row(&[1.0, 1.0])], &[0])?;
    assert_eq!(d[0].to_vec::<f32>()?, [2.0, 3.0]);
    assert_eq!(calls, 1);
    Ok(())
}

#[test]
fn values_can_be_read_while_differentiating() -> Result<()> {
    // Arrays have values while gradients are traced, so control flow may depend on them.
    let seen = Cell::new(0.0);
    let f = |x: &[Array]| {
        let y = x[0].multiply(&x[0])?;
        eval([&y])?;
        seen.set(y.item::<f32>()?);
        Ok(vec![if y.item::<f32>()? > 1.0 {
            y.multiply(2.0)?
        } else {
            y
        }])
    };
    assert_eq!(grad_with(f, &[scalar(3.0)], &[0])?[0].item::<f32>()?, 12.0);
    assert_eq!(seen.get(), 9.0);
    Ok(())
}

#[test]
fn an_error_in_a_closure_is_the_error_of_the_call() -> Result<()> {
    let fail = |_: &[Array]| Err(Error::new(ErrorKind::Io, "no such file %s%n"));
    let check = |result: Result<()>| {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        assert_eq!(error.to_string(), "no such file %s%n");
    };
    let x = [scalar(1.0)];
    check(vjp_with(fail, &x, &x).map(drop));
    check(jvp_with(fail, &x, &x).map(drop));
    check(grad_with(fail, &x, &[0]).map(drop));
    check(vmap_with(fail, &[row(&[1.0])], &[Some(0)], &[Some(0)]).map(drop));
    check(checkpoint_with(fail)?(&x).map(drop));
    check(custom_vjp_with(fail, |_, _, _| Ok(vec![]))?(&x).map(drop));
    check(Compiled::new(fail, false).call(&x).map(drop));
    // Nested: the innermost message arrives unchanged.
    check(grad_with(|x| grad_with(fail, x, &[0]), &x, &[0]).map(drop));
    // No state is left behind.
    assert_eq!(scalar(1.0).add(1.0)?.item::<f32>()?, 2.0);
    Ok(())
}

#[test]
fn an_error_that_the_closure_deals_with_is_gone() -> Result<()> {
    let f = |x: &[Array]| {
        assert!(x[0].matmul(&row(&[1.0, 2.0, 3.0])).is_err());
        assert!(grad_with(|_| Err(Error::new(ErrorKind::Io, "inner")), x, &[0]).is_err());
        cubes(x)
    };
    assert_eq!(
        grad_with(f, &[row(&[1.0])], &[0])?[0].to_vec::<f32>()?,
        [3.0]
    );
    let wrong = |x: &[Array]| {
        assert!(grad_with(|_| Err(Error::new(ErrorKind::Io, "inner")), x, &[0]).is_err());
        x[0].reshape(&[7]).map(|y| vec![y])
    };
    assert!(message(grad_with(wrong, &[row(&[1.0])], &[0])).contains("reshape"));
    Ok(())
}

#[test]
fn a_panic_in_a_closure_comes_back_as_a_panic() -> Result<()> {
    let x = [scalar(1.0)];
    let text = |run: &dyn Fn()| {
        let payload = catch_unwind(AssertUnwindSafe(run)).unwrap_err();
        *payload.downcast::<&'static str>().unwrap()
    };
    assert_eq!(
        text(&|| drop(grad_with(|_| panic!("first"), &x, &[0]))),
        "first"
    );
    assert_eq!(
        text(&|| drop(vmap_with(
            |_| panic!("second"),
            &[row(&[1.0])],
            &[Some(0)],
            &[Some(0)]
        ))),
        "second"
    );
    let kept = checkpoint_with(|_| panic!("third"))?;
    assert_eq!(text(&|| drop(kept(&x))), "third");
    assert_eq!(
        text(&|| drop(grad_with(
            |x| grad_with(|_| panic!("deep"), x, &[0]),
            &x,
            &[0]
        ))),
        "deep"
    );
    assert_eq!(
        grad_with(cubes, &[row(&[1.0])], &[0])?[0].to_vec::<f32>()?,
        [3.0]
    );
    Ok(())
}

#[test]
fn nested_derivatives() -> Result<()> {
    let x = row(&[1.0, 2.0]);
    // d/dx sum(3x²) = 6x.
    let slope = |x: &[Array]| Ok(vec![grad_with(cubes, x, &[0])?[0].sum(.., false)?]);
    assert_eq!(
        grad_with(slope, from_ref(&x), &[0])?[0].to_vec::<f32>()?,
        [6.0, 12.0]
    );
    // A third time: 6.
    let curve = |x: &[Array]| Ok(vec![grad_with(slope, x, &[0])?[0].sum(.., false)?]);
    assert_eq!(
        grad_with(curve, &[x], &[0])?[0].to_vec::<f32>()?,
        [6.0, 6.0]
    );

    // grad of vmap, and vmap of grad.
    let xs = Array::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2])?;
    let mapped = |x: &[Array]| {
        let rows = vmap_with(cubes, x, &[Some(0)], &[Some(0)])?;
        Ok(vec![rows[0].multiply(row(&[1.0, 10.0]))?.sum(.., false)?])
    };
    assert_eq!(
        grad_with(mapped, from_ref(&xs), &[0])?[0].to_vec::<f32>()?,
        [3.0, 12.0, 270.0, 480.0]
    );
    let each = vmap_with(|x| grad_with(cubes, x, &[0]), &[xs], &[Some(0)], &[Some(0)])?;
    assert_eq!(each[0].to_vec::<f32>()?, [3.0, 12.0, 27.0, 48.0]);
    Ok(())
}

#[test]
fn vmap_places_axes() -> Result<()> {
    let xs = Array::from_slice(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3])?;
    let scale = row(&[1.0, 10.0]);
    let f = |x: &[Array]| Ok(vec![x[0].multiply(&x[1])?]);
    // Columns of `xs`, each multiplied by the whole `scale`.
    let out = vmap_with(
        f,
        &[xs.clone(), scale.clone()],
        &[Some(1), None],
        &[Some(0)],
    )?;
    assert_eq!(out[0].shape(), [3, 2]);
    assert_eq!(out[0].to_vec::<f32>()?, [1.0, 40.0, 2.0, 50.0, 3.0, 60.0]);
    let out = vmap_with(
        f,
        &[xs.clone(), scale.clone()],
        &[Some(-1), None],
        &[Some(-1)],
    )?;
    assert_eq!(out[0].shape(), [2, 3]);
    assert_eq!(out[0].to_vec::<f32>()?, [1.0, 2.0, 3.0, 40.0, 50.0, 60.0]);
    // Outputs that depend on no mapped input are repeated for each element, or returned once.
    let constant = |x: &[Array]| Ok(vec![x[1].add(1.0)?, x[1].clone()]);
    let out = vmap_with(
        constant,
        &[xs.clone(), scale.clone()],
        &[Some(1), None],
        &[Some(1), None],
    )?;
    assert_eq!(out[0].to_vec::<f32>()?, [2.0, 2.0, 2.0, 11.0, 11.0, 11.0]);
    assert_eq!(out[1].to_vec::<f32>()?, [1.0, 10.0]);

    let two = [xs.clone(), scale.clone()];
    let refused = |in_axes: &[Option<i32>], out_axes: &[Option<i32>]| {
        message(vmap_with(f, &two, in_axes, out_axes))
    };
    assert!(refused(&[None, None], &[Some(0)]).contains("at least one mapped input"));
    assert!(refused(&[Some(0)], &[Some(0)]).contains("1 in_axes for 2 inputs"));
    assert!(refused(&[Some(2), None], &[Some(0)]).contains("axis 2 is out of range"));
    assert!(refused(&[Some(1), Some(0)], &[Some(0)]).contains("maps 3 slices"));
    assert!(refused(&[Some(1), None], &[Some(5)]).contains("axis 5 is out of range"));
    assert!(refused(&[Some(1), None], &[None]).contains("has no out axis"));
    assert!(refused(&[Some(1), None], &[]).contains("0 out_axes for 1 outputs"));
    Ok(())
}

#[test]
fn evaluating_a_placeholder_is_an_error() -> Result<()> {
    let xs = row(&[1.0, 2.0]);
    let lazy = xs.add(1.0)?;
    let read = |x: &[Array]| x[0].item::<f32>().map(|_| x.to_vec());
    assert!(vmap_with(read, from_ref(&xs), &[Some(0)], &[Some(0)]).is_err());
    let derived = |x: &[Array]| {
        let y = x[0].add(1.0)?;
        eval([&y])?;
        Ok(vec![y])
    };
    assert!(vmap_with(derived, from_ref(&xs), &[Some(0)], &[Some(0)]).is_err());
    compile::set_enabled(true);
    assert!(Compiled::new(derived, false).call(from_ref(&xs)).is_err());
    compile::set_enabled(false);
    // Arrays that were lazy before are unharmed.
    assert_eq!(lazy.to_vec::<f32>()?, [2.0, 3.0]);
    Ok(())
}

#[test]
fn checkpoint_computes_again() -> Result<()> {
    let calls = Rc::new(Cell::new(0));
    let count = calls.clone();
    let f = checkpoint_with(move |x: &[Array]| {
        count.set(count.get() + 1);
        cubes(x)
    })?;
    let x = row(&[1.0, 2.0]);
    assert_eq!(f(from_ref(&x))?[0].item::<f32>()?, 9.0);
    assert_eq!(calls.replace(0), 1);
    assert_eq!(
        grad_with(|x| f(x), from_ref(&x), &[0])?[0].to_vec::<f32>()?,
        [3.0, 12.0]
    );
    assert_eq!(
        calls.replace(0),
        2,
        "forward, and again for the backward pass"
    );
    // The gradient outlives the function that made it.
    let d = grad_with(|x| f(x), &[x], &[0])?;
    drop(f);
    assert_eq!(d[0].to_vec::<f32>()?, [3.0, 12.0]);
    Ok(())
}

#[test]
fn custom_derivatives() -> Result<()> {
    let f = custom_vjp_with(
        |x| Ok(vec![x[0].multiply(&x[1])?]),
        |primals, cotangents, outputs| {
            // Deliberately not the derivative: the result must be the one written here.
            let first = primals[0].multiply(100.0)?.multiply(&cotangents[0])?;
            Ok(vec![first, outputs[0].add(&primals[1])?])
        },
    )?;
    let args = [scalar(3.0), scalar(5.0)];
    let outer = |x: &[Array]| Ok(vec![f(x)?[0].multiply(2.0)?]);
    let (value, d) = value_and_grad_with(outer, &args, &[0, 1])?;
    assert_eq!(value[0].item::<f32>()?, 30.0);
    assert_eq!(d[0].item::<f32>()?, 600.0);
    assert_eq!(d[1].item::<f32>()?, 20.0);

    let few = custom_vjp_with(
        |x| Ok(vec![x[0].add(&x[1])?]),
        |p, _, _| Ok(p[..1].to_vec()),
    )?;
    assert!(message(grad_with(|x| few(x), &args, &[0])).contains("must return 2 arrays"));
    let misshapen = custom_vjp_with(cubes, |_, c, _| Ok(vec![c[0].clone()]))?;
    assert!(
        message(grad_with(|x| misshapen(x), &[row(&[1.0, 2.0])], &[0]))
            .contains("returned shape []")
    );
    let failing = custom_vjp_with(cubes, |_, _, _| Err(Error::new(ErrorKind::Io, "backward")))?;
    assert_eq!(
        message(grad_with(|x| failing(x), &[row(&[1.0])], &[0])),
        "backward"
    );
    Ok(())
}

#[test]
fn custom_functions_under_other_transforms() -> Result<()> {
    // vmap and jvp use the plain function; only vjp is user-defined.
    let double_slope = |_: &[Array], c: &[Array], _: &[Array]| Ok(vec![c[0].multiply(100.0)?]);
    let square = |x: &[Array]| Ok(vec![x[0].square()?]);
    let custom = custom_vjp_with(square, double_slope)?;
    let saved = checkpoint_with(square)?;
    let xs = row(&[1.0, 2.0]);
    let mapped = vmap_with(&custom, from_ref(&xs), &[Some(0)], &[Some(0)])?;
    assert_eq!(mapped[0].to_vec::<f32>()?, [1.0, 4.0]);
    let (_, pushed) = jvp_with(&custom, from_ref(&xs), &[row(&[1.0, 1.0])])?;
    assert_eq!(pushed[0].to_vec::<f32>()?, [2.0, 4.0]);
    let mapped = vmap_with(&saved, from_ref(&xs), &[Some(0)], &[Some(0)])?;
    assert_eq!(mapped[0].to_vec::<f32>()?, [1.0, 4.0]);
    // MLX cannot map the node that orders recomputation.
    let each = |x: &[Array]| grad_with(&saved, x, &[0]);
    let refused = vmap_with(each, from_ref(&xs), &[Some(0)], &[Some(0)]);
    assert!(message(refused).contains("Depends"));
    let sum = |x: &[Array]| Ok(vec![custom(x)?[0].sum(.., false)?]);
    assert_eq!(
        grad_with(sum, from_ref(&xs), &[0])?[0].to_vec::<f32>()?,
        [100.0, 100.0]
    );
    Ok(())
}
