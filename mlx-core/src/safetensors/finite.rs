//! Finds NaN and infinite numbers in a file, and numbers that a narrower dtype turns into zeros, without making arrays.

use rayon::prelude::*;

use super::{Safetensors, Tensor};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::files::moved;
use crate::settings;

/// The bytes that a thread reads at a time.
const PART: usize = 1 << 20;

/// The NaN and infinite elements of a file.
///
/// ```
/// use mlx_core::{Array, Safetensors, save_safetensors};
///
/// # fn main() -> mlx_core::Result<()> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("a.safetensors");
/// let w = Array::from_slice(&[1.0f32, f32::NAN], &[2])?;
/// save_safetensors(&path, [("w", w)])?;
/// let found = Safetensors::open(&path)?.non_finite()?.unwrap();
/// assert_eq!((found.first.as_str(), found.elements), ("w", 1));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NonFinite {
    /// The first tensor that has such elements, in the order of the file.
    pub first: String,
    /// How many tensors have such elements.
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

/// Elements of a tensor that are not zero, and become zero in a narrower dtype.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vanishing {
    /// The name of the tensor in its file.
    pub tensor: String,
    /// How many elements of the tensor are not zero.
    pub nonzero: u64,
    /// How many of those become zero, at least one.
    pub zeros: u64,
}

/// The elements that a dtype turns into zeros: those of `bytes` bytes whose bits, without the sign, are at most `limit`.
#[derive(Clone, Copy)]
struct Smallest {
    bytes: usize,
    limit: u64,
}

impl Smallest {
    /// `None` if no element of a dtype, as safetensors names it, becomes zero in `to`.
    fn of(stored: &str, to: DType) -> Option<Self> {
        // Half of the smallest number of `to` is rounded to the even neighbour, which is zero. Models read F64 as F32, which
        // rounds twice.
        let (bytes, limit) = match (stored, to) {
            ("BF16", DType::F16) => (2, 0x3300),
            ("F32", DType::F16) => (4, 0x3300_0000),
            ("F64", DType::F16) => (8, (1023 - 25) << 52 | 1 << 28),
            ("F32", DType::BF16) => (4, 0x8000),
            ("F64", DType::BF16) => (8, (1023 - 134) << 52 | 1 << 36),
            ("F64", DType::F32) => (8, (1023 - 150) << 52),
            _ => return None,
        };
        Some(Self { bytes, limit })
    }

