//! What the ranks do. A program fails by a panic or an error, which its parent sees.

use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use mlx_core::distributed::{
    Backend, Group, Messenger, all_gather, all_max, all_min, all_sum, init, init_within, recv,
    recv_like, send, sum_scatter,
};
use mlx_core::kernel::{self, CpuKernel, Spec, View, ViewMut};
use mlx_core::ops::{arange, concat, stack};
use mlx_core::transforms::vjp_with;
use mlx_core::{
    Array, DType, Device, Error, ErrorKind, Replay, Result, Stream, array, async_eval, eval, grad,
    random, vmap,
};

/// How long the ranks wait for each other.
const LIMIT: Duration = Duration::from_secs(30);

pub fn run(name: &str) -> Result<()> {
    // A rank that waits for ever fails its test.
    std::thread::spawn(|| {
        std::thread::sleep(Duration::from_secs(240));
        eprintln!("the rank has not ended in four minutes");
        std::process::exit(3);
    });
    match name {
        "collectives" => collectives(&ring()?),
        "gpus" => gpus(),
        "gpu_times" => gpu_times(),
        "ring_times" => ring_times(&ring()?),
        "gradients" => gradients(&ring()?),
        "messages" => messages(&ring()?),
        "bytes" => bytes(&ring()?),
        "deaf" => deaf(&ring()?),
        "absent" => absent(&ring()?),
        "strangers" => strangers(&ring()?),
        "streams" => streams(&ring()?),
        "survivors" => survivors(&ring()?),
        "silent" => silent(&ring()?),
        "failed_input" => failed_input(&ring()?),
        "alone_in_a_ring" => alone_in_a_ring(),
        _ => environment(name),
    }
}

fn ring() -> Result<Group> {
    let group = init(true, Backend::Any)?;
    assert_eq!(group.backend(), Backend::Ring);
    assert_eq!(group.rank().to_string(), std::env::var("MLX_RANK").unwrap());
    // The group of a process is made once.
    assert_eq!(init(true, Backend::Ring)?.size(), group.size());
    let other = std::thread::spawn(|| init(true, Backend::Ring).map(|_| ()));
    let error = other.join().unwrap().unwrap_err();
    assert!(error.to_string().contains("another thread"), "{error}");
    Ok(group)
}

/// What rank `rank` has: small whole numbers, whose sums are exact in every dtype.
fn share(rank: usize, size: usize, shape: &[i32], dtype: DType) -> Result<Array> {
    let n = shape.iter().product::<i32>();
    let x = arange(0, n, 1, DType::I32)?.multiply(7 + i32::try_from(rank).unwrap())?;
    let x = x.remainder(31 / i32::try_from(size).unwrap())?;
    x.astype(dtype)?.reshape(shape)
}

fn assert_same(found: &Array, expected: &Array, what: &str) -> Result<()> {
    assert_eq!(found.dtype(), expected.dtype(), "{what}");
    assert_eq!(found.shape(), expected.shape(), "{what}");
    assert!(
        found.array_equal(expected)?.item::<bool>()?,
        "{what}: {found} {expected}"
    );
    Ok(())
}

/// By hand (docs/design/distributed.md): the times of sums in captured steps, and that of a message of the host
/// while the GPU computes nothing and while it has a queue.
fn gpu_times() -> Result<()> {
    let ring = init(true, Backend::Ring)?;
    let group = init(true, Backend::Nccl)?;
    Device::GPU.set_default()?;
    let square = Array::ones(&[8192, 8192], DType::BF16)?;
    eval([&square])?;
    let reason = group.without_peers();
    eprintln!("{group:?}, without exchanges over the memory of peers: {reason:?}");
    for rows in [1, 8, 64, 128, 512] {
        let x = Array::ones(&[rows, 4096], DType::BF16)?;
        eval([&x])?;
        let mut times = Vec::new();
        for has_sums in [false, true] {
            let mut replay = Replay::new()?;
            let mut steps = |count: usize| {
                let mut y = x.clone();
                for _ in 0..count {
                    y = x.clone();
                    for _ in 0..64 {
                        let sum = if has_sums { all_sum(&y, &group)? } else { y };
                        y = sum.multiply(0.5)?.add(0.25)?;
                    }
                    replay.async_eval([&y], [&y; 0])?;
                }
                eval([&y])
            };
            steps(20)?;
            let start = Instant::now();
            steps(100)?;
            times.push(start.elapsed().as_secs_f64() * 1e6 / 6400.0);
        }
        let of_sum = times[1] - times[0];
        eprintln!(
            "a sum of {} KiB in a captured step: {of_sum:.1} us",
            8 * rows
        );
    }
    let messenger = Messenger::connect(&ring, LIMIT)?;
    for products in [0, 100] {
        let mut y = square.clone();
        for _ in 0..products {
            y = y.matmul(&square)?;
        }
        async_eval([&y])?;
        let start = Instant::now();
        (0..20).try_for_each(|_| messenger.gather(&[1; 512]).map(drop))?;
        let each = start.elapsed().as_secs_f64() * 1e6 / 20.0;
        eval([&y])?;
        let all = start.elapsed().as_secs_f64() * 1e3;
        eprintln!(
            "a message there and back beside {products} products: {each:.0} us; all ended after {all:.0} ms"
        );
    }
    Ok(())
}

