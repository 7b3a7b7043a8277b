//! Transforms of functions of some arguments: `grad(|x: &Array| …)` and the others.

use std::collections::{BTreeMap, HashMap};

use mlx_core::transforms::{compile as compilation, jvp_with};
use mlx_core::{
    Array, Result, checkpoint, compile, custom_function, custom_vjp, grad, jvp, value_and_grad,
    vjp, vmap,
};

fn vector(values: &[f32]) -> Array {
    Array::from_slice(values, &[values.len() as i32]).unwrap()
}

fn floats(array: &Array) -> Vec<f32> {
    array.to_vec().unwrap()
}

#[test]
fn gradients_follow_the_arguments() -> Result<()> {
    let (x, y) = (vector(&[1.0, 2.0]), vector(&[3.0, 5.0]));
    let df = grad(|x: &Array| x.square()?.sum_all());
    assert_eq!(floats(&df(&x)?), [2.0, 4.0]);
    assert_eq!(floats(&df(&y)?), [6.0, 10.0], "a function is called again");
    assert_eq!(
        floats(&grad(|x: &Array| x.square()?.sum_all())(&x)?),
        [2.0, 4.0]
    );

    let product = |x: &Array, y: &Array| x.multiply(y)?.square()?.sum_all();
    assert_eq!(floats(&grad(product)(&x, &y)?), [18.0, 100.0]);
    assert_eq!(floats(&grad(product).argnums(1)(&x, &y)?), [6.0, 40.0]);
    let [dy, dx] = grad(product).argnums([1, 0])(&x, &y)?;
    assert_eq!(
        (floats(&dy), floats(&dx)),
        (vec![6.0, 40.0], vec![18.0, 100.0])
    );
    let (dx, dy) = grad(product).argnums(..)(&x, &y)?;
    assert_eq!(
        (floats(&dx), floats(&dy)),
        (vec![18.0, 100.0], vec![6.0, 40.0])
    );
    let (value, (dx, _)) = value_and_grad(product).argnums(..)(&x, &y)?;
    assert_eq!(
        (value.item::<f32>()?, floats(&dx)),
        (109.0, vec![18.0, 100.0])
    );
    Ok(())
}

#[test]
fn arguments_are_slices_tuples_and_maps() -> Result<()> {
    let (x, y) = (vector(&[1.0, 2.0]), vector(&[3.0, 5.0]));
    let sum = |a: &Array, b: &Array| a.multiply(b)?.sum_all();

    let of_slice = grad(|p: &[Array]| sum(&p[0], &p[1]));
    let grads: Vec<Array> = of_slice(&[x.clone(), y.clone()])?;
    assert_eq!(
        (floats(&grads[0]), floats(&grads[1])),
        (vec![3.0, 5.0], vec![1.0, 2.0])
    );

    let of_tuple = grad(|p: &(Array, Array)| sum(&p.0, &p.1));
    let (dx, dy) = of_tuple(&(x.clone(), y.clone()))?;
    assert_eq!((floats(&dx), floats(&dy)), (vec![3.0, 5.0], vec![1.0, 2.0]));

    let named: HashMap<String, Array> =
        [("w".to_owned(), x.clone()), ("b".to_owned(), y.clone())].into();
    let of_map = value_and_grad(|p: &HashMap<String, Array>, scale: &Array| {
        sum(&p["w"], &p["b"])?.multiply(scale)
    });
    let (value, grads) = of_map(&named, &Array::scalar(2.0f32)?)?;
    assert_eq!(value.item::<f32>()?, 26.0);
    assert_eq!(
        (floats(&grads["w"]), floats(&grads["b"])),
        (vec![6.0, 10.0], vec![2.0, 4.0])
    );

    type Nested = BTreeMap<String, (Array, Vec<Array>)>;
    let nested: Nested = [("a".to_owned(), (x.clone(), vec![y.clone(), x.clone()]))].into();
    let grads = grad(|p: &Nested| {
        let (first, rest) = &p["a"];
        sum(first, &rest[0])?.add(&sum(&rest[1], &rest[1])?)
    })(&nested)?;
    let (first, rest) = &grads["a"];
    assert_eq!(
        (floats(first), floats(&rest[1])),
        (vec![3.0, 5.0], vec![2.0, 4.0])
    );
    Ok(())
}

