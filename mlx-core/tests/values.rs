//! Numbers that MLX alone computes wrongly without an error, and calls in which it would end the process.

use mlx_core::linalg;
use mlx_core::ops::quantize::{
    QuantMode, Scheme, dequantize_with, quantize_with, quantized_matmul_with,
};
use mlx_core::random::{self, Key};
use mlx_core::{Array, DType, ErrorKind, Result, arange, full, linspace, ones, zeros};

#[path = "shared/evaluated.rs"]
mod shared;

use shared::ints;

fn bools(array: Result<Array>) -> Vec<bool> {
    array.unwrap().to_vec().unwrap()
}

fn float(array: Result<Array>) -> f32 {
    array.unwrap().astype(DType::F32).unwrap().item().unwrap()
}

fn last(array: Result<Array>) -> f32 {
    float(array.unwrap().slice_axis(0, -1, i32::MAX))
}

#[test]
fn integers_are_compared_with_numbers_by_value() {
    let bytes = ints(&[200, 44], DType::U8);
    assert_eq!(bools(bytes.less(256)), [true, true]);
    assert_eq!(bools(bytes.equal(300)), [false, false]);
    assert_eq!(bools(bytes.not_equal(300)), [true, true]);
    assert_eq!(bools(bytes.greater(-1)), [true, true]);
    assert_eq!(bools(bytes.greater_equal(256)), [false, false]);
    assert_eq!(bools(bytes.less_equal(-1)), [false, false]);
    // A number between two integers.
    assert_eq!(bools(bytes.less(199.5)), [false, true]);
    assert_eq!(bools(bytes.less(44.5)), [false, true]);
    assert_eq!(bools(bytes.less_equal(199.5)), [false, true]);
    assert_eq!(bools(bytes.greater(43.5)), [true, true]);
    assert_eq!(bools(bytes.greater_equal(44.5)), [true, false]);
    assert_eq!(bools(bytes.equal(44.0)), [false, true]);
    assert_eq!(bools(bytes.equal(44.5)), [false, false]);
    assert_eq!(bools(bytes.not_equal(f64::NAN)), [true, true]);
    assert_eq!(bools(bytes.less(f64::NAN)), [false, false]);
    assert_eq!(bools(bytes.less(f64::INFINITY)), [true, true]);
    assert_eq!(bools(ints(&[5], DType::I32).less(1i64 << 40)), [true]);
    assert_eq!(bools(ints(&[5], DType::U32).greater(-1)), [true]);
    let large = Array::from_slice(&[(1i64 << 53) + 1], &[1]).unwrap();
    assert_eq!(bools(large.greater(2f64.powi(53))), [true]);
    assert_eq!(bools(ints(&[1], DType::Bool).less(1i64 << 40)), [true]);
    assert_eq!(
        bools(ints(&[0, 2], DType::U8).logical_and(256)),
        [false, true]
    );
    // Differences of bytes do not wrap.
    let one = ints(&[1], DType::U8);
    assert_eq!(bools(one.isclose_with(2, 0.0, 1.0, false)), [true]);
    assert_eq!(bools(one.isclose_with(300, 0.0, 1.0, false)), [false]);
}

#[test]
fn numbers_outside_a_dtype_do_not_wrap() -> Result<()> {
    let bytes = ints(&[200], DType::U8);
    for result in [
        bytes.add(256),
        bytes.subtract(-1),
        bytes.multiply(1i64 << 40),
        bytes.maximum(256),
        bytes.minimum(-1),
        bytes.clip(256, 300),
        full(&[2], 300, DType::U8),
        ints(&[1], DType::Bool).select(300, &bytes),
        arange(0.0, 300.0, 1.0, DType::U8),
        linspace(0.0, 300.0, 4, DType::U8),
    ] {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains("outside U8"), "{error}");
    }
    let small = ints(&[-100], DType::I8);
    assert_eq!(small.maximum(-1000)?.to_vec::<i8>()?, [-100]);
    assert_eq!(small.minimum(1000)?.to_vec::<i8>()?, [-100]);
    assert_eq!(small.clip(-1000, 1000)?.to_vec::<i8>()?, [-100]);
    assert_eq!(arange(0.0, 256.0, 1.0, DType::U8)?.size(), 256);
    Ok(())
}

