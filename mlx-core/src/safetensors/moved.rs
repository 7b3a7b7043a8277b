//! Bytes of a file at addresses that suit their types: files that MLX wrote have their tensors at any.

use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use memmap2::MmapMut;
use rayon::prelude::*;

use super::Source;

/// What a thread reads at a time. Parts of 1 MB took half as long again.
const PART: usize = 4 << 20;

/// Tensors that are moved together share memory of this size, so that small ones get huge pages too.
const BLOCK: usize = 32 << 20;

/// Every tensor begins on a cache line, and none where the memory does, since MLX may look at what stands before.
pub const ALIGN: usize = 64;

/// Memory with copies of tensors.
pub struct Moved(MmapMut);

impl Moved {
    /// Copies ranges of the source by all threads. Files are read, not copied from where they are mapped, into memory
    /// in huge pages: 0.20 s for 1.2 GB with two threads, where copying into ordinary pages takes 0.35.
    ///
    /// Returns the memory and where in it each range begins.
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
        // A wish that the system need not grant.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        let mut rest = &mut map[ALIGN..];
        let mut places = Vec::with_capacity(ranges.len());
        for range in ranges {
            let (place, behind) = rest.split_at_mut(range.len().next_multiple_of(ALIGN));
            places.push((&mut place[..range.len()], range.start));
            rest = behind;
        }
        places.into_par_iter().try_for_each(|(place, start)| {
            let parts = place.par_chunks_mut(PART).enumerate();
            parts.try_for_each(|(i, to)| read(source, start + i * PART, to))
        })?;
        Ok((Self(map), begins))
    }

    /// The bytes from one of the places that [`new`](Self::new) told.
    pub fn from(&self, begin: usize) -> &[u8] {
        &self.0[begin..]
    }
}

fn read(source: &Source, begin: usize, to: &mut [u8]) -> io::Result<()> {
    match source {
        Source::Mapped(file, _) => file.read_exact_at(to, begin as u64),
        Source::Static(_) | Source::Shared(_) => {
            to.copy_from_slice(&source.bytes()[begin..begin + to.len()]);
            Ok(())
        }
    }
}

/// Puts ranges together, in the order of the file, that are moved together.
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