#[test]
fn further_results_are_passed_through() -> Result<()> {
    let x = vector(&[1.0, 2.0]);
    let f = value_and_grad(|x: &Array| Ok((x.square()?.sum_all()?, x.multiply(10)?)));
    let ((loss, tens), dx) = f(&x)?;
    assert_eq!(
        (loss.item::<f32>()?, floats(&tens)),
        (5.0, vec![10.0, 20.0])
    );
    assert_eq!(floats(&dx), [2.0, 4.0]);
    Ok(())
}

#[test]
fn a_gradient_has_a_gradient() -> Result<()> {
    let x = Array::scalar(3.0f32)?;
    let fourth = |x: &Array| x.power(4);
    assert_eq!(grad(grad(fourth))(&x)?.item::<f32>()?, 108.0);
    let third = grad(grad(grad(fourth)));
    assert_eq!(third(&x)?.item::<f32>()?, 72.0);
    Ok(())
}

#[test]
fn a_closure_may_borrow() -> Result<()> {
    let scale = vector(&[2.0, 3.0]);
    let calls = std::cell::Cell::new(0);
    let df = grad(|x: &Array| {
        calls.set(calls.get() + 1);
        x.multiply(&scale)?.sum_all()
    });
    assert_eq!(floats(&df(&vector(&[1.0, 1.0]))?), [2.0, 3.0]);
    drop(df);
    assert_eq!(calls.get(), 1);
    Ok(())
}

#[test]
fn wrong_calls_are_errors() {
    let x = vector(&[1.0, 2.0]);
    let square = |x: &Array| x.square();
    let text = grad(square)(&x).unwrap_err().to_string();
    assert!(text.contains("scalar"), "{text}");
    let text = grad(|x: &Array| x.sum_all()).argnums(1)(&x)
        .unwrap_err()
        .to_string();
    assert!(
        text.contains("argument number 1 is out of range for 1 arguments"),
        "{text}"
    );
    let both = grad(|x: &Array, y: &Array| x.multiply(y)?.sum_all());
    let text = both.argnums([0, 0])(&x, &x).unwrap_err().to_string();
    assert!(text.contains("given twice"), "{text}");
    let failing = grad(|x: &Array| x.reshape(&[3])?.sum_all());
    assert!(failing(&x).is_err());
}

#[test]
fn vmap_maps_arguments_along_their_axes() -> Result<()> {
    let rows = Array::from_slice(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3])?;
    let v = vector(&[1.0, 10.0, 100.0]);
    let dot = |a: &Array, b: &Array| a.multiply(b)?.sum_all();
    assert_eq!(floats(&vmap(dot)(&rows, &rows)?), [14.0, 77.0]);
    assert_eq!(
        floats(&vmap(dot).in_axes([Some(0), None])(&rows, &v)?),
        [321.0, 654.0]
    );
    assert_eq!(
        floats(&vmap(dot).in_axes(1)(&rows, &rows)?),
        [17.0, 29.0, 45.0]
    );

    let both = vmap(|a: &Array| Ok((a.multiply(2)?, a.sum_all()?))).out_axes([1, 0]);
    let (twice, sums) = both(&rows)?;
    assert_eq!(
        (twice.shape(), floats(&sums)),
        (&[3, 2][..], vec![6.0, 15.0])
    );
    let params = |p: &[Array], x: &Array| p[0].matmul(x)?.add(&p[1]);
    let mapped = vmap(params).in_axes([None, Some(0)]);
    let list = [rows.reshape(&[3, 2])?, v.clone()];
    let y = mapped(&list, &rows.reshape(&[3, 2])?)?;
    assert_eq!(
        floats(&y),
        [6.0, 21.0, 117.0, 12.0, 35.0, 139.0, 18.0, 49.0, 161.0]
    );

    // The gradient for each row, and a map of a gradient.
    let each = vmap(grad(|a: &Array| a.square()?.sum_all()));
    assert_eq!(floats(&each(&rows)?), [2.0, 4.0, 6.0, 8.0, 10.0, 12.0]);
    let through = grad(|a: &Array| vmap(|row: &Array| row.square()?.sum_all())(a)?.sum_all());
    assert_eq!(floats(&through(&rows)?), [2.0, 4.0, 6.0, 8.0, 10.0, 12.0]);
    Ok(())
}

