//! Where segments lie: in files of a folder, or in the memory of the host. Both have the same bytes
//! under the same names.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mlx_core::Safetensors;

use super::folder::FileName;

/// A place for the segments of a model, limited in bytes. Where several processes share it, segments
/// may come and go at any time.
pub(super) trait SegmentStore: Send + Sync {
    /// The place, for messages.
    fn place(&self) -> String;

    /// The place of a segment, for messages.
    fn place_of(&self, name: FileName) -> String;

    /// Whether segments are there after a restart.
    fn survives(&self) -> bool;

    /// Makes the place ready.
    ///
    /// # Errors
    /// Nothing can be written there.
    fn open(&self) -> io::Result<()>;

    /// The segments, with their sizes in bytes.
    ///
    /// # Errors
    /// The place cannot be read.
    fn names(&self) -> io::Result<Vec<(FileName, u64)>>;

    /// A segment, of which only the head is read until its arrays are.
    ///
    /// # Errors
    /// It is gone, or no such file.
    fn head(&self, name: FileName) -> mlx_core::Result<Safetensors>;

    /// Whether a segment is there.
    fn has(&self, name: FileName) -> bool;

    /// All bytes of a segment, of which there should be `len`.
    ///
    /// # Errors
    /// [`NotFound`](io::ErrorKind::NotFound) if it is gone; it cannot be read, or has another length.
    fn read(&self, name: FileName, len: u64) -> io::Result<Arc<[u8]>>;

    /// Removes the segments that were used least recently until the others and `needed` more bytes
    /// fit. Returns whether they do.
    ///
    /// # Errors
    /// The place cannot be read or changed.
    fn make_room(&self, needed: u64) -> io::Result<bool>;

    /// Writes a segment, which appears whole or not at all.
    ///
    /// # Errors
    /// It cannot be written.
    fn save(&self, name: FileName, bytes: Arc<[u8]>) -> io::Result<()>;

    /// Marks segments as used now, the last one first: of segments that need each other, those that
    /// are needed come first and are removed last.
    fn touch(&self, names: &[FileName]);
}

/// The memory of the host, for devices with memory of their own.
pub(super) struct HostStore {
    limit: u64,
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    /// The bytes of each segment, and when it was used last.
    segments: HashMap<FileName, (Arc<[u8]>, u64)>,
    bytes: u64,
    clock: u64,
}

impl HostStore {
    /// No segments, and at most `limit` bytes of them later.
    pub(super) fn new(limit: u64) -> Self {
        Self {
            limit,
            held: Mutex::default(),
        }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        // A panic leaves whole segments.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn bytes_of(&self, name: FileName) -> io::Result<Arc<[u8]>> {
        let held = self.held();
        let found = held.segments.get(&name).map(|(bytes, _)| bytes.clone());
        found.ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl SegmentStore for HostStore {
    fn place(&self) -> String {
        "the host's memory".to_owned()
    }

    fn place_of(&self, name: FileName) -> String {
        format!("{} in {}", name.text(), self.place())
    }

    fn survives(&self) -> bool {
        false
    }

    fn open(&self) -> io::Result<()> {
        Ok(())
    }

    fn names(&self) -> io::Result<Vec<(FileName, u64)>> {
        let held = self.held();
        let segments = held.segments.iter();
        Ok(segments
            .map(|(&name, (bytes, _))| (name, bytes.len() as u64))
            .collect())
    }

    fn head(&self, name: FileName) -> mlx_core::Result<Safetensors> {
        Safetensors::from_bytes(self.bytes_of(name)?)
    }

    fn has(&self, name: FileName) -> bool {
        self.held().segments.contains_key(&name)
    }

    fn read(&self, name: FileName, len: u64) -> io::Result<Arc<[u8]>> {
        let bytes = self.bytes_of(name)?;
        match bytes.len() as u64 == len {
            true => Ok(bytes),
            false => Err(io::Error::other(format!(
                "it now has {} bytes",
                bytes.len()
            ))),
        }
    }

    fn make_room(&self, needed: u64) -> io::Result<bool> {
        if needed > self.limit {
            return Ok(false);
        }
        let mut held = self.held();
        while held.bytes + needed > self.limit {
            let segments = held.segments.iter();
            let oldest = segments.min_by_key(|(_, (_, used))| *used);
            let Some(name) = oldest.map(|(&name, _)| name) else {
                break;
            };
            if let Some((bytes, _)) = held.segments.remove(&name) {
                held.bytes -= bytes.len() as u64;
            }
        }
        Ok(true)
    }

    fn save(&self, name: FileName, bytes: Arc<[u8]>) -> io::Result<()> {
        let mut held = self.held();
        held.clock += 1;
        let used = held.clock;
        held.bytes += bytes.len() as u64;
        if let Some((before, _)) = held.segments.insert(name, (bytes, used)) {
            held.bytes -= before.len() as u64;
        }
        Ok(())
    }

    fn touch(&self, names: &[FileName]) {
        let mut held = self.held();
        for name in names.iter().rev() {
            held.clock += 1;
            let now = held.clock;
            if let Some((_, used)) = held.segments.get_mut(name) {
                *used = now;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(key: u64) -> FileName {
        FileName { key, sum: 7 }
    }

    fn keys(host: &HostStore) -> Vec<u64> {
        let names = host.names().unwrap().into_iter();
        let mut keys: Vec<u64> = names.map(|(name, _)| name.key).collect();
        keys.sort_unstable();
        keys
    }

    #[test]
    fn the_least_recently_used_segments_are_removed() {
        let host = HostStore::new(450);
        for key in 0..4 {
            assert!(host.make_room(100).unwrap());
            host.save(name(key), vec![key as u8; 100].into()).unwrap();
        }
        // What others need is removed last.
        host.touch(&[name(0), name(1)]);
        assert!(host.make_room(250).unwrap());
        assert_eq!(keys(&host), [0, 1]);
        assert!(host.make_room(300).unwrap());
        assert_eq!(keys(&host), [0]);
        assert!(!host.make_room(451).unwrap());
        assert_eq!(host.read(name(0), 100).unwrap()[..], [0; 100]);
        let gone = host.read(name(1), 100).unwrap_err();
        assert_eq!(gone.kind(), io::ErrorKind::NotFound);
        assert!(host.read(name(0), 99).is_err());
        assert!(host.has(name(0)) && !host.has(name(1)));
        // A segment that is written again counts once.
        host.save(name(0), vec![1; 400].into()).unwrap();
        assert!(host.make_room(50).unwrap());
        assert_eq!(keys(&host), [0]);
        assert!(host.make_room(51).unwrap() && keys(&host).is_empty());
    }
}
