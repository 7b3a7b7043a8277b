//! The allocator of the CPU library: what it counts, which free buffers it uses again, and the alignment of data.
#![cfg(target_os = "linux")]

use std::thread;

use mlx_core::{Array, DType, Result, eval, full, memory};

fn bytes(n: usize, value: u8) -> Result<Array> {
    let array = full(&[i32::try_from(n).unwrap()], i32::from(value), DType::U8)?;
    eval([&array])?;
    Ok(array)
}

/// Sizes of every kind: empty, tiny, rounded up, exact, and larger than the allocator keeps.
const SIZES: [usize; 22] = [
    0,
    1,
    15,
    16,
    17,
    100,
    1008,
    1023,
    1024,
    1025,
    1152,
    4095,
    4096,
    5000,
    65_535,
    65_536,
    65_537,
    100_000,
    (1 << 20) - 1,
    1 << 20,
    3_000_000,
    40 << 20,
];

#[test]
fn bytes_in_use_are_counted() -> Result<()> {
    memory::clear_cache()?;
    let before = memory::active()?;
    let mut arrays = Vec::new();
    let mut sum = 0;
    for n in SIZES {
        let active = memory::active()?;
        arrays.push(bytes(n, 7)?);
        let more = memory::active()? - active;
        // A scalar of the fill may have its own buffer.
        assert!(
            more >= n && more <= n + (n / 8).min(8192) + 64,
            "{n}: {more}"
        );
        sum += n;
    }
    assert!(memory::active()? >= before + sum);
    assert!(memory::peak()? >= memory::active()?);
    drop(arrays);
    assert_eq!(memory::active()?, before);
    let peak = memory::peak()?;
    assert!(peak >= before + sum);
    memory::reset_peak()?;
    assert!(memory::peak()? < peak);
    Ok(())
}

#[test]
fn a_free_buffer_is_used_for_sizes_close_to_its_own() -> Result<()> {
    for (n, again, fits) in [
        (100, 100, true),
        (1100, 1100, true),
        (1100, 1150, true),
        (4096, 4096, true),
        (4096, 3000, true),
        (4096, 1500, false),
        (4096, 8192, false),
        (100_000, 100_000, true),
        (100_000, 95_000, true),
        (100_000, 80_000, false),
        (100_000, 100_001, false),
        (1_000_000, 999_000, true),
        (1_000_000, 900_000, false),
    ] {
        memory::clear_cache()?;
        let first = bytes(n, 1)?;
        let place = first.address()?;
        let cached = memory::cached()?;
        drop(first);
        assert!(memory::cached()? >= cached + n, "{n} is not kept");
        let second = bytes(again, 2)?;
        assert_eq!(second.address()? == place, fits, "{again} after {n}");
        assert_eq!(second.to_vec::<u8>()?, vec![2; again]);
    }
    Ok(())
}

/// A free buffer of the right size is found among many of the same bin that are too small.
#[test]
fn the_same_sizes_in_every_round_take_no_new_memory() -> Result<()> {
    memory::clear_cache()?;
    let sizes: Vec<usize> = (0..60).map(|i| 70_000 + 13 * i).chain(0..300).collect();
    let round = || -> Result<()> {
        let arrays: Vec<_> = sizes.iter().map(|&n| bytes(n, 3)).collect::<Result<_>>()?;
        drop(arrays);
        Ok(())
    };
    round()?;
    let kept = memory::cached()?;
    for _ in 0..3 {
        round()?;
    }
    assert!(
        memory::cached()? <= kept + kept / 16,
        "{kept}: {}",
        memory::cached()?
    );
    Ok(())
}

#[test]
fn what_is_kept_has_a_limit() -> Result<()> {
    memory::clear_cache()?;
    drop(bytes(40 << 20, 1)?);
    assert!(memory::cached()? < 1 << 20, "a large buffer is given back");
    for _ in 0..2 {
        let arrays: Vec<_> = (0..10).map(|_| bytes(5 << 20, 1)).collect::<Result<_>>()?;
        drop(arrays);
        assert!(memory::cached()? <= 32 << 20);
        assert!(memory::cached()? >= 30 << 20);
    }
    let before = memory::set_cache_limit(11 << 20)?;
    assert_eq!(before, 32 << 20);
    assert!(memory::cached()? <= 11 << 20);
    assert!(memory::cached()? >= 5 << 20);
    memory::set_cache_limit(0)?;
    assert_eq!(memory::cached()?, 0);
    drop(bytes(100, 1)?);
    assert_eq!(memory::cached()?, 0);
    memory::set_cache_limit(before)?;
    Ok(())
}

#[test]
fn data_begins_at_a_cache_line() -> Result<()> {
    let mut arrays = Vec::new();
    for n in SIZES.into_iter().chain((1..64).map(|i| 37 * i)) {
        let array = bytes(n, 1)?;
        let alignment = if n < 1009 { 16 } else { 64 };
        assert_eq!(array.address()? % alignment, 0, "{n}");
        arrays.push(array);
    }
    Ok(())
}

#[test]
fn threads_share_the_allocator() -> Result<()> {
    memory::clear_cache()?;
    let before = memory::active()?;
    let work = |seed: u32| -> Result<()> {
        let mut state = seed;
        let mut held: Vec<(Array, usize, u8)> = Vec::new();
        for _ in 0..400 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let (n, value) = ((state >> 8) as usize % 3000, (state >> 4) as u8);
            held.push((bytes(n, value)?, n, value));
            if held.len() > 20 {
                let (array, n, value) = held.swap_remove((state >> 12) as usize % 20);
                assert_eq!(array.to_vec::<u8>()?, vec![value; n]);
            }
        }
        for (array, n, value) in held {
            assert_eq!(array.to_vec::<u8>()?, vec![value; n]);
        }
        Ok(())
    };
    let threads: Vec<_> = (1..=4)
        .map(|seed| thread::spawn(move || work(seed)))
        .collect();
    for thread in threads {
        thread.join().unwrap()?;
    }
    assert_eq!(memory::active()?, before);
    Ok(())
}
