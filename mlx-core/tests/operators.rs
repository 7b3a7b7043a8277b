//! Operators of Rust: which operands can be combined, and the dtypes that numbers take.

use mlx_core::{Array, DType, Error, ErrorKind, Result, array};

fn floats(array: Result<Array>) -> Vec<f32> {
    array.unwrap().to_vec().unwrap()
}

fn ints(array: Result<Array>) -> Vec<i32> {
    array.unwrap().to_vec().unwrap()
}

#[test]
fn arrays_beside_arrays() {
    let (a, b) = (array![7, -7, 8], array![2, 2, 3]);
    let (x, y) = (a.clone(), b.clone());
    assert_eq!(ints(&a + &b), [9, -5, 11]);
    assert_eq!(ints(a.clone() + &b), [9, -5, 11]);
    assert_eq!(ints(&a + b.clone()), [9, -5, 11]);
    assert_eq!(ints(x + y), [9, -5, 11]);
    assert_eq!(ints(&a - &b), [5, -9, 5]);
    assert_eq!(ints(&a * &b), [14, -14, 24]);
    assert_eq!(floats(&a / &b), [3.5, -3.5, 8.0 / 3.0]);
    // The sign of the divisor, as in Python.
    assert_eq!(ints(&a % &b), [1, 1, 2]);
    assert_eq!(ints(&a & &b), [2, 0, 0]);
    assert_eq!(ints(&a | &b), [7, -5, 11]);
    assert_eq!(ints(&a ^ &b), [5, -5, 11]);
    assert_eq!(ints(&a << &b), [28, -28, 64]);
    assert_eq!(ints(&a >> &b), [1, -2, 1]);
    assert_eq!(ints(-&a), [-7, 7, -8]);
    assert_eq!(ints(-a.clone()), [-7, 7, -8]);
    assert_eq!(ints(!&a), [-8, 6, -9]);
    let mask = array![true, false];
    assert_eq!((!mask).unwrap().to_vec::<bool>().unwrap(), [false, true]);
}

#[test]
fn numbers_on_either_side() {
    let a = array![8.0, 2.0];
    assert_eq!(floats(&a + 1.0), [9.0, 3.0]);
    assert_eq!(floats(a.clone() + 1), [9.0, 3.0]);
    assert_eq!(floats(1.0 + &a), [9.0, 3.0]);
    assert_eq!(floats(1 - &a), [-7.0, -1.0]);
    assert_eq!(floats(1.0 - a.clone()), [-7.0, -1.0]);
    assert_eq!(floats(2.0 * &a), [16.0, 4.0]);
    assert_eq!(floats(16.0 / &a), [2.0, 8.0]);
    assert_eq!(floats(9.0 % &a), [1.0, 1.0]);
    let (single, short, size) = (0.5f32, 3u8, 2usize);
    assert_eq!(floats(&a * single), [4.0, 1.0]);
    assert_eq!(floats(&a * short), [24.0, 6.0]);
    assert_eq!(floats(&a * size), [16.0, 4.0]);
    assert_eq!(floats(&a * half::bf16::from_f32(1.5)), [12.0, 3.0]);
    let bits = array![5, 6];
    assert_eq!(ints(&bits & 3), [1, 2]);
    assert_eq!(ints(3 & &bits), [1, 2]);
    assert_eq!(ints(1 | &bits), [5, 7]);
    assert_eq!(ints(1 ^ &bits), [4, 7]);
    assert_eq!(ints(1 << &bits), [32, 64]);
    assert_eq!(ints(-1000 >> &bits), [-32, -16]);
    let mask = array![true, false];
    let flipped = true ^ &mask;
    assert_eq!(flipped.unwrap().to_vec::<bool>().unwrap(), [false, true]);
}

#[test]
fn results_beside_arrays() {
    let a = array![1.0, 2.0];
    assert_eq!(floats(a.square() + &a), [2.0, 6.0]);
    assert_eq!(floats(a.square() + a.clone()), [2.0, 6.0]);
    assert_eq!(floats(&a - a.square()), [0.0, -2.0]);
    assert_eq!(floats(a.clone() - a.square()), [0.0, -2.0]);
    let failed = || -> Result<Array> { Err(Error::new(ErrorKind::Closure, "of the operand")) };
    for result in [
        &a * failed(),
        a.clone() * failed(),
        failed() * &a,
        failed() * a,
    ] {
        assert_eq!(result.expect_err("failed").to_string(), "of the operand");
    }
}