#[test]
fn vmap_refuses_axes_that_do_not_fit() {
    let rows = vector(&[1.0, 2.0]);
    let add = |a: &Array, b: &Array| a.add(b);
    let text = vmap(add).in_axes([0])(&rows, &rows)
        .unwrap_err()
        .to_string();
    assert!(
        text.contains("vmap got 1 in_axes for 2 arguments"),
        "{text}"
    );
    let text = vmap(add).out_axes([0, 1])(&rows, &rows)
        .unwrap_err()
        .to_string();
    assert!(text.contains("vmap got 2 out_axes for 1 outputs"), "{text}");
    assert!(vmap(add).in_axes(3)(&rows, &rows).is_err());
    assert!(vmap(add)(&rows, &vector(&[1.0])).is_err());
}

/// Restores the setting when it is dropped.
struct Compiling;

impl Compiling {
    fn on() -> Self {
        compilation::set_enabled(true);
        Self
    }
}

impl Drop for Compiling {
    fn drop(&mut self) {
        compilation::set_enabled(false);
    }
}

#[test]
fn compiled_functions_are_called_like_closures() -> Result<()> {
    for on in [false, true] {
        let _compiling = on.then(Compiling::on);
        let traces = std::rc::Rc::new(std::cell::Cell::new(0));
        let count = traces.clone();
        let f = compile(move |x: &Array, y: &Array| {
            count.set(count.get() + 1);
            x.multiply(y)?.tanh()?.add(1)
        });
        let (x, y) = (vector(&[0.0, 1.0]), vector(&[2.0, 0.0]));
        for _ in 0..3 {
            assert_eq!(floats(&f(&x, &y)?), [1.0, 1.0]);
        }
        assert_eq!(traces.get(), if on { 1 } else { 3 });
        assert_eq!(f(&vector(&[0.0; 4]), &vector(&[1.0; 4]))?.shape(), [4]);
        assert_eq!(
            floats(&compile(Array::relu)(&vector(&[-1.0, 3.0]))?),
            [0.0, 3.0]
        );
        let slope = grad(compile(|x: &Array| x.square()?.sum_all()));
        assert_eq!(floats(&slope(&x)?), [0.0, 2.0]);
    }
    Ok(())
}

/// A result whose form depends on the shapes has the form of its own call.
#[test]
fn results_of_compiled_functions_keep_their_form() -> Result<()> {
    let _compiling = Compiling::on();
    let rows = compile(|x: &Array| x.unstack(0));
    for n in [2, 3, 2, 3, 1] {
        let x =
            mlx_core::arange(0.0, f64::from(2 * n), 1.0, mlx_core::DType::F32)?.reshape(&[n, 2])?;
        let parts = rows(&x)?;
        assert_eq!(parts.len(), n as usize);
        assert_eq!(
            floats(&parts[n as usize - 1]),
            [2.0 * n as f32 - 2.0, 2.0 * n as f32 - 1.0]
        );
    }
    let named = compile(|p: &HashMap<String, Array>| {
        p.iter()
            .map(|(name, x)| Ok((format!("{name}!"), x.add(1)?)))
            .collect::<Result<HashMap<_, _>>>()
    });
    let (x, y) = (vector(&[1.0]), vector(&[5.0]));
    let one: HashMap<String, Array> = [("a".into(), x.clone()), ("b".into(), y.clone())].into();
    let other: HashMap<String, Array> = [("a".into(), x), ("c".into(), y)].into();
    for _ in 0..2 {
        assert_eq!(floats(&named(&one)?["b!"]), [6.0]);
        assert_eq!(floats(&named(&other)?["c!"]), [6.0]);
    }
    Ok(())
}

#[test]
fn a_shapeless_function_runs_once_for_each_shape() -> Result<()> {
    let _compiling = Compiling::on();
    let traces = std::rc::Rc::new(std::cell::Cell::new(0));
    let count = traces.clone();
    let f = compile(move |x: &Array| {
        count.set(count.get() + 1);
        x.exp()?.multiply(0)?.add(x)
    })
    .shapeless();
    for _ in 0..2 {
        for n in 1..5 {
            assert_eq!(f(&vector(&vec![2.5; n]))?.shape(), [n as i32]);
        }
    }
    // For each new shape the function builds its own graph once, so that its errors are found.
    assert_eq!(traces.get(), 4);
    Ok(())
}