/// The values are those of Python's MLX.
#[test]
fn an_infinite_step_takes_the_first_element_only() -> Result<()> {
    let inf = f64::INFINITY;
    for (start, stop, step, floats, integers) in [
        (0.0, 10.0, inf, &[0.0f32][..], &[0][..]),
        (5.0, 10.0, inf, &[5.0], &[5]),
        (0.5, 3.0, inf, &[0.5], &[0]),
        (0.0, -10.0, -inf, &[0.0], &[0]),
        (0.0, -10.0, inf, &[], &[]),
        (0.0, 10.0, -inf, &[], &[]),
        (0.0, 0.0, inf, &[], &[]),
    ] {
        let made = |dtype| arange(start, stop, step, dtype);
        assert_eq!(
            made(DType::F32)?.to_vec::<f32>()?,
            floats,
            "{start} {stop} {step}"
        );
        assert_eq!(
            made(DType::I32)?.to_vec::<i32>()?,
            integers,
            "{start} {stop} {step}"
        );
        assert_eq!(made(DType::U8)?.size(), integers.len());
    }
    assert_eq!(arange(250.0, 300.0, inf, DType::U8)?.to_vec::<u8>()?, [250]);
    assert!(arange(300.0, 400.0, inf, DType::U8).is_err());
    assert!(arange(0.0, inf, inf, DType::F32).is_err());
    Ok(())
}

#[test]
fn integers_are_drawn_from_the_whole_range() -> Result<()> {
    let key = Key::new(42)?;
    let draw = |n: i32, dtype, low: i64, high: i64| -> Result<Vec<i64>> {
        let drawn = random::randint(&key, low, high, &[n], dtype)?;
        assert_eq!(drawn.dtype(), dtype);
        drawn.astype(DType::I64)?.to_vec()
    };
    let distinct = |mut values: Vec<i64>| {
        values.sort_unstable();
        values.dedup();
        values.len()
    };
    assert!(distinct(draw(4000, DType::U8, 0, 256)?) > 250);
    assert!(distinct(draw(4000, DType::I8, -128, 128)?) > 250);
    assert!(distinct(draw(1000, DType::U16, 0, 1 << 16)?) > 950);
    assert!(distinct(draw(1000, DType::I16, -(1 << 15), 1 << 15)?) > 950);
    assert!(distinct(draw(1000, DType::U32, 0, 1 << 32)?) > 998);
    let (low, high) = (1i64 << 40, (1i64 << 40) + 1024);
    let drawn = draw(10_000, DType::I64, low, high)?;
    assert!(drawn.iter().all(|x| (low..high).contains(x)));
    assert!(distinct(drawn) > 1000);
    let drawn = draw(4000, DType::I64, i64::MIN, i64::MAX)?;
    assert!(distinct(drawn.clone()) > 3998);
    let negative = drawn.iter().filter(|x| **x < 0).count();
    assert!((1800..2200).contains(&negative), "{negative}");
    // Every bit is set as often as not.
    let drawn = draw(1 << 16, DType::I32, 0, 1 << 25)?;
    for bit in 0..25 {
        let share = drawn.iter().filter(|x| **x >> bit & 1 == 1).count() as f64 / (1 << 16) as f64;
        assert!((share - 0.5).abs() < 0.01, "bit {bit}: {share}");
    }
    // Bounds in arrays, and bounds far from zero.
    let (low, high) = (ints(&[-7, 5], DType::I32), ints(&[-5, 5], DType::I32));
    let drawn = random::randint(&key, &low, &high, &[100, 2], DType::I32)?.to_vec::<i32>()?;
    for pair in drawn.chunks_exact(2) {
        assert!(matches!(pair, [-7 | -6, 5]), "{pair:?}");
    }
    assert!(random::randint(&key, 0, 257, &[1], DType::U8).is_err());
    assert!(random::randint(&key, -1, 2, &[1], DType::U8).is_err());
    assert!(random::randint(&key, 3, 3, &[1], DType::I32).is_err());
    Ok(())
}