/// By hand (docs/design/distributed.md): the time of a sum, one after another, by its bytes. A ring of two exchanges floats,
/// and sums whole numbers as MLX does.
fn ring_times(group: &Group) -> Result<()> {
    for bytes in [256, 16 << 10, 128 << 10, 1 << 20, 8 << 20] {
        for dtype in [DType::F32, DType::I32] {
            let x = Array::zeros(&[bytes / 4], dtype)?;
            let count = (32 << 20) / bytes.max(64 << 10);
            let chain = || {
                let mut y = x.clone();
                for _ in 0..count {
                    y = all_sum(&y, group)?;
                }
                let start = Instant::now();
                eval([&y])?;
                Ok(start.elapsed().as_secs_f64() * 1e6 / f64::from(count))
            };
            let mut all = (0..9).map(|_| chain()).collect::<Result<Vec<f64>>>()?;
            all.sort_by(f64::total_cmp);
            eprintln!(
                "a sum of {bytes} bytes, {dtype}: {:.0} us at best, {:.0} us in the median",
                all[0], all[4]
            );
        }
    }
    Ok(())
}

/// NCCL beside the ring, in steps that are evaluated and in steps that are captured.
fn gpus() -> Result<()> {
    let ring = init(true, Backend::Ring)?;
    let group = init(true, Backend::Nccl)?;
    assert_eq!((group.rank(), group.size()), (ring.rank(), ring.size()));
    Device::GPU.set_default()?;
    let (rank, size) = (group.rank(), group.size());
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::I32, DType::U8] {
        let shape = [12, 70_001];
        let all: Vec<Array> = (0..size)
            .map(|rank| share(rank, size, &shape, dtype))
            .collect::<Result<_>>()?;
        let stacked = stack(&all, 0)?;
        let what = format!("rank {rank}, {dtype}");
        let sum = stacked.sum(0, false)?.astype(dtype)?;
        assert_same(&all_sum(&all[rank], &group)?, &sum, &what)?;
        assert_same(
            &all_max(&all[rank], &group)?,
            &stacked.max(0, false)?,
            &what,
        )?;
        assert_same(&all_gather(&all[rank], &group)?, &concat(&all, 0)?, &what)?;
    }
    small_messages(&group)?;
    let messenger = Messenger::connect(&ring, LIMIT)?;
    let step = |number: i32| -> Result<Array> {
        let x = share(rank, size, &[4, 64], DType::BF16)?;
        eval([&x])?;
        let sum = all_sum(
            &x.add(&Array::full(&[64], number as f32, DType::BF16)?)?,
            &group,
        )?;
        all_gather(&sum.add(rank as i32)?, &group)
    };
    let wanted = (0..12)
        .map(|number| step(number)?.astype(DType::F32)?.to_vec::<f32>())
        .collect::<Result<Vec<_>>>()?;
    let mut replay = Replay::new()?;
    for (number, wanted) in (0..).zip(&wanted) {
        let found = step(number)?;
        replay.async_eval([&found], [&found; 0])?;
        // Messages of the host beside the queue of the GPU.
        let told = all_sum(&array![1], &ring)?;
        assert_eq!(told.to_vec::<i32>()?, [size as i32]);
        let ranks: Vec<[u8; 1]> = (0..size).map(|rank| [rank as u8]).collect();
        assert_eq!(messenger.gather(&[rank as u8])?, ranks);
        assert_eq!(
            &found.astype(DType::F32)?.to_vec::<f32>()?,
            wanted,
            "step {number}"
        );
    }
    Ok(())
}

