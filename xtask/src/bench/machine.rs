//! The machine of the measurements.

use std::fs;
use std::process::Command;

use super::output_of;
use crate::cargo;

/// The processor's name, as the system gives it.
pub fn cpu() -> String {
    let linux = fs::read_to_string("/proc/cpuinfo").ok().and_then(|text| {
        let line = text.lines().find(|line| line.starts_with("model name"))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    });
    linux
        .or_else(|| output_of(Command::new("sysctl").args(["-n", "machdep.cpu.brand_string"])))
        .unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}

/// The number of threads that the processor runs at a time.
pub fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Memory of the machine in bytes, if the system reports it.
pub fn memory() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("MemTotal:"))?;
    let kibibytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kibibytes * 1024)
}

/// The load average of the last minute.
pub fn load_average() -> Option<f64> {
    let text = fs::read_to_string("/proc/loadavg").ok()?;
    text.split_whitespace().next()?.parse().ok()
}

/// CPU seconds of all threads of a process, if the system reports them.
pub fn cpu_seconds(process: u32) -> Option<f64> {
    /// Linux counts in hundredths of a second.
    const TICKS: f64 = 100.0;
    let text = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The second field is a name in parentheses, which may hold blanks. Fields 14 and 15 are the times of the program and of the system.
    let mut fields = text.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<f64>().ok();
    Some((ticks()? + ticks()?) / TICKS)
}

/// The system and its version.
pub fn system() -> String {
    output_of(Command::new("uname").arg("-sr")).unwrap_or_else(|| std::env::consts::OS.to_owned())
}

/// The commit that was measured, with a mark if files differ from it.
pub fn commit() -> Option<String> {
    output_of(
        Command::new("git")
            .args(["describe", "--always", "--abbrev=12", "--dirty=+"])
            .current_dir(cargo::repository()),
    )
}
