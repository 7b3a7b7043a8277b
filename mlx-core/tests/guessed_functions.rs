//! Calls that somebody who knows MLX's Python, NumPy or candle writes before reading the documentation, word for word:
//! Python's functions as functions, reading, linear algebra, files, devices.

use mlx_core::DType::*;
use mlx_core::*;

fn vector() -> Array {
    array![3.0f32, 1.0, 2.0]
}

fn matrix() -> Result<Array> {
    arange(1.0, 5.0, 1.0, F32)?.reshape((2, 2))
}

fn floats(array: Result<Array>) -> Vec<f32> {
    array.unwrap().to_vec().unwrap()
}

fn is(array: Result<Array>) -> bool {
    array.unwrap().item().unwrap()
}

#[test]
fn making_and_reading() -> Result<()> {
    let (v, m) = (vector(), matrix()?);
    assert_eq!(Array::full(&[2, 2], 7.0, F32)?.size(), 4);
    assert_eq!(Array::linspace(0.0, 1.0, 5, F32)?.to_vec::<f32>()?[1], 0.25);
    assert_eq!(
        Array::arange(0, 10, 2, I32)?.to_vec::<i32>()?,
        [0, 2, 4, 6, 8]
    );
    assert_eq!(floats(identity(2, F32)), [1.0, 0.0, 0.0, 1.0]);
    assert_eq!(floats(zeros_like(&v)), [0.0; 3]);
    assert_eq!(v.to_vec1::<f32>()?, [3.0, 1.0, 2.0]);
    assert!(
        m.to_vec1::<f32>().is_err(),
        "a matrix is not a list of numbers"
    );
    assert_eq!(m.to_vec2::<f32>()?, [[1.0, 2.0], [3.0, 4.0]]);
    assert_eq!(m.i(0)?.i(1)?.item::<f32>()?, 2.0);
    assert_eq!(v.i(1..3)?.to_vec::<f32>()?, [1.0, 2.0]);
    assert_eq!(m.nbytes(), 16);
    assert_eq!(format!("{v}"), "array([3, 1, 2], dtype=float32)");
    Ok(())
}

#[test]
fn functions_of_elements_and_of_two_arrays() -> Result<()> {
    let (v, m) = (vector(), matrix()?);
    let mask = v.gt(1.5)?;
    assert!(is(allclose(&v, &v)) && is(array_equal(&m, &m)));
    assert!(!is(isinf(&v)?.any(.., false)) && !is(isnan(&v)?.any(.., false)));
    assert_eq!(floats(exp(&zeros_like(&v)?)), [1.0; 3]);
    assert_eq!(floats(square(&v)), [9.0, 1.0, 4.0]);
    assert_eq!(floats(maximum(&v, 2.0)), [3.0, 2.0, 2.0]);
    assert_eq!(floats(v.clip(1.5, 2.5)), [2.5, 1.5, 2.0]);
    assert_eq!(floats(relu(&negative(&v)?)), [0.0; 3]);
    assert!(is(logical_and(&mask, &mask)?.array_equal(&mask)));
    assert_eq!(floats(Ok(divmod(&v, 2.0)?.1)), [1.0, 1.0, 0.0]);
    assert_eq!(floats(nan_to_num(&array![f32::NAN])), [0.0]);
    assert_eq!(floats(stop_gradient(&v)), [3.0, 1.0, 2.0]);
    assert_eq!(floats(inner(&v, &v)), [14.0]);
    assert_eq!(outer(&v, &v)?.shape(), [3, 3]);
    assert_eq!(kron(&m, &m)?.shape(), [4, 4]);
    assert_eq!(floats(matmul(&m, &m)), [7.0, 10.0, 15.0, 22.0]);
    assert_eq!(floats(addmm(&m, &m, &m)), [8.0, 12.0, 18.0, 26.0]);
    assert_eq!(floats(einsum("ij,jk->ik", &[&m, &m])), floats(m.matmul(&m)));
    assert_eq!(floats(v.clone() - 1.0), [2.0, 0.0, 1.0]);
    assert_eq!(floats(-(v.clone())), [-3.0, -1.0, -2.0]);
    assert_eq!(floats((&v + &v)? * 2.0), [12.0, 4.0, 8.0]);
    Ok(())
}