/// Messages up to some larger than those that are exchanged over the memory of peers. Sums have the bits of the sum in F32 in
/// the order of the ranks: those of NCCL too where there are two.
fn small_messages(group: &Group) -> Result<()> {
    let (rank, size) = (group.rank(), group.size());
    let reason = group.without_peers();
    eprintln!("{group:?}, without exchanges over the memory of peers: {reason:?}");
    for (number, &n) in [4, 8, 12, 1024, 4096, 33_000, 262_144, 524_288, 600_000]
        .iter()
        .enumerate()
    {
        for dtype in [DType::BF16, DType::F16, DType::F32] {
            let made = |rank: usize| {
                let key = random::key((100 * number + rank) as u64)?;
                random::normal(&key, [n + 1], DType::F32)?.astype(dtype)
            };
            let all: Vec<Array> = (0..size).map(made).collect::<Result<_>>()?;
            // The second begins at an address that is no multiple of 8 bytes.
            for start in [0, 1] {
                let part = |x: &Array| x.slice_axis(0, start, start + n);
                let parts: Vec<Array> = all.iter().map(part).collect::<Result<_>>()?;
                let what = format!("rank {rank} of {size}, {n} of {dtype} from {start}");
                let mut sum = parts[0].astype(DType::F32)?;
                for other in &parts[1..] {
                    sum = sum.add(&other.astype(DType::F32)?)?;
                }
                eval(&parts)?;
                let found = all_sum(&parts[rank], group)?;
                // NCCL adds in an order of its own.
                if size == 2 || n as usize * dtype.size() * size <= 2 << 20 {
                    assert_same(&found, &sum.astype(dtype)?, &what)?;
                }
                assert_same(
                    &all_gather(&parts[rank], group)?,
                    &concat(&parts, 0)?,
                    &what,
                )?;
            }
        }
    }
    Ok(())
}

fn collectives(group: &Group) -> Result<()> {
    let (rank, size) = (group.rank(), group.size());
    assert!(group.without_peers().is_none(), "a ring has no such fault");
    let ranks = i32::try_from(size).unwrap();
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::I32] {
        // Less than one element for each rank, some, and several packets of the ring.
        for shape in [&[][..], &[1], &[6, 5], &[12, 70_001]] {
            let what = format!("rank {rank} of {size}, {dtype} {shape:?}");
            let all: Vec<Array> = (0..size)
                .map(|rank| share(rank, size, shape, dtype))
                .collect::<Result<_>>()?;
            let own = &all[rank];
            let stacked = stack(&all, 0)?;
            let sum = stacked.sum(0, false)?.astype(dtype)?;
            assert_same(&all_sum(own, group)?, &sum, &what)?;
            assert_same(&all_max(own, group)?, &stacked.max(0, false)?, &what)?;
            assert_same(&all_min(own, group)?, &stacked.min(0, false)?, &what)?;
            let joined = match shape {
                [] => stacked,
                _ => concat(&all, 0)?,
            };
            assert_same(&all_gather(own, group)?, &joined, &what)?;
            if shape.len() == 2 {
                let rows = shape[0] / ranks;
                let start = rows * i32::try_from(rank).unwrap();
                let part = sum.i(start..start + rows)?;
                assert_same(&sum_scatter(own, group)?, &part, &what)?;
                // A view that is not contiguous.
                let across = all_sum(&own.t()?, group)?;
                assert_same(&across, &sum.t()?, &what)?;
            }
        }
    }
    let error = sum_scatter(&share(rank, size, &[7], DType::F32)?, group).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Shape, "{error}");
    let error = group.split(0, None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    Ok(())
}

