//! [`Shards`]: many tensors in a few files.

use std::collections::BTreeMap;
use std::path::Path;

use mlx_core::safetensors::Writer;
use mlx_core::{Array, DType, Result};
use serde_json::json;

/// The largest size of a shard in bytes, unless a single tensor is larger.
pub const SHARD_BYTES: u64 = 5 << 30;

/// The files of a model's weights, in order.
pub(super) struct Shards {
    /// Each file's name and its tensors. No file is without tensors.
    files: Vec<(String, Vec<(String, Array)>)>,
    pub bytes: u64,
}

impl Shards {
    /// Distributes tensors to files of up to `limit` bytes: `model.safetensors`, or
    /// `model-00001-of-0000N.safetensors` and so on.
    pub fn new(tensors: Vec<(String, Array)>, limit: u64) -> Self {
        let mut shards: Vec<Vec<(String, Array)>> = Vec::new();
        let (mut size, mut bytes) = (0, 0);
        for (name, array) in tensors {
            let n = array.nbytes() as u64;
            if shards.is_empty() || size + n > limit {
                shards.push(Vec::new());
                size = 0;
            }
            size += n;
            bytes += n;
            shards.last_mut().expect("pushed above").push((name, array));
        }
        let count = shards.len();
        let name = |index: usize| match count {
            1 => "model.safetensors".to_owned(),
            _ => format!("model-{:05}-of-{count:05}.safetensors", index + 1),
        };
        let files = shards.into_iter().enumerate();
        Self {
            files: files.map(|(index, shard)| (name(index), shard)).collect(),
            bytes,
        }
    }

    pub fn names(&self) -> Vec<String> {
        self.files.iter().map(|(name, _)| name.clone()).collect()
    }

    /// Adds a separate file that is not in the index.
    pub fn beside(&mut self, file: &str, tensors: Vec<(String, Array)>) {
        if !tensors.is_empty() {
            let bytes = tensors.iter().map(|(_, array)| array.nbytes() as u64);
            self.bytes += bytes.sum::<u64>();
            self.files.push((file.to_owned(), tensors));
        }
    }

    /// The index: the file of each tensor.
    pub fn index(&self, parameters: usize) -> serde_json::Value {
        let map: BTreeMap<&str, &str> = self
            .files
            .iter()
            .flat_map(|(file, tensors)| tensors.iter().map(move |(name, _)| (&**name, &**file)))
            .collect();
        json!({
            "metadata": {"total_size": self.bytes, "total_parameters": parameters},
            "weight_map": map,
        })
    }

    /// Evaluates, writes and frees one tensor after the other. `progress` gets the number of bytes
    /// written so far.
    pub fn write(self, dir: &Path, progress: &mut dyn FnMut(u64) -> Result<()>) -> Result<()> {
        let metadata = BTreeMap::from([("format".to_owned(), "mlx".to_owned())]);
        let mut done = 0;
        for (file, tensors) in self.files {
            let specs: Vec<(String, DType, Vec<i32>)> = tensors
                .iter()
                .map(|(name, array)| (name.clone(), array.dtype(), array.shape().to_vec()))
                .collect();
            let specs = specs
                .iter()
                .map(|(name, dtype, shape)| (&**name, *dtype, &**shape));
            let mut writer = Writer::new(dir.join(file), specs, &metadata)?;
            for (name, array) in tensors {
                progress(done)?;
                writer.write(&name, &array)?;
                done += array.nbytes() as u64;
            }
            writer.finish()?;
        }
        progress(done)
    }
}
