//! [`Mtp`]: a head that predicts one token further ahead, from the features of a position and the
//! token after it (multi-token prediction; DeepSeek-V3, arXiv:2412.19437, §2.2). The head shares
//! the embedding and the output head of its model.

use std::collections::BTreeSet;

use mlx_core::ops::concat;
use mlx_core::{Array, DType, Error, ErrorKind, Result, Safetensors};
use mlx_nn::{
    Checkpoint, KvShape, LayerKind, Linear, Residual, RmsNorm, Rule, Rules, Step, module,
};

use crate::config::plan::{DecoderConfig, MlpConfig};
use crate::config::{Config, Source};
use crate::decoders::causal_lm::{DecoderLayer, Predict};
use crate::decoders::pre_norm::PreNormLayer;
use crate::model::kv_heads;

/// The file to which a head is written.
pub(crate) const FILE: &str = "mtp.safetensors";

/// The prefix of the names of a head's tensors.
pub(crate) const PREFIX: &str = "mtp.";

/// The key of config.json for the number that is added to the stored weights of the head's norms: 0
/// or 1.
pub(crate) const NORM_OFFSET: &str = "mtp_norm_offset";

/// The key of config.json for the features that the head was trained with: those before the model's
/// final norm, or those after it.
pub(crate) const HIDDEN: &str = "mtp_hidden";

/// A head for multi-token prediction: a norm for each of its two inputs, a projection that joins
/// them, layers with attention, and a final norm.
#[derive(Clone)]
pub struct Mtp {
    fc: Linear,
    pre_fc_norm_embedding: RmsNorm,
    pre_fc_norm_hidden: RmsNorm,
    layers: Vec<PreNormLayer>,
    norm: RmsNorm,
    kv: KvShape,
    reads_before_norm: bool,
}
module!(Mtp { fc, pre_fc_norm_embedding, pre_fc_norm_hidden, layers, norm } plain { kv, reads_before_norm });

impl Mtp {
    /// The head of a checkpoint that has tensors of one, or of an initialised model whose config
    /// has one. Its parameters have no values.
    ///
    /// # Errors
    /// The config describes a head of another form, or its sizes do not fit.
    pub(crate) fn of(source: &Source<'_>, config: &DecoderConfig) -> Result<Option<Self>> {
        let c = source.config;
        let keys = [
            "mtp_num_hidden_layers",
            "num_nextn_predict_layers",
            "mtp_use_dedicated_embeddings",
            NORM_OFFSET,
            HIDDEN,
        ];
        c.ignore(&keys);
        let is_initialised = source.tensors.names().next().is_none();
        let is_wanted = is_initialised && c.opt::<i32>(keys[0])?.is_some_and(|layers| layers > 0);
        if !source.has(PREFIX) && !is_wanted {
            return Ok(None);
        }
        if c.or(keys[2], false)? {
            return Err(c.unsupported(
                "mtp_use_dedicated_embeddings is not supported: the head must share the model's embedding",
            ));
        }
        let reads_before_norm = match c.opt::<String>(HIDDEN)?.as_deref() {
            None | Some("post_norm") => false,
            Some("pre_norm") => true,
            Some(other) => {
                return Err(c.unsupported(format!(
                    "{HIDDEN} {other:?} is not supported; known: post_norm, pre_norm"
                )));
            }
        };
        let key = keys.into_iter().take(2).find(|key| c.value(key).is_some());
        let n = c.size(key.unwrap_or(keys[0]), Some(1))?;
        // The names of the tensors decide whether the head has experts.
        let experts = source.has("mtp.layers.0.mlp.switch_mlp.");
        let fits = |mlp: &&MlpConfig| matches!(mlp, MlpConfig::Experts(_)) == experts;
        let mlp = config
            .feed_forward
            .iter()
            .find(fits)
            .unwrap_or(&config.feed_forward[0]);
        let rope = config.ropes[0].as_ref();
        let layer = |_| PreNormLayer::with(config, LayerKind::Full, mlp, rope);
        let norm = || RmsNorm::empty(config.hidden, config.norm.eps);
        Ok(Some(Self {
            fc: Linear::empty(2 * config.hidden, config.hidden, false)?,
            pre_fc_norm_embedding: norm()?,
            pre_fc_norm_hidden: norm()?,
            layers: (0..n).map(layer).collect::<Result<_>>()?,
            norm: norm()?,
            kv: kv_heads(config.attention.kv_heads, config.attention.head_dim),
            reads_before_norm,
        }))
    }
}

