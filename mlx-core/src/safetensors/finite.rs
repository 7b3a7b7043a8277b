//! Finds NaN and infinite numbers in a file without making arrays.

use rayon::prelude::*;

use super::{Safetensors, Tensor, moved};
use crate::error::{Error, Result};

/// The bytes that a thread reads at a time.
const PART: usize = 1 << 20;

/// The NaN and infinite elements of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NonFinite {
    /// The first tensor that has some, in the order of the file.
    pub first: String,
    /// How many tensors have some.
    pub tensors: usize,
    /// How many elements of all tensors are NaN or infinite.
    pub elements: u64,
}

/// The pattern of NaN and infinity in a type: an element of `size` bytes is one if its bits under `mask` equal `value`.
#[derive(Clone, Copy)]
struct Pattern {
    bytes: usize,
    mask: u64,
    value: u64,
}

impl Pattern {
    /// The pattern of a dtype as safetensors names it. `None` for dtypes without NaN and infinity.
    fn of(stored: &str) -> Option<Self> {
        let (bytes, mask, value) = match stored {
            "F16" => (2, 0x7c00, 0x7c00),
            "BF16" => (2, 0x7f80, 0x7f80),
            // A complex number is two F32.
            "F32" | "C64" => (4, 0x7f80_0000, 0x7f80_0000),
            "F64" => (8, 0x7ff0 << 48, 0x7ff0 << 48),
            "F8_E4M3" => (1, 0x7f, 0x7f),
            "F8_E5M2" => (1, 0x7c, 0x7c),
            "F8_E8M0" => (1, 0xff, 0xff),
            "F8_E4M3FNUZ" | "F8_E5M2FNUZ" => (1, 0xff, 0x80),
            _ => return None,
        };
        Some(Self { bytes, mask, value })
    }

    fn count(self, bytes: &[u8]) -> u64 {
        macro_rules! count {
            ($type:ty) => {{
                let (mask, value) = (self.mask as $type, self.value as $type);
                // The sum of this many elements fits the type, so the compiler can add vectors of it.
                let blocks = bytes.chunks(128 * size_of::<$type>());
                blocks
                    .map(|block| {
                        let (elements, _) = block.as_chunks();
                        let found = elements
                            .iter()
                            .map(|&element| <$type>::from_le_bytes(element) & mask == value);
                        u64::from(found.map(<$type>::from).sum::<$type>())
                    })
                    .sum()
            }};
        }
        match self.bytes {
            1 => count!(u8),
            2 => count!(u16),
            4 => count!(u32),
            _ => count!(u64),
        }
    }
}

impl Safetensors {
    /// Looks for NaN and infinite elements in all floating-point tensors, on all threads; `None` if there are none.
    /// The file is read once, and not kept in memory.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn non_finite(&self) -> Result<Option<NonFinite>> {
        let mut tensors: Vec<(&String, &Tensor)> = self.header.tensors.iter().collect();
        tensors.sort_by_key(|(_, tensor)| tensor.start);
        let parts = tensors.iter().enumerate().flat_map(|(index, (_, tensor))| {
            let pattern = Pattern::of(tensor.stored);
            let begins = (tensor.start..tensor.end).step_by(PART);
            let parts = begins.map(move |begin| (begin, tensor.end.min(begin + PART)));
            pattern
                .into_iter()
                .flat_map(move |pattern| parts.clone().map(move |part| (index, pattern, part)))
        });
        let parts: Vec<_> = parts.collect();
        let counts =
            parts
                .into_par_iter()
                .map_init(Vec::new, |buffer, (index, pattern, (begin, end))| {
                    buffer.resize(end - begin, 0);
                    moved::read(&self.source, begin, buffer)?;
                    Ok((index, pattern.count(buffer)))
                });
        let counts: std::io::Result<Vec<(usize, u64)>> = counts.collect();
        let counts = counts.map_err(|error| Error::from(error).context(&self.label))?;
        let mut found: Vec<(usize, u64)> = Vec::new();
        for (index, count) in counts.into_iter().filter(|&(_, count)| count > 0) {
            match found.last_mut() {
                Some((last, sum)) if *last == index => *sum += count,
                _ => found.push((index, count)),
            }
        }
        Ok(found.first().map(|&(first, _)| NonFinite {
            first: tensors[first].0.clone(),
            tensors: found.len(),
            elements: found.iter().map(|(_, count)| count).sum(),
        }))
    }
}