#[test]
fn types_are_known_at_once() -> Result<()> {
    // A number on the left must not leave the type of the result open.
    let x = array![[1.0, 2.0], [3.0, 4.0]];
    let (w, b, y) = (x.t()?, array![1.0, 1.0], array![[6.0, 12.0], [12.0, 26.0]]);
    let z = (1.0 - x.sigmoid()?)?.sum(.., false)?;
    assert!((z.item::<f32>()? - (0.2689414 + 0.1192029 + 0.0474259 + 0.0179862)).abs() < 1e-5);
    assert_eq!(((&x * &w)? + &b)?.to_vec::<f32>()?, [2.0, 7.0, 7.0, 17.0]);
    let loss = ((x.matmul(&w)? + &b)? - &y)?.square()?.mean(.., false)?;
    assert_eq!(loss.item::<f32>()?, 0.25 * (0.0 + 0.0 + 0.0 + 0.0));
    let twice = (2 * &x)?.reshape(-1)?;
    assert_eq!(twice.to_vec::<f32>()?, [2.0, 4.0, 6.0, 8.0]);
    Ok(())
}

/// What Python's MLX 0.32.4 gives for `array + number` and `number - array`.
#[test]
fn numbers_are_weak() -> Result<()> {
    for dtype in DType::ALL {
        let a = Array::ones(2, dtype)?;
        let inexact = dtype.is_float() || dtype == DType::C64;
        let with_float = if inexact { dtype } else { DType::F32 };
        let with_integer = if dtype == DType::Bool {
            DType::I32
        } else {
            dtype
        };
        assert_eq!((&a + 1.5)?.dtype(), with_float, "{dtype}");
        assert_eq!((&a + 1.5f32)?.dtype(), with_float, "{dtype}");
        assert_eq!((1.5 * &a)?.dtype(), with_float, "{dtype}");
        assert_eq!(
            (&a + half::f16::from_f32(1.5))?.dtype(),
            with_float,
            "{dtype}"
        );
        assert_eq!((&a + 1)?.dtype(), with_integer, "{dtype}");
        assert_eq!((&a * 1usize)?.dtype(), with_integer, "{dtype}");
        assert_eq!((&a * 1i64)?.dtype(), with_integer, "{dtype}");
        assert_eq!((1 * &a)?.dtype(), with_integer, "{dtype}");
        assert_eq!((&a + true)?.dtype(), dtype, "{dtype}");
        let quotient = if inexact { dtype } else { DType::F32 };
        assert_eq!((&a / 2)?.dtype(), quotient, "{dtype}");
    }
    let small = Array::from_slice(&[3i8], 1)?;
    let error = (&small + 300).expect_err("too large");
    assert!(error.to_string().contains("300"), "{error}");
    assert!((300 + &small).is_err());
    assert!((&small + usize::MAX).is_err());
    Ok(())
}

#[test]
fn comparisons_have_the_names_of_rust() -> Result<()> {
    let v = array![1.0, 2.0, 3.0];
    let bools = |array: Result<Array>| array.unwrap().to_vec::<bool>().unwrap();
    assert_eq!(bools(v.eq(2.0)), [false, true, false]);
    assert_eq!(bools(v.ne(2.0)), [true, false, true]);
    assert_eq!(bools(v.lt(2.0)), [true, false, false]);
    assert_eq!(bools(v.le(2.0)), [true, true, false]);
    assert_eq!(bools(v.gt(2)), [false, false, true]);
    assert_eq!(bools(v.ge(2)), [false, true, true]);
    let borrowed = &v;
    assert_eq!(bools(borrowed.eq(borrowed)), [true; 3]);
    let within = (v.gt(1)? & v.lt(3)?)?;
    assert_eq!(within.to_vec::<bool>()?, [false, true, false]);
    Ok(())
}

#[test]
fn operands_that_do_not_fit() {
    let (a, b) = (array![1.0, 2.0], array![1.0, 2.0, 3.0]);
    for (what, result) in [
        ("shapes", &a + &b),
        ("shapes", &a % &b),
        ("bits of floats", &a & 1),
        ("bits of floats", !&a),
        ("a shift of floats", &a << 1),
        ("the negative of Bool", -array![true]),
    ] {
        result.expect_err(what);
    }
    let error = (&a + &b).expect_err("shapes").to_string();
    assert!(error.contains("(2)") && error.contains("(3)"), "{error}");
}
