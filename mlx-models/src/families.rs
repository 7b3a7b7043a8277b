//! The families of this crate.

mod apertus;
mod arcee;
mod bitnet;
mod cohere;
mod cohere2;
mod deepseek_v2;
mod deepseek_v3;
mod deepseek_v32;
mod dots1;
mod ernie4_5;
mod ernie4_5_moe;
mod exaone4;
mod falcon;
mod falcon_h1;
mod gemma;
mod gemma2;
mod gemma3;
mod gemma3n;
mod gemma4;
mod gemma4_unified;
mod glm4;
mod glm4_moe;
mod glm4_moe_lite;
mod glm_moe_dsa;
mod gpt2;
mod gpt_neox;
mod gpt_oss;
mod granite;
mod granitemoe;
mod granitemoehybrid;
mod helium;
mod hunyuan_v1_dense;
mod hunyuan_v1_moe;
mod internlm3;
mod kimi_linear;
mod lfm2;
mod lfm2_moe;
mod llama;
mod llama4;
mod mamba2;
mod minimax;
mod minimax_m2;
mod ministral3;
mod mistral;
mod mistral4;
mod mixtral;
mod nanochat;
mod nemotron;
mod nemotron_h;
mod olmo2;
mod olmo3;
mod olmoe;
mod phi;
mod phi3;
mod phimoe;
mod qwen2;
mod qwen2_moe;
mod qwen3;
mod qwen3_5;
mod qwen3_5_moe;
mod qwen3_moe;
mod qwen3_next;
mod seed_oss;
mod smollm3;
mod stablelm;
mod starcoder2;

use crate::config::keys::TIED;
use crate::config::{Bits, Source};
use crate::draft_heads::mtp;
use crate::model::Model;
use mlx_core::Result;
use mlx_nn::Rules;

/// A family of models: how its configs and tensors are read.
#[derive(Clone, Copy)]
pub struct Family {
    /// The `model_type`s it answers to.
    pub types: &'static [&'static str],
    /// Builds the model, without values.
    pub build: fn(&Source<'_>) -> Result<Box<dyn Model>>,
    /// How published tensors become parameters.
    pub names: fn(&Source<'_>) -> Result<Rules>,
    /// The default of `tie_word_embeddings`.
    pub tied: bool,
    /// The keys that say whether the head is the embedding. The first that has a value counts.
    pub tied_keys: &'static [&'static str],
    /// Weights, by patterns of their paths, that quantising leaves dense or gives more bits. The first that matches
    /// counts.
    pub bits: &'static [(&'static str, Bits)],
    /// Those of `types` that are multimodal wrappers: the text model's config is their `text_config`.
    pub wrappers: &'static [&'static str],
    /// Where it has a head for multi-token prediction (tensors named `mtp.`), the file that is written for it. Other programs
    /// do not read the head, and some refuse its tensors.
    pub head_file: Option<&'static str>,
}

impl Family {
    /// A family whose tensors have the parameters' names, whose head is not tied, and whose weights are all quantised
    /// alike.
    pub const fn new(
        types: &'static [&'static str],
        build: fn(&Source<'_>) -> Result<Box<dyn Model>>,
    ) -> Self {
        Self {
            types,
            build,
            names: |_| Ok(Rules::none()),
            tied: false,
            tied_keys: &[TIED],
            bits: &[],
            wrappers: &[],
            head_file: None,
        }
    }
}

macro_rules! build {
    ($family:ident) => {
        |source| Ok(Box::new($family::load(source.config)?))
    };
}