/// MLX's rules: the cotangent of this rank, and its part of it.
fn gradients(group: &Group) -> Result<()> {
    let rank = group.rank();
    let x = array![1.0, 2.0].add(rank as f32)?;
    let weights = array![3.0, 5.0].multiply(1.0 + rank as f32)?;
    let (sums, by_x) = vjp_with(
        |x: &[Array]| Ok(vec![all_sum(&x[0].square()?, group)?]),
        std::slice::from_ref(&x),
        std::slice::from_ref(&weights),
    )?;
    assert_eq!(sums[0].to_vec::<f32>()?, [1.0 + 4.0, 4.0 + 9.0]);
    assert_same(&by_x[0], &weights.multiply(&x)?.multiply(2.0)?, "all_sum")?;

    let weights = array![1.0, 2.0, 3.0, 4.0].multiply(1.0 + rank as f32)?;
    let (_, by_x) = vjp_with(
        |x: &[Array]| Ok(vec![all_gather(&x[0].square()?, group)?]),
        std::slice::from_ref(&x),
        std::slice::from_ref(&weights),
    )?;
    let start = 2 * i32::try_from(rank).unwrap();
    let part = weights.i(start..start + 2)?;
    assert_same(&by_x[0], &part.multiply(&x)?.multiply(2.0)?, "all_gather")?;

    let by_x = grad(|x: &Array| all_sum(&x.square()?.sum(.., false)?, group))(&x)?;
    assert_same(&by_x, &x.multiply(2.0)?, "the gradient of a scalar")?;

    let rows = stack(&[&x, &x.add(1.0)?], 0)?;
    let mapped = vmap(|x: &Array| all_sum(&x.square()?, group))(&rows)?;
    assert_same(&mapped, &all_sum(&rows.square()?, group)?, "vmap")?;
    let error = vmap(|x: &Array| all_gather(x, group))(&rows).unwrap_err();
    assert!(error.to_string().contains("no form for vmap"), "{error}");
    Ok(())
}

fn messages(group: &Group) -> Result<()> {
    let (rank, size) = (group.rank(), group.size());
    let (left, right) = ((rank + size - 1) % size, (rank + 1) % size);
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::I32] {
        let shape = [300, 1001];
        let own = share(rank, size, &shape, dtype)?;
        let sent = send(&own, right, group)?;
        let got = match rank % 2 {
            0 => recv(shape, dtype, left, group)?,
            _ => recv_like(&own, left, group)?,
        };
        // A send ends when the other rank takes the message, so not all ranks may send first.
        match rank {
            0 => eval([&sent]).and_then(|()| eval([&got]))?,
            _ => eval([&got]).and_then(|()| eval([&sent]))?,
        }
        assert_same(&sent, &own, "sent")?;
        assert_same(&got, &share(left, size, &shape, dtype)?, "received")?;
    }
    for error in [
        send(&array![1.0], rank, group).unwrap_err(),
        send(&array![1.0], size, group).unwrap_err(),
        recv([1], DType::F32, size, group).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
    let error = recv([-1], DType::F32, left, group).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Shape, "{error}");
    Ok(())
}

/// The first address of rank 0.
fn address_of_the_first() -> Result<String> {
    let hosts = std::fs::read_to_string(std::env::var("MLX_HOSTFILE").unwrap())?;
    let hosts: Vec<Vec<String>> = serde_json::from_str(&hosts).unwrap();
    Ok(hosts[0][0].clone())
}

/// Seconds of the processor's time that this process has used.
fn busy_seconds() -> f64 {
    // The 14th and 15th number of a line whose second one is a name in parentheses, in hundredths.
    let line = std::fs::read_to_string("/proc/self/stat").unwrap();
    let (_, numbers) = line.rsplit_once(')').unwrap();
    let times = numbers.split_whitespace().skip(11).take(2);
    times.map(|time| time.parse::<f64>().unwrap() / 100.0).sum()
}