/// Rules that rename the tensors of a head to `mtp.*`. A file may have any prefix before `mtp.`. If
/// it holds only a head, its names may lack `mtp.`.
///
/// # Errors
/// A prefix contains `*` or `#`, which have a meaning in rules.
pub(crate) fn renames(file: &Safetensors) -> Result<Rules> {
    // The name of a tensor that every head has, and no other module.
    const MARK: &str = "pre_fc_norm_hidden.weight";
    let mut prefixes = BTreeSet::new();
    for name in file.names() {
        let place = name
            .rfind(PREFIX)
            .filter(|&at| at == 0 || name[..at].ends_with('.'));
        match (place, name.strip_suffix(MARK)) {
            (Some(0), _) => {}
            (Some(at), _) => {
                prefixes.insert((&name[..at], PREFIX));
            }
            (None, Some(prefix)) => {
                prefixes.insert((prefix, ""));
            }
            (None, None) => {}
        }
    }
    let rule = |(prefix, rest): (&str, &str)| {
        if prefix.contains(['*', '#']) {
            let message = format!("{prefix:?} is no prefix of tensors");
            return Err(Error::new(ErrorKind::Format, message));
        }
        let (from, to) = (format!("{prefix}{rest}*"), format!("{PREFIX}*"));
        Ok(Rule::rename(&from, &to))
    };
    prefixes
        .into_iter()
        .map(rule)
        .collect::<Result<Vec<_>>>()
        .map(Rules::from)
}

impl Predict for Mtp {
    /// If the head has several layers, each predicts a further token. This version does not support
    /// drafts of such a head.
    fn kv(&self) -> Option<(LayerKind, KvShape)> {
        (self.layers.len() == 1).then_some((LayerKind::Full, self.kv))
    }

    fn reads_before_norm(&self) -> bool {
        self.reads_before_norm
    }

    fn forward(
        &self,
        embedded: &Array,
        before: &Array,
        state: usize,
        step: &mut Step<'_>,
    ) -> Result<Array> {
        let embedded = self.pre_fc_norm_embedding.forward(embedded)?;
        let before = self.pre_fc_norm_hidden.forward(before)?;
        let mut x = Residual::from(self.fc.forward(&concat(&[embedded, before], -1)?)?);
        for layer in &self.layers {
            x = layer.forward(x, state, step)?;
        }
        let (_, normed) = x.rms_normed(&self.norm)?;
        Ok(normed)
    }
}

/// The number that is added to the stored weights of the head's norms. A head may come from another
/// file than its model, so the form of the model's norms does not decide it. If config.json has no
/// [`NORM_OFFSET`], the stored numbers decide: weights are near 1, or near 0 if they are stored as
/// `weight - 1`.
///
/// # Errors
/// The stored numbers are near neither.
pub(crate) fn norm_offset(c: &Config, tensors: &Checkpoint) -> Result<f32> {
    match c.opt::<f64>(NORM_OFFSET)? {
        Some(0.0) => return Ok(0.0),
        Some(1.0) => return Ok(1.0),
        Some(other) => return Err(c.error(format!("{NORM_OFFSET} must be 0 or 1, found {other}"))),
        None => {}
    }
    let is_norm = |name: &&str| name.starts_with(PREFIX) && name.contains("norm");
    let mut means = Vec::new();
    for name in tensors.names().filter(is_norm) {
        let Some(weight) = tensors.array(name)? else {
            continue;
        };
        if weight.dtype().is_float() && weight.size() > 0 {
            let mean = weight.astype(DType::F32)?.mean(.., false)?;
            means.push(mean.item::<f32>()?);
        }
    }
    means.sort_by(f32::total_cmp);
    let Some(&mean) = means.get(means.len() / 2) else {
        return Ok(0.0);
    };
    const NEAR: f32 = 0.3;
    if mean.abs() < NEAR {
        Ok(1.0)
    } else if (mean - 1.0).abs() < NEAR {
        Ok(0.0)
    } else {
        Err(c.error(format!(
            "the norms of the mtp head have a mean weight of {mean:.2}, which is neither near 0 nor near 1; set \
             {NORM_OFFSET} to 1 if they are stored less 1, to 0 if not"
        )))
    }
}
