//! Indices: what is refused before anything is evaluated, and what stays lazy.

use mlx_core::DType::{F32, I32};
use mlx_core::transforms::{grad_with, vmap_with};
use mlx_core::{Array, DType, Ellipsis, ErrorKind, NewAxis, Result, arange, array, eval, step};

fn cube() -> Array {
    arange(0, 24, 1, F32).unwrap().reshape((2, 3, 4)).unwrap()
}

#[test]
fn refused_when_the_graph_is_built() {
    let x = cube();
    let (ids, mask, floats) = (array![0, 1], array![true, false, true], array![0.5]);
    let empty = Array::zeros((0, 3), I32).unwrap();
    for (found, expected) in [
        (
            x.i(2),
            "i: index 2 is out of range for axis 0 of shape [2, 3, 4]",
        ),
        (
            x.i((.., -4)),
            "index -4 is out of range for axis 1 of shape [2, 3, 4]",
        ),
        (x.i((Ellipsis, usize::MAX)), "exceeds"),
        (
            x.i((0, 0, 0, 0)),
            "i: too many indices: 4 for an array of shape [2, 3, 4]",
        ),
        (x.i((.., .., &ids, 0)), "too many indices: 4"),
        (x.i((0, 0, &array![[true]])), "too many indices: 4"),
        (x.i((Ellipsis, 0, Ellipsis)), "at most one Ellipsis"),
        (x.i(step(.., 0)), "the step of axis 0 must be non-zero"),
        (
            x.i(&mask),
            "Bool index of shape [3] does not cover dimensions from 0 on of shape [2, 3, 4]",
        ),
        (
            x.i((&floats,)),
            "index array must hold integers or Bool, given F32",
        ),
        (x.i([0, 5]), "index 5 is out of range for axis 0"),
        (
            x.i((&ids, &array![0, 1, 2])),
            "index arrays of shapes [[2], [3]] do not broadcast",
        ),
        (
            empty.i(&ids),
            "names slots of axis 0 of shape [0, 3], which has none",
        ),
        (
            x.set(0, array![1, 2]),
            "set: values of shape [2] do not broadcast to [3, 4]",
        ),
        (
            x.set((0, 0), Array::zeros((2, 4), F32).unwrap()),
            "values of shape [2, 4] do not broadcast to [4]",
        ),
        (
            x.at((.., &ids)).add(Array::zeros((3, 4), F32).unwrap()),
            "at: values of shape [3, 4] do not broadcast to [2, 2, 4]",
        ),
        (
            x.set((.., &mask), array![1, 2, 3]),
            "values of shape [3] do not broadcast to [2, 3, 4]",
        ),
        (x.set(9, 0), "set: index 9 is out of range"),
        (x.masked_select(&ids), "the mask must be of Bool"),
        (x.masked_select(&mask), "broadcast"),
        (
            array![1, 2]
                .unique_of_size(-1, None::<f32>)
                .map(|unique| unique.values),
            "size must be at least 0",
        ),
        (
            empty
                .unique_of_size(1, None::<f32>)
                .map(|unique| unique.values),
            "no value to fill with",
        ),
    ] {
        let error = found.expect_err(expected).to_string();
        assert!(error.contains(expected), "{error}\nexpected: {expected}");
    }
    let error = array![1, 2].i(2).expect_err("out of range");
    assert_eq!(error.kind(), ErrorKind::Shape);
}

#[test]
fn numbers_inside_arrays_are_checked_when_evaluated() {
    let x = cube();
    eval([&x]).unwrap();
    let far = array![0, 3];
    for found in [
        x.i((.., &far)),
        x.at((.., .., &array![-5])).add(1),
        x.i((&array![1, 2], &far)),
    ] {
        let error = found
            .and_then(|found| eval([&found]))
            .expect_err("out of range");
        assert!(
            error.to_string().contains(" is outside an axis of "),
            "{error}"
        );
    }
    assert_eq!(x.i((1, 2, 3)).unwrap().item::<f32>().unwrap(), 23.0);
}

#[test]
fn scalars_and_new_axes() -> Result<()> {
    let scalar = Array::from(3.0);
    assert_eq!(scalar.i(())?.item::<f32>()?, 3.0);
    assert_eq!(scalar.i(Ellipsis)?.shape(), [0i32; 0]);
    assert_eq!(scalar.i((NewAxis, NewAxis))?.shape(), [1, 1]);
    assert_eq!(scalar.set((), 4)?.item::<f32>()?, 4.0);
    assert_eq!(scalar.at(Ellipsis).add(1)?.item::<f32>()?, 4.0);
    assert!(scalar.i(..).is_err());
    let x = cube();
    assert_eq!(x.i((NewAxis, .., 0, NewAxis))?.shape(), [1, 2, 1, 4]);
    Ok(())
}