fn bytes(group: &Group) -> Result<()> {
    let (rank, size) = (group.rank(), group.size());
    if rank == size - 1 {
        // Programs that are no ranks: one says something else, and one says nothing until it ends.
        let other = loop {
            match TcpStream::connect(address_of_the_first()?) {
                Ok(stream) => break stream,
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        };
        (&other).write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
        drop(other);
        std::mem::forget(TcpStream::connect(address_of_the_first()?)?);
    }
    let messenger = Messenger::connect(group, LIMIT)?;
    let lengths = [0, 1, 511, 70_000, 5_000_001, 3];
    for (number, length) in (0..).zip(lengths) {
        let message = vec![number; length];
        match rank {
            0 => messenger.tell(&message)?,
            _ => assert!(messenger.hear()? == message, "{length}"),
        }
    }
    let own = |rank: usize| vec![rank as u8; 70_000 * rank];
    let all: Vec<Vec<u8>> = (0..size).map(own).collect();
    assert!(messenger.gather(&own(rank))? == all);
    // Collectives go on beside it.
    assert_eq!(all_sum(&array![1], group)?.item::<i32>()?, size as i32);
    let error = match rank {
        0 => messenger.hear().unwrap_err(),
        _ => messenger.tell(b"").unwrap_err(),
    };
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert_eq!(messenger.loss().get(), None);
    // A rank that waits does not compute.
    let before = busy_seconds();
    match rank {
        0 => {
            std::thread::sleep(Duration::from_secs(1));
            messenger.tell(b"up")?;
        }
        _ => assert_eq!(messenger.hear()?, b"up"),
    }
    let busy = busy_seconds() - before;
    assert!(busy < 0.2, "{busy}");
    // What was sent arrives, also when the first rank ends at once.
    match rank {
        0 => messenger.tell(b"end"),
        _ => {
            std::thread::sleep(Duration::from_millis(300));
            assert_eq!(messenger.hear()?, b"end");
            let error = messenger.hear().unwrap_err();
            assert!(error.to_string().contains("rank 0 was lost"), "{error}");
            Ok(())
        }
    }
}

/// The last rank is killed while the others wait for its message.
fn deaf(group: &Group) -> Result<()> {
    let last = group.size() - 1;
    let messenger = Messenger::connect(group, LIMIT)?;
    let loss = messenger.loss();
    if group.rank() == last {
        println!("ready");
        std::io::stdout().flush()?;
        loop {
            std::thread::park();
        }
    }
    let error = messenger.gather(b"here").unwrap_err();
    // Another rank learns it when the first one ends.
    let lost = if group.rank() == 0 { last } else { 0 };
    let reason = format!("the connection to rank {lost} was lost");
    assert_eq!(error.kind(), ErrorKind::Eval, "{error}");
    assert_eq!(error.to_string(), reason);
    assert_eq!(loss.get().unwrap().0, reason);
    if group.rank() == 0 {
        assert_eq!(messenger.tell(b"on").unwrap_err().to_string(), reason);
    }
    drop(messenger);
    assert_eq!(loss.get(), None);
    Ok(())
}

/// Each rank connects when the other one does not.
fn absent(group: &Group) -> Result<()> {
    let limit = Duration::from_secs(1);
    let connect = || Messenger::connect(group, limit).unwrap_err().to_string();
    if group.rank() == 0 {
        let error = connect();
        assert!(error.contains("rank 1 has not connected to"), "{error}");
    }
    assert_eq!(all_sum(&array![1], group)?.item::<i32>()?, 2);
    if group.rank() == 1 {
        let error = connect();
        assert!(error.contains("rank 0 has not answered at"), "{error}");
    }
    assert_eq!(all_sum(&array![1], group)?.item::<i32>()?, 2);
    Ok(())
}

fn strangers(group: &Group) -> Result<()> {
    let opposite = (group.rank() + 2) % 4;
    let error = send(&array![1.0], opposite, group).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert_eq!(all_sum(&array!(1.0), group)?.item::<f32>()?, 4.0);
    Ok(())
}

/// Collectives of two streams at a time use the same connections in the same order.
fn streams(group: &Group) -> Result<()> {
    let other = Stream::new(Device::CPU)?;
    for round in 0..20 {
        let x = share(group.rank(), group.size(), &[40_000 + round], DType::I32)?;
        let y = other.scope(|| all_sum(&x.add(1)?, group)?.multiply(2))?;
        let z = all_sum(&x, group)?;
        let gathered = other.scope(|| all_gather(&x, group))?;
        eval([&y, &z, &gathered])?;
        assert_same(&y, &z.add(2)?.multiply(2)?, "two streams")?;
    }
    Ok(())
}

fn assert_lost(error: &Error, group: &Group, reason: &str) {
    assert_eq!(error.kind(), ErrorKind::Eval, "{error}");
    let name = format!("rank {} of the ring of {}", group.rank(), group.size());
    let text = error.to_string();
    assert!(text.contains(&name) && text.contains(reason), "{text}");
    // Nothing waits any more.
    assert!(group.lost().unwrap().contains(&name));
    let start = Instant::now();
    let later = all_sum(&array![1.0], group).unwrap_err();
    assert!(later.to_string().contains("the group was lost"), "{later}");
    assert!(start.elapsed() < Duration::from_secs(1));
}

/// The last rank is killed. The others have queued several collectives, which do not depend on each other.
fn survivors(group: &Group) -> Result<()> {
    let x = array![1.0, 2.0, 3.0, 4.0];
    assert_eq!(
        all_sum(&array!(1.0), group)?.item::<f32>()? as usize,
        group.size()
    );
    if group.rank() == group.size() - 1 {
        println!("ready");
        std::io::stdout().flush()?;
        loop {
            std::thread::park();
        }
    }
    let lazy = all_sum(&x.add(5.0)?, group)?;
    let queued = [
        all_sum(&x, group)?,
        all_gather(&x.add(1.0)?, group)?,
        all_max(&all_sum(&x.add(2.0)?, group)?, group)?,
        send(&x, (group.rank() + 1) % group.size(), group)?,
    ];
    let error = eval(&queued).unwrap_err();
    assert_lost(&error, group, "was lost");
    // A collective that was built before ends too, and what depends on none is computed.
    assert!(lazy.to_vec::<f32>().is_err());
    assert_eq!(x.add(1.0)?.to_vec::<f32>()?, [2.0, 3.0, 4.0, 5.0]);
    Ok(())
}

/// Rank 0 does not answer for longer than the others wait.
fn silent(group: &Group) -> Result<()> {
    assert_eq!(all_sum(&array!(1.0), group)?.item::<f32>()?, 3.0);
    if group.rank() == 0 {
        std::thread::sleep(Duration::from_secs(6));
        return Ok(());
    }
    let sum = all_sum(&array![1.0, 2.0, 3.0], group)?;
    let start = Instant::now();
    let error = group
        .within(Duration::from_secs(2), || eval([&sum]))
        .unwrap_err();
    let took = start.elapsed();
    // The first of the two to reach the limit ends the wait of both.
    assert!(
        took > Duration::from_secs(1) && took < Duration::from_secs(5),
        "{took:?}"
    );
    assert_lost(&error, group, "");
    let text = error.to_string();
    assert!(
        text.contains("within 2s") || text.contains("was lost"),
        "{text}"
    );
    Ok(())
}

/// Fails when it is evaluated.
struct Fails;

impl CpuKernel for Fails {
    fn name(&self) -> &'static str {
        "fails"
    }

    fn output(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        Ok(vec![inputs[0].clone()])
    }

    fn eval(&self, _inputs: &[View<'_>], _outputs: &mut [ViewMut<'_>]) -> Result<(), String> {
        Err("out of order".to_owned())
    }
}

