//! Devices, streams and memory statistics.

#[path = "failing/kernel.rs"]
mod failing;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use failing::failing_later;
use mlx_core::kernel::{self, CpuKernel, Spec, View, ViewMut};
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
            thread::spawn(move || -> Result<f32> {
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
    thread::sleep(Duration::from_millis(50));
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
    let found: Vec<f32> = thread::scope(|scope| {
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
    thread::spawn(|| -> Result<()> {
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

/// A kernel whose tasks wait until the gate is open.
#[derive(Default)]
struct Gate {
    is_open: Mutex<bool>,
    opened: Condvar,
    /// The tasks that have begun.
    begun: AtomicUsize,
}

struct Gated(Arc<Gate>);

impl CpuKernel for Gated {
    fn name(&self) -> &'static str {
        "gated"
    }
    fn output(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        Ok(inputs.to_vec())
    }
    fn eval(&self, _: &[View<'_>], _: &mut [ViewMut<'_>]) -> std::result::Result<(), String> {
        self.0.begun.fetch_add(1, Ordering::SeqCst);
        let is_open = self.0.is_open.lock().unwrap();
        drop(self.0.opened.wait_while(is_open, |open| !*open).unwrap());
        Ok(())
    }
}

impl Gate {
    fn open(&self) {
        *self.is_open.lock().unwrap() = true;
        self.opened.notify_all();
    }
}

/// MLX counts the tasks of all streams together, and a thread that evaluates waits while more than
/// ten are counted.
#[test]
fn a_thread_does_not_wait_for_the_tasks_of_another() -> Result<()> {
    if Device::default_device()?.kind != DeviceKind::Cpu {
        eprintln!("left out: the tasks of CPU streams beside a GPU are counted by MLX");
        return Ok(());
    }
    let gate = Arc::new(Gate::default());
    let of_reader = gate.clone();
    let reader = thread::spawn(move || -> Result<()> {
        let one = ones(&[1], DType::F32)?;
        let parts: Result<Vec<Array>> = (0..300)
            .map(|_| Ok(kernel::apply(Gated(of_reader.clone()), &[&one])?.remove(0)))
            .collect();
        eval(&parts?)
    });
    while gate.begun.load(Ordering::SeqCst) == 0 {
        thread::sleep(Duration::from_millis(1));
    }
    // Meanwhile the reader queues what may wait.
    thread::sleep(Duration::from_millis(300));
    let (done, computed) = mpsc::channel();
    let runner = thread::spawn(move || -> Result<()> {
        for elements in [8, 1 << 17] {
            let mut sum = ones(&[elements], DType::F32)?;
            for _ in 0..300 {
                sum = sum.add(1.0)?;
            }
            done.send(sum.to_vec::<f32>()?[0]).unwrap();
        }
        Ok(())
    });
    let wait = || computed.recv_timeout(Duration::from_secs(60));
    let sums = [wait(), wait()];
    assert_eq!(gate.begun.load(Ordering::SeqCst), 1, "the gate was closed");
    gate.open();
    assert_eq!(sums, [Ok(301.0); 2]);
    runner.join().unwrap()?;
    reader.join().unwrap()?;
    assert_eq!(gate.begun.load(Ordering::SeqCst), 300);
    Ok(())
}
