//! The tensors of a checkpoint under llama.cpp's names and in its form: the inverse of
//! [`tensors`](super::tensors).

use mlx_core::{Array, DType, Result};

use super::architectures::{LAYER, OUTSIDE};
use super::metadata::Described;

/// Tensors that llama.cpp reads in F32.
const WIDE: [&str; 3] = ["ffn_gate_inp.", "ffn_gate_inp_shexp.", "shortconv.conv."];

/// A tensor of a file.
pub(crate) struct WrittenTensor {
    pub name: String,
    pub array: Array,
    /// Whether it is F32, whatever the type of the file.
    pub wide: bool,
    /// Whether it is the output head, or an embedding that may be the head too.
    pub is_head: bool,
}

impl Described {
    /// The tensor of a parameter of this name and value. `None` if the architecture has no such
    /// tensor.
    ///
    /// # Errors
    /// An operation fails.
    pub(crate) fn tensor(&self, parameter: &str, array: &Array) -> Result<Option<WrittenTensor>> {
        let Some((layer, part)) = self.name(parameter) else {
            return Ok(None);
        };
        let array = self.changed(&part, array)?;
        let wide = array.ndim() < 2
            || part.ends_with("norm.weight")
            || WIDE.iter().any(|wide| part.starts_with(wide));
        let is_head =
            layer.is_none() && (part.starts_with("token_embd.") || part.starts_with("output."));
        let name = match layer {
            Some(layer) => format!("blk.{layer}.{part}"),
            None => part,
        };
        Ok(Some(WrittenTensor {
            name,
            array,
            wide,
            is_head,
        }))
    }

    /// The layer and the rest of the name of a parameter's tensor.
    fn name(&self, parameter: &str) -> Option<(Option<usize>, String)> {
        let find = |path: &str, table: &[(&'static str, &'static str)]| {
            let mut rows = self.architecture.names.iter().chain(table);
            rows.find(|(_, to)| *to == path).map(|(from, _)| *from)
        };
        let inside = parameter.strip_prefix("model.layers.");
        let inside = inside.and_then(|rest| rest.split_once('.'));
        let Some((layer, path)) = inside else {
            let (stem, ending) = parameter.rsplit_once('.')?;
            return Some((None, format!("{}.{ending}", find(stem, OUTSIDE)?)));
        };
        let layer = Some(layer.parse().ok()?);
        // Parameters without a module.
        if let Some(own) = find(path, LAYER) {
            let ending = if own.contains('.') { "" } else { ".bias" };
            return Some((layer, format!("{own}{ending}")));
        }
        let (stem, ending) = path.rsplit_once('.')?;
        Some((layer, format!("{}.{ending}", find(stem, LAYER)?)))
    }

    /// The array in the form that llama.cpp's converter gives it.
    fn changed(&self, part: &str, array: &Array) -> Result<Array> {
        let row = self.architecture;
        let shape = array.shape();
        let (queries, keys) = self.heads;
        match part.split('.').next() {
            Some("attn_q") if row.rotated => neighbours(array, queries),
            Some("attn_k") if row.rotated => neighbours(array, keys),
            Some("ffn_gate_inp_shexp") if shape.len() == 2 && shape[0] == 1 => array.squeeze(0),
            // Taps are the last axis of published files, and the middle one of MLX's.
            Some("shortconv") if part == "shortconv.conv.weight" && shape.len() == 3 => {
                array.squeeze(if shape[2] == 1 { -1 } else { -2 })
            }
            _ if row.unit_norms && part.ends_with("norm.weight") => {
                array.astype(DType::F32)?.add(1.0f32)
            }
            _ => Ok(array.clone()),
        }
    }
}

/// Brings the rows of heads from the order of rope over halves into that of rope over neighbours.
fn neighbours(array: &Array, heads: i32) -> Result<Array> {
    let shape = array.shape().to_vec();
    let parts = [&[heads, 2, shape[0] / heads / 2], &shape[1..]].concat();
    array.reshape(&parts)?.swapaxes(1, 2)?.reshape(&shape)
}
