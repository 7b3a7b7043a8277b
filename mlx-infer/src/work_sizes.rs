//! How much is computed at a time: a GPU is busy only with many tokens, and a CPU gains nothing from more.

use mlx_core::{Device, DeviceKind};

/// Sizes of work.
pub(crate) struct WorkSizes {
    /// Tokens of a long text that are computed at a time.
    pub(crate) chunk: usize,
    /// Tokens of prompts that are computed together while no row decodes.
    pub(crate) prompts: usize,
    /// Tokens of a step in which rows decode, in addition to `step_of_two_rows`.
    step: usize,
    /// Tokens of such a step for each two rows.
    step_of_two_rows: usize,
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
    // A model of 0.6B in 4 bits took 10 ms for a step of one row on two cores, and 48 ms for one with
    // six tokens of a prompt besides. Few tokens are bound by products here, not by memory.
    step: 4,
    step_of_two_rows: 5,
    texts: 4096,
    logits: 1 << 24,
    free_bytes: 0,
};

/// Freeing memory of a GPU waits for all of its work, and allocating it again takes as long.
const GPU: WorkSizes = WorkSizes {
    chunk: 2048,
    prompts: 8192,
    step: 2048,
    step_of_two_rows: 0,
    texts: 16_384,
    logits: 1 << 27,
    free_bytes: 4 << 30,
};

impl WorkSizes {
    /// Tokens of a step in which `rows` rows decode.
    pub(crate) fn step(&self, rows: usize) -> usize {
        self.step + rows * self.step_of_two_rows / 2
    }

    /// Those of the process's default device.
    pub(crate) fn of_device() -> &'static Self {
        match Device::default_device().map(|device| device.kind) {
            Ok(DeviceKind::Gpu) => &GPU,
            _ => &CPU,
        }
    }
}