/// Values of another dtype take the array's, as in Python.
#[test]
fn values_take_the_dtype_of_the_array() -> Result<()> {
    let x = array![1, 2, 3];
    assert_eq!(x.set(0, -1.7)?.to_vec::<i32>()?, [-1, 2, 3]);
    assert_eq!(x.at(1..).add(array![1.5, 2.5])?.to_vec::<i32>()?, [1, 3, 5]);
    assert_eq!(x.at(1..).sub(array![1, 2])?.to_vec::<i32>()?, [1, 1, 1]);
    let bytes = Array::from_slice(&[1u8, 2], 2)?;
    assert_eq!(bytes.at(0).sub(3)?.to_vec::<u8>()?, [254, 2]);
    assert!(bytes.set(0, 300).is_err());
    let error = bytes.at(0).div(2).expect_err("no reciprocals").to_string();
    assert!(
        error.contains("div needs floating point, given an array of U8"),
        "{error}"
    );
    Ok(())
}

/// The gradient of a function of one array.
fn gradient(f: impl Fn(&Array) -> Result<Array>, x: &Array) -> Result<Array> {
    let gradients = grad_with(
        |x: &[Array]| Ok(vec![f(&x[0])?]),
        std::slice::from_ref(x),
        &[0],
    )?;
    Ok(gradients[0].clone())
}

#[test]
fn gradients_pass_through_indices() -> Result<()> {
    let x = array![1.0, 2.0, 3.0];
    let ids = array![2, 0, 2];
    let weights = array![1.0, 10.0, 100.0];
    let read = gradient(|x| (x.i(&ids)? * &weights)?.sum(.., false), &x)?;
    assert_eq!(read.to_vec::<f32>()?, [10.0, 0.0, 101.0]);
    let changed = |x: &Array| x.square()?.set((1,), 7)?.at(&ids).add(1)?.sum(.., false);
    assert_eq!(gradient(changed, &x)?.to_vec::<f32>()?, [2.0, 0.0, 6.0]);
    // A mask as the only index is not evaluated.
    let masked = |x: &Array| x.set(&x.gt(2)?, 0)?.square()?.sum(.., false);
    assert_eq!(gradient(masked, &x)?.to_vec::<f32>()?, [2.0, 4.0, 0.0]);
    // The mask is evaluated, which `grad` allows.
    let chosen = gradient(|x| x.i(&x.gt(1)?)?.square()?.sum(.., false), &x)?;
    assert_eq!(chosen.to_vec::<f32>()?, [0.0, 4.0, 6.0]);
    Ok(())
}

#[test]
fn masks_write_without_being_read_where_they_can() -> Result<()> {
    let x = cube();
    let mask = x.i((.., .., 0))?.gt(8)?;
    let rows = array![1.0, 2.0, 3.0, 4.0];
    let uniform = x.set(&mask, &rows)?;
    let each = Array::stack(&[&rows, &rows, &rows], 0)?;
    // Three rows are selected: the same values for each of them.
    let counted = x.set(&mask, &each)?;
    assert_eq!(uniform.to_vec::<f32>()?, counted.to_vec::<f32>()?);
    assert_eq!(uniform.i((1, 2))?.to_vec::<f32>()?, [1.0, 2.0, 3.0, 4.0]);
    let added = x.at((0, &array![true, false, true])).add(100)?;
    assert_eq!(added.i((0, .., 0))?.to_vec::<f32>()?, [100.0, 4.0, 108.0]);
    let error = x
        .set(&mask, Array::zeros((2, 4), F32)?)
        .expect_err("three rows");
    assert!(
        error.to_string().contains("do not broadcast to [3, 4]"),
        "{error}"
    );
    Ok(())
}

#[test]
fn vmap_maps_an_index_array() -> Result<()> {
    let x = array![[1, 2, 3], [4, 5, 6]];
    let args = [x, array![[2, 0], [1, 1]]];
    let found = vmap_with(
        |of: &[Array]| Ok(vec![of[0].i(&of[1])?]),
        &args,
        &[Some(0), Some(0)],
        &[Some(0)],
    )?;
    assert_eq!(found[0].to_vec2::<i32>()?, [[3, 1], [5, 5]]);
    // `vmap` evaluates nothing, so it cannot read by a mask, and can write.
    let rows = [array![[1, 2, 3], [4, 5, 6]]];
    let unread = vmap_with(
        |of: &[Array]| Ok(vec![of[0].i(&of[0].gt(2)?)?]),
        &rows,
        &[Some(0)],
        &[Some(0)],
    );
    let error = unread.expect_err("not evaluated").to_string();
    assert!(error.contains("decide about the shape"), "{error}");
    let cut = vmap_with(
        |of: &[Array]| Ok(vec![of[0].set(&of[0].gt(2)?, 0)?]),
        &rows,
        &[Some(0)],
        &[Some(0)],
    )?;
    assert_eq!(cut[0].to_vec2::<i32>()?, [[1, 2, 0], [0, 0, 0]]);
    Ok(())
}

