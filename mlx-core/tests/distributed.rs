//! Groups of processes. Each test of a ring starts this program again, once for each rank; a child runs the test
//! `a_rank` with a program of `PROGRAMS`.

#[path = "distributed/launch.rs"]
mod launch;
#[path = "distributed/ranks.rs"]
mod ranks;

use std::time::{Duration, Instant};

use launch::{Ring, assert_ended_well};
use mlx_core::distributed::{
    Backend, Messenger, all_gather, all_max, all_min, all_sum, init, is_available, recv, send,
    sum_scatter,
};
use mlx_core::stream::device_count;
use mlx_core::{Array, DType, DeviceKind, ErrorKind, Result, array};

/// What a child does.
#[test]
fn a_rank() -> Result<()> {
    match std::env::var(launch::CHILD) {
        Ok(name) => ranks::run(&name),
        Err(_) => Ok(()),
    }
}

#[test]
fn collectives_of_two_and_three_ranks_are_those_of_one_process() {
    for size in [2, 3] {
        for (rank, output) in Ring::new(size).run("collectives").iter().enumerate() {
            assert_ended_well(output, &format!("rank {rank} of {size}"));
        }
    }
}

#[test]
fn gpus_add_their_arrays_also_in_captured_steps() -> Result<()> {
    let gpus = device_count(DeviceKind::Gpu)?;
    if gpus < 2 || !is_available(Backend::Nccl)? {
        eprintln!("skipped: fewer than two GPUs");
        return Ok(());
    }
    for size in [2, 4] {
        if size > gpus {
            continue;
        }
        let held = std::net::TcpListener::bind("127.0.0.1:0")?;
        let nccl = Some(held.local_addr()?.port());
        drop(held);
        let mut ring = Ring::new(size);
        ring.nccl = nccl;
        for output in ring.run("gpus") {
            assert_ended_well(&output, &format!("{size} gpus"));
        }
    }
    Ok(())
}

#[test]
fn gradients_are_those_of_mlx() {
    for output in Ring::new(2).run("gradients") {
        assert_ended_well(&output, "gradients");
    }
}

#[test]
fn arrays_go_to_neighbours() {
    for output in Ring::new(3).run("messages") {
        assert_ended_well(&output, "messages");
    }
    // Of four ranks, two are no neighbours.
    for output in Ring::new(4).run("strangers") {
        assert_ended_well(&output, "strangers");
    }
}

#[test]
#[cfg(target_os = "linux")]
fn bytes_go_to_all_ranks_and_back() {
    for size in [2, 4] {
        for output in Ring::new(size).run("bytes") {
            assert_ended_well(&output, "bytes");
        }
    }
}

#[test]
fn a_rank_that_dies_ends_the_wait_for_its_message() {
    for size in [2, 3] {
        let start = Instant::now();
        let ring = Ring::new(size);
        let mut children = ring.start("deaf");
        children[size - 1].wait_for_line("ready");
        children[size - 1].kill();
        for child in children.into_iter().take(size - 1) {
            assert_ended_well(&child.output(), "deaf");
        }
        let took = start.elapsed();
        assert!(took < Duration::from_secs(30), "{size}: {took:?}");
    }
}

#[test]
fn a_rank_that_does_not_connect_for_messages_is_an_error() {
    for output in Ring::new(2).run("absent") {
        assert_ended_well(&output, "absent");
    }
}

#[test]
fn collectives_run_on_one_stream() {
    for output in Ring::new(2).run("streams") {
        assert_ended_well(&output, "streams");
    }
}

#[test]
fn a_rank_that_dies_is_an_error_of_all_others() {
    // Of four ranks, one is no neighbour of the dead one, and learns it from the others.
    for size in [2, 3, 4] {
        let start = Instant::now();
        let ring = Ring::new(size);
        let mut children = ring.start("survivors");
        // The last rank says that it is there, and is killed while the others wait for it.
        children[size - 1].wait_for_line("ready");
        children[size - 1].kill();
        for (rank, child) in children.into_iter().enumerate().take(size - 1) {
            let output = child.output();
            assert_ended_well(&output, &format!("rank {rank} of {size}"));
        }
        let took = start.elapsed();
        assert!(took < Duration::from_secs(60), "{size}: {took:?}");
    }
}

#[test]
fn a_rank_that_does_not_answer_is_an_error_after_the_limit() {
    for output in Ring::new(3).run("silent") {
        assert_ended_well(&output, "silent");
    }
}

#[test]
fn a_rank_whose_input_fails_ends_the_wait_of_the_others() {
    for output in Ring::new(2).run("failed_input") {
        assert_ended_well(&output, "failed input");
    }
}

#[test]
fn a_rank_that_never_comes_is_an_error() {
    let ring = Ring::new(2);
    let child = ring.start_rank("alone_in_a_ring", 0);
    assert_ended_well(&child.output(), "rank 0");
}

#[test]
fn wrong_environments_are_errors() {
    let ring = Ring::new(2);
    for name in [
        "rank_outside",
        "no_rank",
        "no_file",
        "no_json",
        "ring_of_one",
    ] {
        let child = ring.start_rank(name, 0);
        assert_ended_well(&child.output(), name);
    }
}

#[test]
fn a_group_of_one_needs_no_back_end() -> Result<()> {
    assert!(is_available(Backend::Ring)? && is_available(Backend::Any)?);
    let group = init(false, Backend::Ring)?;
    assert_eq!((group.rank(), group.size()), (0, 1));
    assert_eq!(group.backend(), Backend::Ring);
    let x = array![[1.0, 2.0], [3.0, 4.0]];
    for same in [all_sum, all_max, all_min, all_gather, sum_scatter] {
        assert_eq!(same(&x, &group)?.to_vec::<f32>()?, [1.0, 2.0, 3.0, 4.0]);
    }
    assert_eq!(all_gather(&Array::scalar(1.0f32)?, &group)?.shape(), [1]);
    assert_eq!(group.lost(), None);
    let messenger = Messenger::connect(&group, Duration::ZERO)?;
    messenger.tell(b"nobody")?;
    assert_eq!(messenger.gather(b"own")?, [b"own"]);
    let value: f32 = group.within(Duration::from_millis(1), || array!(2.0).item())?;
    assert_eq!(value, 2.0);
    for error in [
        send(&x, 0, &group).unwrap_err(),
        recv([2], DType::F32, 0, &group).unwrap_err(),
        group.split(0, None).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(
            error.to_string().contains("a group of one process"),
            "{error}"
        );
    }
    assert_eq!(
        sum_scatter(&Array::scalar(1.0f32)?, &group)
            .unwrap_err()
            .kind(),
        ErrorKind::Shape
    );
    Ok(())
}

#[test]
fn what_is_not_there_is_an_error_if_strict() {
    let error = init(true, Backend::Ring).unwrap_err();
    assert!(error.to_string().contains("MLX_HOSTFILE"), "{error}");
    assert!(init(true, Backend::Any).is_err());
    for backend in [Backend::Nccl, Backend::Jaccl] {
        if !is_available(backend).unwrap() {
            let error = init(true, backend).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            assert_eq!(init(false, backend).unwrap().size(), 1);
        }
    }
}
