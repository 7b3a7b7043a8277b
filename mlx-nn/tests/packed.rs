//! Packed matrices with more parts than a scheme has: factors of rows, residues of biases, and F32
//! biases beside 16-bit inputs.

use mlx_core::fast::{self, Form, Op};
use mlx_core::{Array, DType, QuantMode, Quantized, Result, Scheme, quantize_with, random};
use mlx_nn::{Embedding, Linear, Param, Weight, quantize};

const ROWS: i32 = 48;
const COLUMNS: i32 = 64;

fn scheme() -> Scheme {
    Scheme::new(32, 4, QuantMode::Affine).unwrap()
}

fn normal(seed: u64, shape: &[i32]) -> Array {
    let key = random::Key::new(seed).unwrap();
    random::normal_with(&key, shape, DType::F32, 0.0, 1.0).unwrap()
}

/// Codes, scales of `dtype` and biases that `dtype` does not hold: -zero * scale.
fn parts(shape: &[i32], dtype: DType) -> Result<(Array, Array, Array)> {
    let Quantized { packed, scales, .. } = quantize_with(&normal(1, shape), scheme())?;
    let scales = scales.astype(dtype)?;
    let zeros = normal(2, scales.shape())
        .multiply(2.0f32)?
        .round()?
        .add(7.0f32)?;
    let biases = scales.astype(DType::F32)?.multiply(zeros.negative()?)?;
    let rounded = biases.astype(dtype)?.astype(DType::F32)?;
    assert!(
        !biases.array_equal(&rounded)?.item::<bool>()?,
        "{dtype} holds them"
    );
    Ok((packed, scales, biases))
}

fn packed(
    (packed, scales, biases): (Array, Array, Array),
    factor: Option<Array>,
    residues: Option<Array>,
) -> Weight {
    Weight::Quantized {
        packed: Param::fixed(packed),
        scales: Param::fixed(scales),
        biases: Some(Param::fixed(biases)),
        factor: factor.map(|factor| Box::new(Param::fixed(factor))),
        residues: residues.map(|residues| Box::new(Param::fixed(residues))),
        scheme: scheme(),
    }
}

fn exact((codes, scales, biases): &(Array, Array, Array)) -> Result<Array> {
    let scales = scales.astype(DType::F32)?;
    let weight = packed((codes.clone(), scales, biases.clone()), None, None);
    weight.dense(Some(DType::F32))
}

/// Rounded biases, and what they lack.
fn split((codes, scales, biases): &(Array, Array, Array)) -> Result<Weight> {
    let dtype = scales.dtype();
    let rounded = biases.astype(dtype)?;
    let residues = biases
        .subtract(rounded.astype(DType::F32)?)?
        .astype(dtype)?;
    let parts = (codes.clone(), scales.clone(), rounded);
    Ok(packed(parts, None, Some(residues)))
}

fn off(a: &Array, b: &Array) -> f32 {
    let (a, b) = (a.astype(DType::F32).unwrap(), b.astype(DType::F32).unwrap());
    let difference = a.subtract(&b).unwrap().abs().unwrap();
    difference.max_all().unwrap().item().unwrap()
}

fn same(a: &Array, b: &Array) -> bool {
    a.array_equal(b).unwrap().item().unwrap()
}

#[test]
fn residues_give_back_what_rounded_biases_lose() -> Result<()> {
    for dtype in [DType::F16, DType::BF16] {
        let parts = parts(&[ROWS, COLUMNS], dtype)?;
        let dense = exact(&parts)?;
        let weight = split(&parts)?;
        assert!(same(&weight.dense(Some(DType::F32))?, &dense), "{dtype}");
        // Inputs of one sign, so that the errors of biases add up.
        let x = normal(3, &[5, COLUMNS]).abs()?.add(4.0f32)?.astype(dtype)?;
        let wanted = x.astype(DType::F32)?.matmul(&dense.t()?)?;
        let y = weight.project(&x)?;
        assert_eq!(y.dtype(), dtype);
        let Weight::Quantized {
            packed: codes,
            scales,
            biases,
            ..
        } = &weight
        else {
            panic!("it is packed");
        };
        let biases = biases.as_ref().expect("affine").value().clone();
        let rounded = packed(
            (codes.value().clone(), scales.value().clone(), biases),
            None,
            None,
        );
        // The sum and the result are rounded.
        let largest = off(&wanted, &wanted.multiply(0.0f32)?);
        let steps = if dtype == DType::F16 { 1024.0 } else { 128.0 };
        // MLX's own product rounds each of its partial sums to the dtype.
        let roundings = match fast::form(Op::Linear)? {
            Form::Plain => 8.0,
            _ => 1.0,
        };
        let found = off(&y, &wanted);
        assert!(
            found <= roundings * largest / steps,
            "{dtype}: {found} of {largest}"
        );
        // In F32 only the biases are rounded.
        let wide = x.astype(DType::F32)?;
        let (with, without) = (weight.project(&wide)?, rounded.project(&wide)?);
        let (with, without) = (off(&with, &wanted), off(&without, &wanted));
        assert!(
            with < 0.01 * without,
            "{dtype}: {with} with residues, {without} without"
        );
        // As a layer beside another one, and as a table.
        let mut layer = Linear::empty(COLUMNS, ROWS, false)?;
        *layer.weight_mut() = weight.clone();
        let [a, b] = Linear::forward_all([&layer, &layer], &x)?;
        for other in [&a, &b] {
            let is_close = off(other, &wanted) <= roundings * largest / steps;
            assert!(same(other, &y) || (roundings > 1.0 && is_close), "{dtype}");
        }
        let ids = Array::from_slice(&[7i32, 0], &[2])?;
        let rows = weight.rows(&ids, Some(DType::F32))?;
        // MLX's own lookup rounds the numbers to the dtype of the scales.
        let wanted = dense.take(&ids, 0)?;
        let nearly = off(&rows, &wanted) <= off(&dense, &dense.multiply(0.0f32)?) / steps;
        let is_plain = roundings > 1.0;
        assert!(same(&rows, &wanted) || (is_plain && nearly), "{dtype}");
    }
    Ok(())
}