/// Every family, in the order of messages.
pub(crate) const FAMILIES: &[Family] = &[
    Family::new(&["llama"], build!(llama)),
    Family {
        wrappers: &["llama4"],
        names: llama4::names,
        ..Family::new(&["llama4_text", "llama4"], build!(llama4))
    },
    Family::new(&["mistral"], build!(mistral)),
    Family::new(&["qwen2"], build!(qwen2)),
    Family::new(&["qwen3"], build!(qwen3)),
    Family {
        names: qwen3_moe::names,
        bits: qwen3_moe::BITS,
        ..Family::new(&["qwen3_moe"], build!(qwen3_moe))
    },
    Family {
        names: qwen3_5::names,
        bits: qwen3_5::BITS,
        head_file: Some(mtp::FILE),
        wrappers: &["qwen3_5"],
        ..Family::new(&["qwen3_5", "qwen3_5_text"], |source| {
            Ok(Box::new(qwen3_5::load(source)?))
        })
    },
    Family {
        names: qwen3_5::names,
        bits: qwen3_5::BITS,
        head_file: Some(mtp::FILE),
        wrappers: &["qwen3_5_moe"],
        ..Family::new(&["qwen3_5_moe", "qwen3_5_moe_text"], |source| {
            Ok(Box::new(qwen3_5_moe::load(source)?))
        })
    },
    Family {
        names: qwen3_next::names,
        bits: qwen3_5::BITS,
        head_file: Some(mtp::FILE),
        ..Family::new(&["qwen3_next"], |source| {
            Ok(Box::new(qwen3_next::load(source)?))
        })
    },
    Family {
        tied: true,
        ..Family::new(&["gemma2"], build!(gemma2))
    },
    Family {
        tied: true,
        wrappers: &["gemma3"],
        ..Family::new(&["gemma3_text", "gemma3"], |source| {
            Ok(Box::new(gemma3::load(source)?))
        })
    },
    Family {
        tied: true,
        wrappers: &["gemma3n"],
        names: |source| gemma3n::names(source.config),
        ..Family::new(&["gemma3n_text", "gemma3n"], build!(gemma3n))
    },
    Family {
        tied: true,
        wrappers: &["gemma4"],
        names: |source| gemma4::names(source.config),
        bits: gemma4::BITS,
        ..Family::new(&["gemma4_text", "gemma4"], build!(gemma4))
    },
    Family {
        tied: true,
        wrappers: &["gemma4_unified"],
        names: |source| gemma4::names(source.config),
        ..Family::new(&["gemma4_unified_text", "gemma4_unified"], |source| {
            Ok(Box::new(gemma4_unified::load(source.config)?))
        })
    },
    Family::new(&["phi3"], build!(phi3)),
    Family {
        names: mixtral::names,
        ..Family::new(&["mixtral"], build!(mixtral))
    },
    Family {
        tied: true,
        ..Family::new(&["gemma"], build!(gemma))
    },
    Family {
        tied: true,
        ..Family::new(&["smollm3"], build!(smollm3))
    },
    Family::new(&["olmo2"], build!(olmo2)),
    Family {
        names: glm4::names,
        ..Family::new(&["glm4"], build!(glm4))
    },
    Family {
        bits: granite::BITS,
        ..Family::new(&["granite"], build!(granite))
    },
    Family {
        names: starcoder2::names,
        tied: true,
        ..Family::new(&["starcoder2"], build!(starcoder2))
    },
    Family::new(&["seed_oss"], build!(seed_oss)),
    Family::new(&["arcee"], build!(arcee)),
    Family::new(&["helium"], build!(helium)),
    Family {
        tied: true,
        ..Family::new(&["ernie4_5"], build!(ernie4_5))
    },
    Family {
        tied: true,
        ..Family::new(&["cohere"], build!(cohere))
    },
    Family {
        tied: true,
        ..Family::new(&["cohere2"], build!(cohere2))
    },
    Family {
        names: qwen3_moe::names,
        ..Family::new(&["qwen2_moe"], build!(qwen2_moe))
    },
    Family {
        names: qwen3_moe::names,
        ..Family::new(&["olmoe"], build!(olmoe))
    },
    Family::new(&["olmo3"], build!(olmo3)),
    Family::new(&["exaone4"], build!(exaone4)),
    Family::new(&["nemotron"], build!(nemotron)),
    Family {
        names: phi::names,
        ..Family::new(&["phi"], build!(phi))
    },
    Family {
        names: stablelm::names,
        ..Family::new(&["stablelm"], stablelm::load)
    },
    Family {
        // The tensors tell: text models of 3 B are tied, and their wrappers do not say it.
        tied: true,
        wrappers: &["mistral3"],
        names: ministral3::names,
        bits: deepseek_v3::BITS,
        ..Family::new(&["ministral3", "mistral3"], |source| {
            Ok(Box::new(ministral3::load(source)?))
        })
    },
    Family {
        names: apertus::names,
        ..Family::new(&["apertus"], |source| Ok(Box::new(apertus::load(source)?)))
    },
    Family {
        names: glm4_moe::names,
        bits: deepseek_v3::BITS,
        head_file: Some(mtp::FILE),
        ..Family::new(&["glm4_moe"], |source| {
            Ok(Box::new(glm4_moe::load(source)?))
        })
    },
    Family {
        names: deepseek_v2::names,
        bits: deepseek_v3::BITS,
        ..Family::new(&["deepseek_v2"], |source| {
            Ok(Box::new(deepseek_v2::load(source)?))
        })
    },
    Family {
        names: deepseek_v3::names,
        bits: deepseek_v3::BITS,
        head_file: Some(mtp::FILE),
        wrappers: &["kimi_k25"],
        ..Family::new(&["deepseek_v3", "kimi_k2", "kimi_k25"], |source| {
            Ok(Box::new(deepseek_v3::load(source)?))
        })
    },
    Family {
        names: glm4_moe_lite::names,
        bits: deepseek_v3::BITS,
        head_file: Some(mtp::FILE),
        ..Family::new(&["glm4_moe_lite"], |source| {
            Ok(Box::new(glm4_moe_lite::load(source)?))
        })
    },
    Family {
        names: deepseek_v32::names,
        bits: deepseek_v3::BITS,
        ..Family::new(&["deepseek_v32"], |source| {
            Ok(Box::new(deepseek_v32::load(source)?))
        })
    },
    Family {
        names: glm_moe_dsa::names,
        bits: deepseek_v3::BITS,
        ..Family::new(&["glm_moe_dsa"], |source| {
            Ok(Box::new(glm_moe_dsa::load(source)?))
        })
    },
    Family {
        names: mistral4::names,
        bits: deepseek_v3::BITS,
        ..Family::new(&["mistral4"], |source| {
            Ok(Box::new(mistral4::load(source)?))
        })
    },
    Family {
        names: minimax_m2::names,
        bits: gpt_oss::BITS,
        ..Family::new(&["minimax_m2"], build!(minimax_m2))
    },
    Family {
        names: minimax::names,
        bits: gpt_oss::BITS,
        ..Family::new(&["minimax"], build!(minimax))
    },
    Family {
        names: kimi_linear::names,
        bits: deepseek_v3::BITS,
        ..Family::new(&["kimi_linear"], |source| {
            Ok(Box::new(kimi_linear::load(source)?))
        })
    },
    Family::new(&["bitnet"], build!(bitnet)),
    Family {
        names: nanochat::names,
        ..Family::new(&["nanochat"], build!(nanochat))
    },
    Family {
        names: dots1::names,
        ..Family::new(&["dots1"], build!(dots1))
    },
    Family {
        names: granitemoe::names,
        bits: granite::BITS,
        ..Family::new(&["granitemoe"], build!(granitemoe))
    },
    Family {
        names: gpt_oss::names,
        bits: gpt_oss::BITS,
        ..Family::new(&["gpt_oss"], build!(gpt_oss))
    },
    Family {
        names: ernie4_5_moe::names,
        tied: true,
        ..Family::new(&["ernie4_5_moe"], |source| {
            Ok(Box::new(ernie4_5_moe::load(source)?))
        })
    },
    Family {
        names: hunyuan_v1_moe::names,
        ..Family::new(&["hunyuan_v1_moe"], build!(hunyuan_v1_moe))
    },
    Family {
        names: phimoe::names,
        ..Family::new(&["phimoe"], build!(phimoe))
    },
    Family::new(&["internlm3"], build!(internlm3)),
    Family {
        names: hunyuan_v1_dense::names,
        ..Family::new(&["hunyuan_v1_dense"], build!(hunyuan_v1_dense))
    },
    Family {
        names: gpt2::names,
        tied: true,
        ..Family::new(&["gpt2"], build!(gpt2))
    },
    Family {
        names: gpt_neox::names,
        ..Family::new(&["gpt_neox"], gpt_neox::load)
    },
    Family {
        names: falcon::names,
        tied: true,
        ..Family::new(&["falcon"], falcon::load)
    },
    Family {
        names: mamba2::names,
        ..Family::new(&["mamba2"], build!(mamba2))
    },
    Family {
        names: granitemoehybrid::names,
        bits: gpt_oss::BITS,
        ..Family::new(&["granitemoehybrid"], build!(granitemoehybrid))
    },
    Family {
        names: nemotron_h::names,
        ..Family::new(&["nemotron_h"], build!(nemotron_h))
    },
    Family {
        names: falcon_h1::names,
        ..Family::new(&["falcon_h1"], |source| {
            Ok(Box::new(falcon_h1::load(source)?))
        })
    },
    Family {
        names: lfm2::names,
        tied: true,
        tied_keys: lfm2::TIED_KEYS,
        ..Family::new(&["lfm2"], build!(lfm2))
    },
    Family {
        names: lfm2_moe::names,
        bits: gpt_oss::BITS,
        tied: true,
        tied_keys: lfm2::TIED_KEYS,
        ..Family::new(&["lfm2_moe"], build!(lfm2_moe))
    },
];
