//! The memory that is free.

use mlx_core::memory;
#[cfg(feature = "serve")]
use mlx_infer::Limits;

/// The fraction of the free memory that stored prefixes may take is 1 / `PART`.
#[cfg(feature = "serve")]
const PART: usize = 16;
/// Less memory would hold no prefix of a large model.
#[cfg(feature = "serve")]
const LEAST: usize = 64 << 20;

/// Bytes for stored prefixes: a fraction of the free memory, or the library's default if the system
/// does not report it.
#[cfg(feature = "serve")]
pub(super) fn share() -> usize {
    // MLX's limit is that of the computing device.
    let of_device = match (memory::memory_limit(), memory::active()) {
        (Ok(limit), Ok(active)) => limit.saturating_sub(active),
        _ => usize::MAX,
    };
    match of_system() {
        Some(free) => (free.min(of_device) / PART).max(LEAST),
        None => Limits::default().prefix_bytes,
    }
}

/// The free bytes of the computing device: a GPU's own memory, else that of the system. `None` if
/// it is not reported.
pub(super) fn free() -> Option<usize> {
    match memory::of_device() {
        Ok(Some(device)) => Some(device.free),
        _ => of_system(),
    }
}

/// The free bytes of the system, within the limit of this process's container.
fn of_system() -> Option<usize> {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let of_machine = available(&read("/proc/meminfo")?)?;
    let of_container = || {
        let part = |name: &str| read(&format!("/sys/fs/cgroup/memory.{name}"));
        in_container(&part("max")?, &part("current")?, &part("stat")?)
    };
    Some(of_machine.min(of_container().unwrap_or(usize::MAX)))
}

/// The bytes that a container (a control group of version 2) has left; its cache of files counts as
/// free. `None` without a limit.
fn in_container(max: &str, current: &str, stat: &str) -> Option<usize> {
    let number = |text: &str| text.trim().parse::<usize>().ok();
    let mut lines = stat.lines();
    let files = lines.find_map(|line| number(line.strip_prefix("inactive_file ")?));
    let used = number(current)?.saturating_sub(files.unwrap_or(0));
    Some(number(max)?.saturating_sub(used))
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
        #[cfg(feature = "serve")]
        assert!(share() >= LEAST);
        assert!(free() > Some(1 << 20));
        let stat = "anon 700\nfile 300\ninactive_file 200\n";
        assert_eq!(in_container("5000\n", "1000\n", stat), Some(4200));
        assert_eq!(in_container("max\n", "1000\n", stat), None);
    }
}
