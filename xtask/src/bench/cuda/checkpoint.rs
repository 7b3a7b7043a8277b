//! Random checkpoints of published shapes, as safetensors and as GGUF. They are written without Python, because a GPU
//! host may have neither MLX for Python nor PyTorch.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result};
use clap::ValueEnum;
use serde_json::{Map, Value, json};

use super::gguf;
use super::pools::{Pools, Values, scale};

/// A published shape.
#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub enum Model {
    /// The shape of Gemma3-1B
    #[value(name = "gemma3-1b")]
    Gemma3,
    /// The shape of Qwen3-0.6B
    #[value(name = "qwen3-0.6b")]
    Qwen3,
    /// The shape of Llama-3.1-8B, in 4 bits only
    #[value(name = "llama3.1-8b")]
    Llama3,
}

/// The coding of all matrices.
#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub enum Format {
    /// Affine, 4 bits in groups of 64; llama.cpp's Q4_0
    Q4,
    /// 16 bits
    Bf16,
}

impl Format {
    pub fn name(self) -> &'static str {
        match self {
            Self::Q4 => "q4",
            Self::Bf16 => "bf16",
        }
    }

    /// Bytes of a matrix in this project's checkpoint.
    fn bytes(self, rows: u64, columns: u64) -> u64 {
        match self {
            // Codes, and a scale and a bias for each group.
            Self::Q4 => rows * (columns / 2 + columns / GROUP * 4),
            Self::Bf16 => rows * columns * 2,
        }
    }
}

/// Columns that share a scale.
const GROUP: u64 = 64;

/// A tensor of a checkpoint.
pub struct Tensor {
    /// The name in this project's checkpoint, without `.weight`.
    pub name: String,
    /// Its name in GGUF, without `.weight`.
    pub gguf: String,
    /// Rows of a matrix; none for the weights of a norm.
    pub rows: Option<u64>,
    pub columns: u64,
}