fn failed_input(group: &Group) -> Result<()> {
    let mut x = array![1.0, 2.0];
    if group.rank() == 0 {
        x = kernel::apply(Fails, &[&x])?.remove(0);
    }
    let error = eval([all_sum(&x, group)?]).unwrap_err();
    if group.rank() == 0 {
        assert!(error.to_string().contains("out of order"), "{error}");
        assert!(group.lost().unwrap().contains("out of order"));
        // This rank is alive until the other one has seen the failure.
        std::thread::sleep(Duration::from_secs(1));
    } else {
        assert_lost(&error, group, "the connection to rank 0 was lost");
    }
    Ok(())
}

fn alone_in_a_ring() -> Result<()> {
    let start = Instant::now();
    // MLX tries to connect to the next rank for half a minute after that.
    for _ in 0..2 {
        let error = init_within(false, Backend::Ring, Duration::from_secs(1)).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("rank 1 has not connected within 1s"),
            "{text}"
        );
    }
    assert!(start.elapsed() < Duration::from_secs(50));
    Ok(())
}

/// Runs the program `name` again with other variables, as the one that is `name` in the child.
fn environment(name: &str) -> Result<()> {
    let inner = format!("{name}_inner");
    if let Some(name) = name.strip_suffix("_inner") {
        let error = match init(false, Backend::Ring) {
            Err(error) => error.to_string(),
            Ok(group) => format!("{group:?}, {}", init(true, Backend::Ring).unwrap_err()),
        };
        let part = match name {
            "rank_outside" => "MLX_RANK must be a number from 0 to 1",
            "no_rank" => "MLX_RANK is not",
            "no_file" => "MLX_HOSTFILE, missing.json",
            "no_json" => "expected a JSON list",
            "ring_of_one" => "rank 0 of 1 (ring), no ring is configured",
            name => panic!("no program {name}"),
        };
        assert!(error.contains(part), "{name}: {error}");
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    let other = folder.path().join("other.json");
    let text = if name == "no_json" {
        "{"
    } else {
        r#"[["127.0.0.1:1"]]"#
    };
    std::fs::write(&other, text)?;
    let mut child = std::process::Command::new(std::env::current_exe()?);
    child.args(["--exact", "a_rank", "--test-threads=1"]);
    child.env(super::launch::CHILD, inner);
    match name {
        "rank_outside" => child.env("MLX_RANK", "2"),
        "no_rank" => child.env_remove("MLX_RANK"),
        "no_file" => child.env("MLX_HOSTFILE", "missing.json"),
        _ => child.env("MLX_HOSTFILE", other),
    };
    let output = child.output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    Ok(())
}
