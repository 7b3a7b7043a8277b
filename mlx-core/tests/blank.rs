//! Zeros whose memory pages are allocated only when they are touched.

use mlx_core::fast::{self, blank};
use mlx_core::ops::create::ones;
use mlx_core::{DType, ErrorKind, Result, eval};

#[test]
fn everything_is_zero_also_where_memory_was_used_before() -> Result<()> {
    // No byte, a few bytes, less than a page, and sizes with whole pages between the ends. None fills its last page.
    for len in [0, 1, 1000, 100_003, 1_000_001, 5_000_017] {
        for dtype in [DType::U8, DType::BF16, DType::F32] {
            for _ in 0..3 {
                let used = ones(&[len, 1], dtype)?;
                eval([&used])?;
                drop(used);
                let zeros = blank(&[len, 1], dtype)?;
                assert_eq!((zeros.shape(), zeros.dtype()), (&[len, 1][..], dtype));
                if len > 0 {
                    assert!(!zeros.any(.., false)?.item::<bool>()?, "{len} of {dtype}");
                }
            }
        }
    }
    Ok(())
}

#[test]
fn what_is_written_stays_and_the_rest_is_zero() -> Result<()> {
    let part = ones(&[2, 3, 5], DType::F32)?;
    let buffer =
        blank(&[2, 1000, 500], DType::F32)?.slice_update(&part, &[0, 7, 11], &[2, 10, 16])?;
    assert_eq!(buffer.sum(.., false)?.item::<f32>()?, 30.0);
    let back = buffer.slice(&[0, 7, 11], &[2, 10, 16])?;
    assert_eq!(back.sum(.., false)?.item::<f32>()?, 30.0);
    Ok(())
}

#[test]
fn shapes_are_checked() {
    for (shape, kind) in [
        (&[-1, 2][..], ErrorKind::Shape),
        (&[1 << 30, 1 << 30, 1 << 30], ErrorKind::Budget),
    ] {
        assert_eq!(blank(shape, DType::F32).unwrap_err().kind(), kind);
    }
}

#[cfg(target_os = "linux")]
#[test]
fn memory_is_taken_where_it_is_touched() -> Result<()> {
    fn resident() -> usize {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:"));
        let kibibytes = line.unwrap().split_whitespace().nth(1).unwrap();
        kibibytes.parse::<usize>().unwrap() << 10
    }

    if fast::form(fast::Op::Attention)? == fast::Form::Plain {
        // MLX writes its zeros to memory.
        return Ok(());
    }
    const BYTES: usize = 256 << 20;
    let before = resident();
    let part = ones(&[1 << 20], DType::F32)?;
    let large =
        blank(&[(BYTES / 4) as i32], DType::F32)?.slice_update(&part, &[1 << 21], &[3 << 20])?;
    eval([&large])?;
    let taken = resident().saturating_sub(before);
    assert!(taken < BYTES / 4, "{} MB", taken >> 20);
    assert_eq!(
        large
            .slice(&[1 << 21], &[3 << 20])?
            .sum(.., false)?
            .item::<f32>()?,
        (1 << 20) as f32
    );
    Ok(())
}
