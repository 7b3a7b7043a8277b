//! The directory of a zip archive, checked against the format, and the checksum of its entries.
//!
//! Supports only what npz files have: entries that are stored or deflated, one disk, no encryption.
//! The directory at the end is authoritative; each entry's own header must agree with it.

use std::ops::Range;

/// How the bytes of an entry are coded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    Stored,
    Deflated,
}

/// An entry whose bytes are inside the archive.
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) method: Method,
    /// The checksum of the content.
    pub(crate) crc: u32,
    /// Where the coded content is.
    pub(crate) packed: Range<usize>,
    /// Bytes of the content, as stated in the directory.
    pub(crate) size: usize,
}

pub(crate) const END: u32 = 0x0605_4b50;
pub(crate) const WIDE_END: u32 = 0x0606_4b50;
pub(crate) const WIDE_PLACE: u32 = 0x0706_4b50;
pub(crate) const CENTRAL: u32 = 0x0201_4b50;
pub(crate) const LOCAL: u32 = 0x0403_4b50;
/// The extra field that holds 64-bit sizes.
pub(crate) const WIDE: u16 = 1;

/// Bytes of the end record without its comment.
const END_LEN: usize = 22;
const ENCRYPTED: u16 = 1;

/// Reads numbers at positions that may be outside the archive.
#[derive(Clone, Copy)]
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn get(self, at: usize, len: usize) -> Result<&'a [u8], String> {
        let found = at.checked_add(len).and_then(|end| self.0.get(at..end));
        found.ok_or_else(|| {
            let all = self.0.len();
            format!("the archive has {all} bytes, too few for a record of {len} bytes at {at}")
        })
    }

    fn u16(self, at: usize) -> Result<u16, String> {
        let bytes = self.get(at, 2)?;
        Ok(u16::from_le_bytes([bytes[0], bytes[1]]))
    }

    fn u32(self, at: usize) -> Result<u32, String> {
        let (low, high) = (self.u16(at)?, self.u16(at + 2)?);
        Ok(u32::from(low) | u32::from(high) << 16)
    }

    fn u64(self, at: usize) -> Result<u64, String> {
        let (low, high) = (self.u32(at)?, self.u32(at + 4)?);
        Ok(u64::from(low) | u64::from(high) << 32)
    }

    fn size(self, at: usize) -> Result<usize, String> {
        size(self.u64(at)?)
    }
}

fn size(number: u64) -> Result<usize, String> {
    usize::try_from(number).map_err(|_| format!("{number} bytes exceed the address space"))
}

/// The entries of an archive, in the order of its directory.
///
/// # Errors
/// A text that says what is wrong with the archive. In a result every entry's bytes are inside the
/// archive, and no two entries share some.
pub(crate) fn directory(archive: &[u8]) -> Result<Vec<Entry>, String> {
    let bytes = Bytes(archive);
    let (count, places) = find_directory(bytes)?;
    let mut entries = Vec::new();
    let mut taken = Vec::new();
    let mut at = places.start;
    for _ in 0..count {
        let (entry, all, next) = central(bytes, at, places.start)?;
        if next > places.end {
            return Err(format!(
                "the directory of {} bytes is too short for {count} entries",
                places.len()
            ));
        }
        taken.push((all, entries.len()));
        entries.push(entry);
        at = next;
    }
    if at != places.end {
        return Err(format!(
            "{} bytes follow the last entry of the directory",
            places.end - at
        ));
    }
    taken.sort_by_key(|(range, _)| (range.start, range.end));
    for pair in taken.windows(2) {
        if pair[1].0.start < pair[0].0.end {
            return Err(format!(
                "entry {:?} overlaps entry {:?}",
                entries[pair[1].1].name, entries[pair[0].1].name
            ));
        }
    }
    Ok(entries)
}

