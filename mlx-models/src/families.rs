//! The families of this crate: a file each, and the list of them.

use mlx_core::Result;
use mlx_nn::Rules;

use crate::config::keys::TIED;
use crate::config::{Bits, Source};
use crate::draft_heads::mtp;
use crate::encoders::{bert, gte, modernbert, nomic_bert};
use crate::model::Model;

pub(crate) use gemma4::assistant as gemma4_assistant;

/// A family of models: how its configs and tensors are read.
#[derive(Clone, Copy)]
pub struct Family {
    /// The `model_type`s of the family.
    pub types: &'static [&'static str],
    /// Builds the model. Its parameters have no values.
    pub build: fn(&Source<'_>) -> Result<Box<dyn Model>>,
    /// The rules by which published tensors become parameters.
    pub names: fn(&Source<'_>) -> Result<Rules>,
    /// The default of `tie_word_embeddings`.
    pub tied: bool,
    /// The keys for whether the head is the embedding. The first key that has a value counts.
    pub tied_keys: &'static [&'static str],
    /// Weights that quantising leaves dense or gives more bits, by patterns of their paths. The
    /// first pattern that matches counts.
    pub bits: &'static [(&'static str, Bits)],
    /// The `types` of multimodal wrappers, whose `text_config` is the text model's config.
    pub wrappers: &'static [&'static str],
    /// The file to which the head for multi-token prediction (tensors named `mtp.`) is written, if
    /// the family has heads in separate files. Other programs do not read the head, and some refuse
    /// its tensors.
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

/// The result of the `load` function of a family.
trait IntoModel {
    fn into_model(self) -> Box<dyn Model>;
}

impl<M: Model + 'static> IntoModel for M {
    fn into_model(self) -> Box<dyn Model> {
        Box::new(self)
    }
}

impl IntoModel for Box<dyn Model> {
    fn into_model(self) -> Box<dyn Model> {
        self
    }
}

/// An entry is a module, its `model_type`s, and the fields of its [`Family`] that differ from those
/// of [`Family::new`]. The module has a function `load`, which builds the model of a [`Source`].
macro_rules! families {
    ($($module:ident: $types:tt { $($field:ident: $value:expr,)* })*) => {
        $(mod $module;)*

        /// Every family, in the order of messages.
        pub(crate) const FAMILIES: &[Family] = &[$(
            Family {
                $($field: $value,)*
                ..Family::new(&$types, |source| Ok($module::load(source)?.into_model()))
            },
        )*];
    };
}