#[test]
fn wide_biases_and_factors_are_exact_in_sixteen_bits() -> Result<()> {
    for dtype in [DType::F16, DType::BF16] {
        let (codes, scales, biases) = parts(&[ROWS, COLUMNS], dtype)?;
        let dense = exact(&(codes.clone(), scales.clone(), biases.clone()))?;
        let wide = (codes.clone(), scales.astype(DType::F32)?, biases);
        let x = normal(4, &[5, COLUMNS]).astype(dtype)?;
        let wanted = x.astype(DType::F32)?.matmul(&dense.t()?)?;
        let y = packed(wide, None, None).project(&x)?;
        // One rounding of the result.
        assert_eq!(y.dtype(), dtype);
        assert!(
            off(&y, &wanted.astype(dtype)?) <= off(&wanted, &y) * 2.0 + 1e-6,
            "{dtype}"
        );
        assert!(
            off(&y, &wanted) < 0.004 * off(&wanted, &wanted.multiply(0.0f32)?),
            "{dtype}"
        );
        // Codes minus zeros, times a factor of each row.
        let ones = scales.multiply(0.0f32)?.add(1.0f32)?.astype(dtype)?;
        let zeros = ones.multiply(-7.0f32)?.astype(dtype)?;
        let factor = normal(5, &[ROWS]).multiply(0.01f32)?;
        let integers = packed((codes, ones, zeros), None, None).dense(Some(DType::F32))?;
        let dense = integers.multiply(factor.expand_dims(-1)?)?;
        let Weight::Quantized {
            packed: codes,
            scales,
            biases,
            ..
        } = packed_integers(&integers, dtype)?
        else {
            panic!("it is packed");
        };
        let parts = (
            codes.into_value(),
            scales.into_value(),
            biases.expect("affine").into_value(),
        );
        let weight = packed(parts, Some(factor), None);
        assert!(same(&weight.dense(Some(DType::F32))?, &dense), "{dtype}");
        let wanted = x.astype(DType::F32)?.matmul(&dense.t()?)?;
        let y = weight.project(&x)?;
        assert_eq!(y.dtype(), dtype);
        let largest = off(&wanted, &wanted.multiply(0.0f32)?);
        assert!(
            off(&y, &wanted) < 0.012 * largest,
            "{dtype}: {}",
            off(&y, &wanted) / largest
        );
        let ids = Array::from_slice(&[3i32, 40], &[2])?;
        let rows = weight.rows(&ids, Some(DType::F32))?;
        assert!(same(&rows, &dense.take(&ids, 0)?), "{dtype}");
    }
    Ok(())
}

/// Whole numbers from -7 to 8 as codes with the scale 1 and the bias -7.
fn packed_integers(integers: &Array, dtype: DType) -> Result<Weight> {
    let codes = integers.add(7.0f32)?.astype(DType::U32)?;
    let shifts: Vec<u32> = (0..8).map(|at| 4 * at).collect();
    let codes = codes.unflatten(-1, &[-1, 8])?;
    let words = codes.left_shift(Array::from_slice(&shifts, &[8])?)?;
    let words = words.sum(-1, false)?.astype(DType::U32)?;
    let groups = [ROWS, COLUMNS / 32];
    let ones = mlx_core::ones(&groups, dtype)?;
    let biases = ones.multiply(-7.0f32)?.astype(dtype)?;
    Ok(packed((words, ones, biases), None, None))
}