/// How many entries there are, and where the directory is.
fn find_directory(bytes: Bytes<'_>) -> Result<(u64, Range<usize>), String> {
    let len = bytes.0.len();
    let last = len
        .checked_sub(END_LEN)
        .ok_or_else(|| format!("{len} bytes are too few for a zip archive"))?;
    let first = last.saturating_sub(usize::from(u16::MAX));
    let end = (first..=last).rev().find(|&at| {
        let comment = bytes.u16(at + 20).map(usize::from);
        bytes.u32(at) == Ok(END) && comment == Ok(last - at)
    });
    let end = end.ok_or("not a zip archive: the record at its end is missing")?;
    let mut fields = [
        bytes.u16(end + 4)?.into(),
        bytes.u16(end + 6)?.into(),
        bytes.u16(end + 8)?.into(),
        u64::from(bytes.u16(end + 10)?),
        bytes.u32(end + 12)?.into(),
        bytes.u32(end + 16)?.into(),
    ];
    let mut before = end;
    if let Some(place) = end.checked_sub(20)
        && bytes.u32(place) == Ok(WIDE_PLACE)
    {
        let wide = bytes.size(place + 8)?;
        if wide >= place || bytes.u32(wide)? != WIDE_END {
            return Err("the 64-bit record at its end is missing".into());
        }
        fields = [
            bytes.u32(wide + 16)?.into(),
            bytes.u32(wide + 20)?.into(),
            bytes.u64(wide + 24)?,
            bytes.u64(wide + 32)?,
            bytes.u64(wide + 40)?,
            bytes.u64(wide + 48)?,
        ];
        before = wide;
    }
    let [disk, first_disk, here, count, length, start] = fields;
    if (disk, first_disk) != (0, 0) || here != count {
        return Err("archives of several disks are not supported".into());
    }
    let start = size(start)?;
    match start.checked_add(size(length)?) {
        Some(end) if end == before => Ok((count, start..end)),
        _ => Err(format!(
            "the directory of {length} bytes at {start} does not end where its last record begins, at {before}"
        )),
    }
}

/// The entry of the directory at `at`, all bytes that belong to it, and where the next one begins.
fn central(
    bytes: Bytes<'_>,
    at: usize,
    end: usize,
) -> Result<(Entry, Range<usize>, usize), String> {
    if bytes.u32(at)? != CENTRAL {
        return Err(format!("no entry of the directory at {at}"));
    }
    let lens = [
        bytes.u16(at + 28)?,
        bytes.u16(at + 30)?,
        bytes.u16(at + 32)?,
    ];
    let [name_len, extra_len, comment_len] = lens.map(usize::from);
    let raw_name = bytes.get(at + 46, name_len)?;
    let name = std::str::from_utf8(raw_name)
        .map_err(|_| format!("entry {:?}: its name is not UTF-8", raw_name.escape_ascii()))?;
    let named = |what: String| format!("entry {name:?}: {what}");
    check_name(name).map_err(named)?;
    let extra = bytes.get(at + 46 + name_len, extra_len)?;
    let sizes = Sizes::of(bytes, at, extra).map_err(named)?;
    let flags = bytes.u16(at + 8)?;
    if flags & ENCRYPTED != 0 {
        return Err(named("encrypted entries are not supported".into()));
    }
    let method = match bytes.u16(at + 10)? {
        0 => Method::Stored,
        8 => Method::Deflated,
        other => {
            return Err(named(format!(
                "compression method {other} is not supported; supported: 0 (stored), 8 (deflate)"
            )));
        }
    };
    if method == Method::Stored && sizes.packed != sizes.content {
        let Sizes {
            packed, content, ..
        } = sizes;
        return Err(named(format!(
            "stored in {packed} bytes, but its size is {content}"
        )));
    }
    let begin = local(bytes, sizes.local, raw_name, method).map_err(named)?;
    let packed = begin.checked_add(sizes.packed).filter(|&last| last <= end);
    let packed = begin..packed.ok_or_else(|| {
        let len = sizes.packed;
        named(format!(
            "{len} bytes at {begin} reach beyond the entries, which end at {end}"
        ))
    })?;
    let all = sizes.local..packed.end;
    let entry = Entry {
        name: name.to_owned(),
        method,
        crc: bytes.u32(at + 16)?,
        packed,
        size: sizes.content,
    };
    Ok((entry, all, at + 46 + name_len + extra_len + comment_len))
}

/// The sizes of an entry, and where its own header is.
struct Sizes {
    packed: usize,
    content: usize,
    local: usize,
}