#[test]
fn sixteen_bits_accumulate_in_f32() -> Result<()> {
    assert_eq!(last(arange(0.0, 3000.0, 1.0, DType::F16)), 3000.0);
    assert_eq!(last(arange(0.0, 300.0, 1.0, DType::BF16)), 300.0);
    let long = (1 << 24) + 8;
    assert_eq!(
        last(arange(0.0, f64::from(long), 1.0, DType::F32)),
        long as f32
    );
    assert_eq!(
        float(full(&[100], 60000, DType::F16)?.mean(.., false)),
        60000.0
    );
    let many = ones(&[3000], DType::BF16)?;
    assert_eq!(last(many.cumsum(0)), 3008.0);
    assert_eq!(float(many.sum(.., false)), 3008.0);
    // ln(3000) = 8.006.
    assert_eq!(
        float(zeros(&[3000], DType::BF16)?.logsumexp(.., false)),
        8.0
    );
    assert_eq!(last(zeros(&[3000], DType::BF16)?.logcumsumexp(0)), 8.0);
    // 3000 standard deviations of 100, and a mean that F16 can represent.
    let pairs = arange(0.0, 3000.0, 1.0, DType::F32)?
        .remainder(2)?
        .multiply(200)?
        .subtract(100)?;
    let pairs = pairs.astype(DType::F16)?;
    assert_eq!(float(pairs.var(.., false)), 10000.0);
    assert_eq!(float(pairs.std(.., false)), 100.0);
    assert_eq!(
        float(linalg::norm_l2(&full(&[100], 300, DType::F16)?, .., false)),
        3000.0
    );
    assert_eq!(
        float(linalg::norm_with(
            &full(&[100], 300, DType::F16)?,
            2.0,
            ..,
            false
        )),
        3000.0
    );
    assert_eq!(float(many.vecdot_with(&many, 0)), 3008.0);
    assert_eq!(float(many.softmax(0)?.sum(.., false)), 1.0);
    let grows = full(&[2000], 1.001, DType::F16)?.astype(DType::F32)?;
    let (found, right) = (
        grows.astype(DType::F16)?.prod(.., false),
        grows.prod(.., false),
    );
    assert!((float(found) / float(right) - 1.0).abs() < 1e-3);
    // As integers.
    let tens = linspace(0.0, 99.0, 100, DType::I32)?.to_vec::<i32>()?;
    assert!(tens.into_iter().eq(0..100));
    Ok(())
}

#[test]
fn small_groups_and_odd_rows_quantise() -> Result<()> {
    for (mode, bits) in [(QuantMode::Mxfp8, 8), (QuantMode::Mxfp4, 4)] {
        let scheme = Scheme::new(32, bits, mode)?;
        for (value, dtype, right) in [
            (1e-42f32, DType::F32, 0.0f32),
            (1e-42, DType::BF16, 0.0),
            (6e-8, DType::F16, 6e-8),
            (1e-30, DType::F32, 1e-30),
        ] {
            let q = quantize_with(&full(&[2, 64], value, dtype)?, scheme)?;
            let back = dequantize_with(&q.packed, &q.scales, None, scheme, Some(DType::F32))?;
            for found in back.to_vec::<f32>()? {
                assert!(
                    (found - right).abs() <= 0.3 * right,
                    "{mode} {value}: {found}"
                );
            }
        }
    }
    let scheme = Scheme::new(16, 4, QuantMode::Nvfp4)?;
    let w = random::normal(&Key::new(1)?, &[33, 16], DType::F32)?;
    let all = quantize_with(&w, scheme)?;
    assert_eq!(all.packed.shape(), [33, 2]);
    assert_eq!(all.scales.shape(), [33, 1]);
    // The rows of a matrix do not depend on their number.
    let some = quantize_with(&w.slice(&[0, 0], &[32, 16])?, scheme)?;
    let first = all.packed.slice(&[0, 0], &[32, 2])?;
    assert_eq!(first.to_vec::<u32>()?, some.packed.to_vec::<u32>()?);
    Ok(())
}

#[test]
fn empty_products_are_empty() -> Result<()> {
    let scheme = Scheme::new(64, 4, QuantMode::Affine)?;
    let w = quantize_with(&ones(&[4, 64], DType::F32)?, scheme)?;
    let x = zeros(&[0, 64], DType::F32)?;
    let y = quantized_matmul_with(&x, &w.packed, &w.scales, w.biases.as_ref(), true, scheme)?;
    assert_eq!(y.shape(), [0, 4]);
    assert!(y.to_vec::<f32>()?.is_empty());
    let a = Array::from_slice(&[0f32, 1.0, 2.0, 3.0], &[4])?;
    let none = Array::from_slice::<f32>(&[], &[0])?;
    let kept = a.masked_scatter(&zeros(&[4], DType::Bool)?, &none)?;
    assert_eq!(kept.to_vec::<f32>()?, [0.0, 1.0, 2.0, 3.0]);
    let asked = a.masked_scatter(&ones(&[4], DType::Bool)?, &none)?;
    assert!(mlx_core::eval([&asked]).is_err());
    Ok(())
}