    /// How many elements are not zero, and how many of those become zero.
    fn count(self, bytes: &[u8]) -> (u64, u64) {
        macro_rules! count {
            ($type:ty) => {{
                let limit = self.limit as $type;
                let (elements, _) = bytes.as_chunks();
                let magnitudes = elements
                    .iter()
                    .map(|&element| <$type>::from_le_bytes(element) & (<$type>::MAX >> 1));
                magnitudes.fold((0, 0), |(nonzero, zeros), magnitude| {
                    let is_nonzero = magnitude != 0;
                    let vanishes = is_nonzero && magnitude <= limit;
                    (nonzero + u64::from(is_nonzero), zeros + u64::from(vanishes))
                })
            }};
        }
        match self.bytes {
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
        let patterns = tensors
            .iter()
            .map(|(_, tensor)| Some((*tensor, Pattern::of(tensor.stored)?)));
        let counts = self.counts(patterns, Pattern::count)?;
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

    /// Counts the elements of these tensors that are not zero and become zero when the tensor is
    /// converted to the dtype beside its name, on all threads. Returns the tensors that have such
    /// elements, in the order of the argument. Only tensors with a wider dtype are read, and they
    /// are not kept in memory.
    ///
    /// # Errors
    /// A tensor does not exist, or the file cannot be read.
    pub fn vanishing<'a>(
        &self,
        tensors: impl IntoIterator<Item = (&'a str, DType)>,
    ) -> Result<Vec<Vanishing>> {
        let tensors: Vec<(&str, DType)> = tensors.into_iter().collect();
        let found = tensors.iter().map(|&(name, _)| self.tensor(name));
        let found: Vec<&Tensor> = found.collect::<Result<_>>()?;
        let smallest = found
            .iter()
            .zip(&tensors)
            .map(|(tensor, &(_, to))| Some((*tensor, Smallest::of(tensor.stored, to)?)));
        let mut sums = vec![(0, 0); tensors.len()];
        for (index, (nonzero, zeros)) in self.counts(smallest, Smallest::count)? {
            sums[index].0 += nonzero;
            sums[index].1 += zeros;
        }
        let all = tensors.iter().zip(sums);
        let some = all.filter(|(_, (_, zeros))| *zeros > 0);
        let some = some.map(|((name, _), (nonzero, zeros))| Vanishing {
            tensor: (*name).to_owned(),
            nonzero,
            zeros,
        });
        Ok(some.collect())
    }

    /// Counts what `count` finds in the bytes of tensors, part by part and on all threads. Returns the counts of each part
    /// with the index of its tensor, in order. A tensor is not read where there is `None` for it.
    fn counts<'a, P: Copy + Send + Sync, C: Send>(
        &self,
        tensors: impl Iterator<Item = Option<(&'a Tensor, P)>>,
        count: impl Fn(P, &[u8]) -> C + Sync,
    ) -> Result<Vec<(usize, C)>> {
        let wanted = tensors
            .enumerate()
            .filter_map(|(index, wanted)| Some((index, wanted?)));
        let parts = wanted.flat_map(|(index, (tensor, pattern))| {
            let begins = (tensor.start..tensor.end).step_by(PART);
            begins.map(move |begin| (index, pattern, (begin, tensor.end.min(begin + PART))))
        });
        let parts: Vec<_> = parts.collect();
        let counts =
            parts
                .into_par_iter()
                .map_init(Vec::new, |buffer, (index, pattern, (begin, end))| {
                    buffer.resize(end - begin, 0);
                    moved::read(&self.source, begin, buffer)?;
                    Ok((index, count(pattern, buffer)))
                });
        let counts: std::io::Result<Vec<(usize, C)>> =
            settings::readers()?.install(|| counts.collect());
        counts.map_err(|error| Error::from(error).context(&self.label))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::gguf::{self, Gguf, TensorType};
    use crate::{Array, linalg, safetensors};

    /// Nor does other work wait for a file.
    #[test]
    fn a_file_is_read_while_all_threads_of_the_program_work() -> Result<()> {
        use std::sync::atomic::{AtomicBool, Ordering};
        use std::sync::{Arc, mpsc};
        use std::time::Duration;

        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.safetensors");
        // The bytes behind this header are not aligned, so they are moved.
        let header = r#"{"v":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"w":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}} "#;
        assert_eq!(header.len() % 4, 1);
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend([0; 16]);
        std::fs::write(&path, bytes).unwrap();
        let blocks = folder.path().join("a.gguf");
        let values = crate::ones(&[1, 32], DType::F32)?.multiply(127.0)?;
        let tensors = vec![("b".to_owned(), values, TensorType::Q8_0)];
        gguf::save_as(&blocks, tensors, &BTreeMap::new(), &mut |_| Ok(()))?;
        let is_over = Arc::new(AtomicBool::new(false));
        for _ in 0..rayon::current_num_threads() {
            let is_over = is_over.clone();
            rayon::spawn(move || {
                while !is_over.load(Ordering::Acquire) {
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
        }
        let (send, receive) = mpsc::channel();
        std::thread::spawn(move || {
            let read = Safetensors::open(&path).and_then(|file| {
                let parts = file.part("w", 0, &[0..1, 1..2])?;
                assert_eq!(parts.to_vec::<f32>()?, [0.0; 2]);
                assert_eq!(file.array("v")?.to_vec::<f32>()?, [0.0; 2]);
                let blocks = Gguf::open(&blocks)?;
                assert_eq!(blocks.expanded("b")?.to_vec::<f32>()?, [127.0; 32]);
                assert_eq!(blocks.repacked("b")?.packed.shape(), [1, 8]);
                assert!(blocks.packed("b")?.is_some());
                file.prepare(["v", "w"])?;
                file.non_finite()
            });
            let _ = send.send(read);
        });
        let read = receive.recv_timeout(Duration::from_secs(30));
        is_over.store(true, Ordering::Release);
        assert_eq!(read.expect("the file waits for other work")?, None);
        Ok(())
    }

    /// The numbers around the limit, of both signs, and others: as many become zero as in a conversion.
    #[test]
    fn as_many_elements_vanish_as_a_conversion_gives_zeros() -> Result<()> {
        let folder = tempfile::tempdir().unwrap();
        for (stored, dtype, to, smallest) in [
            ("F32", DType::F32, DType::F16, 24),
            ("BF16", DType::BF16, DType::F16, 24),
            ("F64", DType::F64, DType::F16, 24),
            ("F32", DType::F32, DType::BF16, 133),
            ("F64", DType::F64, DType::BF16, 133),
            ("F64", DType::F64, DType::F32, 149),
        ] {
            let half = 0.5f64.powi(smallest + 1);
            let near = [
                0.5,
                1.0 - 1.0 / 128.0,
                1.0,
                1.0 + 1.0 / 128.0,
                1.5,
                2.0,
                3.0,
            ];
            let close = [24, 25, 30, 17].map(|bits| 1.0 + 0.5f64.powi(bits));
            let numbers = near.into_iter().chain(close).map(|factor| half * factor);
            let numbers: Vec<f64> = numbers
                .chain([0.0, 1.0, f64::INFINITY, f64::NAN])
                .flat_map(|number| [number, -number])
                .collect();
            let n = numbers.len() as i32;
            let array = linalg::on_cpu(|| Array::from_slice(&numbers, &[n])?.astype(dtype))?;
            let path = folder.path().join(format!("{stored}-{to}.safetensors"));
            safetensors::save(&path, [("w", &array)], &BTreeMap::new())?;
            let file = Safetensors::open(&path)?;
            let count = |array: &Array| -> Result<u64> {
                let array = linalg::on_cpu(|| array.astype(DType::F64))?;
                let nonzero = array.to_vec::<f64>()?;
                Ok(nonzero.iter().filter(|&&number| number != 0.0).count() as u64)
            };
            // As a model's parameter: F64 becomes F32 first.
            let nonzero = count(&array)?;
            let kept = count(&linalg::on_cpu(|| file.parameter("w")?.astype(to))?)?;
            let expected = Vanishing {
                tensor: "w".to_owned(),
                nonzero,
                zeros: nonzero - kept,
            };
            assert!(nonzero > kept && kept > 4, "{stored} to {to}");
            assert_eq!(file.vanishing([("w", to)])?, [expected], "{stored} to {to}");
            assert_eq!(file.vanishing([("w", dtype)])?, [], "{stored}");
            assert!(file.vanishing([("v", to)]).is_err());
        }
        Ok(())
    }
}
