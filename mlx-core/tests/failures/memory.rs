//! Requests for more memory than the system has.

use mlx_core::{
    Array, DType, ErrorKind, Result, async_eval, eval, memory, ones, synchronize, zeros,
};

/// Runs `f` without the array limit, which would refuse such arrays before MLX is asked for memory.
fn without_limit<T>(f: impl FnOnce() -> Result<T>) -> Result<T> {
    let limit = memory::array_limit();
    memory::set_array_limit(usize::MAX);
    let result = f();
    memory::set_array_limit(limit);
    result
}

/// More bytes than a process can address, whatever the machine's memory.
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
    // Memory that was refused is not counted, and no later call waits for it.
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

const CHILD: &str = "MLX_CORE_TEST_MEMORY_ENDS";

/// Run by the child: fills its memory with small and large arrays, again and again.
#[test]
#[cfg(target_os = "linux")]
fn memory_is_filled() -> Result<()> {
    if std::env::var_os(CHILD).is_none() {
        return Ok(());
    }
    let x = ones(&[4], DType::F32)?;
    eval([&x])?;
    let before = memory::active()?;
    for size in [300_000, 30_000, 300_000] {
        let mut held = Vec::new();
        let error = loop {
            let next = (0..10)
                .try_fold(x.sum(.., false)?, |y, _| y.add(1.0))
                .and_then(|y| {
                    let y = zeros(&[size], DType::F32)?.add(&y)?;
                    async_eval([&y])?;
                    Ok(y)
                });
            match next {
                Ok(y) => held.push(y),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::Memory, "{error}");
        assert!(held.len() > 5, "{}", held.len());
        drop(held);
        synchronize().ok();
        assert_eq!(memory::active()?, before);
        assert_eq!(x.add(1.0)?.to_vec::<f32>()?, [2.0; 4]);
    }
    println!("filled");
    Ok(())
}

/// In a process whose limit is little above the memory that it starts with.
#[test]
#[cfg(target_os = "linux")]
fn memory_that_ends_is_an_error_and_comes_back() {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = pages.split(' ').next().unwrap().parse().unwrap();
    for more in [100, 101] {
        let limit = pages * 4 + more * 1024;
        let output = std::process::Command::new("sh")
            .args(["-c", &format!("ulimit -v {limit}; exec \"$@\""), "sh"])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "memory::memory_is_filled", "--nocapture"])
            .env(CHILD, "1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && said.contains("filled"),
            "{more} MB: {}: {said}{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
    }
}