#[test]
fn reductions_and_sorts() -> Result<()> {
    let (v, m) = (vector(), matrix()?);
    assert_eq!(floats(softmax(&v, -1)), floats(v.softmax(-1)));
    assert_eq!(floats(m.mean(&[0, 1], true)), [2.5]);
    assert_eq!(floats(m.min_all()), [1.0]);
    assert_eq!(floats(median(&v, 0, false)), [2.0]);
    assert_eq!(floats(trace(&m)), [5.0]);
    assert_eq!(floats(v.sort(-1)), [1.0, 2.0, 3.0]);
    assert_eq!(argsort(&v, -1)?.to_vec::<u32>()?, [1, 2, 0]);
    let mut top = floats(topk(&v, 2, -1));
    top.sort_by(f32::total_cmp);
    assert_eq!(top, [2.0, 3.0]);
    assert_eq!(floats(partition(&v, 0, -1))[0], 1.0);
    assert_eq!(v.argmin_all()?.item::<u32>()?, 1);
    assert_eq!(floats(cumprod(&v, 0)), [3.0, 3.0, 6.0]);
    assert_eq!(floats(v.cummax(0)), [3.0; 3]);
    assert_eq!(
        sum(&m, 0, false)?.to_vec::<f32>()?,
        m.sum(0, false)?.to_vec::<f32>()?
    );
    Ok(())
}

#[test]
fn shapes() -> Result<()> {
    let (v, m) = (vector(), matrix()?);
    assert_eq!(v.unsqueeze(0)?.shape(), [1, 3]);
    assert_eq!(m.swapaxes(0, 1)?.to_vec::<f32>()?, [1.0, 3.0, 2.0, 4.0]);
    assert_eq!(reshape(&m, (4, 1))?.shape(), [4, 1]);
    assert_eq!(v.broadcast_to(&[4, 3])?.shape(), [4, 3]);
    assert_eq!(split(&m, 2, 1)?.len(), 2);
    let order = array![2, 0];
    assert_eq!(floats(v.take(&order, 0)), [2.0, 3.0]);
    let columns = array![[1], [0]];
    assert_eq!(floats(take_along_axis(&m, &columns, 1)), [2.0, 3.0]);
    assert_eq!(view(&v, U32)?.to_vec::<u32>()?[1], 1f32.to_bits());
    assert_eq!(floats(contiguous(&m.t()?)), [1.0, 3.0, 2.0, 4.0]);
    assert_eq!(floats(stack(&[&v, &v], 0)?.i(1)), [3.0, 1.0, 2.0]);
    assert_eq!(floats(v.roll(1, 0)), [2.0, 3.0, 1.0]);
    Ok(())
}

#[test]
fn linear_algebra_and_draws() -> Result<()> {
    let p = array![[2.0f32, 0.0], [0.0, 4.0]];
    let unit = identity(3, F32)?;
    assert_eq!(
        floats(linalg::cross(&unit.i(0)?, &unit.i(1)?)),
        [0.0, 0.0, 1.0]
    );
    assert_eq!(floats(linalg::inv(&p)), [0.5, 0.0, 0.0, 0.25]);
    assert_eq!(floats(linalg::solve(&p, &array![2.0f32, 4.0])), [1.0, 1.0]);
    let key = random::key(7)?;
    assert_eq!(random::normal(&key, &[2, 3], F32)?.shape(), [2, 3]);
    let again = random::normal(&random::key(7)?, &[2, 3], F32)?;
    assert!(is(random::normal(&key, &[2, 3], F32)?.array_equal(&again)));
    Ok(())
}

#[test]
fn transforms() -> Result<()> {
    let v = vector();
    let (y, dy) = jvp(|x: &Array| x.exp(), &v, &v)?;
    assert_eq!(floats(dy / y), [3.0, 1.0, 2.0]);
    let (y, dx) = vjp(|x: &Array| x.exp(), &v, &v)?;
    assert_eq!(floats(dx / y), [3.0, 1.0, 2.0]);
    assert_eq!(
        floats(checkpoint(|x: &Array| x.square())(&v)),
        [9.0, 1.0, 4.0]
    );
    Ok(())
}

#[test]
fn files_devices_and_memory() -> Result<()> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("a.safetensors");
    let v = vector();
    save_safetensors(&path, &[("v", &v)])?;
    assert_eq!(
        load_safetensors(&path)?["v"].to_vec1::<f32>()?,
        [3.0, 1.0, 2.0]
    );
    let before = default_device()?;
    set_default_device(Device::CPU)?;
    assert_eq!(default_device()?, Device::CPU);
    set_default_device(before)?;
    let stream = new_stream(Device::CPU)?;
    assert_eq!(floats(stream.scope(|| exp(&zeros_like(&v)?))), [1.0; 3]);
    synchronize()?;
    let limit = set_memory_limit(1 << 33)?;
    set_memory_limit(limit)?;
    clear_cache()?;
    Ok(())
}
