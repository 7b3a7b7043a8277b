//! A decoder whose layers have one norm and one mixer each: a recurrence, an attention, or an MLP (Mamba 2, Nemotron H).

use mlx_core::{Error, ErrorKind, Result};
use mlx_nn::{Attention, FeedForward, LayerKind, Module, Norm, Recurrence, Residual, Step, module};

use crate::config::plan::{DecoderConfig, MlpConfig};
use crate::decoders::causal_lm::{CausalLm, DecoderLayer};
use crate::model::{Geometry, LayerGeometry, kv_heads};

/// The mixer of a layer.
#[derive(Clone, Debug)]
pub enum MixerConfig {
    /// Attention over earlier tokens.
    Attention,
    /// The decoder's recurrence.
    Recurrence,
    /// An MLP, which mixes the features of each token.
    Mlp(MlpConfig),
}

#[derive(Clone, Module)]
enum Mixer {
    Attention(Box<Attention>),
    Recurrence(Recurrence),
    Mlp(FeedForward),
}

/// A layer of a [`SingleMixer`].
#[derive(Clone)]
pub struct SingleMixerLayer {
    norm: Norm,
    mixer: Mixer,
}
module!(SingleMixerLayer { norm, mixer });

impl SingleMixerLayer {
    fn new(c: &DecoderConfig, mixer: &MixerConfig) -> Result<Self> {
        let mixer = match mixer {
            MixerConfig::Attention => Mixer::Attention(Box::new(c.attention(None, None)?)),
            MixerConfig::Recurrence => {
                let recurrence = c.recurrence.ok_or_else(|| {
                    let message = "a recurrent layer in a decoder without a recurrence";
                    Error::new(ErrorKind::Invalid, message)
                })?;
                Mixer::Recurrence(Recurrence::empty(recurrence)?)
            }
            MixerConfig::Mlp(mlp) => Mixer::Mlp(c.mlp(mlp)?),
        };
        let norm = c.norm()?;
        Ok(Self { norm, mixer })
    }
}

impl DecoderLayer for SingleMixerLayer {
    fn forward(&self, x: Residual, state: usize, step: &mut Step<'_>) -> Result<Residual> {
        let (x, mut y) = x.normed(&self.norm)?;
        match &self.mixer {
            Mixer::Attention(mixer) => y = mixer.forward(&y, state, step)?,
            Mixer::Recurrence(mixer) => y = mixer.forward(&y, state, step)?,
            Mixer::Mlp(_) => {}
        }
        let [x, mut y] = step.narrow([&x, &y])?;
        if let Mixer::Mlp(mixer) = &self.mixer {
            y = mixer.forward(&y)?;
        }
        Ok(Residual::new(x, y))
    }
}

/// A decoder-only model with one mixer a layer.
pub type SingleMixer = CausalLm<SingleMixerLayer>;

impl SingleMixer {
    /// The decoder of a config, with these mixers as its layers. No layer has a rope. The
    /// parameters have no values.
    ///
    /// # Errors
    /// Sizes do not fit each other.
    pub fn new(config: &DecoderConfig, mixers: &[MixerConfig]) -> Result<Self> {
        let layers = mixers
            .iter()
            .map(|mixer| SingleMixerLayer::new(config, mixer));
        let layers = layers.collect::<Result<_>>()?;
        let mut around = config.surroundings()?;
        let kv = kv_heads(config.attention.kv_heads, config.attention.head_dim);
        let geometry = mixers.iter().map(|mixer| match (mixer, config.recurrence) {
            (MixerConfig::Attention, _) => {
                LayerGeometry::attention(config.attention.heads, kv, LayerKind::Full)
            }
            (MixerConfig::Recurrence, Some(recurrence)) => LayerGeometry {
                states: vec![recurrence.kind()],
                ..LayerGeometry::stateless()
            },
            _ => LayerGeometry::stateless(),
        });
        around.geometry = Geometry::new(config.vocab, config.hidden, geometry.collect())
            .with_positions(config.max_positions, None);
        Self::around(layers, around)
    }
}
