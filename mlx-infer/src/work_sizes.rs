//! How much is computed at a time: a GPU is busy only with many tokens, and a CPU gains nothing from more.

use mlx_core::{Device, DeviceKind};

/// Sizes of work.
pub(crate) struct WorkSizes {
    /// Tokens of a long text that are computed at a time.
    pub(crate) chunk: usize,
    /// Tokens, padding included, of short prompts that are computed together.
    pub(crate) prompts: usize,
    /// Tokens, padding included, of texts that are classified together.
    pub(crate) texts: usize,
    /// Logits that exist at a time.
    pub(crate) logits: usize,
    /// Bytes of free buffers that the parts of a long text may leave to each other.
    pub(crate) free_bytes: usize,
}

const CPU: WorkSizes = WorkSizes {
    chunk: 512,
    prompts: 2048,
    texts: 4096,
    logits: 1 << 24,
    free_bytes: 0,
};

/// Freeing memory of a GPU waits for all of its work, and allocating it again takes as long.
const GPU: WorkSizes = WorkSizes {
    chunk: 2048,
    prompts: 8192,
    texts: 16_384,
    logits: 1 << 27,
    free_bytes: 4 << 30,
};

impl WorkSizes {
    /// Those of the process's default device.
    pub(crate) fn of_device() -> &'static Self {
        match Device::default_device().map(|device| device.kind) {
            Ok(DeviceKind::Gpu) => &GPU,
            _ => &CPU,
        }
    }
}