impl Sizes {
    fn of(bytes: Bytes<'_>, at: usize, mut extra: &[u8]) -> Result<Self, String> {
        let [packed, content, local] = [at + 20, at + 24, at + 42].map(|at| bytes.u32(at));
        // In the order of the extra field.
        let mut numbers = [content?.into(), packed?.into(), local?.into()];
        while let Some((head, rest)) = extra.split_first_chunk::<4>() {
            let id = u16::from_le_bytes([head[0], head[1]]);
            let len = usize::from(u16::from_le_bytes([head[2], head[3]]));
            let field = rest.get(..len).ok_or("an extra field is cut off")?;
            extra = &rest[len..];
            if id == WIDE {
                let mut words = field.as_chunks::<8>().0.iter();
                for number in &mut numbers {
                    if *number == u64::from(u32::MAX) {
                        let word = words.next().ok_or("its 64-bit sizes are missing")?;
                        *number = u64::from_le_bytes(*word);
                    }
                }
            }
        }
        let [content, packed, local] = numbers;
        Ok(Self {
            packed: size(packed)?,
            content: size(content)?,
            local: size(local)?,
        })
    }
}

/// Where the content begins behind the entry's own header.
fn local(bytes: Bytes<'_>, at: usize, name: &[u8], method: Method) -> Result<usize, String> {
    if bytes.u32(at)? != LOCAL {
        return Err(format!("no entry at {at}"));
    }
    let name_len = usize::from(bytes.u16(at + 26)?);
    if bytes.get(at + 30, name_len)? != name {
        return Err("the directory and the entry itself give different names".into());
    }
    let expected = if method == Method::Stored { 0 } else { 8 };
    if bytes.u16(at + 8)? != expected {
        return Err("the directory and the entry itself give different methods".into());
    }
    Ok(at + 30 + name_len + usize::from(bytes.u16(at + 28)?))
}

/// Refuses a name that would lead out of a folder, or that is not a file's.
pub(crate) fn check_name(name: &str) -> Result<(), String> {
    if name.contains(['\\', ':']) || name.chars().any(char::is_control) {
        return Err("its name has a backslash, a colon or a control character".into());
    }
    if name.split('/').any(|part| matches!(part, "" | "." | "..")) {
        return Err("its name is not a relative path of plain names".into());
    }
    Ok(())
}

/// The checksum of zip archives: CRC-32 with the reflected polynomial 0xEDB88320, eight bytes at a time.
#[derive(Clone, Copy)]
pub(crate) struct Crc(u32);

const TABLES: [[u32; 256]; 8] = {
    let mut tables = [[0u32; 256]; 8];
    let mut i = 0;
    while i < 256 {
        let mut value = i as u32;
        let mut bit = 0;
        while bit < 8 {
            value = if value & 1 == 1 {
                value >> 1 ^ 0xedb8_8320
            } else {
                value >> 1
            };
            bit += 1;
        }
        tables[0][i] = value;
        i += 1;
    }
    let mut k = 1;
    while k < 8 {
        let mut i = 0;
        while i < 256 {
            let before = tables[k - 1][i];
            tables[k][i] = before >> 8 ^ tables[0][(before & 255) as usize];
            i += 1;
        }
        k += 1;
    }
    tables
};

impl Crc {
    pub(crate) fn new() -> Self {
        Self(u32::MAX)
    }

    pub(crate) fn add(&mut self, bytes: &[u8]) {
        let (blocks, rest) = bytes.as_chunks::<8>();
        let mut crc = self.0;
        for block in blocks {
            let word = u64::from_le_bytes(*block) ^ u64::from(crc);
            crc = (0..8).fold(0, |sum, i| {
                sum ^ TABLES[7 - i][(word >> (8 * i) & 255) as usize]
            });
        }
        for &byte in rest {
            crc = crc >> 8 ^ TABLES[0][((crc ^ u32::from(byte)) & 255) as usize];
        }
        self.0 = crc;
    }

    pub(crate) fn value(self) -> u32 {
        !self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_has_its_check_values() {
        let crc = |bytes: &[u8]| {
            let mut crc = Crc::new();
            crc.add(bytes);
            crc.value()
        };
        // The check value of CRC-32 (ISO-HDLC), and a text of several blocks (zlib.crc32).
        assert_eq!(crc(b"123456789"), 0xcbf4_3926);
        assert_eq!(crc(b""), 0);
        let text = b"The quick brown fox jumps over the lazy dog";
        assert_eq!(crc(text), 0x414f_a339);
        let mut parts = Crc::new();
        parts.add(&text[..5]);
        parts.add(&text[5..]);
        assert_eq!(parts.value(), 0x414f_a339);
    }
}