#[test]
fn a_custom_derivative_replaces_that_of_the_function() -> Result<()> {
    let (x, y) = (vector(&[1.0, -2.0]), vector(&[3.0, 5.0]));
    let s = custom_vjp(
        |x: &Array| x.square(),
        |x: &Array, dy: &Array| dy.multiply(x)?.multiply(100),
    );
    assert_eq!(floats(&s(&x)?), [1.0, 4.0]);
    let slope = grad(|x: &Array| s(x)?.multiply(&y)?.sum_all());
    assert_eq!(floats(&slope(&x)?), [300.0, -1000.0]);

    // Several arguments and results, one of them a slice.
    let pair = custom_vjp(
        |p: &[Array], z: &Array| Ok((p[0].multiply(z)?, p[1].clone())),
        |p: &[Array], z: &Array, d: &(Array, Array)| {
            Ok((
                vec![d.0.multiply(z)?, d.1.multiply(7)?],
                p[0].multiply(&d.0)?,
            ))
        },
    );
    let loss = |p: &[Array], z: &Array| {
        let (a, b) = pair(p, z)?;
        a.add(&b)?.sum_all()
    };
    let (of_p, of_z) = grad(loss).argnums(..)(&[x.clone(), y.clone()], &y)?;
    assert_eq!(
        (floats(&of_p[0]), floats(&of_p[1])),
        (vec![3.0, 5.0], vec![7.0, 7.0])
    );
    assert_eq!(floats(&of_z), [1.0, -2.0]);
    Ok(())
}

#[test]
fn custom_functions_have_rules_for_each_transform() -> Result<()> {
    let (x, y) = (vector(&[1.0, 2.0]), vector(&[3.0, 5.0]));
    let f = custom_function(|x: &Array, y: &Array| x.multiply(y))
        .jvp(|_: &Array, y: &Array, dx: &Array, dy: &Array| {
            dx.multiply(y)?.add(&dy.multiply(1000)?)
        })
        .vmap(|inputs, axes| {
            assert_eq!(axes, [Some(0), None]);
            Ok((
                vec![inputs[0].multiply(&inputs[1])?.add(0.5)?],
                vec![Some(0)],
            ))
        });
    let flat = |a: &[Array]| Ok(vec![f(&a[0], &a[1])?]);
    let (_, both) = jvp_with(flat, &[x.clone(), y.clone()], &[x.clone(), y.clone()])?;
    assert_eq!(floats(&both[0]), [3003.0, 5010.0]);
    let of_x = |a: &[Array]| Ok(vec![f(&a[0], &y)?]);
    let (_, one) = jvp_with(of_x, std::slice::from_ref(&x), std::slice::from_ref(&x))?;
    assert_eq!(floats(&one[0]), [3.0, 10.0], "no tangent is zero");
    assert_eq!(
        floats(&grad(|x: &Array| f(x, &y)?.sum_all())(&x)?),
        [3.0, 5.0],
        "the plain one"
    );

    let rows = Array::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2])?;
    let mapped = vmap(|r: &Array, y: &Array| f(r, y)).in_axes([Some(0), None]);
    assert_eq!(floats(&mapped(&rows, &y)?), [3.5, 10.5, 9.5, 20.5]);
    Ok(())
}

#[test]
fn custom_rules_are_checked() {
    let x = vector(&[1.0, 2.0]);
    let text = |result: Result<Array>| result.unwrap_err().to_string();
    let few = custom_vjp(
        |x: &[Array]| x[0].add(&x[1]),
        |_: &[Array], dy: &Array| Ok(vec![dy.clone()]),
    );
    let error = grad(|x: &Array| few(&[x.clone(), x.clone()])?.sum_all())(&x);
    assert!(text(error).contains("must return 2 arrays"));
    let shape = custom_vjp(|x: &Array| x.square(), |_: &Array, dy: &Array| dy.sum_all());
    assert!(text(grad(|x: &Array| shape(x)?.sum_all())(&x)).contains("shape []"));
    let tangent = custom_function(|x: &Array| x.square()).jvp(|_: &Array, dx: &Array| dx.sum_all());
    let pushed = jvp_with(
        |a| Ok(vec![tangent(&a[0])?]),
        std::slice::from_ref(&x),
        std::slice::from_ref(&x),
    );
    assert!(
        pushed
            .unwrap_err()
            .to_string()
            .contains("tangents of shapes [[2]], found [[]]")
    );
    let axis = custom_function(|x: &Array| x.square()).vmap(|x, _| Ok((x.to_vec(), vec![Some(9)])));
    assert!(text(vmap(|x: &Array| axis(x))(&x)).contains("axis Some(9)"));
    let failing = custom_vjp(
        |x: &Array| x.square(),
        |_: &Array, _: &Array| Err(mlx_core::Error::new(mlx_core::ErrorKind::Io, "backward")),
    );
    assert!(text(grad(|x: &Array| failing(x)?.sum_all())(&x)).contains("backward"));
}

