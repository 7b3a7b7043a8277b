//! The memory that is free.

use mlx_core::memory;
use mlx_infer::Limits;

/// The fraction of the free memory that stored prefixes may take is 1 / `PART`.
const PART: usize = 16;
/// Less memory would hold no prefix of a large model.
const LEAST: usize = 64 << 20;

/// Bytes for stored prefixes: a fraction of the free memory, or the library's default if the system
/// does not report it.
pub(super) fn share() -> usize {
    match free() {
        Some(free) => (free / PART).max(LEAST),
        None => Limits::default().prefix_bytes,
    }
}

/// The bytes that arrays can take now; `None` if the system does not report it.
pub(super) fn free() -> Option<usize> {
    // MLX's limit is that of the computing device.
    let of_device = match (memory::memory_limit(), memory::active()) {
        (Ok(limit), Ok(active)) => limit.saturating_sub(active),
        _ => usize::MAX,
    };
    let of_system = std::fs::read_to_string("/proc/meminfo");
    let of_system = of_system.ok().and_then(|text| available(&text));
    of_system.map(|free| free.min(of_device))
}

/// The bytes that Linux can give to programs without swapping.
fn available(meminfo: &str) -> Option<usize> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: usize = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_memory_is_read() {
        let text = "MemTotal:       24000000 kB\nMemAvailable:    8000000 kB\n";
        assert_eq!(available(text), Some(8_000_000 * 1024));
        assert_eq!(available("MemTotal: 1 kB\n"), None);
        assert!(share() >= LEAST);
    }
}