families! {
    llama: ["llama", "telechat3", "xverse"] {}
    llama4: ["llama4_text", "llama4"] {
        wrappers: &["llama4"],
        names: llama4::names,
    }
    mistral: ["mistral"] {}
    qwen2: ["qwen2"] {}
    qwen3: ["qwen3"] {}
    qwen3_moe: ["qwen3_moe"] {
        names: qwen3_moe::names,
        bits: qwen3_moe::BITS,
    }
    qwen3_5: ["qwen3_5", "qwen3_5_text"] {
        names: qwen3_5::names,
        bits: qwen3_5::BITS,
        head_file: Some(mtp::FILE),
        wrappers: &["qwen3_5"],
    }
    qwen3_5_moe: ["qwen3_5_moe", "qwen3_5_moe_text"] {
        names: qwen3_5::names,
        bits: qwen3_5::BITS,
        head_file: Some(mtp::FILE),
        wrappers: &["qwen3_5_moe"],
    }
    qwen3_next: ["qwen3_next"] {
        names: qwen3_next::names,
        bits: qwen3_5::BITS,
        head_file: Some(mtp::FILE),
    }
    gemma2: ["gemma2"] {
        tied: true,
    }
    gemma3: ["gemma3_text", "gemma3"] {
        tied: true,
        names: gemma3::names,
        wrappers: &["gemma3"],
    }
    gemma3n: ["gemma3n_text", "gemma3n"] {
        tied: true,
        wrappers: &["gemma3n"],
        names: gemma3n::names,
    }
    gemma4: ["gemma4_text", "gemma4"] {
        tied: true,
        wrappers: &["gemma4"],
        names: gemma4::names,
        bits: gemma4::BITS,
    }
    gemma4_unified: ["gemma4_unified_text", "gemma4_unified"] {
        tied: true,
        wrappers: &["gemma4_unified"],
        names: gemma4::names,
    }
    phi3: ["phi3"] {}
    mixtral: ["mixtral"] {
        names: mixtral::names,
    }
    gemma: ["gemma"] {
        tied: true,
    }
    smollm3: ["smollm3"] {
        tied: true,
    }
    olmo2: ["olmo2"] {}
    glm4: ["glm4"] {
        names: glm4::names,
    }
    granite: ["granite"] {
        bits: granite::BITS,
    }
    starcoder2: ["starcoder2"] {
        names: starcoder2::names,
        tied: true,
    }
    seed_oss: ["seed_oss"] {}
    arcee: ["arcee"] {}
    helium: ["helium"] {}
    ernie4_5: ["ernie4_5"] {
        tied: true,
    }
    cohere: ["cohere"] {
        tied: true,
    }
    cohere2: ["cohere2"] {
        tied: true,
    }
    qwen2_moe: ["qwen2_moe"] {
        names: qwen3_moe::names,
    }
    olmoe: ["olmoe"] {
        names: qwen3_moe::names,
    }
    olmo3: ["olmo3"] {}
    olmo_hybrid: ["olmo_hybrid"] {
        names: olmo_hybrid::names,
    }
    exaone4: ["exaone4"] {}
    nemotron: ["nemotron"] {}
    phi: ["phi"] {
        names: phi::names,
    }
    stablelm: ["stablelm"] {
        names: stablelm::names,
    }
    ministral3: ["ministral3", "mistral3"] {
        // The text models of 3 B are tied, and the config of their wrappers does not have the key.
        // In other models the tensors correct this default.
        tied: true,
        wrappers: &["mistral3"],
        names: ministral3::names,
        bits: deepseek_v3::BITS,
    }
    apertus: ["apertus"] {
        names: apertus::names,
    }
    glm4_moe: ["glm4_moe"] {
        names: glm4_moe::names,
        bits: deepseek_v3::BITS,
        head_file: Some(mtp::FILE),
    }
    deepseek_v2: ["deepseek_v2"] {
        names: deepseek_v2::names,
        bits: deepseek_v3::BITS,
    }
    deepseek_v3: ["deepseek_v3", "kimi_k2", "kimi_k25"] {
        names: deepseek_v3::names,
        bits: deepseek_v3::BITS,
        head_file: Some(mtp::FILE),
        wrappers: &["kimi_k25"],
    }
    glm4_moe_lite: ["glm4_moe_lite"] {
        names: glm4_moe_lite::names,
        bits: deepseek_v3::BITS,
        head_file: Some(mtp::FILE),
    }
    deepseek_v32: ["deepseek_v32"] {
        names: deepseek_v32::names,
        bits: deepseek_v3::BITS,
    }
    glm_moe_dsa: ["glm_moe_dsa"] {
        names: glm_moe_dsa::names,
        bits: deepseek_v3::BITS,
    }
    mistral4: ["mistral4"] {
        names: mistral4::names,
        bits: deepseek_v3::BITS,
    }
    minimax_m2: ["minimax_m2"] {
        names: minimax_m2::names,
        bits: gpt_oss::BITS,
    }
    minimax_m3_vl: ["minimax_m3_vl", "minimax_m3_vl_text", "minimax_m3"] {
        wrappers: &["minimax_m3_vl"],
        names: minimax_m3_vl::names,
        bits: gpt_oss::BITS,
    }
    minimax: ["minimax"] {
        names: minimax::names,
        bits: gpt_oss::BITS,
    }
    kimi_linear: ["kimi_linear"] {
        names: kimi_linear::names,
        bits: deepseek_v3::BITS,
    }
    bitnet: ["bitnet"] {}
    nanochat: ["nanochat"] {
        names: nanochat::names,
    }
    dots1: ["dots1"] {
        names: dots1::names,
    }
    granitemoe: ["granitemoe"] {
        names: granitemoe::names,
        bits: granite::BITS,
    }
    gpt_oss: ["gpt_oss"] {
        names: gpt_oss::names,
        bits: gpt_oss::BITS,
    }
    ernie4_5_moe: ["ernie4_5_moe"] {
        names: ernie4_5_moe::names,
        tied: true,
    }
    hunyuan_v1_moe: ["hunyuan_v1_moe"] {
        names: hunyuan_v1_moe::names,
    }
    phimoe: ["phimoe"] {
        names: phimoe::names,
    }
    internlm3: ["internlm3"] {}
    hunyuan_v1_dense: ["hunyuan_v1_dense"] {
        names: hunyuan_v1_dense::names,
    }
    gpt2: ["gpt2"] {
        names: gpt2::names,
        tied: true,
    }
    gpt_neox: ["gpt_neox"] {
        names: gpt_neox::names,
    }
    falcon: ["falcon"] {
        names: falcon::names,
        tied: true,
    }
    mamba2: ["mamba2"] {
        names: mamba2::names,
    }
    granitemoehybrid: ["granitemoehybrid"] {
        names: granitemoehybrid::names,
        bits: gpt_oss::BITS,
    }
    nemotron_h: ["nemotron_h", "nemotron_h_omni", "NemotronH_Nano_Omni_Reasoning_V3"] {
        wrappers: &["nemotron_h_omni", "NemotronH_Nano_Omni_Reasoning_V3"],
        names: nemotron_h::names,
    }
    falcon_h1: ["falcon_h1"] {
        names: falcon_h1::names,
    }
    lfm2: ["lfm2", "lfm2_vl"] {
        wrappers: &["lfm2_vl"],
        names: lfm2::names,
        tied: true,
        tied_keys: lfm2::TIED_KEYS,
    }
    lfm2_moe: ["lfm2_moe"] {
        names: lfm2_moe::names,
        bits: gpt_oss::BITS,
        tied: true,
        tied_keys: lfm2::TIED_KEYS,
    }
    glm: ["glm"] {
        names: glm::names,
    }
    olmo: ["olmo"] {}
    cwm: ["cwm"] {}
    vaultgemma: ["vaultgemma"] {
        tied: true,
        names: vaultgemma::names,
    }
    ministral: ["ministral"] {}
    jais2: ["jais2"] {}
    granitemoeshared: ["granitemoeshared"] {
        names: granitemoeshared::names,
        bits: granite::BITS,
    }
    granite_swa: ["granite_swa"] {
        tied: true,
        bits: granite::BITS,
    }
    granitemoe_swa: ["granitemoe_swa"] {
        names: granitemoe_swa::names,
        bits: granite::BITS,
    }
    hyperclovax: ["hyperclovax"] {
        names: hyperclovax::names,
        bits: granite::BITS,
    }
    flex_olmo: ["flex_olmo"] {
        names: qwen3_moe::names,
    }
    mellum: ["mellum"] {
        names: mellum::names,
        bits: qwen3_moe::BITS,
    }
    gptj: ["gptj"] {
        names: gptj::names,
    }
    gpt_bigcode: ["gpt_bigcode"] {
        names: gpt_bigcode::names,
        tied: true,
    }
    opt: ["opt"] {
        names: opt::names,
        tied: true,
    }
    qwen2_vl: ["qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text"] {
        wrappers: &["qwen2_vl", "qwen2_5_vl"],
        names: qwen2_vl::names,
    }
    qwen3_vl: ["qwen3_vl", "qwen3_vl_text"] {
        wrappers: &["qwen3_vl"],
    }
    qwen3_vl_moe: ["qwen3_vl_moe", "qwen3_vl_moe_text"] {
        wrappers: &["qwen3_vl_moe"],
        names: qwen3_vl_moe::names,
        bits: qwen3_moe::BITS,
    }
    glm4v: ["glm4v", "glm4v_text", "glm46v"] {
        wrappers: &["glm4v", "glm46v"],
        names: glm4::names,
    }
    glm4v_moe: ["glm4v_moe", "glm4v_moe_text"] {
        wrappers: &["glm4v_moe"],
        names: glm4v_moe::names,
        bits: deepseek_v3::BITS,
    }
    exaone: ["exaone"] {
        names: exaone::names,
    }
    internlm2: ["internlm2"] {
        names: internlm2::names,
    }
    minicpm: ["minicpm"] {
        tied: true,
    }
    iquestcoder: ["iquestcoder"] {}
    bamba: ["bamba"] {
        names: bamba::names,
    }
    plamo2: ["plamo2"] {
        names: plamo2::names,
        tied: true,
    }
    plamo3: ["plamo3"] {
        names: plamo3::names,
        tied: true,
    }
    youtu: ["youtu", "youtu_llm"] {
        tied: true,
        bits: deepseek_v3::BITS,
    }
    minicpm3: ["minicpm3"] {
        tied: true,
        bits: deepseek_v3::BITS,
    }
    sarvam_moe: ["sarvam_moe"] {
        names: sarvam_moe::names,
        bits: deepseek_v3::BITS,
    }
    kolibri1: ["kolibri1"] {
        names: kolibri1::names,
        bits: qwen3_moe::BITS,
    }
    mamba: ["mamba", "falcon_mamba"] {
        names: mamba2::names,
        tied: true,
    }
    jamba: ["jamba"] {
        names: jamba::names,
        bits: jamba::BITS,
    }
    nemotron_nas: ["nemotron-nas"] {}
    solar_open: ["solar_open"] {
        names: solar_open::names,
        bits: deepseek_v3::BITS,
    }
    hy_v3: ["hy_v3"] {
        names: hy_v3::names,
        bits: deepseek_v3::BITS,
    }
    exaone_moe: ["exaone_moe"] {
        names: exaone_moe::names,
        bits: deepseek_v3::BITS,
    }
    afmoe: ["afmoe"] {
        names: afmoe::names,
        bits: deepseek_v3::BITS,
    }
    laguna: ["laguna"] {
        names: laguna::names,
        bits: deepseek_v3::BITS,
    }
    cohere2_moe: ["cohere2_moe"] {
        names: cohere2_moe::names,
        bits: deepseek_v3::BITS,
        tied: true,
    }
    mimo_v2_flash: ["mimo_v2_flash", "mimo_v2"] {
        wrappers: &["mimo_v2"],
        names: mimo_v2_flash::names,
        bits: deepseek_v3::BITS,
    }
    muse_glimmer: ["muse_glimmer", "muse_glimmer_text"] {
        wrappers: &["muse_glimmer"],
        names: muse_glimmer::names,
    }
    lfm3: ["lfm3"] {
        names: lfm3::names,
        tied: true,
    }
    step3p5: ["step3p5", "step3p7"] {
        wrappers: &["step3p7"],
        names: step3p5::names,
        bits: deepseek_v3::BITS,
    }
    bailing_moe: ["bailing_moe", "bailing_moe_v2"] {
        names: bailing_moe::names,
        bits: deepseek_v3::BITS,
    }
    bailing_moe_linear: ["bailing_moe_linear"] {
        names: bailing_moe_linear::names,
        bits: deepseek_v3::BITS,
    }
    bailing_hybrid: ["bailing_hybrid"] {
        names: bailing_hybrid::names,
        bits: deepseek_v3::BITS,
    }
    glm5_next: ["glm5_next", "glm5_next_text"] {
        wrappers: &["glm5_next"],
        names: glm5_next::names,
        bits: glm5_next::BITS,
    }
    hy_v4: ["hy_v4"] {
        names: hy_v4::names,
        bits: deepseek_v3::BITS,
    }
    qwen4_exp: ["qwen4_exp", "qwen4_exp_text"] {
        wrappers: &["qwen4_exp"],
        names: qwen4_exp::names,
        bits: qwen4_exp::BITS,
    }
    deepseek_v4: ["deepseek_v4"] {
        names: deepseek_v4::names,
        bits: deepseek_v4::BITS,
    }
    deepseek_v41: ["deepseek_v41", "deepseek_v41_text"] {
        wrappers: &["deepseek_v41"],
        names: deepseek_v41::names,
        bits: deepseek_v4::BITS,
    }
    phi3small: ["phi3small"] {
        tied: true,
        names: phi3small::names,
    }
    baichuan_m1: ["baichuan_m1"] {
        names: baichuan_m1::names,
    }
    longcat_flash: ["longcat_flash"] {
        names: longcat_flash::names,
        bits: longcat_flash::BITS,
    }
    rwkv7: ["rwkv7"] {
        names: rwkv7::names,
        bits: rwkv7::BITS,
    }
}

/// Families of encoders, in the order of messages. Their files are in
/// [`encoders`](crate::encoders).
pub(crate) const ENCODERS: &[Family] = &[
    Family {
        names: bert::names,
        ..Family::new(&["bert", "roberta", "xlm-roberta"], |source| {
            Ok(Box::new(bert::load(source)?))
        })
    },
    Family {
        names: modernbert::names,
        ..Family::new(&["modernbert"], |source| {
            Ok(Box::new(modernbert::load(source)?))
        })
    },
    Family {
        names: nomic_bert::names,
        ..Family::new(&["nomic_bert"], |source| {
            Ok(Box::new(nomic_bert::load(source)?))
        })
    },
    Family {
        names: gte::names,
        ..Family::new(&["gte", "new"], |source| Ok(Box::new(gte::load(source)?)))
    },
];