#[test]
fn a_checkpoint_runs_the_function_again() -> Result<()> {
    let count = std::rc::Rc::new(std::cell::Cell::new(0));
    let seen = count.clone();
    let f = checkpoint(move |p: &[Array], x: &Array| {
        seen.set(seen.get() + 1);
        p[0].multiply(x)?.tanh()?.sum_all()
    });
    let (w, x) = (vector(&[0.5, -0.5]), vector(&[1.0, 1.0]));
    let plain = |p: &[Array], x: &Array| p[0].multiply(x)?.tanh()?.sum_all();
    let wanted = grad(plain)(std::slice::from_ref(&w), &x)?;
    let found = grad(|p: &[Array], x: &Array| f(p, x))(std::slice::from_ref(&w), &x)?;
    assert_eq!(floats(&found[0]), floats(&wanted[0]));
    assert_eq!(count.get(), 2, "forward, and again for the derivative");
    Ok(())
}

#[test]
fn tangents_and_cotangents_have_the_forms_of_arguments_and_results() -> Result<()> {
    let (x, y) = (vector(&[1.0, 2.0]), vector(&[3.0, 5.0]));
    let (dx, dy) = (vector(&[1.0, 0.0]), vector(&[0.0, 10.0]));
    let f = |x: &Array, y: &Array| -> Result<(Array, Vec<Array>)> {
        Ok((x.multiply(y)?, vec![x.square()?, y.sum_all()?]))
    };
    let arguments = (x.clone(), y.clone());
    let (value, pushed) = jvp(f, &arguments, &(dx.clone(), dy.clone()))?;
    assert_eq!(value.0.to_vec::<f32>()?, [3.0, 10.0]);
    assert_eq!(pushed.0.to_vec::<f32>()?, [3.0, 20.0]);
    assert_eq!(pushed.1[0].to_vec::<f32>()?, [2.0, 0.0]);
    assert_eq!(pushed.1[1].item::<f32>()?, 10.0);

    let cotangents = (dx.clone(), vec![dy, Array::scalar(1.0f32)?]);
    let (value, (gx, gy)) = vjp(f, &arguments, &cotangents)?;
    assert_eq!(value.1[1].item::<f32>()?, 8.0);
    assert_eq!(gx.to_vec::<f32>()?, [3.0, 40.0]);
    assert_eq!(gy.to_vec::<f32>()?, [2.0, 1.0]);

    // A map, a vector, and a derivative of a derivative.
    let named = BTreeMap::from([("x".to_owned(), x.clone())]);
    let of_map = |map: &BTreeMap<String, Array>| map["x"].square();
    let (_, pulled) = vjp(of_map, &named, &dx)?;
    assert_eq!(pulled["x"].to_vec::<f32>()?, [2.0, 0.0]);
    let list = vec![x.clone(), y];
    let (_, pulled) = vjp(|all: &[Array]| all[0].multiply(&all[1]), &list, &dx)?;
    assert_eq!(pulled[1].to_vec::<f32>()?, [1.0, 0.0]);
    let second = grad(|x: &Array| jvp(|x: &Array| x.power(3), x, &x.ones_like()?)?.1.sum_all());
    assert_eq!(second(&x)?.to_vec::<f32>()?, [6.0, 12.0]);
    Ok(())
}

#[test]
fn tangents_and_cotangents_that_do_not_fit_are_errors() -> Result<()> {
    let x = vector(&[1.0, 2.0]);
    let square = |x: &Array| x.square();
    let long = vector(&[1.0, 2.0, 3.0]);
    assert!(vjp(square, &x, &long).is_err());
    assert!(jvp(square, &x, &long).is_err());
    let two = |x: &Array| -> Result<Vec<Array>> { Ok(vec![x.clone(), x.square()?]) };
    assert!(vjp(two, &x, &vec![x.clone()]).is_err());
    let fails = |_: &Array| -> Result<Array> { vector(&[1.0]).matmul(&vector(&[1.0, 2.0])) };
    assert!(vjp(fails, &x, &x).is_err() && jvp(fails, &x, &x).is_err());
    Ok(())
}