/// As Python's `mx.unique`: NaN is a value of its own each time, and what is beyond `size` is cut off.
#[test]
fn unique_of_a_given_size() -> Result<()> {
    let x = array![3, 1, 2, 1];
    let cut = x.unique_of_size(2, None::<f32>)?;
    assert_eq!(cut.values.to_vec::<i32>()?, [1, 2]);
    assert_eq!(cut.index.to_vec::<u32>()?, [1, 2]);
    assert_eq!(cut.inverse.to_vec::<u32>()?, [1, 0, 1, 0]);
    assert_eq!(cut.counts.to_vec::<i32>()?, [2, 1]);
    let none = x.unique_of_size(0, None::<f32>)?;
    assert_eq!((none.values.size(), none.counts.size()), (0, 0));
    assert_eq!(none.inverse.to_vec::<u32>()?, [0; 4]);
    let padded = array![[3, 1], [2, 1]].unique_of_size(6, Some(9))?;
    assert_eq!(padded.values.to_vec::<i32>()?, [1, 2, 3, 9, 9, 9]);
    assert_eq!(padded.index.to_vec::<u32>()?, [1, 2, 0, 1, 1, 1]);
    assert_eq!(padded.inverse.to_vec2::<u32>()?, [[2, 0], [1, 0]]);
    assert_eq!(padded.counts.to_vec::<i32>()?, [2, 1, 1, 0, 0, 0]);
    let odd =
        Array::from(vec![f32::NAN, 1.0, f32::NAN, -0.0, 0.0]).unique_of_size(5, None::<f32>)?;
    let values = odd.values.to_vec::<f32>()?;
    assert_eq!([values[0], values[1], values[4]], [0.0, 1.0, 0.0]);
    assert!(values[0].is_sign_negative() && values[2].is_nan() && values[3].is_nan());
    assert_eq!(odd.index.to_vec::<u32>()?, [3, 1, 0, 2, 3]);
    assert_eq!(odd.inverse.to_vec::<u32>()?, [2, 1, 3, 0, 0]);
    assert_eq!(odd.counts.to_vec::<i32>()?, [2, 1, 1, 1, 0]);
    let blank = Array::zeros((2, 0), I32)?.unique_of_size(2, Some(7))?;
    assert_eq!(blank.values.to_vec::<i32>()?, [7, 7]);
    assert_eq!(blank.inverse.shape(), [2, 0]);
    assert_eq!(array![true, true].unique()?.to_vec::<bool>()?, [true]);
    Ok(())
}

/// Each dtype, through slices and through index arrays, against the operation on all elements.
#[test]
fn every_dtype_is_written() -> Result<()> {
    let inside = array![true, false, true, true];
    for dtype in DType::ALL {
        let x = array![1, 0, 2, 1].astype(dtype)?;
        let v = array![2, 1, 1, 0].astype(dtype)?;
        let (ids, backwards) = (array![3, 0, 2], array![0, 2, 1].astype(dtype)?);
        let of_ids = x.at(&ids);
        let of_slice = x.at(step(.., -2));
        let halves = array![0, 1].astype(dtype)?;
        for (name, whole, by_ids, by_slice) in [
            (
                "add",
                x.add(&v)?,
                of_ids.add(&backwards)?,
                of_slice.add(&halves)?,
            ),
            (
                "mul",
                x.multiply(&v)?,
                of_ids.mul(&backwards)?,
                of_slice.mul(&halves)?,
            ),
            (
                "max",
                x.maximum(&v)?,
                of_ids.max(&backwards)?,
                of_slice.max(&halves)?,
            ),
            (
                "min",
                x.minimum(&v)?,
                of_ids.min(&backwards)?,
                of_slice.min(&halves)?,
            ),
            (
                "set",
                v.clone(),
                x.set(&ids, &backwards)?,
                x.set(step(.., -2), &halves)?,
            ),
        ] {
            let expected = inside.select(&whole, &x)?;
            assert_eq!((by_ids.dtype(), by_slice.dtype()), (dtype, dtype));
            let equal = expected.array_equal(&by_ids)?.item::<bool>()?;
            assert!(equal, "{name} of {dtype}: {by_ids}, expected {expected}");
            // The slice writes places 3 and 1.
            let (slot, value) = (by_slice.i(3)?, halves.i(0)?);
            let other = x.i(3)?;
            let expected = match name {
                "add" => other.add(value)?,
                "mul" => other.multiply(value)?,
                "max" => other.maximum(value)?,
                "min" => other.minimum(value)?,
                _ => value,
            };
            let equal = expected.array_equal(&slot)?.item::<bool>()?;
            assert!(equal, "{name} of {dtype}: {by_slice}");
        }
    }
    Ok(())
}
