//! Which machine a shared library is for, as its first bytes tell.

use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Why the library cannot be used on `target`, if it cannot.
pub fn fault(library: &Path, target: &str) -> Option<String> {
    let mut head = Vec::new();
    let read = File::open(library).and_then(|file| file.take(4096).read_to_end(&mut head));
    if let Err(error) = read {
        return Some(format!("{}: {error}", library.display()));
    }
    let machines = machines(&head);
    if machines.iter().any(|machine| is_of(machine, target)) {
        return None;
    }
    let found = match &machines[..] {
        [] => "no ELF or Mach-O library".to_owned(),
        some => format!("a library for {}", some.join(" and ")),
    };
    Some(format!(
        "{}: {found}, and the target is {target}",
        library.display()
    ))
}

fn is_of(machine: &str, target: &str) -> bool {
    let (system, architecture) = machine.split_once(' ').unwrap_or_default();
    let has_system = match system {
        "macOS" => target.contains("apple"),
        _ => target.contains("linux"),
    };
    has_system && target.split('-').next() == Some(architecture)
}

/// The machines whose code the file has, as "system architecture".
pub fn machines(head: &[u8]) -> Vec<String> {
    let little = |at: usize| Some(u32::from_le_bytes(head.get(at..at + 4)?.try_into().ok()?));
    let big = |at: usize| Some(u32::from_be_bytes(head.get(at..at + 4)?.try_into().ok()?));
    let of_mac = |cpu: Option<u32>| match cpu? {
        0x0100_0007 => Some("macOS x86_64".to_owned()),
        0x0100_000c => Some("macOS aarch64".to_owned()),
        other => Some(format!("macOS processor-{other:#x}")),
    };
    match head.get(..4) {
        // ELF: 64 bits, little-endian, and its machine.
        Some(b"\x7fELF") => {
            let machine = head.get(18..20).map(|m| u16::from_le_bytes([m[0], m[1]]));
            let name = match (head.get(4..6), machine) {
                (Some([2, 1]), Some(62)) => "Linux x86_64".to_owned(),
                (Some([2, 1]), Some(183)) => "Linux aarch64".to_owned(),
                (_, Some(other)) => format!("Linux ELF-machine-{other}"),
                _ => return Vec::new(),
            };
            vec![name]
        }
        // Mach-O of 64 bits for one processor.
        Some([0xcf, 0xfa, 0xed, 0xfe]) => of_mac(little(4)).into_iter().collect(),
        // Mach-O for several: their number, then 20 bytes each.
        Some([0xca, 0xfe, 0xba, 0xbe]) => {
            let count = big(4).unwrap_or(0).min(16) as usize;
            let each = (0..count).filter_map(|index| of_mac(big(8 + 20 * index)));
            each.collect()
        }
        _ => Vec::new(),
    }
}