impl Model {
    pub fn name(self) -> &'static str {
        match self {
            Self::Gemma3 => "gemma3-1b",
            Self::Qwen3 => "qwen3-0.6b",
            Self::Llama3 => "llama3.1-8b",
        }
    }

    /// The formats that are measured.
    pub fn has(self, format: Format) -> bool {
        self != Self::Llama3 || format == Format::Q4
    }

    /// The architecture's name in GGUF.
    pub fn architecture(self) -> &'static str {
        match self {
            Self::Gemma3 => "gemma3",
            Self::Qwen3 => "qwen3",
            Self::Llama3 => "llama",
        }
    }

    /// `config.json` of the 16-bit checkpoint.
    pub fn config(self) -> Value {
        match self {
            Self::Gemma3 => json!({
                "model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "hidden_size": 1152,
                "num_hidden_layers": 26, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256,
                "intermediate_size": 6912, "vocab_size": 262_144, "rms_norm_eps": 1e-6, "rope_theta": 1_000_000.0,
                "rope_local_base_freq": 10_000.0, "sliding_window": 512, "sliding_window_pattern": 6,
                "query_pre_attn_scalar": 256, "max_position_embeddings": 32_768,
                "hidden_activation": "gelu_pytorch_tanh", "attention_bias": false, "tie_word_embeddings": true,
                "torch_dtype": "bfloat16", "bos_token_id": 2, "eos_token_id": 1,
            }),
            Self::Qwen3 => json!({
                "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "hidden_size": 1024,
                "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
                "intermediate_size": 3072, "vocab_size": 151_936, "rms_norm_eps": 1e-6, "rope_theta": 1_000_000.0,
                "max_position_embeddings": 40_960, "hidden_act": "silu", "attention_bias": false,
                "tie_word_embeddings": true, "torch_dtype": "bfloat16", "bos_token_id": 2, "eos_token_id": 1,
            }),
            Self::Llama3 => json!({
                "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4096,
                "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
                "intermediate_size": 14_336, "vocab_size": 128_256, "rms_norm_eps": 1e-5, "rope_theta": 500_000.0,
                "max_position_embeddings": 32_768, "hidden_act": "silu", "attention_bias": false,
                "tie_word_embeddings": false, "torch_dtype": "bfloat16", "bos_token_id": 2, "eos_token_id": 1,
            }),
        }
    }

    fn size(self, name: &str) -> u64 {
        self.config()[name].as_u64().unwrap_or_default()
    }

    /// Whether the embedding is also the output head.
    fn is_tied(self) -> bool {
        self.config()["tie_word_embeddings"] == true
    }

    /// The value of a norm's weight that scales by 1, in this project's checkpoint: Gemma adds 1 to
    /// it.
    fn norm(self) -> f32 {
        if self == Self::Gemma3 { 0.0 } else { 1.0 }
    }

    /// Every tensor.
    pub fn tensors(self) -> Vec<Tensor> {
        let (hidden, head) = (self.size("hidden_size"), self.size("head_dim"));
        let (vocab, mlp) = (self.size("vocab_size"), self.size("intermediate_size"));
        let queries = self.size("num_attention_heads") * head;
        let keys = self.size("num_key_value_heads") * head;
        let tensor = |name: String, gguf: String, rows, columns| Tensor {
            name,
            gguf,
            rows,
            columns,
        };
        let top = |name: &str, gguf: &str, rows| tensor(name.into(), gguf.into(), rows, hidden);
        let mut all = vec![
            top("model.embed_tokens", "token_embd", Some(vocab)),
            top("model.norm", "output_norm", None),
        ];
        if !self.is_tied() {
            all.push(top("lm_head", "output", Some(vocab)));
        }
        let mut parts = vec![
            ("self_attn.q_proj", "attn_q", Some(queries), hidden),
            ("self_attn.k_proj", "attn_k", Some(keys), hidden),
            ("self_attn.v_proj", "attn_v", Some(keys), hidden),
            ("self_attn.o_proj", "attn_output", Some(hidden), queries),
            ("mlp.gate_proj", "ffn_gate", Some(mlp), hidden),
            ("mlp.up_proj", "ffn_up", Some(mlp), hidden),
            ("mlp.down_proj", "ffn_down", Some(hidden), mlp),
            ("input_layernorm", "attn_norm", None, hidden),
        ];
        let before_mlp = match self {
            Self::Gemma3 => "pre_feedforward_layernorm",
            _ => "post_attention_layernorm",
        };
        parts.push((before_mlp, "ffn_norm", None, hidden));
        if self == Self::Gemma3 {
            let (attention, mlp) = ("post_attention_layernorm", "post_feedforward_layernorm");
            parts.push((attention, "post_attention_norm", None, hidden));
            parts.push((mlp, "post_ffw_norm", None, hidden));
        }
        if self != Self::Llama3 {
            parts.push(("self_attn.q_norm", "attn_q_norm", None, head));
            parts.push(("self_attn.k_norm", "attn_k_norm", None, head));
        }
        for layer in 0..self.size("num_hidden_layers") {
            for &(name, gguf, rows, columns) in &parts {
                let name = format!("model.layers.{layer}.{name}");
                all.push(tensor(name, format!("blk.{layer}.{gguf}"), rows, columns));
            }
        }
        all
    }

    /// Bytes of all weights that a step reads. An embedding that is not the head counts as one row.
    pub fn step_bytes(self, format: Format) -> u64 {
        let tensors = self.tensors();
        let read = tensors
            .iter()
            .filter(|tensor| self.is_tied() || tensor.gguf != "token_embd");
        read.map(|tensor| match tensor.rows {
            Some(rows) => format.bytes(rows, tensor.columns),
            None => 2 * tensor.columns,
        })
        .sum()
    }

    /// Writes this project's checkpoint to `folder`, unless it exists.
    pub fn write(self, format: Format, folder: &Path) -> Result<()> {
        let mut config = self.config();
        if format == Format::Q4 {
            config["quantization"] = json!({"group_size": GROUP, "bits": 4, "mode": "affine"});
        }
        let text = serde_json::to_string_pretty(&config)? + "\n";
        // This file is written last: an interrupted run leaves a folder without it.
        let stamp = folder.join("config.json");
        if fs::read_to_string(&stamp).is_ok_and(|written| written == text) {
            return Ok(());
        }
        eprintln!("writing {}", folder.display());
        fs::create_dir_all(folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
        self.write_weights(format, &folder.join("model.safetensors"))?;
        fs::write(&stamp, text).with_context(|| format!("cannot write {}", stamp.display()))
    }

    fn write_weights(self, format: Format, path: &Path) -> Result<()> {
        let (mut header, mut content, mut at) = (Map::new(), Vec::new(), 0);
        let mut add = |name: String, dtype: &str, shape: &[u64], values: Values| {
            let count: u64 = shape.iter().product();
            let end = at + count * values.unit() as u64;
            let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": [at, end]});
            header.insert(name, entry);
            content.push((values, count));
            at = end;
        };
        for Tensor {
            name,
            rows,
            columns,
            ..
        } in self.tensors()
        {
            let name = |part: &str| format!("{name}.{part}");
            match (rows, format) {
                (None, _) => {
                    let norm = Values::Bf16(self.norm());
                    add(name("weight"), "BF16", &[columns], norm);
                }
                (Some(rows), Format::Bf16) => {
                    let weights = Values::Weights(columns);
                    add(name("weight"), "BF16", &[rows, columns], weights);
                }
                (Some(rows), Format::Q4) => {
                    let groups = [rows, columns / GROUP];
                    let scale = scale(columns);
                    add(name("weight"), "U32", &[rows, columns / 8], Values::Codes);
                    add(name("scales"), "BF16", &groups, Values::Bf16(scale));
                    add(name("biases"), "BF16", &groups, Values::Bf16(-8.0 * scale));
                }
            }
        }
        let mut text = serde_json::to_string(&header)?;
        while text.len() % 8 != 0 {
            text.push(' ');
        }
        written(path, |out| {
            out.write_all(&(text.len() as u64).to_le_bytes())?;
            out.write_all(text.as_bytes())?;
            let mut pools = Pools::default();
            content
                .iter()
                .try_for_each(|(values, count)| pools.write(*values, *count, out))
        })
    }

    /// Writes the same shapes as GGUF, unless the file is there.
    pub fn write_gguf(self, format: Format, path: &Path) -> Result<()> {
        if path.exists() {
            return Ok(());
        }
        eprintln!("writing {}", path.display());
        let partial = path.with_extension("partial");
        written(&partial, |out| gguf::write(self, format, out))?;
        fs::rename(&partial, path).with_context(|| format!("cannot write {}", path.display()))
    }
}

fn written(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> std::io::Result<()>,
) -> Result<()> {
    let file = File::create(path);
    let done = file.and_then(|file| {
        let mut out = BufWriter::with_capacity(1 << 20, file);
        write(&mut out)?;
        out.flush()
    });
    done.with_context(|| format!("cannot write {}", path.display()))
}
