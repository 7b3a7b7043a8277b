//! Memory that the system does not have.

use mlx_core::{
    Array, DType, ErrorKind, Result, async_eval, eval, memory, ones, synchronize, zeros,
};

/// Runs `f` without the limit that is there to refuse such arrays before MLX is asked for them.
fn without_limit<T>(f: impl FnOnce() -> Result<T>) -> Result<T> {
    let limit = memory::array_limit();
    memory::set_array_limit(usize::MAX);
    let result = f();
    memory::set_array_limit(limit);
    result
}

/// More bytes than a process can address, however much memory there is.
const SHAPE: [i32; 2] = [i32::MAX, 1 << 15];

#[test]
fn memory_that_is_not_there_is_an_error() -> Result<()> {
    let x = ones(&[4], DType::F32)?;
    eval([&x])?;
    let (before, peak) = (memory::active()?, memory::peak()?);
    for _ in 0..20 {
        let error = without_limit(|| eval([ones(&SHAPE, DType::F32)?.add(1.0)?])).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Memory, "{error}");
        assert_eq!(
            error.to_string(),
            format!("no memory for {} bytes", i32::MAX as u64 * (1 << 17))
        );
    }
    // What was not given is not counted, and nothing waits for it to come back.
    assert_eq!(memory::active()?, before);
    assert!(memory::peak()? < peak + (1 << 20), "{}", memory::peak()?);
    assert_eq!(x.add(1.0)?.to_vec::<f32>()?, [2.0; 4]);
    Ok(())
}

#[test]
fn the_steps_before_and_after_are_not_touched() -> Result<()> {
    let x = ones(&[4], DType::F32)?;
    let good = x.add(1.0)?;
    eval([&good])?;
    let bad: Result<Array> = without_limit(|| {
        let bad = zeros(&SHAPE, DType::F32)?.add(&x.sum(.., false)?)?;
        let sum = bad.sum(.., false)?.add(&good.sum(.., false)?)?;
        async_eval([&sum])?;
        synchronize()?;
        Ok(sum)
    });
    assert_eq!(bad.unwrap_err().kind(), ErrorKind::Memory);
    assert_eq!(good.add(&x)?.to_vec::<f32>()?, [3.0; 4]);
    Ok(())
}
