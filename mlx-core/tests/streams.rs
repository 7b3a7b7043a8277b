//! Devices, streams and memory statistics.

#[path = "failing/kernel.rs"]
mod failing;

use failing::failing_later;
use mlx_core::{
    Array, DType, Device, DeviceKind, ErrorKind, Result, Stream, async_eval, eval, memory, ones,
    synchronize,
};

#[test]
fn a_scope_changes_the_stream_and_gives_it_back() -> Result<()> {
    let device = Device::default_device()?;
    let (one, two) = (Stream::new(device)?, Stream::new(device)?);
    let x = ones(&[4], DType::F32)?;
    let y = one.scope(|| -> Result<Array> {
        let y = x.add(1.0)?;
        let z = two.scope(|| y.multiply(3.0))?;
        synchronize()?;
        z.subtract(&y)
    })?;
    // A graph over three streams.
    assert_eq!(y.add(&x)?.to_vec::<f32>()?, [5.0; 4]);
    // A panic leaves the scope as well.
    let caught =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| one.scope(|| panic!("out"))));
    assert!(caught.is_err());
    assert_eq!(x.add(2.0)?.to_vec::<f32>()?, [3.0; 4]);
    Ok(())
}

#[test]
fn devices_that_are_not_there_are_refused() -> Result<()> {
    let device = Device::default_device()?;
    assert!(device.is_available()?);
    assert!(Device::CPU.is_available()?);
    assert_eq!(
        (Device::CPU.to_string(), Device::GPU.to_string()),
        ("cpu:0".into(), "gpu:0".into())
    );
    let missing = Device {
        kind: DeviceKind::Gpu,
        index: 99,
    };
    assert!(!missing.is_available()?);
    let error = missing.set_default().unwrap_err();
    assert_eq!(
        (error.kind(), error.to_string()),
        (
            ErrorKind::Unsupported,
            "device gpu:99 is not available".into()
        )
    );
    assert_eq!(
        Stream::new(missing).err().map(|error| error.kind()),
        Some(ErrorKind::Unsupported)
    );
    assert_eq!(Device::default_device()?, device);
    Ok(())
}

#[test]
fn threads_have_their_own_streams() {
    let threads: Vec<_> = (0..3)
        .map(|i| {
            std::thread::spawn(move || -> Result<f32> {
                let x = ones(&[64, 64], DType::F32)?.multiply(i as f32)?;
                x.matmul(&x)?.sum(.., false)?.item()
            })
        })
        .collect();
    for (i, thread) in threads.into_iter().enumerate() {
        assert_eq!(
            thread.join().unwrap().unwrap(),
            (64 * 64 * 64 * i * i) as f32
        );
    }
}

#[test]
fn a_good_stream_does_not_vouch_for_another() -> Result<()> {
    let second = Stream::new(Device::CPU)?;
    let x = ones(&[4], DType::F32)?;
    eval([&x])?;
    let broken = second.scope(|| -> Result<Array> {
        let (broken, fail) = failing_later(&x, "on the second stream")?;
        async_eval([&broken.add(1.0)?])?;
        drop(fail);
        Ok(broken)
    })?;
    // By now it has usually failed; then the first stream succeeds, and `broken` is used again.
    std::thread::sleep(std::time::Duration::from_millis(50));
    eval([x.add(1.0)?])?;
    let used = broken.add(2.0)?;
    let error = second.scope(synchronize).unwrap_err();
    assert!(
        error.to_string().contains("on the second stream"),
        "{error}"
    );
    for array in [&broken, &used] {
        assert_eq!(
            array.to_vec::<f32>().unwrap_err().kind(),
            ErrorKind::Poisoned
        );
    }
    assert_eq!(x.add(1.0)?.to_vec::<f32>()?, [2.0; 4]);
    Ok(())
}

#[test]
fn memory_is_counted_and_given_back() -> Result<()> {
    let bytes = 8 << 20;
    memory::clear_cache()?;
    memory::reset_peak()?;
    let before = memory::active()?;
    let x = ones(&[bytes / 4], DType::F32)?.add(1.0)?;
    assert!(
        memory::active()? < before + bytes as usize,
        "nothing is allocated before evaluation"
    );
    eval([&x])?;
    assert!(memory::active()? >= before + bytes as usize);
    assert!(memory::peak()? >= before + bytes as usize);
    drop(x);
    assert!(memory::active()? < before + bytes as usize);
    memory::clear_cache()?;
    assert_eq!(memory::cached()?, 0);
    let limit = memory::set_cache_limit(0)?;
    let y = ones(&[bytes / 4], DType::F32)?.add(1.0)?;
    eval([&y])?;
    drop(y);
    assert!(
        memory::cached()? < bytes as usize,
        "a cache limit of 0 keeps nothing"
    );
    assert_eq!(memory::set_cache_limit(limit)?, 0);
    let limit = memory::memory_limit()?;
    assert_eq!(memory::set_memory_limit(limit)?, limit);
    Ok(())
}

#[test]
fn streams_of_each_thread_are_of_their_own() -> Result<()> {
    let streams = mlx_core::stream::ThreadLocalStream::new(Device::CPU)?;
    let compute = || -> Result<f32> {
        streams.stream()?.scope(|| {
            let x = mlx_core::arange(0, 1000, 1, DType::F32)?;
            x.sum_all()?.item::<f32>()
        })
    };
    let found: Vec<f32> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(compute)).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap().unwrap())
            .collect()
    });
    assert_eq!(found, [499_500.0; 4]);
    assert_eq!(compute()?, 499_500.0);
    assert_eq!(mlx_core::stream::device_count(DeviceKind::Cpu)?, 1);
    let gpus = mlx_core::stream::device_count(DeviceKind::Gpu)?;
    assert_eq!(gpus > 0, Device::GPU.is_available()?);
    Ok(())
}

#[test]
fn cleared_streams_are_made_again() {
    std::thread::spawn(|| -> Result<()> {
        let ready = mlx_core::array![1.0f32, 2.0];
        let sum = ready.sum_all()?;
        let started = ready.multiply(3)?;
        async_eval([&started])?;
        let stream = Stream::new(Device::CPU)?;
        let within = stream.scope(mlx_core::stream::clear_streams);
        assert!(within.unwrap_err().to_string().contains("still running"));
        mlx_core::stream::clear_streams()?;
        assert_eq!(
            started.to_vec::<f32>()?,
            [3.0, 6.0],
            "its work was waited for"
        );
        assert_eq!(
            ready.add(1)?.to_vec::<f32>()?,
            [2.0, 3.0],
            "on a new stream"
        );
        assert!(sum.item::<f32>().is_err(), "its stream is gone");
        assert_eq!(ready.prod_all()?.item::<f32>()?, 2.0);
        Ok(())
    })
    .join()
    .unwrap()
    .unwrap();
}