/// `fold` gives MLX's files their three parts.
#[test]
fn folded_matrices_are_the_same_in_f32() -> Result<()> {
    let parts = parts(&[ROWS, COLUMNS], DType::F16)?;
    let dense = exact(&parts)?;
    let mut layer = Linear::empty(COLUMNS, ROWS, false)?;
    *layer.weight_mut() = split(&parts)?;
    quantize::fold(&mut layer)?;
    let Weight::Quantized {
        scales,
        factor,
        residues,
        ..
    } = layer.weight()
    else {
        panic!("it is packed");
    };
    assert!(factor.is_none() && residues.is_none());
    assert_eq!(scales.value().dtype(), DType::F32);
    assert!(same(&layer.weight().dense(None)?, &dense));
    Ok(())
}

/// Experts: each has its own residues and factors.
#[test]
fn experts_have_residues_and_factors() -> Result<()> {
    let shape = [3, ROWS, COLUMNS];
    let parts = parts(&shape, DType::F16)?;
    let dense = exact(&parts)?;
    let x = normal(6, &[4, 1, 1, COLUMNS])
        .abs()?
        .add(4.0f32)?
        .astype(DType::F16)?;
    let experts = Array::from_slice(&[2u32, 0, 1, 1, 0, 2, 2, 0], &[4, 2])?;
    let chosen = dense.take(&experts, 0)?.swapaxes(-1, -2)?;
    let wanted = x.astype(DType::F32)?.matmul(&chosen)?;
    let weight = split(&parts)?;
    let y = weight.project_experts(&x, &experts)?;
    assert_eq!((y.shape(), y.dtype()), (wanted.shape(), DType::F16));
    let largest = off(&wanted, &wanted.multiply(0.0f32)?);
    assert!(
        off(&y, &wanted) < 0.002 * largest,
        "{}",
        off(&y, &wanted) / largest
    );
    let factor = normal(7, &[3, ROWS]);
    let (codes, scales, biases) = parts;
    let wide = (codes, scales.astype(DType::F32)?, biases);
    let weight = packed(wide, Some(factor.clone()), None);
    let factor = factor.take(&experts, 0)?.expand_dims(-2)?;
    let x = x.astype(DType::F32)?;
    let y = weight.project_experts(&x, &experts)?;
    let wanted = wanted.multiply(factor)?;
    let largest = off(&wanted, &wanted.multiply(0.0f32)?);
    assert!(
        off(&y, &wanted) < 1e-5 * largest,
        "{}",
        off(&y, &wanted) / largest
    );
    Ok(())
}

/// A factor beside other schemes is refused, and an embedding takes one.
#[test]
fn a_table_may_have_a_factor() -> Result<()> {
    let nvfp4 = Scheme::default_of(QuantMode::Nvfp4);
    let Quantized { packed, scales, .. } = quantize_with(&normal(8, &[ROWS, COLUMNS]), nvfp4)?;
    let factor = normal(9, &[ROWS]);
    let plain = Weight::Quantized {
        packed: Param::fixed(packed),
        scales: Param::fixed(scales),
        biases: None,
        factor: None,
        residues: None,
        scheme: nvfp4,
    };
    let dense = plain
        .dense(Some(DType::F32))?
        .multiply(factor.expand_dims(-1)?)?;
    let Weight::Quantized { packed, scales, .. } = plain else {
        panic!("it is packed");
    };
    let weight = Weight::Quantized {
        packed,
        scales,
        biases: None,
        factor: Some(Box::new(Param::fixed(factor))),
        residues: None,
        scheme: nvfp4,
    };
    let ids = Array::from_slice(&[1i32, 30], &[2])?;
    let rows = weight.rows(&ids, Some(DType::F32))?;
    assert!(off(&rows, &dense.take(&ids, 0)?) < 1e-5);
    assert!(off(&weight.dense(Some(DType::F32))?, &dense) < 1e-5);
    let mut table = Embedding::empty(ROWS, COLUMNS)?;
    struct Set(Option<Weight>);
    impl mlx_nn::VisitMut for Set {
        fn weight(&mut self, _path: &mlx_nn::Path, weight: &mut Weight) -> Result<()> {
            if let Some(new) = self.0.take() {
                *weight = new;
            }
            Ok(())
        }
    }
    use mlx_nn::Module;
    table.visit_mut(&mut mlx_nn::Path::default(), &mut Set(Some(weight)))?;
    let x = normal(10, &[2, COLUMNS]);
    let y = table.as_linear(&x)?;
    assert!(off(&y, &x.matmul(&dense.t()?)?) < 1e-4);
    Ok(())
}
