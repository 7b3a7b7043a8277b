//! GGUF files of random weights, without a vocabulary, for llama.cpp.

use std::io::{Result, Write};

use super::checkpoint::{Format, Model, Tensor};
use super::pools::{Pools, Values};

/// GGUF's numbers of types: of tensors, of files, and of values in the header.
const F32: u32 = 0;
const Q4_0: u32 = 2;
const BF16: u32 = 30;
const FILE_Q4_0: u32 = 2;
const FILE_BF16: u32 = 32;
const KEY_U32: u32 = 4;
const KEY_F32: u32 = 6;
const KEY_TEXT: u32 = 8;
/// Every tensor begins at a multiple of this.
const ALIGNMENT: usize = 32;

/// The header of a file under construction.
#[derive(Default)]
struct Header {
    bytes: Vec<u8>,
    keys: u64,
}

impl Header {
    fn text(&mut self, text: &str) {
        self.bytes.extend((text.len() as u64).to_le_bytes());
        self.bytes.extend(text.as_bytes());
    }

    fn key(&mut self, name: &str, kind: u32, value: &[u8]) {
        self.text(name);
        self.bytes.extend(kind.to_le_bytes());
        self.bytes.extend(value);
        self.keys += 1;
    }

    fn number(&mut self, name: &str, value: u32) {
        self.key(name, KEY_U32, &value.to_le_bytes());
    }

    fn float(&mut self, name: &str, value: f32) {
        self.key(name, KEY_F32, &value.to_le_bytes());
    }

    fn word(&mut self, name: &str, value: &str) {
        self.key(name, KEY_TEXT, &[]);
        self.text(value);
    }
}

/// Writes a file.
pub fn write(model: Model, format: Format, out: &mut impl Write) -> Result<()> {
    let mut header = keys(model, format);
    let keys = header.keys;
    let tensors = model.tensors();
    let mut at = 0;
    for tensor in &tensors {
        header.text(&format!("{}.weight", tensor.gguf));
        // The fastest axis comes first.
        let sizes = [Some(tensor.columns), tensor.rows];
        let sizes: Vec<u64> = sizes.into_iter().flatten().collect();
        header.bytes.extend((sizes.len() as u32).to_le_bytes());
        sizes
            .iter()
            .for_each(|size| header.bytes.extend(size.to_le_bytes()));
        let kind = match (tensor.rows, format) {
            (None, _) => F32,
            (Some(_), Format::Bf16) => BF16,
            (Some(_), Format::Q4) => Q4_0,
        };
        header.bytes.extend(kind.to_le_bytes());
        header.bytes.extend((at as u64).to_le_bytes());
        let (values, count) = content(tensor, format);
        at += (count as usize * values.unit()).next_multiple_of(ALIGNMENT);
    }
    out.write_all(b"GGUF")?;
    out.write_all(&3u32.to_le_bytes())?;
    out.write_all(&(tensors.len() as u64).to_le_bytes())?;
    out.write_all(&keys.to_le_bytes())?;
    out.write_all(&header.bytes)?;
    pad(24 + header.bytes.len(), out)?;
    let mut pools = Pools::default();
    for tensor in &tensors {
        let (values, count) = content(tensor, format);
        pools.write(values, count, out)?;
        pad(count as usize * values.unit(), out)?;
    }
    Ok(())
}

fn pad(written: usize, out: &mut impl Write) -> Result<()> {
    out.write_all(&[0; ALIGNMENT][..written.next_multiple_of(ALIGNMENT) - written])
}

/// The values of a tensor, and their number.
fn content(tensor: &Tensor, format: Format) -> (Values, u64) {
    let Some(rows) = tensor.rows else {
        // In GGUF the weight of Gemma's norms is the factor itself.
        return (Values::F32(1.0), tensor.columns);
    };
    let weights = rows * tensor.columns;
    match format {
        Format::Bf16 => (Values::Weights(tensor.columns), weights),
        Format::Q4 => (Values::Blocks(tensor.columns), weights / 32),
    }
}

fn keys(model: Model, format: Format) -> Header {
    let config = model.config();
    let architecture = model.architecture();
    let name = |key: &str| format!("{architecture}.{key}");
    let mut header = Header::default();
    header.word("general.architecture", architecture);
    let file = match format {
        Format::Q4 => FILE_Q4_0,
        Format::Bf16 => FILE_BF16,
    };
    header.number("general.file_type", file);
    header.word("tokenizer.ggml.model", "no_vocab");
    for (key, of) in [
        ("context_length", "max_position_embeddings"),
        ("embedding_length", "hidden_size"),
        ("block_count", "num_hidden_layers"),
        ("feed_forward_length", "intermediate_size"),
        ("attention.head_count", "num_attention_heads"),
        ("attention.head_count_kv", "num_key_value_heads"),
        ("attention.key_length", "head_dim"),
        ("attention.value_length", "head_dim"),
        ("attention.sliding_window", "sliding_window"),
        ("vocab_size", "vocab_size"),
    ] {
        if let Some(size) = config[of].as_u64() {
            header.number(&name(key), size as u32);
        }
    }
    for (key, of) in [
        ("rope.freq_base", "rope_theta"),
        ("rope.freq_base_swa", "rope_local_base_freq"),
        ("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
    ] {
        if let Some(number) = config[of].as_f64() {
            header.float(&name(key), number as f32);
        }
    }
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_holds_what_llama_cpp_asks_for() {
        let header = keys(Model::Gemma3, Format::Q4);
        let text = String::from_utf8_lossy(&header.bytes).into_owned();
        for key in [
            "gemma3.block_count",
            "gemma3.attention.sliding_window",
            "gemma3.rope.freq_base_swa",
            "no_vocab",
        ] {
            assert!(text.contains(key), "{key}");
        }
        assert_eq!(header.keys, 16);
        // Qwen3 has no window, and one rope base.
        assert_eq!(keys(Model::Qwen3, Format::Bf16).keys, 14);
    }
}
