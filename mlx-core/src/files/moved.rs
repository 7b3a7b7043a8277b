//! Copies tensors into aligned memory, because files that MLX wrote do not align them.

use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use memmap2::MmapMut;
use rayon::prelude::*;

use super::source::Source;
use crate::settings::readers;

/// The bytes that a thread reads at a time. Parts of 1 MB took 1.5 times as long.
const PART: usize = 4 << 20;

/// Small tensors share memory of this size, so that they get huge pages too.
const BLOCK: usize = 32 << 20;

/// Every tensor begins on a cache line. None is at the beginning of the memory, because MLX may read before a tensor.
pub const ALIGN: usize = 64;

/// Memory that holds copies of tensors.
pub struct Moved(MmapMut);

impl Moved {
    /// Copies ranges of the source on all threads. A file is read into huge pages, not copied from its mapping: 0.20 s
    /// for 1.2 GB with two threads, where copying into ordinary pages takes 0.35 s.
    ///
    /// Returns the memory and the position of each range in it.
    ///
    /// # Errors
    /// The file cannot be read any more, or there is no memory.
    pub fn new(source: &Source, ranges: &[Range<usize>]) -> io::Result<(Self, Vec<usize>)> {
        let mut len = ALIGN;
        let mut begins = Vec::with_capacity(ranges.len());
        for range in ranges {
            begins.push(len);
            len += range.len().next_multiple_of(ALIGN);
        }
        let mut map = MmapMut::map_anon(len)?;
        // A hint that the system may ignore.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        let mut rest = &mut map[ALIGN..];
        let mut places = Vec::with_capacity(ranges.len());
        for range in ranges {
            let (place, behind) = rest.split_at_mut(range.len().next_multiple_of(ALIGN));
            places.push((&mut place[..range.len()], range.start));
            rest = behind;
        }
        on_readers(|| {
            places.into_par_iter().try_for_each(|(place, start)| {
                let parts = place.par_chunks_mut(PART).enumerate();
                parts.try_for_each(|(i, to)| read(source, start + i * PART, to))
            })
        })?;
        Ok((Self(map), begins))
    }

    /// Copies ranges of the source, one directly after the other, on all threads. Returns the memory and the position
    /// of the first.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn joined(source: &Source, ranges: &[Range<usize>]) -> io::Result<(Self, usize)> {
        let len: usize = ranges.iter().map(Range::len).sum();
        let mut map = MmapMut::map_anon(ALIGN + len.next_multiple_of(ALIGN))?;
        let mut rest = &mut map[ALIGN..];
        let mut places = Vec::with_capacity(ranges.len());
        for range in ranges {
            let (place, behind) = rest.split_at_mut(range.len());
            places.push((place, range.start));
            rest = behind;
        }
        // Short ranges are grouped, so that a column is no job of its own.
        let mean = (len / ranges.len().max(1)).max(1);
        let jobs = places.into_par_iter().with_min_len(PART.div_ceil(mean));
        on_readers(|| jobs.try_for_each(|(place, start)| read(source, start, place)))?;
        Ok((Self(map), ALIGN))
    }

    /// The bytes from one of the positions that [`new`](Self::new) returned.
    pub fn from(&self, begin: usize) -> &[u8] {
        &self.0[begin..]
    }
}

/// Runs parallel work on the threads that read files.
fn on_readers<R: Send>(work: impl FnOnce() -> io::Result<R> + Send) -> io::Result<R> {
    readers().map_err(io::Error::other)?.install(work)
}

pub(crate) fn read(source: &Source, begin: usize, to: &mut [u8]) -> io::Result<()> {
    match source {
        Source::Mapped(mapped) => mapped.file().read_exact_at(to, begin as u64),
        Source::Static(_) | Source::Shared(_) => {
            to.copy_from_slice(&source.bytes()[begin..begin + to.len()]);
            Ok(())
        }
    }
}

/// Groups the ranges that share memory, in the order of the file.
pub fn blocks(mut ranges: Vec<Range<usize>>) -> Vec<Vec<Range<usize>>> {
    ranges.sort_by_key(|range| range.start);
    let mut blocks: Vec<Vec<Range<usize>>> = Vec::new();
    let mut room = 0;
    for range in ranges {
        match blocks.last_mut() {
            Some(block) if range.len() <= room => {
                room -= range.len();
                block.push(range);
            }
            _ => {
                room = BLOCK.saturating_sub(range.len());
                blocks.push(vec![range]);
            }
        }
    }
    blocks
}
